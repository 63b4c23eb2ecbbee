package node

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/rotate"
)

// logFiles reads one stream across its rotations, oldest first. Its position counts bytes from the
// first byte ever written to the stream, so it stays valid after rotations, and in a copy of the
// files.
type logFiles struct {
	dir    folder // "" if there are none
	stream string
	open   []logFile // the last one is, or was, the current file
	at     int64     // position of the next byte
	lost   int64     // bytes before it that are gone, not yet said
}

type logFile struct {
	*os.File
	start int64 // position of its first byte; unknownStart: it follows the previous file
}

const unknownStart = -1

const (
	maxRotations = 100
	openTries    = 10 // while the writer rotates
)

func openLogs(dir folder, stream string) (*logFiles, error) {
	l := &logFiles{dir: dir, stream: stream}
	for try := 1; ; try++ {
		newest, err := l.openAll()
		if err != nil {
			return nil, err
		}
		known, err := l.findStarts(newest)
		if err != nil {
			l.close()
			return nil, err
		}
		if known || try == openTries {
			if len(l.open) > 0 {
				l.at = max(l.open[0].start, 0)
			}
			return l, nil
		}
		l.close()
	}
}

// openAll opens all files, and returns the number of the newest rotation among them.
func (l *logFiles) openAll() (newest int, err error) {
	l.open = nil
	for i := maxRotations; i >= 0; i-- {
		f, err := os.Open(l.name(i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			l.close()
			return 0, err
		}
		l.open, newest = append(l.open, logFile{f, unknownStart}), i
	}
	return newest, nil
}

// findStarts finds the positions where the open files begin; it returns false if the writer rotated
// them meanwhile. newest is the number of the newest rotation.
func (l *logFiles) findStarts(newest int) (known bool, err error) {
	m, ok := rotate.ReadMark(l.name(0))
	sizes, marked := make([]int64, len(l.open)), -1
	for i, f := range l.open {
		st, err := f.Stat()
		if err != nil {
			return false, err
		}
		if sizes[i] = st.Size(); ok && rotate.Inode(st) == m.Inode {
			marked = i
		}
	}
	if ok && marked < 0 {
		if l.isMarked(0, m) || l.isMarked(1, m) {
			return false, nil
		}
		// A copy has other inodes. Nobody rotates it, so the mark is that of rotation 1.
		marked = len(l.open) - 2 + newest
	}
	if marked < 0 || marked >= len(l.open) {
		marked, m.Start = 0, 0
	}
	for i := range l.open {
		at := m.Start
		for j := marked; j < i; j++ {
			at += sizes[j]
		}
		for j := i; j < marked; j++ {
			at -= sizes[j]
		}
		l.open[i].start = at
	}
	return true, nil
}

// isMarked reports whether rotation i, by its present name, is the marked one.
func (l *logFiles) isMarked(i int, m rotate.Mark) bool {
	st, err := os.Stat(l.name(i))
	return err == nil && rotate.Inode(st) == m.Inode
}

func (l *logFiles) name(i int) string {
	return rotate.RotatedPath(l.dir.join(nameLogs, l.stream+".log"), i)
}

// continueIn opens the copy of the files in another folder at the same position, and closes l.
func (l *logFiles) continueIn(dir folder) (*logFiles, error) {
	c, err := openLogs(dir, l.stream)
	if err == nil {
		if err = c.seekTo(l.at); err != nil {
			c.close()
		}
		c.lost += l.lost
	}
	if err != nil {
		return l, err
	}
	l.close()
	return c, nil
}

func (l *logFiles) close() {
	for _, f := range l.open {
		f.Close()
	}
}

func (l *logFiles) position() string { return strconv.FormatInt(l.at, 10) }

// seek goes to the position at which a request begins. Invalid: there is no such position.
func (l *logFiles) seek(r *droverv1.LogsRequest) error {
	if after := r.GetAfter(); after != "" {
		at, err := strconv.ParseInt(after, 10, 64)
		if err != nil || at < 0 {
			return fault.New(fault.Invalid, "position %q: give one that a response had", after)
		}
		return l.seekTo(at)
	}
	if r.GetTail() <= 0 {
		l.lost = l.at // what was rotated away before it
		return nil
	}
	if err := l.seekTail(r.GetTail()); err != nil || len(l.open) == 0 {
		return err
	}
	offset, err := l.open[0].Seek(0, io.SeekCurrent)
	l.at = max(l.open[0].start, 0) + offset
	return err
}

// seekTo goes to a position, or to the next one that still exists.
func (l *logFiles) seekTo(at int64) error {
	for len(l.open) > 0 {
		st, err := l.open[0].Stat()
		if err != nil {
			return err
		}
		if at < l.at+st.Size() || len(l.open) == 1 {
			break
		}
		l.open[0].Close()
		l.open, l.at = l.open[1:], l.at+st.Size()
	}
	if len(l.open) == 0 {
		return nil
	}
	if at < l.at {
		l.lost = l.at - at
		return nil
	}
	st, err := l.open[0].Stat()
	if err != nil {
		return err
	}
	skip := min(at-l.at, st.Size())
	l.at += skip
	_, err = l.open[0].Seek(skip, io.SeekStart)
	return err
}

// copy sends what was not sent yet, and continues in the new file after a rotation. lost is the
// number of bytes before those sent that no longer exist.
func (l *logFiles) copy(send func(b []byte, lost int64) error) error {
	buf := make([]byte, logChunk)
	for {
		for len(l.open) > 0 {
			n, err := l.open[0].Read(buf)
			if n > 0 {
				l.at += int64(n)
				if err := send(buf[:n], l.lost); err != nil {
					return err
				}
				l.lost = 0
				continue
			}
			if err != nil && err != io.EOF {
				return err
			}
			if len(l.open) == 1 {
				break
			}
			l.open[0].Close()
			l.open = l.open[1:]
			l.passGap()
		}
		more, err := l.openNewer()
		if !more || err != nil {
			return err
		}
	}
}

// passGap records what was rotated away before the first open file, because this reader is too
// slow.
func (l *logFiles) passGap() {
	if gap := l.open[0].start - l.at; gap > 0 {
		l.lost, l.at = l.lost+gap, l.at+gap
	}
}

// openNewer opens the files that are newer than the one being read.
func (l *logFiles) openNewer() (bool, error) {
	if l.dir == "" {
		return false, nil
	}
	if len(l.open) == 0 { // nothing was written until now, but perhaps much meanwhile
		all, err := openLogs(l.dir, l.stream)
		if err != nil || len(all.open) == 0 {
			return false, err
		}
		l.open = all.open
		l.passGap()
		return true, nil
	}
	newer, found := &logFiles{dir: l.dir, stream: l.stream}, false
	for i := range maxRotations {
		f, err := os.Open(l.name(i))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			newer.close()
			return false, err
		}
		if sameFile(f, l.open[0].File) {
			f.Close()
			found = true
			break
		}
		newer.open = append([]logFile{{f, unknownStart}}, newer.open...)
	}
	if !found { // the file being read was removed, and perhaps others too
		if _, err := newer.findStarts(0); err != nil {
			newer.close()
			return false, err
		}
	}
	l.open = append(l.open, newer.open...)
	return len(newer.open) > 0, nil
}

func sameFile(a, b *os.File) bool {
	x, errA := a.Stat()
	y, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// seekTail seeks to the last n lines, and closes the files before them.
func (l *logFiles) seekTail(n int64) error {
	for first := len(l.open) - 1; first >= 0; first-- {
		at, lines, err := tailOffset(l.open[first].File, n)
		if err != nil {
			return err
		}
		if _, err := l.open[first].Seek(at, io.SeekStart); err != nil {
			return err
		}
		if n -= lines; n <= 0 {
			for _, f := range l.open[:first] {
				f.Close()
			}
			l.open = l.open[first:]
			return nil
		}
	}
	return nil
}

// tailOffset returns where the last n lines of a file begin, and how many there are.
func tailOffset(f *os.File, n int64) (at, lines int64, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	buf := make([]byte, logChunk)
	at = size
	for at > 0 {
		k := min(int64(len(buf)), at)
		if _, err := f.ReadAt(buf[:k], at-k); err != nil && err != io.EOF {
			return 0, 0, err
		}
		for i := k - 1; i >= 0; i-- {
			if pos := at - k + i; buf[i] == '\n' && pos != size-1 {
				if lines++; lines == n {
					return pos + 1, n, nil
				}
			}
		}
		at -= k
	}
	if size > 0 {
		lines++
	}
	return 0, lines, nil
}
