// Package history writes ended jobs to files, one JSON line each, so that the
// coordinator needs to keep only recent jobs in memory, and so that the
// simulator can replay them (its trace reader accepts these files).
//
// A line is a Job with a checksum (package linesum); fields are only added, and
// "version" marks a change of meaning. A file is closed at maxFile, or an eighth of the
// limit, and the next one started: history-000001.jsonl, history-000002.jsonl and so
// on. Over the limit the oldest files are removed. Lines are in the order in which jobs
// were written, which is nearly that of their ends.
//
// A job may be dropped from the coordinator's facts only after Sync. Open
// removes a line truncated by a crash, and reads as many files as have the jobs that
// may be appended again. These are not written again, so every job occurs once. A
// damaged line stays in its file, where readers refuse it; Damaged names it.
package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/drover-run/drover/internal/linesum"
)

// version is the version of the lines.
const version = 1

// maxFile is the size at which a file is closed.
const maxFile = 64 << 20

// Job is an ended job. Times are Unix milliseconds, durations milliseconds,
// amounts as in jobspec: CPU millicores, memory bytes, I/O bytes per second.
type Job struct {
	Version  int              `json:"version"`
	Cluster  string           `json:"cluster"`
	Job      uint64           `json:"job"`
	Name     string           `json:"name"`
	Tenant   string           `json:"tenant"`
	Priority string           `json:"priority"`
	State    string           `json:"state"` // succeeded, failed, stopped
	Message  string           `json:"message,omitempty"`
	SubmitMS int64            `json:"submit_ms"`
	StartMS  int64            `json:"start_ms,omitempty"` // first placement; 0 = never
	FinishMS int64            `json:"finish_ms"`
	Counters map[string]int64 `json:"counters,omitempty"`
	Stages   []Stage          `json:"stages"`

	// Deadline, quote and guarantee: absent if the job has none.
	DeadlineMS   int64    `json:"deadline_ms,omitempty"`
	BoundMS      int64    `json:"bound_ms,omitempty"` // runtime_bound
	OnMiss       string   `json:"on_miss,omitempty"`  // continue, lower, stop
	Project      string   `json:"project,omitempty"`
	Quote        *float64 `json:"quote,omitempty"`         // probability of meeting the deadline, at submission
	MissMS       int64    `json:"miss_ms,omitempty"`       // when the deadline was found infeasible or missed
	Missed       bool     `json:"missed,omitempty"`        // the deadline had passed by then
	GuaranteedMS int64    `json:"guaranteed_ms,omitempty"` // the deadline, if the scheduler guaranteed it
	// GuaranteeViolated is why the guarantee was violated first.
	GuaranteeViolated string `json:"guarantee_violated,omitempty"`
}

// Stage holds tasks with equal resource demands.
type Stage struct {
	Name   string  `json:"name"`
	Kind   string  `json:"kind"` // map, reduce, group
	After  []int32 `json:"after,omitempty"`
	CPU    int64   `json:"cpu"`
	Memory int64   `json:"memory"`
	IO     int64   `json:"io"`
	Disk   int64   `json:"disk"`
	Tasks  []Task  `json:"tasks"`
}

// Task is one task with its attempts in order.
type Task struct {
	InputBytes int64     `json:"input_bytes,omitempty"`
	Hosts      []string  `json:"hosts,omitempty"`      // nodes that stored its input, as last known
	HostBytes  []int64   `json:"host_bytes,omitempty"` // bytes of it on each; absent if each stored all of it
	Attempts   []Attempt `json:"attempts,omitempty"`
}

// Attempt is one try at a task.
type Attempt struct {
	Node       string `json:"node"`
	State      string `json:"state"` // succeeded, failed, stopped, lost
	Cause      string `json:"cause,omitempty"`
	Locality   string `json:"locality,omitempty"`
	PlaceMS    int64  `json:"place_ms"`
	EndMS      int64  `json:"end_ms"`
	StartingMS int64  `json:"starting_ms,omitempty"` // from placement until it ran
	RunMS      int64  `json:"run_ms,omitempty"`      // running time without suspensions, measured by the node
	CPUMS      int64  `json:"cpu_ms,omitempty"`
	PeakMemory int64  `json:"peak_memory,omitempty"`
	ReadBytes  int64  `json:"read_bytes,omitempty"`
	WriteBytes int64  `json:"write_bytes,omitempty"`
	InputBytes int64  `json:"input_bytes,omitempty"` // actually read
}

// Writer appends to the newest file. It is safe for concurrent use.
type Writer struct {
	dir   string
	limit int64 // bytes of all files; none below 1

	mu      sync.Mutex
	f       *os.File
	n       int              // number of the file
	size    int64            // of the file, bytes
	written map[uint64]bool  // jobs that may be appended again: see Forget
	damaged []linesum.Damage // found by Open
}

// Open opens or creates the history in dir. It has at most limit bytes, no limit below 1;
// the newest file always stays. Of the newest files it reads two, and more until it has
// seen as many jobs as may be appended again.
func Open(dir string, limit int64, jobs int) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	w := &Writer{dir: dir, limit: limit, n: 1, written: map[uint64]bool{}}
	files, err := Files(dir)
	if err != nil {
		return nil, err
	}
	for i, p := range slices.Backward(files) {
		read := len(files) - 1 - i
		if read >= 2 && len(w.written) >= jobs {
			break
		}
		size, err := w.scan(p)
		if err != nil {
			return nil, err
		}
		if read > 0 {
			continue
		}
		w.size = size
		if _, err := fmt.Sscanf(filepath.Base(p), "history-%d.jsonl", &w.n); err != nil {
			return nil, fmt.Errorf("history: %s: %w", p, err)
		}
	}
	if err := w.prune(); err != nil {
		return nil, err
	}
	if w.f, err = w.openFile(w.n); err != nil {
		return nil, err
	}
	return w, nil
}

// maxFile returns the size at which a file is closed.
func (w *Writer) maxFile() int64 {
	if w.limit < 1 {
		return maxFile
	}
	return min(maxFile, w.limit/8)
}

// prune removes the oldest files while there is more than the limit.
func (w *Writer) prune() error {
	files, err := Files(w.dir)
	if err != nil || w.limit < 1 {
		return err
	}
	left := w.limit
	for i := len(files) - 1; i >= 0; i-- {
		st, err := os.Stat(files[i])
		if err != nil {
			return fmt.Errorf("history: %w", err)
		}
		if left -= st.Size(); left >= 0 || i == len(files)-1 {
			continue
		}
		if err := os.Remove(files[i]); err != nil {
			return fmt.Errorf("history: %w", err)
		}
	}
	return nil
}

// Files returns the files of a history, oldest first.
func Files(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "history-*.jsonl"))
	slices.Sort(files)
	return files, err
}

func (w *Writer) openFile(n int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(w.dir, fmt.Sprintf("history-%06d.jsonl", n)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return f, nil
}

// scan records which jobs a file contains and which lines are damaged, truncates an
// incomplete last line, and returns the file's size.
func (w *Writer) scan(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("history: %w", err)
	}
	lines := linesum.NewScanner(f, filepath.Base(path))
	var line []byte
	for err == nil {
		if line, err = lines.Next(); err == nil {
			if id, ok := jobOf(line); ok {
				w.written[id] = true
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	st, serr := f.Stat()
	if err = errors.Join(err, serr); err == nil && st.Size() > lines.Bytes {
		err = errors.Join(f.Truncate(lines.Bytes), f.Sync())
	}
	w.damaged = slices.Concat(lines.Damaged, w.damaged) // Open reads the newest file first
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("history: %s: %w", path, err)
	}
	return lines.Bytes, nil
}

// jobOf returns the number of the job of an intact line. It is not parsed as JSON, which would take longer than all
// else that Open does (BenchmarkOpen): the member cannot stand inside a text, where its quotes would be escaped, and is the first of
// its name.
func jobOf(line []byte) (uint64, bool) {
	_, rest, _ := bytes.Cut(line, []byte(`,"job":`))
	digits := 0
	for digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9' {
		digits++
	}
	id, err := strconv.ParseUint(string(rest[:digits]), 10, 64)
	return id, err == nil
}

// Damaged returns the lines of the newest files that Open found damaged or incomplete.
func (w *Writer) Damaged() []linesum.Damage { return w.damaged }

// Has reports whether a job is in the newest files.
func (w *Writer) Has(job uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written[job]
}

// Forget says that jobs will not be appended again.
func (w *Writer) Forget(jobs []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range jobs {
		delete(w.written, j)
	}
}

// encode returns the line of a job, with its end.
func encode(j *Job) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(j); err != nil {
		return nil, err
	}
	return append(linesum.Seal(bytes.TrimRight(b.Bytes(), "\n")), '\n'), nil
}

// Append writes the jobs that have not been written, all of them or, after an error, none: then
// they may be appended again. They are durable after Sync.
func (w *Writer) Append(jobs []Job) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b bytes.Buffer
	added := map[uint64]bool{}
	for i := range jobs {
		id := jobs[i].Job
		if w.written[id] || added[id] {
			continue
		}
		jobs[i].Version = version
		line, err := encode(&jobs[i])
		if err != nil {
			return fmt.Errorf("history of job %d: %w", id, err)
		}
		b.Write(line)
		added[id] = true
	}
	if b.Len() == 0 {
		return nil
	}
	if w.size >= w.maxFile() {
		if err := w.nextFile(); err != nil {
			return err
		}
	}
	if _, err := w.f.Write(b.Bytes()); err != nil {
		return fmt.Errorf("history: %w", errors.Join(err, w.f.Truncate(w.size))) // the next line must not continue half of one
	}
	w.size += int64(b.Len())
	maps.Copy(w.written, added)
	return nil
}

// nextFile closes the file and begins the next one. After an error the old one goes on, unless the
// new one is there.
func (w *Writer) nextFile() error {
	if err := w.f.Sync(); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	next, err := w.openFile(w.n + 1)
	if err != nil {
		return err
	}
	err = w.f.Close()
	w.f, w.n, w.size = next, w.n+1, 0
	return errors.Join(err, w.prune())
}

// Sync makes appended jobs durable.
func (w *Writer) Sync() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.f.Sync()
}

// Close closes the file.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.f.Sync(), w.f.Close())
}
