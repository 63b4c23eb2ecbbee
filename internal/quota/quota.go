// Package quota limits the disk space of a folder: with project quotas if the file system supports
// them (ext4 and xfs, mounted with prjquota, Linux 5.14 or later), else by counting, which the
// caller must repeat.
//
// The project number of a folder is its inode number. It need not be stored: a restarted daemon
// finds it again. It can collide with project numbers that an administrator uses on the same file
// system.
//
// The kernel's quota does not limit processes with CAP_SYS_RESOURCE (our helpers, which write only
// agreed amounts), nor an owner who moves his files to another project on purpose. The kernel
// allows that move; the container's seccomp profile does not. Where tasks have no such profile,
// count even if the kernel enforces.
package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/tree"
)

// Method is how limits are enforced.
type Method int

// The methods.
const (
	Kernel   Method = iota + 1 // project quota: a write over the limit fails at once
	Counting                   // the caller polls Measure and acts
)

// String returns the method's name.
func (m Method) String() string {
	switch m {
	case Kernel:
		return "project quota"
	case Counting:
		return "counting"
	default:
		return "invalid method"
	}
}

// maxEntries limits a walk over a folder.
const maxEntries = 5_000_000

// Limit is the limit of a folder; 0 is no limit.
type Limit struct {
	Bytes int64 // rounded up to KiB by the kernel
	Files int64 // files, folders and links
}

// Usage is the disk usage of a folder.
type Usage struct{ Bytes, Files int64 }

// Probe returns the method that works for folders below dir. For Counting it also returns the
// reason and the cure.
func Probe(dir string) (Method, string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return 0, "", err
	}
	defer d.Close()
	var q diskQuota
	err = quotactl(d, getQuota, 0, &q)
	if err == nil {
		large, err := hasLargeInodes(d)
		if err != nil {
			return 0, "", fmt.Errorf("quota of %s: %w", dir, err)
		}
		if large {
			return Counting, "inode numbers of this file system may be over 32 bits: mount xfs with inode32", nil
		}
		return Kernel, "", nil
	}
	switch {
	case errors.Is(err, unix.ENOSYS):
		return Counting, "the kernel is older than 5.14", nil
	case errors.Is(err, unix.EPERM):
		return Counting, "setting quotas needs root", nil
	case lacksQuota(err):
		return Counting, "no project quota on this file system: for ext4, unmounted, `tune2fs -O project,quota -Q prjquota DEVICE` and mount with prjquota; for xfs mount with prjquota", nil
	default:
		return 0, "", fmt.Errorf("quota of %s: %w", dir, err)
	}
}

// SetLimit sets the limit of a folder with all its contents and reads it back. It may be repeated,
// also with another limit. Without project quotas it returns fault.Unsupported.
func SetLimit(ctx context.Context, dir string, l Limit) error {
	if l.Bytes < 0 || l.Files < 0 {
		return fault.New(fault.Invalid, "quota of %s: limits %+v must not be negative", dir, l)
	}
	d, id, err := openProject(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Set the limit first, so that every counted file is limited.
	want := diskQuota{blockHard: uint64(l.Bytes+1023) >> 10, inodeHard: uint64(l.Files), valid: validLimits}
	if err := setLimits(d, id, want); err != nil {
		return err
	}
	if err := setProject(unix.AT_FDCWD, dir, id, true); err != nil {
		return err
	}
	n := 0
	return tree.Walk(ctx, dir, func(e *tree.Entry) error {
		if n++; n > maxEntries {
			return fault.New(fault.Exhausted, "quota of %s: over %d files", dir, maxEntries)
		}
		if !e.IsDir() && !e.IsRegular() { // links and pipes take no space
			return nil
		}
		return setProject(e.Dir, e.Name, id, e.IsDir())
	})
}

// Measure returns the usage of a folder: from the kernel if it counts, else by walking the folder.
func Measure(ctx context.Context, dir string, m Method) (Usage, error) {
	switch m {
	case Kernel:
		d, id, err := openProject(dir)
		if err != nil {
			return Usage{}, err
		}
		defer d.Close()
		var q diskQuota
		if err := quotactl(d, getQuota, id, &q); err != nil {
			return Usage{}, failed(dir, err)
		}
		return Usage{Bytes: int64(q.space), Files: int64(q.inodes)}, nil
	case Counting:
		return measureByWalk(ctx, dir)
	default:
		return Usage{}, fault.New(fault.Invalid, "quota of %s: %s", dir, m)
	}
}

// measureByWalk sums the blocks of all files; a file with several links counts once.
func measureByWalk(ctx context.Context, dir string) (Usage, error) {
	type inode struct{ dev, ino uint64 }
	var u Usage
	linked := map[inode]bool{}
	add := func(st *unix.Stat_t) error {
		if key := (inode{st.Dev, st.Ino}); st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if linked[key] {
				return nil
			}
			linked[key] = true
		}
		if u.Files++; u.Files > maxEntries {
			return fault.New(fault.Exhausted, "quota of %s: over %d files", dir, maxEntries)
		}
		u.Bytes += st.Blocks * 512
		return nil
	}
	var top unix.Stat_t
	if err := unix.Stat(dir, &top); err != nil {
		return u, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := add(&top); err != nil {
		return u, err
	}
	err := tree.Walk(ctx, dir, func(e *tree.Entry) error { return add(&e.Stat) })
	return u, err
}

// ClearLimit removes the limit of a folder that is about to be removed. A limit that remains after
// a crash is harmless: the next folder with that number sets its own.
func ClearLimit(dir string) error {
	d, id, err := openProject(dir)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return setLimits(d, id, diskQuota{valid: validLimits})
}

// openProject opens a folder and returns its project number.
func openProject(dir string) (*os.File, uint32, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, 0, fault.New(fault.NotFound, "quota: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		d.Close()
		return nil, 0, err
	}
	if st.Ino > maxProject || st.Ino == 0 {
		d.Close()
		return nil, 0, fault.New(fault.Unsupported, "quota of %s: inode number %d cannot be a project number: count instead", dir, st.Ino)
	}
	return d, uint32(st.Ino), nil
}

func setLimits(d *os.File, id uint32, want diskQuota) error {
	if err := quotactl(d, setQuota, id, &want); err != nil {
		return failed(d.Name(), err)
	}
	var got diskQuota
	if err := quotactl(d, getQuota, id, &got); err != nil {
		return failed(d.Name(), err)
	}
	if got.blockHard != want.blockHard || got.inodeHard != want.inodeHard {
		return fault.New(fault.Conflict, "quota of %s: wrote %d KiB and %d files, the kernel reports %d and %d", d.Name(), want.blockHard, want.inodeHard, got.blockHard, got.inodeHard)
	}
	return nil
}

// lacksQuota reports whether an error means that a file system has no project quotas, rather than
// that its disk is full or broken.
func lacksQuota(err error) bool {
	for _, e := range []error{unix.ENOSYS, unix.EPERM, unix.ESRCH, unix.ENOTSUP, unix.EINVAL, unix.ENOTBLK, unix.ENODEV, unix.ENOTTY} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func failed(dir string, err error) error {
	if !lacksQuota(err) {
		return fmt.Errorf("quota of %s: %w", dir, err)
	}
	return fault.New(fault.Unsupported, "quota of %s: %w: count instead (see Probe)", dir, err)
}

// From linux/fs.h, linux/quota.h.
const (
	ioctlGetXattr  = 0x801c581f // FS_IOC_FSGETXATTR
	ioctlSetXattr  = 0x401c5820 // FS_IOC_FSSETXATTR
	flagInherit    = 0x00000200 // FS_XFLAG_PROJINHERIT
	projectType    = 2          // PRJQUOTA
	getQuota       = 0x800007   // Q_GETQUOTA
	setQuota       = 0x800008   // Q_SETQUOTA
	validLimits    = 1 | 4      // QIF_BLIMITS | QIF_ILIMITS
	maxProject     = 1<<32 - 1
	sysQuotactlFD  = unix.SYS_QUOTACTL_FD
	subCommandBits = 8
)

// fileAttr is struct fsxattr.
type fileAttr struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// diskQuota is struct if_dqblk; blocks are 1 KiB, Space is in bytes.
type diskQuota struct {
	blockHard, blockSoft, space  uint64
	inodeHard, inodeSoft, inodes uint64
	blockTime, inodeTime         uint64
	valid                        uint32
	_                            uint32
}

func quotactl(d *os.File, command uintptr, id uint32, q *diskQuota) error {
	_, _, errno := unix.Syscall6(sysQuotactlFD, d.Fd(), command<<subCommandBits|projectType, uintptr(id), uintptr(unsafe.Pointer(q)), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("quotactl_fd", errno)
	}
	return nil
}

// setProject moves one file, named in an open folder, into the project.
func setProject(at int, path string, id uint32, dir bool) error {
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var a fileAttr
	if err := ioctl(f, ioctlGetXattr, &a); err != nil {
		return failed(path, err)
	}
	a.project = id
	if dir {
		a.flags |= flagInherit
	}
	if err := ioctl(f, ioctlSetXattr, &a); err != nil {
		return failed(path, err)
	}
	return nil
}

// Project returns the number of the project that the file counts for, 0 if there is none.
func Project(f *os.File) (uint32, error) {
	var a fileAttr
	err := ioctl(f, ioctlGetXattr, &a)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return 0, nil // a file system without projects
	}
	return a.project, err
}

func ioctl(f *os.File, request uintptr, a *fileAttr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(a))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}
