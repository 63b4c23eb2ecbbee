// Package hardlink gives an open file a second name if a link is as good as a copy.
package hardlink

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/quota"
)

// place holds the properties that two names of one file share and two files may not.
type place struct {
	device     uint64
	uid, gid   uint32
	project    uint32 // project whose disk quota the bytes count for
	attributes int    // bytes of the names of extended attributes, e.g. of an access control list
}

// Check returns nil if a link to file can replace a copy of it in the place of the open file
// replaced: both are regular and differ only in content and permissions. All errors wrap
// errors.ErrUnsupported.
func Check(file, replaced *os.File) error {
	from, err := placeOf(file)
	if err != nil {
		return err
	}
	to, err := placeOf(replaced)
	if err != nil {
		return err
	}
	if from != to {
		return fmt.Errorf("%w: a link would have %+v, a copy has %+v", errors.ErrUnsupported, from, to)
	}
	return nil
}

func placeOf(file *os.File) (place, error) {
	s, err := file.Stat()
	if err != nil {
		return place{}, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	st, ok := s.Sys().(*syscall.Stat_t)
	if !ok || !s.Mode().IsRegular() {
		return place{}, fmt.Errorf("%w: %s is no regular file", errors.ErrUnsupported, file.Name())
	}
	names, err := unix.Flistxattr(int(file.Fd()), nil)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return place{}, fmt.Errorf("%w: attributes of %s: %w", errors.ErrUnsupported, file.Name(), err)
	}
	project, err := quota.Project(file)
	if err != nil {
		return place{}, fmt.Errorf("%w: project of %s: %w", errors.ErrUnsupported, file.Name(), err)
	}
	return place{st.Dev, st.Uid, st.Gid, project, names}, nil
}

// Create gives the file a name in an open folder, or below unix.AT_FDCWD. It links the descriptor,
// because the file's path may denote another file by now. All errors wrap errors.ErrUnsupported.
func Create(file *os.File, folder int, name string) error {
	err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(file.Fd())), folder, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return fmt.Errorf("%w: link to %s: %w", errors.ErrUnsupported, name, err)
	}
	return nil
}
