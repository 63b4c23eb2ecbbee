// Package history writes down jobs that ended, one JSON line each, so that the
// coordinator's memory holds only what is live, and so that the simulator can
// replay what happened (its trace reader takes these files as they are).
//
// What a line holds is Job below; fields are only added, and "version" tells
// of a change in meaning. A file is closed at MaxFile bytes and the next one
// begun: history-000001.jsonl, history-000002.jsonl and so on. Lines are in
// the order in which jobs were written, which is nearly that of their ends.
//
// What must be durable first: a job may leave the coordinator's facts only
// after Sync. A line that a crash cut short is removed at Open, and a job that
// stands in the newest two files is not written again, so every job stands
// there once.
package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Version of the lines.
const Version = 1

// MaxFile is the size at which a file is closed, in bytes.
const MaxFile = 64 << 20

// Job is one ended job. Instants are Unix milliseconds, spans milliseconds,
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

	// What the job asked for and was told: absent where it asked for nothing.
	DeadlineMS int64    `json:"deadline_ms,omitempty"`
	BoundMS    int64    `json:"bound_ms,omitempty"` // runtime_bound
	OnMiss     string   `json:"on_miss,omitempty"`  // continue, lower, stop
	Project    string   `json:"project,omitempty"`
	Quote      *float64 `json:"quote,omitempty"`      // probability of the deadline, at submission
	MissMS     int64    `json:"miss_ms,omitempty"`    // when it was known that the deadline is not met
	Missed     bool     `json:"missed,omitempty"`     // it had passed then
	PromiseMS  int64    `json:"promise_ms,omitempty"` // departure that the scheduler guaranteed
}

// Stage is tasks of one shape.
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
	Hosts      []string  `json:"hosts,omitempty"` // names of the nodes that held its input, as last known
	Attempts   []Attempt `json:"attempts,omitempty"`
}

// Attempt is one try.
type Attempt struct {
	Node       string `json:"node"`
	State      string `json:"state"` // succeeded, failed, stopped, lost
	Cause      string `json:"cause,omitempty"`
	Locality   string `json:"locality,omitempty"`
	PlaceMS    int64  `json:"place_ms"`
	EndMS      int64  `json:"end_ms"`
	StartingMS int64  `json:"starting_ms,omitempty"` // span from its placement until it ran
	RunMS      int64  `json:"run_ms,omitempty"`      // thawed running time, as the node measured it
	CPUMS      int64  `json:"cpu_ms,omitempty"`
	PeakMemory int64  `json:"peak_memory,omitempty"`
	ReadBytes  int64  `json:"read_bytes,omitempty"`
	WriteBytes int64  `json:"write_bytes,omitempty"`
	InputBytes int64  `json:"input_bytes,omitempty"` // that it really read
}

// Writer appends to the newest file. Safe for concurrent use.
type Writer struct {
	dir string

	mu   sync.Mutex
	f    *os.File
	n    int   // number of the file
	size int64 // of the file, bytes
	have map[uint64]bool
}

// Open opens or makes the history in dir.
func Open(dir string) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	w := &Writer{dir: dir, n: 1, have: map[uint64]bool{}}
	files, err := Files(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range files[max(0, len(files)-2):] {
		if w.size, err = w.scan(p); err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(filepath.Base(p), "history-%d.jsonl", &w.n); err != nil {
			return nil, fmt.Errorf("history: %s: %w", p, err)
		}
	}
	return w, w.begin()
}

// Files lists the files of a history, oldest first.
func Files(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "history-*.jsonl"))
	slices.Sort(files)
	return files, err
}

func (w *Writer) begin() (err error) {
	w.f, err = os.OpenFile(filepath.Join(w.dir, fmt.Sprintf("history-%06d.jsonl", w.n)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

// scan notes which jobs a file has and cuts off a line without an end; it
// gives the file's size.
func (w *Writer) scan(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("history: %w", err)
	}
	r, good := bufio.NewReaderSize(f, 1<<20), int64(0)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			if len(line) > 0 {
				err = errors.Join(f.Truncate(good), f.Sync())
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return 0, errors.Join(fmt.Errorf("history: %s: %w", path, err), f.Close())
			}
			return good, f.Close()
		}
		good += int64(len(line))
		var j struct {
			Job uint64 `json:"job"`
		}
		if json.Unmarshal(line, &j) == nil {
			w.have[j.Job] = true
		}
	}
}

// Has tells whether a job stands in the newest files.
func (w *Writer) Has(job uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.have[job]
}

// Append writes jobs that do not stand there yet. They are durable after Sync.
func (w *Writer) Append(jobs []Job) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i := range jobs {
		if w.have[jobs[i].Job] {
			continue
		}
		jobs[i].Version = Version
		if err := enc.Encode(&jobs[i]); err != nil {
			return fmt.Errorf("history of job %d: %w", jobs[i].Job, err)
		}
		w.have[jobs[i].Job] = true
	}
	if b.Len() == 0 {
		return nil
	}
	if w.size >= MaxFile {
		if err := errors.Join(w.f.Sync(), w.f.Close()); err != nil {
			return fmt.Errorf("history: %w", err)
		}
		w.n++
		w.size = 0
		if err := w.begin(); err != nil {
			return err
		}
	}
	n, err := w.f.Write(b.Bytes())
	w.size += int64(n)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

// Sync makes what was appended durable.
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
