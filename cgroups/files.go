package cgroups

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// files is the kernel's side: the seam at which tests put a kernel of their
// own and break things.
type files interface {
	read(path string) (string, error)
	// write replaces the content by one write(2), never through Go's poller: a
	// write that the kernel answers with EAGAIN (memory.reclaim) would wait there
	// for ever.
	write(path, value string) error
	// await reads a file of events until ok is content with it, again whenever the
	// kernel says that it changed; false: neither the limit nor ctx left time.
	await(ctx context.Context, path string, limit time.Duration, ok func(text string) (bool, error)) (bool, error)
	mkdir(path string) error // no error where it exists
	rmdir(path string) error // no error where it is gone
	// groups lists the cgroups directly below path, in order.
	groups(path string) ([]string, error)
}

// kernel is the real thing.
type kernel struct{}

func (kernel) read(path string) (string, error) {
	if holdsPlace(path) {
		fd, err := rawOpen(path, unix.O_RDONLY)
		if err != nil {
			return "", &fs.PathError{Op: "open", Path: path, Err: err}
		}
		defer rawClose(fd)
		buf := make([]byte, eventsMost)
		n, err := rawIO(unix.SYS_PREAD64, fd, buf)
		if err != nil {
			return "", &fs.PathError{Op: "read", Path: path, Err: err}
		}
		return string(buf[:n]), nil
	}
	b, err := os.ReadFile(path)
	return string(b), err
}

func (kernel) write(path, value string) error {
	if holdsPlace(path) {
		fd, err := rawOpen(path, unix.O_WRONLY)
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		defer rawClose(fd)
		if _, err := rawIO(unix.SYS_PWRITE64, fd, []byte(value)); err != nil {
			return &fs.PathError{Op: "write", Path: path, Err: err}
		}
		return nil
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for {
		_, err = unix.Write(fd, []byte(value))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return &fs.PathError{Op: "write", Path: path, Err: err}
		}
	}
}

// holdsPlace tells whether what is done to a file must not cost the goroutine its
// place among those that run. A system call does cost it that where another one
// waits, and on a machine with one processor it then waits for up to 10 ms: of a
// freeze that took 18 ms in the daemon less than 6 were the kernel's. The price: as
// long as the kernel keeps a caller, with cgroup.freeze until others have made or
// removed their cgroups, the daemon has one thread less to run goroutines.
func holdsPlace(path string) bool {
	switch filepath.Base(path) {
	case "cgroup.freeze", "cpu.max":
		return true
	default:
		return false
	}
}

// rawOpen, rawIO and rawClose are system calls of which Go's scheduler is not told.
func rawOpen(path string, mode int) (fd int, err error) {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	for at := unix.AT_FDCWD; ; {
		r, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(p)), uintptr(mode|unix.O_CLOEXEC), 0, 0, 0)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return -1, errno
		}
	}
}

// rawIO is pread64 or pwrite64 at the begin of a file; buf is not empty.
func rawIO(call uintptr, fd int, buf []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func rawClose(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// lookAgain is how long a change of a file of events may go unnoticed: the kernel
// tells of one at most every 10 ms. holdFor is how long await keeps its place
// among the goroutines that run: a cgroup freezes in less, and on a machine with
// one processor another goroutine would have it by then, for 10 ms and more, and
// would keep the processes from freezing too.
const (
	lookAgain = 10 * time.Millisecond
	holdFor   = 8 * time.Millisecond
)

// pause waits for a change, the limit or a signal; hold keeps other goroutines
// from taking its place meanwhile.
func pause(fd int, limit time.Duration, hold bool) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}
	ts := unix.NsecToTimespec(int64(limit))
	if !hold {
		_, err := unix.Ppoll(fds, &ts, nil)
		return err
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// await blocks its thread, which on a busy machine is noticed sooner than what
// Go's poller hands on.
func (kernel) await(ctx context.Context, path string, limit time.Duration, ok func(string) (bool, error)) (bool, error) {
	fd, err := rawOpen(path, unix.O_RDONLY)
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer rawClose(fd)
	begun := time.Now()
	buf := make([]byte, eventsMost)
	for {
		n, err := rawIO(unix.SYS_PREAD64, fd, buf) // also says up to which change we know it
		if err != nil {
			return false, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if done, err := ok(string(buf[:n])); done || err != nil {
			return done, err
		}
		waited := time.Since(begun)
		left := min(limit-waited, lookAgain)
		if left <= 0 || ctx.Err() != nil {
			return false, nil
		}
		hold := waited < holdFor
		if hold {
			left = min(left, holdFor-waited)
		}
		if err := pause(fd, left, hold); err != nil && !errors.Is(err, unix.EINTR) {
			return false, &fs.PathError{Op: "poll", Path: path, Err: err}
		}
	}
}

const eventsMost = 512 // bytes of a file of events

func (kernel) mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (kernel) rmdir(path string) error {
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

func (kernel) groups(path string) ([]string, error) {
	all, err := os.ReadDir(path) // in order of name
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range all {
		if e.IsDir() {
			names = append(names, filepath.Base(e.Name()))
		}
	}
	return names, nil
}
