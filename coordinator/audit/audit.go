// Package audit writes the audit log of a coordinator: a file with one JSON object for a call,
// with who made it and how it ended. It does not know the calls, nor which of them are audited;
// the coordinator's API does. Each line has a checksum
// (package linesum); Check names the lines that are damaged.
//
// A record that cannot be written is an error of its call's Write, not dropped and counted as
// package rotate does with the lines of a daemon's log.
//
// Records are appended with one write each, and not synced: a process that is killed loses
// none, a machine that loses power the last ones. The facts' log is what survives that.
package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/linesum"
)

// keptFiles is how many files there are besides the current one; FILE.1 is the newest of them.
const keptFiles = 9

// defaultMaxBytes is the size at which a file is closed and the next one begun.
const defaultMaxBytes = 32 << 20

// Record is one line. The caller of Write cuts texts that users chose, and escapes what controls a
// terminal in them.
type Record struct {
	Time    time.Time `json:"time"`
	Actor   string    `json:"actor"`            // "user/alice", "local": the identity of the certificate or socket
	From    string    `json:"from,omitempty"`   // network address of the caller
	Call    string    `json:"call"`             // "StopJob"
	Target  string    `json:"target,omitempty"` // what it was about: "job 17", "node n1"
	Outcome string    `json:"outcome"`          // "ok", or the class of the error: "not allowed"
	Error   string    `json:"error,omitempty"`
	Omitted int       `json:"omitted,omitempty"` // not 0: so many calls of this kind ended so, and have no line of their own
}

// Log appends records to a file. It is safe for concurrent use.
type Log struct {
	path     string
	maxBytes int64

	mu   sync.Mutex // guards the fields below
	file *os.File
	size int64
}

// Open opens the log at path for appending, with mode 0600, and creates it if there is
// none. maxBytes, 0 for defaultMaxBytes, is the size of a file. Conflict: the file that is
// there is no audit log; it stays as it is.
func Open(path string, maxBytes int64) (*Log, error) {
	if maxBytes <= 0 {
		maxBytes = defaultMaxBytes
	}
	if err := checkIsLog(path); err != nil {
		return nil, err
	}
	l := &Log{path: path, maxBytes: maxBytes}
	if err := l.openLocked(); err != nil {
		return nil, err
	}
	return l, nil
}

// headBytes is how much of a file is read to know it for an audit log. A record may have
// some 1.5 kB, so that there are many.
const headBytes = 64 << 10

// checkIsLog refuses a file in whose beginning nothing is, or may have been, a record.
func checkIsLog(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode()&os.ModeType&^os.ModeDir != 0 { // a pipe, say, is not read
		return nil
	}
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, headBytes))
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	head = bytes.ReplaceAll(head, []byte{0}, nil) // a loss of power leaves zero bytes where records were not synced
	for line := range bytes.Lines(head) {
		if mayBeRecord(line) {
			return nil
		}
	}
	if linesum.Begins(bytes.TrimSpace(head)) { // empty, or the disk was full after some bytes of the first record
		return nil
	}
	return fault.New(fault.Conflict, "audit log: %s is there and is none: name another file with -audit-log, or move it away", path)
}

// mayBeRecord reports whether a line is a record, also a damaged one or the beginning of
// one. A record begins with its checksum, or with its time in logs from before there were any.
func mayBeRecord(line []byte) bool {
	if linesum.Sealed(line) {
		return linesum.Check(line) != nil || bytes.Contains(line, []byte(`,"actor":`))
	}
	var r Record
	return json.Unmarshal(line, &r) == nil && r.Actor != "" && r.Call != ""
}

func (l *Log) openLocked() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm() != 0o600 {
		err = f.Chmod(0o600) // of a file that was there before
	}
	if err != nil {
		return errors.Join(fmt.Errorf("audit log: %w", err), f.Close())
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Check returns the damaged lines of the log at path, its older files among them. A line that
// was cut short by a full disk or a loss of power is one. O(bytes).
func Check(path string) (all []linesum.Damage, err error) {
	for k := keptFiles; k >= 0; k-- {
		file := path
		if k > 0 {
			file = fmt.Sprint(path, ".", k)
		}
		damaged, err := linesum.CheckFile(file)
		if err != nil {
			return all, fmt.Errorf("audit log: %w", err)
		}
		all = append(all, damaged...)
	}
	return all, nil
}

// Write appends a record. After an error, such as a full disk, the next Write tries again;
// what could be written of a record then stands on a line of its own.
func (l *Log) Write(r Record) error {
	r.Time = r.Time.UTC()
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	line = append(linesum.Seal(line), '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil || l.size > 0 && l.size+int64(len(line)) > l.maxBytes {
		if err := l.rotateLocked(); err != nil {
			return err
		}
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	if err != nil && n > 0 { // end the torn line
		m, _ := l.file.Write([]byte{'\n'}) // if that fails too, the next record is torn as well
		l.size += int64(m)
	}
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// rotateLocked begins the next file, if the current one is full, and drops the oldest.
func (l *Log) rotateLocked() error {
	if l.file != nil {
		err := l.file.Close()
		l.file = nil
		if err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
		for k := keptFiles; k > 0; k-- {
			from := l.path
			if k > 1 {
				from = fmt.Sprint(l.path, ".", k-1)
			}
			if err := os.Rename(from, fmt.Sprint(l.path, ".", k)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("audit log: %w", err)
			}
		}
	}
	return l.openLocked()
}

// Close closes the file. It does nothing on a nil Log.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
