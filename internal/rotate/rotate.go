// Package rotate is a log file that is rotated by size and never blocks or
// fails its writer: what does not fit on the disk is dropped, counted, and said
// in the log once there is room again.
package rotate

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// The sizes that stand for zero.
const (
	DefaultMaxBytes = 16 << 20
	DefaultMaxFiles = 3
)

// minBytes keeps a rotation from costing more than what it holds.
const minBytes = 4 << 10

// File is an append-only log. It is safe for concurrent use.
type File struct {
	path     string
	maxBytes int64
	maxFiles int

	mu      sync.Mutex // guards all below
	f       *os.File
	size    int64
	dropped int64 // bytes not written since the last that were
	total   int64 // bytes dropped in all
	cause   error
}

// Open opens path to append. A file takes at most maxBytes (0: 16 MiB, at least
// 4 KiB) before it becomes path.1, and path.1 becomes path.2; maxFiles (0: 3)
// counts the current one.
func Open(path string, maxBytes int64, maxFiles int) (*File, error) {
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	if maxFiles <= 0 {
		maxFiles = DefaultMaxFiles
	}
	l := &File{path: path, maxBytes: max(maxBytes, minBytes), maxFiles: maxFiles}
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
	l.f, l.size = f, st.Size()
	return nil
}

// Write takes all of b. It never fails: see Dropped.
func (l *File) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := len(b)
	for len(b) > 0 {
		n := l.fitLocked(b)
		if n == 0 {
			l.rotateLocked()
			continue
		}
		l.putLocked(b[:n])
		b = b[n:]
	}
	return taken, nil
}

// fitLocked says how much of b goes into the current file: all, or up to the
// last end of line that fits, or nothing, so that a line is cut only where it
// is longer than a file.
func (l *File) fitLocked(b []byte) int {
	room := l.maxBytes - l.size
	switch {
	case int64(len(b)) <= room:
		return len(b)
	case room <= 0:
		return 0
	}
	if i := bytes.LastIndexByte(b[:room], '\n'); i >= 0 {
		return i + 1
	}
	if l.size > 0 {
		return 0
	}
	return int(room)
}

// putLocked writes b or drops it.
func (l *File) putLocked(b []byte) {
	if l.f == nil {
		if err := l.openLocked(); err != nil {
			l.dropLocked(len(b), err)
			return
		}
	}
	if l.dropped > 0 {
		note := fmt.Sprintf("[drover: %d bytes of output dropped: %v]\n", l.dropped, l.cause)
		n, err := l.f.WriteString(note)
		l.size += int64(n)
		if err != nil {
			l.dropLocked(len(b), err)
			return
		}
		l.dropped = 0
	}
	n, err := l.f.Write(b)
	l.size += int64(n)
	if err != nil {
		l.dropLocked(len(b)-n, err)
	}
}

func (l *File) dropLocked(n int, err error) {
	l.dropped += int64(n)
	l.total += int64(n)
	l.cause = err
}

// rotateLocked moves the files up by one and begins an empty one. Where names
// cannot be changed the current file is emptied: the limit holds in any case.
func (l *File) rotateLocked() {
	if l.f != nil {
		l.f.Close()
		l.f = nil
	}
	l.size = 0
	var err error
	if l.maxFiles == 1 {
		err = os.Truncate(l.path, 0)
	}
	for i := l.maxFiles - 1; i > 0 && err == nil; i-- {
		if err = os.Rename(Name(l.path, i-1), Name(l.path, i)); os.IsNotExist(err) {
			err = nil
		}
	}
	if err != nil {
		if terr := os.Truncate(l.path, 0); terr != nil && !os.IsNotExist(terr) {
			l.cause = terr
		}
	}
	if err := l.openLocked(); err != nil {
		l.cause = err
		return
	}
	l.size = min(l.size, l.maxBytes-1) // if it could not be emptied, writing goes on rather than round and round
}

// Dropped gives the bytes that could not be written, and why the last of them.
func (l *File) Dropped() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.cause
}

// Close closes the file.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}

// Name gives the path of the n-th rotation of a log; 0 is the current file.
func Name(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}

// Pair opens stdout.log and stderr.log in dir, making the folder if needed.
func Pair(dir string, maxBytes int64, maxFiles int) (out, errs *File, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, nil, err
	}
	if out, err = Open(filepath.Join(dir, "stdout.log"), maxBytes, maxFiles); err != nil {
		return nil, nil, err
	}
	if errs, err = Open(filepath.Join(dir, "stderr.log"), maxBytes, maxFiles); err != nil {
		out.Close()
		return nil, nil, err
	}
	return out, errs, nil
}
