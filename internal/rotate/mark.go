package rotate

import (
	"fmt"
	"os"
	"syscall"
)

// Mark says where one file of a log begins, in the sequence of all bytes ever written to the log.
// It marks the file that was rotated last or is about to be: rotation 1 or the current file. With
// the sizes of the files a reader computes where all others begin, so that it can name a place in
// the log that stays the same over rotations.
type Mark struct {
	Inode uint64
	Start int64 // bytes written before the file's first byte
}

// markSize is constant, so that one write replaces a mark as a whole, even on a full disk.
const markSize = 42

// markPath returns the path of the mark of a log. Before the first rotation there is no mark: the
// oldest file begins at 0.
func markPath(path string) string { return path + ".mark" }

// ReadMark returns the mark of a log, false if there is no valid mark.
func ReadMark(path string) (Mark, bool) {
	f, err := os.OpenFile(markPath(path), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return Mark{}, false
	}
	defer f.Close()
	b := make([]byte, markSize)
	n, err := f.ReadAt(b, 0)
	_ = err // a half-written mark counts as none
	return parseMark(b[:n])
}

func parseMark(b []byte) (m Mark, ok bool) {
	if len(b) < markSize {
		return Mark{}, false
	}
	if n, err := fmt.Sscanf(string(b[:markSize]), "%d %d\n", &m.Inode, &m.Start); n < 2 || err != nil || m.Start < 0 {
		return Mark{}, false
	}
	return m, true
}

func writeMark(path string, m Mark) error {
	f, err := os.OpenFile(markPath(path), os.O_WRONLY|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%020d %020d\n", m.Inode, m.Start)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// Inode returns the inode number by which a Mark identifies a file.
func Inode(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return st.Ino
}

// startOf returns where the current file of a log begins; current describes that file.
func startOf(path string, current os.FileInfo) int64 {
	m, ok := ReadMark(path)
	if !ok {
		return 0
	}
	if Inode(current) == m.Inode {
		return m.Start
	}
	last, err := os.Stat(RotatedPath(path, 1))
	if err != nil || Inode(last) != m.Inode {
		return 0
	}
	return m.Start + last.Size()
}
