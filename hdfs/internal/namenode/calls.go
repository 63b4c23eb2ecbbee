package namenode

import (
	"context"
	"fmt"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// Protocol is the Java interface of the methods.
const Protocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// Caller sends a request message to a method; rpc.Client implements it.
type Caller interface {
	Call(ctx context.Context, method string, request []byte) ([]byte, error)
}

// GetFileInfo returns the status of a path; ErrNotExist if there is none.
func GetFileInfo(ctx context.Context, c Caller, path string) (FileStatus, error) {
	b, err := c.Call(ctx, "getFileInfo", wire.Message(nil).String(1, path))
	if err != nil {
		return FileStatus{}, err
	}
	return decodeSoleStatus("getFileInfo response", b)
}

// decodeSoleStatus decodes a response with one optional HdfsFileStatusProto.
func decodeSoleStatus(name string, b []byte) (FileStatus, error) {
	inner, err := soleSubmessage(name, b)
	if err != nil {
		return FileStatus{}, err
	}
	if inner == nil {
		return FileStatus{}, hdfs.ErrNotExist
	}
	return decodeFileStatus(inner)
}

// GetListing returns one batch of a directory's entries after a name, and how many
// remain. The NameNode orders names by signed bytes: those that begin with a
// character outside of ASCII come first.
func GetListing(ctx context.Context, c Caller, path, after string) (entries []FileStatus, remaining uint64, err error) {
	b, err := c.Call(ctx, "getListing", wire.Message(nil).String(1, path).String(2, after).Bool(3, false))
	if err != nil {
		return nil, 0, err
	}
	entries, remaining, found, err := decodeListing(b)
	if err == nil && !found {
		err = hdfs.ErrNotExist
	}
	return entries, remaining, err
}

// GetBlockLocations returns the blocks that overlap a range of a file.
func GetBlockLocations(ctx context.Context, c Caller, path string, offset, length int64) (*BlockLocations, error) {
	b, err := c.Call(ctx, "getBlockLocations", wire.Message(nil).String(1, path).Uint(2, uint64(offset)).Uint(3, uint64(length)))
	if err != nil {
		return nil, err
	}
	located, err := decodeBlockLocations(b)
	if err == nil && located == nil {
		err = hdfs.ErrNotExist
	}
	return located, err
}

// GetServerDefaults returns the defaults for new files.
func GetServerDefaults(ctx context.Context, c Caller) (ServerDefaults, error) {
	b, err := c.Call(ctx, "getServerDefaults", nil)
	if err != nil {
		return ServerDefaults{}, err
	}
	return decodeDefaults(b)
}

// Rename moves without overwriting (rename2).
func Rename(ctx context.Context, c Caller, from, to string) error {
	_, err := c.Call(ctx, "rename2", wire.Message(nil).String(1, from).String(2, to).Bool(3, false))
	return err
}

// Delete removes recursively; it returns false if there was nothing.
func Delete(ctx context.Context, c Caller, path string) (bool, error) {
	b, err := c.Call(ctx, "delete", wire.Message(nil).String(1, path).Bool(2, true))
	if err != nil {
		return false, err
	}
	return decodeBool("delete response", b)
}

// permission encodes FsPermissionProto.
func permission(perm uint64) []byte { return wire.Message(nil).Uint(1, perm) }

// Mkdirs creates a directory and its parents.
func Mkdirs(ctx context.Context, c Caller, path string, perm uint64) error {
	b, err := c.Call(ctx, "mkdirs", wire.Message(nil).String(1, path).Bytes(2, permission(perm)).Bool(3, true))
	if err != nil {
		return err
	}
	ok, err := decodeBool("mkdirs response", b)
	if err == nil && !ok {
		err = fmt.Errorf("%w: mkdirs answered no", hdfs.ErrUnavailable)
	}
	return err
}

// CreateFlags of a new file.
const (
	flagCreate    = 0x01
	flagOverwrite = 0x02
)

// CreateRequest is the request of Create.
type CreateRequest struct {
	Path, ClientName string
	Perm             uint64
	Overwrite        bool
	Replication      int
	BlockSize        int64
}

// Create starts a file and acquires its lease for the client name. The parent must
// exist.
func Create(ctx context.Context, c Caller, file CreateRequest) (FileStatus, error) {
	flags := uint64(flagCreate)
	if file.Overwrite {
		flags |= flagOverwrite
	}
	b, err := c.Call(ctx, "create", wire.Message(nil).
		String(1, file.Path).
		Bytes(2, permission(file.Perm)).
		String(3, file.ClientName).
		Uint(4, flags).
		Bool(5, false). // createParent
		Uint(6, uint64(file.Replication)).
		Uint(7, uint64(file.BlockSize)))
	if err != nil {
		return FileStatus{}, err
	}
	return decodeSoleStatus("create response", b)
}

// Lease identifies a file that is being written and its writer.
type Lease struct {
	Path, ClientName string
	FileID           uint64
}

// AddBlock finishes the previous block (nil for the first one), whose length must be
// set, and returns the next one. exclude holds the DatanodeInfoProto messages of
// nodes that must not be in its pipeline.
func AddBlock(ctx context.Context, c Caller, lease Lease, previous *ExtendedBlock, exclude [][]byte) (LocatedBlock, error) {
	m := wire.Message(nil).String(1, lease.Path).String(2, lease.ClientName)
	if previous != nil {
		m = m.Bytes(3, previous.Encode())
	}
	for _, node := range exclude {
		m = m.Bytes(4, node)
	}
	b, err := c.Call(ctx, "addBlock", m.Uint(5, lease.FileID))
	if err != nil {
		return LocatedBlock{}, err
	}
	inner, err := soleSubmessage("addBlock response", b)
	if err != nil {
		return LocatedBlock{}, err
	}
	located, err := decodeLocatedBlock(inner)
	if err == nil && len(located.Replicas) == 0 {
		err = fmt.Errorf("%w: addBlock returned no DataNode", hdfs.ErrUnavailable)
	}
	return located, err
}

// AbandonBlock returns a block whose pipeline could not be opened.
func AbandonBlock(ctx context.Context, c Caller, lease Lease, block ExtendedBlock) error {
	_, err := c.Call(ctx, "abandonBlock", wire.Message(nil).
		Bytes(1, block.Encode()).String(2, lease.Path).String(3, lease.ClientName).Uint(4, lease.FileID))
	return err
}

// Complete finishes a file. It returns false if too few replicas of the last block
// have been reported yet; the caller retries.
func Complete(ctx context.Context, c Caller, lease Lease, last *ExtendedBlock) (bool, error) {
	m := wire.Message(nil).String(1, lease.Path).String(2, lease.ClientName)
	if last != nil {
		m = m.Bytes(3, last.Encode())
	}
	b, err := c.Call(ctx, "complete", m.Uint(4, lease.FileID))
	if err != nil {
		return false, err
	}
	return decodeBool("complete response", b)
}

// RenewLease renews the lease of all files that a client name is writing.
func RenewLease(ctx context.Context, c Caller, clientName string) error {
	_, err := c.Call(ctx, "renewLease", wire.Message(nil).String(1, clientName))
	return err
}
