// Package quota bounds the disk space of one folder: by the kernel where the
// file system has project quotas (ext4 and xfs, mounted with prjquota, Linux
// 5.14 or later), else by counting, which the caller must do again and again.
//
// The project number of a folder is its inode number, so nothing has to be kept
// and a restarted daemon finds it; numbers that an administrator uses for
// projects of his own on the same file system can collide with it.
//
// What the kernel's quota does not hold: processes with CAP_SYS_RESOURCE (our
// helpers, which write what was agreed), and an owner who moves his files to
// another project on purpose (the kernel lets him). So count now and then also
// where the kernel enforces.
package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// Method is how limits are held.
type Method int

// The methods.
const (
	Kernel   Method = iota + 1 // project quota: a write over the limit fails at once
	Counting                   // the caller polls Count and acts
)

// String names the method.
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

// maxEntries bounds a walk over a folder.
const maxEntries = 5_000_000

// Limit is what a folder may hold; 0 is no limit.
type Limit struct {
	Bytes int64 // rounded up to KiB by the kernel
	Files int64 // files, folders and links
}

// Use is what a folder holds.
type Use struct{ Bytes, Files int64 }

// Probe says which method works for folders below dir, and for Counting why,
// with the cure.
func Probe(dir string) (Method, string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return 0, "", err
	}
	defer d.Close()
	var q diskQuota
	err = quotactl(d, getQuota, 0, &q)
	if err == nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(d.Fd()), &st); err != nil {
			return 0, "", err
		}
		if st.Ino > maxProject {
			return Counting, "inode numbers of this file system are over 32 bits: mount xfs with inode32", nil
		}
		return Kernel, "", nil
	}
	switch {
	case errors.Is(err, unix.ENOSYS):
		return Counting, "the kernel is older than 5.14", nil
	case errors.Is(err, unix.EPERM):
		return Counting, "setting quotas needs root", nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTBLK), errors.Is(err, unix.ENODEV):
		return Counting, "no project quota on this file system: for ext4, unmounted, `tune2fs -O project,quota -Q prjquota DEVICE` and mount with prjquota; for xfs mount with prjquota", nil
	default:
		return 0, "", fmt.Errorf("quota of %s: %w", dir, err)
	}
}

// Set puts the folder and all in it under a limit and reads it back. Safe to
// repeat, also with another limit. Where the kernel has no project quota there
// the error is fault.Unsupported.
func Set(ctx context.Context, dir string, l Limit) error {
	if l.Bytes < 0 || l.Files < 0 {
		return fault.New(fault.Invalid, "quota of %s: limits %+v below zero", dir, l)
	}
	d, id, err := open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// The limit first: from the moment a file is counted it is held.
	want := diskQuota{BlockHard: uint64(l.Bytes+1023) >> 10, InodeHard: uint64(l.Files), Valid: validLimits}
	if err := setLimits(d, id, want); err != nil {
		return err
	}
	n := 0
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if n++; n > maxEntries {
			return fault.New(fault.Exhausted, "quota of %s: over %d files", dir, maxEntries)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || !e.IsDir() && !e.Type().IsRegular() { // links and pipes hold no space
			return err
		}
		return setProject(path, id, e.IsDir())
	})
}

// Count gives what the folder holds: from the kernel where it keeps the count,
// else by walking it.
func Count(ctx context.Context, dir string, m Method) (Use, error) {
	switch m {
	case Kernel:
		d, id, err := open(dir)
		if err != nil {
			return Use{}, err
		}
		defer d.Close()
		var q diskQuota
		if err := quotactl(d, getQuota, id, &q); err != nil {
			return Use{}, unsupported(dir, err)
		}
		return Use{Bytes: int64(q.Space), Files: int64(q.Inodes)}, nil
	case Counting:
		return walk(ctx, dir)
	default:
		return Use{}, fault.New(fault.Invalid, "quota of %s: %s", dir, m)
	}
}

// walk adds up the blocks of all files; one with several links counts once.
func walk(ctx context.Context, dir string) (Use, error) {
	type inode struct{ dev, ino uint64 }
	var u Use
	linked := map[inode]bool{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != dir {
			return nil // the task goes on meanwhile
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
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
	})
	return u, err
}

// Clear lifts the limit of a folder that is about to be removed. A limit that a
// crash left behind harms nobody: the next folder of that number sets its own.
func Clear(dir string) error {
	d, id, err := open(dir)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return setLimits(d, id, diskQuota{Valid: validLimits})
}

// open opens a folder and gives its project number.
func open(dir string) (*os.File, uint32, error) {
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
		return unsupported(d.Name(), err)
	}
	var got diskQuota
	if err := quotactl(d, getQuota, id, &got); err != nil {
		return unsupported(d.Name(), err)
	}
	if got.BlockHard != want.BlockHard || got.InodeHard != want.InodeHard {
		return fault.New(fault.Conflict, "quota of %s: wrote %d KiB and %d files, the kernel holds %d and %d", d.Name(), want.BlockHard, want.InodeHard, got.BlockHard, got.InodeHard)
	}
	return nil
}

func unsupported(dir string, err error) error {
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
	Flags, ExtentSize, Extents, Project, CowExtentSize uint32
	_                                                  [8]byte
}

// diskQuota is struct if_dqblk; blocks are of 1 KiB, Space is in bytes.
type diskQuota struct {
	BlockHard, BlockSoft, Space  uint64
	InodeHard, InodeSoft, Inodes uint64
	BlockTime, InodeTime         uint64
	Valid                        uint32
	_                            uint32
}

func quotactl(d *os.File, command uintptr, id uint32, q *diskQuota) error {
	_, _, errno := unix.Syscall6(sysQuotactlFD, d.Fd(), command<<subCommandBits|projectType, uintptr(id), uintptr(unsafe.Pointer(q)), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("quotactl_fd", errno)
	}
	return nil
}

// setProject moves one file into the project.
func setProject(path string, id uint32, dir bool) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var a fileAttr
	if err := ioctl(f, ioctlGetXattr, &a); err != nil {
		return unsupported(path, err)
	}
	a.Project = id
	if dir {
		a.Flags |= flagInherit
	}
	if err := ioctl(f, ioctlSetXattr, &a); err != nil {
		return unsupported(path, err)
	}
	return nil
}

func ioctl(f *os.File, request uintptr, a *fileAttr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(a))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}
