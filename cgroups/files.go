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

// cgroupFS accesses the kernel's cgroup files. Tests replace it by a fake that
// can inject errors.
type cgroupFS interface {
	read(path string) (string, error)
	// write replaces the content with a single write(2) and bypasses Go's poller: a
	// write that the kernel answers with EAGAIN (memory.reclaim) would block there
	// forever.
	write(path, value string) error
	// await rereads an events file on every change until ok returns true. It
	// returns false if the limit or the context ends first.
	await(ctx context.Context, path string, limit time.Duration, ok func(text string) (bool, error)) (bool, error)
	mkdir(path string) error // not an error if it exists
	rmdir(path string) error // not an error if it is gone
	// childGroups lists the cgroups directly below path, sorted by name.
	childGroups(path string) ([]string, error)
}

// kernelFS is the cgroupFS of the running kernel.
type kernelFS struct{}

func (kernelFS) read(path string) (string, error) {
	if usesRawSyscalls(path) {
		fd, err := rawOpen(path, unix.O_RDONLY)
		if err != nil {
			return "", &fs.PathError{Op: "open", Path: path, Err: err}
		}
		defer rawClose(fd)
		buf := make([]byte, maxEventsBytes)
		n, err := rawIO(unix.SYS_PREAD64, fd, buf)
		if err != nil {
			return "", &fs.PathError{Op: "read", Path: path, Err: err}
		}
		return string(buf[:n]), nil
	}
	b, err := os.ReadFile(path)
	return string(b), err
}

func (kernelFS) write(path, value string) error {
	if usesRawSyscalls(path) {
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

// usesRawSyscalls reports whether the file is accessed by system calls that Go's
// scheduler does not see, so that the goroutine keeps its processor (P). An
// ordinary system call can lose the P to a waiting goroutine; on a one-processor
// machine it then waits up to 10 ms: of a freeze measured at 18 ms, less than
// 6 ms were the kernel's. The cost is that the daemon has one thread less while
// the kernel blocks the caller; for cgroup.freeze that is until other processes
// have created or removed their cgroups.
func usesRawSyscalls(path string) bool {
	switch filepath.Base(path) {
	case "cgroup.freeze", "cpu.max":
		return true
	default:
		return false
	}
}

// rawOpen, rawIO and rawClose are system calls hidden from Go's scheduler.
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

// rawIO is pread64 or pwrite64 at the start of a file; buf must not be empty.
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

// rereadInterval bounds how long a change of an events file can go unnoticed:
// the kernel notifies at most every 10 ms. keepProcessorFor is how long await
// keeps its P. A cgroup usually freezes in less; on a one-processor machine
// another goroutine would otherwise take the P for 10 ms or more and also keep
// the processes from freezing.
const (
	rereadInterval   = 10 * time.Millisecond
	keepProcessorFor = 8 * time.Millisecond
)

// pollEvent waits for a change, the limit or a signal. With hold, the goroutine
// keeps its P while it waits.
func pollEvent(fd int, limit time.Duration, hold bool) error {
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

// await blocks its thread: on a busy machine that notices a change sooner than
// Go's poller does.
func (kernelFS) await(ctx context.Context, path string, limit time.Duration, ok func(string) (bool, error)) (bool, error) {
	fd, err := rawOpen(path, unix.O_RDONLY)
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer rawClose(fd)
	start := time.Now()
	buf := make([]byte, maxEventsBytes)
	for {
		n, err := rawIO(unix.SYS_PREAD64, fd, buf) // the read also acknowledges the changes up to this point
		if err != nil {
			return false, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if done, err := ok(string(buf[:n])); done || err != nil {
			return done, err
		}
		waited := time.Since(start)
		left := min(limit-waited, rereadInterval)
		if left <= 0 || ctx.Err() != nil {
			return false, nil
		}
		hold := waited < keepProcessorFor
		if hold {
			left = min(left, keepProcessorFor-waited)
		}
		if err := pollEvent(fd, left, hold); err != nil && !errors.Is(err, unix.EINTR) {
			return false, &fs.PathError{Op: "poll", Path: path, Err: err}
		}
	}
}

const maxEventsBytes = 512 // size of an events file

func (kernelFS) mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (kernelFS) rmdir(path string) error {
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

func (kernelFS) childGroups(path string) ([]string, error) {
	all, err := os.ReadDir(path) // sorted by name
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
