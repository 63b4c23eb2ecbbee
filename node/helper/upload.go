package helper

import (
	"context"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"path"
	"syscall"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/fsys"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// runUpload writes the file to its URI and compares length and checksum with what
// the harness reported.
func runUpload(ctx context.Context, r *Request, t Tools) error {
	u := r.Upload
	fs, uri, err := openFS(t.Files, u.URI, r.User)
	if err != nil {
		return err
	}
	if err := makeParent(ctx, fs, uri.Path); err != nil {
		return fsys.Classed(err)
	}
	sum := crc32.New(castagnoli)
	options := hdfs.CreateOptions{Replication: u.Replication, Overwrite: true}
	n, err := linkOutput(ctx, fs, uri.Path, options, u, sum)
	if errors.Is(err, hdfs.ErrUnsupported) {
		n, err = hdfs.Upload(ctx, fs, uri.Path, hdfs.UploadOptions{
			CreateOptions: options,
			OnRetry:       func(_ int, err error) { t.Emit(Event{Total: u.Bytes, Waiting: err.Error()}) },
		}, func() (io.ReadCloser, error) { return openChecksummed(u, sum) })
	}
	if err != nil {
		return fsys.Classed(err)
	}
	if n != u.Bytes || sum.Sum32() != u.CRC32C {
		return fault.New(fault.Corrupt, "%s: %d bytes with CRC-32C %08x were read for %s, the task wrote %d with %08x: the file was changed afterwards",
			u.Name, n, sum.Sum32(), u.URI, u.Bytes, u.CRC32C)
	}
	t.Emit(Event{Bytes: n, Total: u.Bytes})
	return nil
}

// linkOutput links the file to its name in the result, if both are on one file system of this
// machine, and reads it for its checksum. ErrUnsupported: it must be copied.
func linkOutput(ctx context.Context, fs hdfs.FS, name string, options hdfs.CreateOptions, u *Upload, sum hash.Hash32) (int64, error) {
	l, ok := fs.(hdfs.Linker)
	if !ok {
		return 0, hdfs.ErrUnsupported
	}
	f, err := openChecksummed(u, sum)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := l.Link(ctx, f.File, name, options); err != nil {
		return 0, err
	}
	return io.CopyBuffer(contextWriter{ctx}, struct{ io.Reader }{f}, make([]byte, max(1, min(256<<10, u.Bytes))))
}

// contextWriter discards what is written, until its context ends.
type contextWriter struct{ ctx context.Context }

func (w contextWriter) Write(p []byte) (int, error) { return len(p), context.Cause(w.ctx) }

// makeParent makes the folder of this attempt, but not the job's temporary folder above it: if that
// is gone, the job has ended, and a late attempt must leave nothing behind.
func makeParent(ctx context.Context, fs hdfs.FS, name string) error {
	parent := path.Dir(name)
	_, err := fs.Stat(ctx, parent)
	if !errors.Is(err, hdfs.ErrNotExist) {
		return err
	}
	if _, err := fs.Stat(ctx, path.Dir(parent)); errors.Is(err, hdfs.ErrNotExist) {
		return fault.New(fault.Invalid, "%s, the folder of the job's unfinished output, is gone: somebody removed it while the job ran, or the coordinator was restored from an archive that is older than the job's end; "+
			"unless the output is in place, stop the job and submit it again", path.Dir(parent))
	} else if err != nil {
		return err
	}
	return fs.Mkdir(ctx, parent)
}

type checksummedFile struct {
	io.Reader
	*os.File
}

func (s checksummedFile) Read(p []byte) (int, error) { return s.Reader.Read(p) }

// openChecksummed opens the file that the task wrote, in a folder that the tenant
// controls: links cannot lead out of it and a pipe cannot block.
func openChecksummed(u *Upload, sum hash.Hash32) (*checksummedFile, error) {
	root, err := os.OpenRoot(u.Root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(u.Name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fault.New(fault.Invalid, "%s is not a regular file any more", u.Name), err, f.Close())
	}
	sum.Reset()
	return &checksummedFile{io.TeeReader(f, sum), f}, nil
}
