package hdfs

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strconv"
	"time"
)

// Source reads. Its methods may be called from many goroutines at once.
type Source interface {
	// Stat describes one file or directory; ErrNotExist if there is none.
	Stat(ctx context.Context, path string) (Info, error)

	// List returns the direct entries of a directory, sorted by path bytes.
	// ErrNotDirectory for a file. The slice is the caller's.
	List(ctx context.Context, path string) ([]Info, error)

	// Open reads length bytes from offset on; a negative length means to the
	// end, and a range past the end is cut there. ErrIsDirectory for a
	// directory, ErrInvalid for a negative offset. ctx bounds the life of the
	// reader, not just of the call. Reading fails with ErrBlockMissing (a
	// *BlockMissingError) where no replica can be read, and with ErrChanged
	// where the file was replaced underneath.
	Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error)

	// Locations tells which blocks overlap the range and where their replicas
	// lie, in the order of the file. Ranges are as in Open. A block without
	// replicas is a fact, not an error: see Layout.Err.
	Locations(ctx context.Context, path string, offset, length int64) (Layout, error)
}

// Sink changes. Its methods may be called from many goroutines at once; what
// they did is visible to the next call of anybody.
type Sink interface {
	// Create starts a new file in a directory that exists. ErrExist if there
	// is something of that name (with Overwrite: if it is a directory),
	// ErrNotExist if the parent is missing. ctx bounds the life of the writer.
	Create(ctx context.Context, path string, options CreateOptions) (Writer, error)

	// Mkdir makes a directory and its missing parents. Directories that exist
	// already are no error; ErrExist if the path is a file, ErrNotDirectory if
	// one of its parents is.
	Mkdir(ctx context.Context, path string) error

	// Rename moves a file or directory to a name that nothing has: ErrExist if
	// something is there, also an empty directory, and then nothing changed.
	// ErrNotExist if the source or the parent of the target is missing. Atomic.
	Rename(ctx context.Context, from, to string) error

	// Delete removes a file, or a directory with all that is in it. That
	// nothing was there is no error, so it is safe to repeat. The root is
	// ErrInvalid.
	Delete(ctx context.Context, path string) error
}

// FS is all that Drover asks of a file system.
type FS interface {
	Source
	Sink
}

// Writer takes the bytes of one new file. It is used by one goroutine.
type Writer interface {
	io.Writer

	// Commit sends what is buffered and completes the file: when it returns
	// nil, the file has its full length and survives the loss of this process.
	// After an error the file is unfinished; call Abort.
	Commit() error

	// Abort gives the file up and removes what was written of it. It works
	// after the context of Create has ended, within a limit of its own. After
	// Commit, or a second time, it does nothing.
	Abort() error
}

// CreateOptions says how a new file is stored. The zero value takes the
// defaults of the file system.
type CreateOptions struct {
	// Replication is the number of replicas of each block; 0 is the default.
	Replication int
	// BlockSizeBytes is the block size, a multiple of 512; 0 is the default.
	BlockSizeBytes int64
	// Overwrite replaces a file (never a directory) of that name.
	Overwrite bool
	// Sync asks the machines that store the file to have it on disk, not just
	// in their page cache, before Commit returns.
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
	BlockSizeBytes int64       // of new blocks; 0 for directories
}

// Same reports whether two descriptions are of one unchanged file: same
// identity, length and modification time.
func (i Info) Same(j Info) bool {
	return i.ID == j.ID && i.LengthBytes == j.LengthBytes && i.ModTime.Equal(j.ModTime) && i.Dir == j.Dir
}

// Replica is one place where a block can be read.
type Replica struct {
	IP   string // address that the DataNode is registered under
	Host string // name that it gave itself
	Port int    // of the data transfer protocol
	Rack string // network location, such as /dc1/r2
}

// Addr is the address to dial for data: IP and port.
func (r Replica) Addr() string { return net.JoinHostPort(r.IP, strconv.Itoa(r.Port)) }

// Block is a run of bytes of a file that lies in one piece on each replica.
type Block struct {
	ID          uint64
	OffsetBytes int64 // in the file
	LengthBytes int64
	Replicas    []Replica // nearest to the asking machine first
	Corrupt     bool      // every replica is known to be damaged
}

// Layout is where a range of a file lies. Blocks are whole, also where the
// range begins or ends within one.
type Layout struct {
	Path              string
	FileLengthBytes   int64
	UnderConstruction bool // somebody is writing it
	Blocks            []Block
}

// Err is a *BlockMissingError for the first block that nobody can read now, or
// nil. A NameNode that has just started knows replicas only after the
// DataNodes' reports, so the caller may ask again for a while.
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

// CutRange is for implementers: it turns the offset and length of a request
// into [from, to) within a file, or ErrInvalid for a negative offset.
func CutRange(offset, length, fileLength int64) (from, to int64, err error) {
	if offset < 0 {
		return 0, 0, fmt.Errorf("%w: negative offset %d", ErrInvalid, offset)
	}
	from = min(offset, fileLength)
	if length < 0 || length > fileLength-from {
		return from, fileLength, nil
	}
	return from, from + length, nil
}
