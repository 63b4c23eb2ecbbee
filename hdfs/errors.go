package hdfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// The error classes. Every error of an FS, except those of the caller's context,
// matches one of them in errors.Is. The first three are those of io/fs.
var (
	ErrNotExist   = fs.ErrNotExist
	ErrExist      = fs.ErrExist
	ErrPermission = fs.ErrPermission

	ErrInvalid      = errors.New("invalid argument")
	ErrIsDirectory  = errors.New("is a directory")
	ErrNotDirectory = errors.New("not a directory")
	ErrQuota        = errors.New("quota exceeded")
	ErrUnsupported  = errors.New("not supported")
	ErrChanged      = errors.New("file changed while in use")
	ErrRefused      = errors.New("refused") // for a reason that the text names and no other class covers

	// ErrUnavailable: the file system cannot answer now; the same request may
	// succeed later. ErrSafeMode and ErrStandby match it.
	ErrUnavailable = errors.New("file system unavailable")
	ErrSafeMode    = unavailableError("NameNode is in safe mode")
	ErrStandby     = unavailableError("NameNode is in standby")

	// ErrBlockMissing: no replica of a block can be read. errors.As with a
	// *BlockMissingError returns the block.
	ErrBlockMissing = errors.New("block missing")

	// ErrProtocol: the server sent malformed data.
	ErrProtocol = errors.New("malformed answer")
)

// unavailableError is a specific reason that matches ErrUnavailable.
type unavailableError string

func (e unavailableError) Error() string        { return string(e) }
func (e unavailableError) Is(target error) bool { return target == ErrUnavailable }

// Retryable reports whether the same request, unchanged, may succeed later.
func Retryable(err error) bool { return errors.Is(err, ErrUnavailable) }

// BlockMissingError names a block of a file that no DataNode can serve.
type BlockMissingError struct {
	Path        string
	BlockID     uint64
	OffsetBytes int64 // offset of the block in the file
	LengthBytes int64
	Corrupt     bool    // all replicas are known to be damaged
	Causes      []error // error of each replica that was tried; at most a few
}

func (e *BlockMissingError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: block %d (bytes %d to %d) ", e.Path, e.BlockID, e.OffsetBytes, e.OffsetBytes+e.LengthBytes)
	switch {
	case e.Corrupt:
		b.WriteString("is damaged on all its DataNodes")
	case len(e.Causes) == 0:
		b.WriteString("has no live DataNode")
	default:
		b.WriteString("cannot be read from any DataNode: ")
		for i, cause := range e.Causes {
			if i > 0 {
				b.WriteString("; ")
			}
			b.WriteString(cause.Error())
		}
	}
	b.WriteString("; start the DataNodes that hold it, or restore the file")
	return b.String()
}

// Is reports whether target is ErrBlockMissing.
func (e *BlockMissingError) Is(target error) bool { return target == ErrBlockMissing }

// Unwrap returns the errors of the replicas.
func (e *BlockMissingError) Unwrap() []error { return e.Causes }
