package localfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/quota"
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
	_ = w.file.Close() // it is empty and has no name
	return nil
}

// replaceByLink removes the writer's file and links another one under its name.
func (w *writer) replaceByLink(file *os.File) error {
	to, perm, err := placeOf(w.file)
	if err != nil {
		return err
	}
	from, _, err := placeOf(file)
	if err != nil {
		return err
	}
	if from != to {
		return fmt.Errorf("%w: %+v, where a new file has %+v", hdfs.ErrUnsupported, from, to)
	}
	if err := file.Chmod(perm); err != nil {
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
	// By descriptor: the path of the file may name another one by now.
	if err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(file.Fd())), int(dir.Fd()), path.Base(w.name), unix.AT_SYMLINK_FOLLOW); err != nil {
		return fmt.Errorf("%w: %w", hdfs.ErrUnsupported, err)
	}
	if !w.sync {
		return nil
	}
	return errors.Join(file.Sync(), dir.Sync())
}

// place is what two names of one file share and two files need not.
type place struct {
	device     uint64
	uid, gid   uint32
	project    uint32 // whose disk quota the bytes count for
	attributes int    // bytes of the names of extended attributes, e.g. of an access control list
}

func placeOf(file *os.File) (place, fs.FileMode, error) {
	s, err := file.Stat()
	if err != nil {
		return place{}, 0, err
	}
	st, ok := s.Sys().(*syscall.Stat_t)
	if !ok || !s.Mode().IsRegular() {
		return place{}, 0, fmt.Errorf("%w: no regular file", hdfs.ErrUnsupported)
	}
	names, err := unix.Flistxattr(int(file.Fd()), nil)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return place{}, 0, err
	}
	project, err := quota.Project(file)
	return place{st.Dev, st.Uid, st.Gid, project, names}, s.Mode().Perm(), err
}
