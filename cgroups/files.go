package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

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
	mkdir(path string) error // no error where it exists
	rmdir(path string) error // no error where it is gone
	// groups lists the cgroups directly below path, in order.
	groups(path string) ([]string, error)
}

// kernel is the real thing.
type kernel struct{}

func (kernel) read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return string(b), err
}

func (kernel) write(path, value string) error {
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
