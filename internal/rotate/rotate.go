// Package rotate writes a log file that is rotated by size. A write never blocks or fails because
// of the disk: output that cannot be written is dropped, counted, and reported in the log once
// writing works again.
package rotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The defaults of New's limits.
const (
	defaultMaxBytes = 16 << 20
	defaultMaxFiles = 3
)

// minBytes is the minimum size of a file, so that rotation stays cheap in comparison.
const minBytes = 4 << 10

// File is an append-only log. It is safe for concurrent use.
type File struct {
	path     string
	maxBytes int64
	maxFiles int

	mu             sync.Mutex // guards the fields below
	file           *os.File
	size           int64
	start          int64 // where the file begins in all bytes ever written (Mark)
	unreportedDrop int64 // bytes dropped since the last successful write
	totalDropped   int64 // bytes dropped in total
	cause          error
}

// New returns a log that appends to path. Its first write opens or creates the file, because most
// short tasks write nothing and a file costs more than their output. A file has at most maxBytes
// (0: 16 MiB; at least 4 KiB) before it becomes path.1, and path.1 becomes path.2; maxFiles (0: 3)
// includes the current file.
func New(path string, maxBytes int64, maxFiles int) *File {
	if maxBytes <= 0 {
		maxBytes = defaultMaxBytes
	}
	if maxFiles <= 0 {
		maxFiles = defaultMaxFiles
	}
	return &File{path: path, maxBytes: max(maxBytes, minBytes), maxFiles: maxFiles}
}

// open returns the log of New with its file open.
func open(path string, maxBytes int64, maxFiles int) (*File, error) {
	l := New(path, maxBytes, maxFiles)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l, l.openLocked()
}

func (l *File) openLocked() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.size, l.start = f, st.Size(), startOf(l.path, st)
	return nil
}

// Write accepts all of b and never fails; Dropped reports what could not be written.
func (l *File) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := len(b)
	if l.file == nil { // open before measuring: the file may have content
		if err := l.openLocked(); err != nil {
			l.dropLocked(taken, err)
			return taken, nil
		}
	}
	for len(b) > 0 {
		n := l.fittingLocked(b)
		if n == 0 {
			l.rotateLocked()
			continue
		}
		l.writeLocked(b[:n])
		b = b[n:]
	}
	return taken, nil
}

// copyBytes is how much of a program's output is read at once.
const copyBytes = 32 << 10

// copyBuffers are the buffers of ReadFrom, pooled because short tasks would leave two buffers each
// to the garbage collector.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, copyBytes); return &b }}

// ReadFrom implements io.ReaderFrom, so that io.Copy allocates no buffer. It writes the bytes of
// each read at once.
func (l *File) ReadFrom(r io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	sum := int64(0)
	for {
		n, err := r.Read(*buf)
		if n > 0 {
			_, _ = l.Write((*buf)[:n]) // never fails
			sum += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}

// fittingLocked returns how many bytes of b go into the current file: all, or up to the last
// newline that fits, or none. A line is split only if it is longer than a file.
func (l *File) fittingLocked(b []byte) int {
	free := l.maxBytes - l.size
	switch {
	case int64(len(b)) <= free:
		return len(b)
	case free <= 0:
		return 0
	}
	if i := bytes.LastIndexByte(b[:free], '\n'); i >= 0 {
		return i + 1
	}
	if l.size > 0 {
		return 0
	}
	return int(free)
}

// writeLocked writes b or drops it.
func (l *File) writeLocked(b []byte) {
	if l.file == nil {
		if err := l.openLocked(); err != nil {
			l.dropLocked(len(b), err)
			return
		}
	}
	if l.unreportedDrop > 0 {
		note := fmt.Sprintf("[drover: %d bytes of output dropped: %v]\n", l.unreportedDrop, l.cause)
		n, err := l.file.WriteString(note)
		l.size += int64(n)
		if err != nil {
			l.dropLocked(len(b), err)
			return
		}
		l.unreportedDrop = 0
	}
	n, err := l.file.Write(b)
	l.size += int64(n)
	if err != nil {
		l.dropLocked(len(b)-n, err)
	}
}

func (l *File) dropLocked(n int, err error) {
	l.unreportedDrop += int64(n)
	l.totalDropped += int64(n)
	l.cause = err
}

// rotateLocked renames the files and starts an empty one. If renaming fails, the current file is
// truncated, so the size limit always holds.
func (l *File) rotateLocked() {
	var size int64
	var current Mark
	if l.file != nil {
		if st, err := l.file.Stat(); err == nil {
			// The mark is correct both before and after the renames. If it cannot be written, for
			// example on a disk without free inodes, readers lose their place, but the writer does
			// not lose its output.
			current, size = Mark{Inode(st), l.start}, st.Size()
			_ = writeMark(l.path, current)
		}
		l.file.Close()
		l.file = nil
	}
	l.size = 0
	var err error
	if l.maxFiles == 1 {
		err = l.truncateLocked(current, size)
	}
	for i := l.maxFiles - 1; i > 0 && err == nil; i-- {
		if err = os.Rename(RotatedPath(l.path, i-1), RotatedPath(l.path, i)); os.IsNotExist(err) {
			err = nil
		}
	}
	if err != nil {
		if terr := l.truncateLocked(current, size); terr != nil && !os.IsNotExist(terr) {
			l.cause = terr
		}
	}
	if err := l.openLocked(); err != nil {
		l.cause = err
		return
	}
	l.size = min(l.size, l.maxBytes-1) // if the file could not be truncated, continue writing instead of rotating for ever
}

// truncateLocked empties the current file and advances its mark to where the removed content ended.
func (l *File) truncateLocked(current Mark, size int64) error {
	if err := os.Truncate(l.path, 0); err != nil {
		return err
	}
	return writeMark(l.path, Mark{current.Inode, current.Start + size})
}

// dropped returns the number of bytes that could not be written and the last reason.
func (l *File) dropped() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.totalDropped, l.cause
}

// Close closes the file.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// RotatedPath returns the path of the n-th rotation of a log; 0 is the current file.
func RotatedPath(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}

// Hold marks the logs in dir, which must exist, as being written, until the returned file is closed
// or its process has ended in any way: the kernel keeps the mark (a shared flock of the folder).
func Hold(dir string) (io.Closer, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// Await waits until no process holds the logs in dir, or until ctx ends, and reports whether no
// process holds them. A folder that does not exist has no writer.
func Await(ctx context.Context, dir string) bool {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0) // os.Open would first ask the kernel whether the folder can be polled
	if err != nil {
		return errors.Is(err, unix.ENOENT)
	}
	defer unix.Close(fd)
	for pause := time.Millisecond; unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil; pause = min(2*pause, 20*time.Millisecond) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
	return true
}

// OpenPair opens stdout.log and stderr.log in dir and creates the folder if needed.
func OpenPair(dir string, maxBytes int64, maxFiles int) (out, errs *File, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, nil, err
	}
	if out, err = open(filepath.Join(dir, "stdout.log"), maxBytes, maxFiles); err != nil {
		return nil, nil, err
	}
	if errs, err = open(filepath.Join(dir, "stderr.log"), maxBytes, maxFiles); err != nil {
		out.Close()
		return nil, nil, err
	}
	return out, errs, nil
}
