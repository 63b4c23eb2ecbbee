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

// Create implements hdfs.Sink. Replication and block size mean nothing here.
func (f *FS) Create(ctx context.Context, name string, options hdfs.CreateOptions) (hdfs.Writer, error) {
	name, err := start(ctx, "create", name)
	if err != nil {
		return nil, err
	}
	if options.Replication < 0 || options.BlockSizeBytes < 0 {
		return nil, fail("create", name, fmt.Errorf("%w: negative replication or block size", hdfs.ErrInvalid))
	}
	if s, err := f.tree.stat(name); err == nil && (s.IsDir() || !options.Overwrite) {
		return nil, fail("create", name, hdfs.ErrExist)
	}
	if options.Overwrite {
		// A new file, not the old one cut: who reads the old one reads on.
		if err := f.tree.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fail("create", name, err)
		}
	}
	file, err := f.tree.open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fail("create", name, err)
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

// check fails once the writer was ended or its context has.
func (w *writer) check(operation string) error {
	if w.ended {
		return fail(operation, w.name, fs.ErrClosed)
	}
	if w.ctx.Err() != nil {
		return fail(operation, w.name, context.Cause(w.ctx))
	}
	return nil
}

func (w *writer) Write(b []byte) (int, error) {
	if err := w.check("write"); err != nil {
		return 0, err
	}
	n, err := w.file.Write(b)
	if err != nil {
		return n, fail("write", w.name, err)
	}
	return n, nil
}

// Commit implements hdfs.Writer. What survives the loss of this process is in
// the page cache; with Sync, file and directory entry are on disk.
func (w *writer) Commit() error {
	if err := w.check("commit"); err != nil {
		return err
	}
	if w.sync {
		if err := w.file.Sync(); err != nil {
			return fail("commit", w.name, err)
		}
	}
	if err := w.file.Close(); err != nil {
		return fail("commit", w.name, err)
	}
	if w.sync {
		if err := w.fs.syncDir(path.Dir(w.name)); err != nil {
			return fail("commit", w.name, err)
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

// Abort implements hdfs.Writer. It removes the file only if it is still the one
// that this writer created.
func (w *writer) Abort() error {
	if w.ended {
		return nil
	}
	w.ended = true
	defer w.file.Close()
	mine, err := w.file.Stat()
	if errors.Is(err, fs.ErrClosed) {
		// Commit closed it and then failed: the name was made by us.
		mine, err = nil, nil
	}
	if err != nil {
		return fail("abort", w.name, err)
	}
	there, err := w.fs.tree.stat(w.name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && mine != nil && !os.SameFile(mine, there) {
		return nil
	}
	if err == nil {
		err = w.fs.tree.remove(w.name)
	}
	if err != nil {
		return fail("abort", w.name, err)
	}
	return nil
}

// Mkdir implements hdfs.Sink.
func (f *FS) Mkdir(ctx context.Context, name string) error {
	name, err := start(ctx, "mkdir", name)
	if err != nil {
		return err
	}
	if s, err := f.tree.stat(name); err == nil {
		if s.IsDir() {
			return nil
		}
		return fail("mkdir", name, hdfs.ErrExist)
	}
	if err := f.tree.mkdirAll(name); err != nil {
		return fail("mkdir", name, err)
	}
	return nil
}

// Rename implements hdfs.Sink.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	from, err := start(ctx, "rename", from)
	if err != nil {
		return err
	}
	to, err = start(ctx, "rename", to)
	if err != nil {
		return err
	}
	both := from + " to " + to
	switch {
	case from == to:
		return fail("rename", both, hdfs.ErrExist)
	case hdfs.Within(to, from):
		return fail("rename", both, fmt.Errorf("%w: a directory into itself", hdfs.ErrInvalid))
	case to == "/":
		return fail("rename", both, hdfs.ErrExist)
	}
	if err := f.rename(from, to); err != nil {
		return fail("rename", both, err)
	}
	return nil
}

// rename goes through descriptors of the two parents, so that a jail holds.
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
	name, err := start(ctx, "delete", name)
	if err != nil {
		return err
	}
	if name == "/" {
		return fail("delete", name, fmt.Errorf("%w: the root stays", hdfs.ErrInvalid))
	}
	if err := f.tree.removeAll(name); err != nil && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, fs.ErrNotExist) {
		return fail("delete", name, err)
	}
	return nil
}
