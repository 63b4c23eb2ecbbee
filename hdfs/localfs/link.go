package localfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/hardlink"
)

// Link implements hdfs.Linker with a hard link. First it creates an empty file, because only the
// kernel knows which owner, permissions and attributes the folder gives to a new file; the link
// replaces it. ErrUnsupported if the link would differ in more than its permissions.
func (f *FS) Link(ctx context.Context, file *os.File, name string, options hdfs.CreateOptions) error {
	created, err := f.Create(ctx, name, options)
	if err != nil {
		return err
	}
	w := created.(*writer)
	if err := w.replaceByLink(file); err != nil {
		return errors.Join(pathError("link", name, err), w.Abort())
	}
	w.ended = true
	_ = w.file.Close() // w.file is the empty file, which has no name any more
	return nil
}

// replaceByLink removes the writer's file and links another one under its name.
func (w *writer) replaceByLink(file *os.File) error {
	if err := hardlink.Check(file, w.file); err != nil {
		return fmt.Errorf("%w: %w", hdfs.ErrUnsupported, err)
	}
	made, err := w.file.Stat()
	if err != nil {
		return err
	}
	if err := file.Chmod(made.Mode().Perm()); err != nil {
		return err
	}
	dir, err := w.fs.tree.open(path.Dir(w.name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := w.fs.tree.remove(w.name); err != nil {
		return err
	}
	if err := hardlink.Create(file, int(dir.Fd()), path.Base(w.name)); err != nil {
		return fmt.Errorf("%w: %w", hdfs.ErrUnsupported, err)
	}
	if !w.sync {
		return nil
	}
	return errors.Join(file.Sync(), dir.Sync())
}
