package hdfs

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"time"
)

// Source reads. Its methods may be called concurrently.
type Source interface {
	// Stat returns a file or directory; ErrNotExist if there is none.
	Stat(ctx context.Context, path string) (Info, error)

	// List returns the direct entries of a directory, sorted by path bytes. The
	// caller owns the slice. ErrNotDirectory for a file.
	List(ctx context.Context, path string) ([]Info, error)

	// Open reads length bytes from offset. A negative length means to the end; a
	// range past the end is clamped. ErrIsDirectory for a directory, ErrInvalid
	// for a negative offset. ctx bounds the life of the reader, not only of the
	// call. Reading fails with ErrBlockMissing (a *BlockMissingError) if no
	// replica can be read, and with ErrChanged if the file was replaced meanwhile.
	Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error)

	// Locations returns the blocks that overlap the range and the places of their
	// replicas, in the order of the file. Ranges are as in Open. A block without
	// replicas is part of the result, not an error: see Layout.Err.
	Locations(ctx context.Context, path string, offset, length int64) (Layout, error)
}

// Sink writes. Its methods may be called concurrently; their effects are visible
// to every later call.
type Sink interface {
	// Create starts a new file in an existing directory. ErrExist if the name is
	// taken (with Overwrite: if it is a directory), ErrNotExist if the parent is
	// missing. ctx bounds the life of the writer.
	Create(ctx context.Context, path string, options CreateOptions) (Writer, error)

	// Mkdir creates a directory and its missing parents. An existing directory is
	// no error. ErrExist if the path is a file, ErrNotDirectory if one of its
	// parents is a file.
	Mkdir(ctx context.Context, path string) error

	// Rename moves a file or directory to a free name, atomically. ErrExist if the
	// name is taken, even by an empty directory; then nothing changes. ErrNotExist
	// if the source or the parent of the target is missing.
	Rename(ctx context.Context, from, to string) error

	// Delete removes a file, or a directory with its content. A missing path is no
	// error, so Delete may be repeated. ErrInvalid for the root.
	Delete(ctx context.Context, path string) error
}

// Linker is a Sink that can give a file of this machine a second name, so that its bytes need not
// be copied.
type Linker interface {
	// Link creates a file whose content is that of an open regular file, as Create, Write and
	// Commit would. Afterwards both names denote one file: the caller must not change it, and its
	// permissions may differ from before. ErrUnsupported if the caller must copy. After any error,
	// no new file remains.
	Link(ctx context.Context, file *os.File, path string, options CreateOptions) error
}

// Forgetter is a Source that caches block locations.
type Forgetter interface {
	// Forget drops the cached locations of a file, so that the next request reads new ones. No I/O,
	// O(1).
	Forget(path string)
}

// FS is a complete file system.
type FS interface {
	Source
	Sink
}

// Writer writes one new file. It is for one goroutine.
type Writer interface {
	io.Writer

	// Commit sends the buffered bytes and completes the file: if it returns nil,
	// the file has its full length and survives the loss of this process. After an
	// error the file is unfinished; call Abort.
	Commit() error

	// Abort removes the unfinished file. It also works after the context of Create
	// has ended, within a time limit of its own. After Commit or Abort it does
	// nothing.
	Abort() error
}

// CreateOptions configures a new file. The zero value takes the defaults of the
// file system.
type CreateOptions struct {
	// Replication is the number of replicas of each block; 0: the default.
	Replication int
	// BlockSizeBytes is the block size, a multiple of 512; 0: the default.
	BlockSizeBytes int64
	// Overwrite replaces a file (never a directory) of that name.
	Overwrite bool
	// Sync makes Commit return only after the machines that store the file have
	// written it to disk, not only to their page cache.
	Sync bool
}

// Info describes a file or directory.
type Info struct {
	Path           string // absolute, clean
	Dir            bool
	LengthBytes    int64 // 0 for directories
	ModTime        time.Time
	ID             uint64 // changes when the path is replaced by another file; 0 if unknown
	Owner, Group   string
	Perm           fs.FileMode // permission bits only
	Replication    int         // 0 for directories
	BlockSizeBytes int64       // for new blocks; 0 for directories
	Unreadable     string      // why the entry can be read neither as a file nor as a directory; "" if it can
}

// SameVersion reports whether i and j describe the same unchanged file: same
// identity, length and modification time.
func (i Info) SameVersion(j Info) bool {
	return i.ID == j.ID && i.LengthBytes == j.LengthBytes && i.ModTime.Equal(j.ModTime) && i.Dir == j.Dir
}

// Replica is a copy of a block on one DataNode.
type Replica struct {
	IP   string // address that the DataNode is registered under
	Host string // host name that it registered
	Port int    // port of the data transfer protocol
	Rack string // network location, such as /dc1/r2
}

// Addr returns the address of the data transfer protocol, IP:port.
func (r Replica) Addr() string { return net.JoinHostPort(r.IP, strconv.Itoa(r.Port)) }

// Block is a contiguous range of a file, stored as a unit on each replica.
type Block struct {
	ID          uint64
	OffsetBytes int64 // offset in the file
	LengthBytes int64
	Replicas    []Replica // nearest to the requesting machine first
	Corrupt     bool      // every replica is known to be damaged
}

// Layout holds the blocks of a range of a file. Blocks are whole, even if the
// range begins or ends within one.
type Layout struct {
	Path              string
	FileLengthBytes   int64
	UnderConstruction bool // a writer has the file open
	Blocks            []Block
}

// Err returns a *BlockMissingError for the first block that cannot be read now, or
// nil. After its start a NameNode knows replicas only once DataNodes have
// reported, so the caller may retry for a while.
func (l Layout) Err() error {
	for i := range l.Blocks {
		b := &l.Blocks[i]
		if len(b.Replicas) == 0 || b.Corrupt {
			return &BlockMissingError{Path: l.Path, BlockID: b.ID, OffsetBytes: b.OffsetBytes,
				LengthBytes: b.LengthBytes, Corrupt: b.Corrupt}
		}
	}
	return nil
}

// ClampRange is for implementations of Source: it converts the offset and length
// of a request to [from, to) within the file; ErrInvalid for a negative offset.
func ClampRange(offset, length, fileLength int64) (from, to int64, err error) {
	if offset < 0 {
		return 0, 0, fmt.Errorf("%w: negative offset %d", ErrInvalid, offset)
	}
	from = min(offset, fileLength)
	if length < 0 || length > fileLength-from {
		return from, fileLength, nil
	}
	return from, from + length, nil
}
