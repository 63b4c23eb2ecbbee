package localfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/drover-run/drover/hdfs"
	"golang.org/x/sys/unix"
)

// Create implements hdfs.Sink. It ignores replication and block size.
func (f *FS) Create(ctx context.Context, name string, options hdfs.CreateOptions) (hdfs.Writer, error) {
	name, err := beginCall(ctx, "create", name)
	if err != nil {
		return nil, err
	}
	if options.Replication < 0 || options.BlockSizeBytes < 0 {
		return nil, pathError("create", name, fmt.Errorf("%w: negative replication or block size", hdfs.ErrInvalid))
	}
	if s, err := f.tree.stat(name); err == nil && (s.IsDir() || !options.Overwrite) {
		return nil, pathError("create", name, hdfs.ErrExist)
	}
	if options.Overwrite {
		// Create a new file instead of truncating, so that readers of the old one are not disturbed.
		if err := f.tree.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, pathError("create", name, err)
		}
	}
	file, err := f.tree.open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, pathError("create", name, err)
	}
	return &writer{ctx: ctx, fs: f, name: name, file: file, sync: options.Sync}, nil
}

type writer struct {
	ctx   context.Context
	fs    *FS
	name  string
	file  *os.File
	sync  bool
	ended bool
}

// checkUsable returns an error once the writer or its context has ended.
func (w *writer) checkUsable(operation string) error {
	if w.ended {
		return pathError(operation, w.name, fs.ErrClosed)
	}
	if w.ctx.Err() != nil {
		return pathError(operation, w.name, context.Cause(w.ctx))
	}
	return nil
}

func (w *writer) Write(b []byte) (int, error) {
	if err := w.checkUsable("write"); err != nil {
		return 0, err
	}
	n, err := w.file.Write(b)
	if err != nil {
		return n, pathError("write", w.name, err)
	}
	return n, nil
}

// Commit implements hdfs.Writer. The file survives the loss of this process in the
// page cache; with Sync, file and directory entry are on disk.
func (w *writer) Commit() error {
	if err := w.checkUsable("commit"); err != nil {
		return err
	}
	if w.sync {
		if err := w.file.Sync(); err != nil {
			return pathError("commit", w.name, err)
		}
	}
	if err := w.file.Close(); err != nil {
		return pathError("commit", w.name, err)
	}
	if w.sync {
		if err := w.fs.syncDir(path.Dir(w.name)); err != nil {
			return pathError("commit", w.name, err)
		}
	}
	w.ended = true
	return nil
}

func (f *FS) syncDir(name string) error {
	dir, err := f.tree.open(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Abort implements hdfs.Writer. It removes the file only if it is still the file
// that this writer created.
func (w *writer) Abort() error {
	if w.ended {
		return nil
	}
	w.ended = true
	defer w.file.Close()
	mine, err := w.file.Stat()
	if errors.Is(err, fs.ErrClosed) {
		// Commit closed the file and then failed; the name belongs to this writer.
		mine, err = nil, nil
	}
	if err != nil {
		return pathError("abort", w.name, err)
	}
	there, err := w.fs.tree.stat(w.name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && mine != nil && !os.SameFile(mine, there) {
		return nil
	}
	if err == nil {
		err = w.fs.tree.remove(w.name)
	}
	if err != nil {
		return pathError("abort", w.name, err)
	}
	return nil
}

// Mkdir implements hdfs.Sink.
func (f *FS) Mkdir(ctx context.Context, name string) error {
	name, err := beginCall(ctx, "mkdir", name)
	if err != nil {
		return err
	}
	if s, err := f.tree.stat(name); err == nil {
		if s.IsDir() {
			return nil
		}
		return pathError("mkdir", name, hdfs.ErrExist)
	}
	if err := f.tree.mkdirAll(name); err != nil {
		return pathError("mkdir", name, err)
	}
	return nil
}

// Rename implements hdfs.Sink.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	from, err := beginCall(ctx, "rename", from)
	if err != nil {
		return err
	}
	to, err = beginCall(ctx, "rename", to)
	if err != nil {
		return err
	}
	both := from + " to " + to
	switch {
	case from == to:
		return pathError("rename", both, hdfs.ErrExist)
	case hdfs.IsWithin(to, from):
		return pathError("rename", both, fmt.Errorf("%w: a directory into itself", hdfs.ErrInvalid))
	case to == "/":
		return pathError("rename", both, hdfs.ErrExist)
	}
	if err := f.rename(from, to); err != nil {
		return pathError("rename", both, err)
	}
	return nil
}

// rename works through descriptors of both parents, so that a jail stays effective.
func (f *FS) rename(from, to string) error {
	fromDir, err := f.tree.open(path.Dir(from), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer fromDir.Close()
	toDir, err := f.tree.open(path.Dir(to), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer toDir.Close()
	return unix.Renameat2(int(fromDir.Fd()), path.Base(from), int(toDir.Fd()), path.Base(to), unix.RENAME_NOREPLACE)
}

// Delete implements hdfs.Sink. A symbolic link is removed, not followed.
func (f *FS) Delete(ctx context.Context, name string) error {
	name, err := beginCall(ctx, "delete", name)
	if err != nil {
		return err
	}
	if name == "/" {
		return pathError("delete", name, fmt.Errorf("%w: the root stays", hdfs.ErrInvalid))
	}
	if err := f.tree.removeAll(name); err != nil && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, fs.ErrNotExist) {
		return pathError("delete", name, err)
	}
	return nil
}
