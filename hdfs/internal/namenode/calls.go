package namenode

import (
	"context"
	"fmt"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// Protocol is the interface that the methods belong to.
const Protocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// Caller carries a request message to a method; rpc.Client is one.
type Caller interface {
	Call(ctx context.Context, method string, request []byte) ([]byte, error)
}

// GetFileInfo describes a path; ErrNotExist if there is none.
func GetFileInfo(ctx context.Context, c Caller, path string) (Status, error) {
	b, err := c.Call(ctx, "getFileInfo", wire.Message(nil).String(1, path))
	if err != nil {
		return Status{}, err
	}
	return soleStatus("getFileInfo response", b)
}

// soleStatus takes a response made of one optional HdfsFileStatusProto.
func soleStatus(name string, b []byte) (Status, error) {
	inner, err := only(name, 1, b)
	if err != nil {
		return Status{}, err
	}
	if inner == nil {
		return Status{}, hdfs.ErrNotExist
	}
	return decodeStatus(inner)
}

// GetListing gives one batch of a directory's entries after a name, in the
// order of their name bytes, and how many are left.
func GetListing(ctx context.Context, c Caller, path, after string) (entries []Status, remaining uint64, err error) {
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

// GetBlockLocations tells where the blocks that overlap a range of a file are.
func GetBlockLocations(ctx context.Context, c Caller, path string, offset, length int64) (*Located, error) {
	b, err := c.Call(ctx, "getBlockLocations", wire.Message(nil).String(1, path).Uint(2, uint64(offset)).Uint(3, uint64(length)))
	if err != nil {
		return nil, err
	}
	located, err := decodeLocated(b)
	if err == nil && located == nil {
		err = hdfs.ErrNotExist
	}
	return located, err
}

// GetServerDefaults asks how new files are stored.
func GetServerDefaults(ctx context.Context, c Caller) (Defaults, error) {
	b, err := c.Call(ctx, "getServerDefaults", nil)
	if err != nil {
		return Defaults{}, err
	}
	return decodeDefaults(b)
}

// Rename moves without overwriting (rename2).
func Rename(ctx context.Context, c Caller, from, to string) error {
	_, err := c.Call(ctx, "rename2", wire.Message(nil).String(1, from).String(2, to).Bool(3, false))
	return err
}

// Delete removes recursively; false means that there was nothing.
func Delete(ctx context.Context, c Caller, path string) (bool, error) {
	b, err := c.Call(ctx, "delete", wire.Message(nil).String(1, path).Bool(2, true))
	if err != nil {
		return false, err
	}
	return result("delete response", b)
}

// permission is FsPermissionProto.
func permission(perm uint64) []byte { return wire.Message(nil).Uint(1, perm) }

// Mkdirs makes a directory and its parents.
func Mkdirs(ctx context.Context, c Caller, path string, perm uint64) error {
	b, err := c.Call(ctx, "mkdirs", wire.Message(nil).String(1, path).Bytes(2, permission(perm)).Bool(3, true))
	if err != nil {
		return err
	}
	ok, err := result("mkdirs response", b)
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

// NewFile is what create takes.
type NewFile struct {
	Path, ClientName string
	Perm             uint64
	Overwrite        bool
	Replication      int
	BlockSize        int64
}

// Create starts a file and takes its lease for the client name. The parent must
// exist.
func Create(ctx context.Context, c Caller, file NewFile) (Status, error) {
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
		return Status{}, err
	}
	return soleStatus("create response", b)
}

// Lease names a file that is being written and its writer.
type Lease struct {
	Path, ClientName string
	FileID           uint64
}

// AddBlock finishes the previous block (nil for the first one), whose length
// must be set, and gives the next one. exclude holds DatanodeInfoProto messages
// of nodes that must not be in its pipeline.
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
	inner, err := only("addBlock response", 1, b)
	if err != nil {
		return LocatedBlock{}, err
	}
	located, err := decodeLocatedBlock(inner)
	if err == nil && len(located.Replicas) == 0 {
		err = fmt.Errorf("%w: addBlock gave no DataNode", hdfs.ErrUnavailable)
	}
	return located, err
}

// AbandonBlock gives back a block whose pipeline could not be set up.
func AbandonBlock(ctx context.Context, c Caller, lease Lease, block ExtendedBlock) error {
	_, err := c.Call(ctx, "abandonBlock", wire.Message(nil).
		Bytes(1, block.Encode()).String(2, lease.Path).String(3, lease.ClientName).Uint(4, lease.FileID))
	return err
}

// Complete ends a file. false means that its last block has too few replicas
// reported yet: ask again.
func Complete(ctx context.Context, c Caller, lease Lease, last *ExtendedBlock) (bool, error) {
	m := wire.Message(nil).String(1, lease.Path).String(2, lease.ClientName)
	if last != nil {
		m = m.Bytes(3, last.Encode())
	}
	b, err := c.Call(ctx, "complete", m.Uint(4, lease.FileID))
	if err != nil {
		return false, err
	}
	return result("complete response", b)
}

// RenewLease keeps all files that a client name writes open.
func RenewLease(ctx context.Context, c Caller, clientName string) error {
	_, err := c.Call(ctx, "renewLease", wire.Message(nil).String(1, clientName))
	return err
}
