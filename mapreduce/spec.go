package mapreduce

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// SpecVersion is the version of TaskSpec that this package reads and writes.
const SpecVersion = 1

// Limits and defaults of a TaskSpec. Sizes are bytes.
const (
	MaxReduces        = 65535   // partitions of one job
	maxSpecBytes      = 8 << 20 // of the encoded spec
	MinSortMemory     = 4 << 10
	maxSortMemory     = 2 << 30
	defaultSortMemory = 64 << 20
	DefaultMaxLine    = 16 << 20
	MaxMaxLine        = 1 << 30
	defaultFanIn      = 32
	defaultStallMS    = 600_000
	defaultGraceMS    = 2_000
)

// TaskSpec is the complete input of the harness. Paths are those that the
// harness sees (in a container: below /task). WithDefaults replaces zero sizes
// and times by the defaults above.
type TaskSpec struct {
	Version  int          `json:"version"`
	Kind     Kind         `json:"kind"`
	Identity TaskIdentity `json:"identity"`

	Program  Program  `json:"program"`            // mapper, reducer or command
	Combiner *Program `json:"combiner,omitempty"` // map only; needs Reduces > 0
	Reduces  int      `json:"reduces,omitempty"`  // partitions of the job; 0: map-only
	Keys     Keys     `json:"keys,omitzero"`      // map: which part of a line is its key, and its partition; reduce: the order, if it is not that of bytes

	Input   *MapInput    `json:"input,omitempty"`   // map
	Shuffle *ReduceInput `json:"shuffle,omitempty"` // reduce

	MapOutput *MapOutputPaths `json:"map_output,omitempty"` // map with Reduces > 0
	Output    *OutputFile     `json:"output,omitempty"`     // reduce, and map-only

	WorkDir  string   `json:"work_dir"`           // working directory of the program
	TempDir  string   `json:"temp_dir"`           // spills; exists, on the attempt's quota
	Result   string   `json:"result"`             // path of the Result
	Progress string   `json:"progress,omitempty"` // path of the Progress, rewritten about once a second; empty: none
	Env      []string `json:"env,omitempty"`      // KEY=value; overrides the harness's environment and the names of Environ

	SortMemory int64 `json:"sort_memory,omitempty"` // bytes of records and their index kept in memory
	MaxLine    int64 `json:"max_line,omitempty"`    // bytes of one line from a mapper or combiner, or of input to a built-in
	FanIn      int   `json:"fan_in,omitempty"`      // segments merged at once, at least 2
	StallMS    int64 `json:"stall_ms,omitempty"`    // running time without new input after which a map task fails
	GraceMS    int64 `json:"grace_ms,omitempty"`    // time between SIGTERM and SIGKILL for the program
}

// TaskIdentity names the task in events and in the program's environment.
type TaskIdentity struct {
	Job      string `json:"job"`      // id of the job
	JobName  string `json:"job_name"` // name given by the user
	Stage    string `json:"stage"`
	Task     string `json:"task"`
	Attempt  string `json:"attempt"`
	Run      int    `json:"run"`   // fencing number
	Index    int    `json:"index"` // index of the task in its stage: split number or partition
	MapTasks int    `json:"maps,omitempty"`
}

// Program is a command (Argv) or a built-in with arguments, never both.
type Program struct {
	Argv    []string `json:"argv,omitempty"`
	Builtin string   `json:"builtin,omitempty"`
	Args    []string `json:"args,omitempty"`
}

// MapInput is a split as the helper delivers it: the whole lines of each piece,
// piece after piece, in one growing file. File and journal may appear after the
// harness has started.
type MapInput struct {
	File   string  `json:"file"`   // the journal is File + JournalSuffix
	Pieces []Piece `json:"pieces"` // as in the Split
}

// ReduceInput names the folder into which the helper puts one complete file for
// each map task, and the journal that announces them.
type ReduceInput struct {
	Dir     string `json:"dir"`
	Journal string `json:"journal"`
	Maps    int    `json:"maps"` // number of segments to expect
}

// MapOutputPaths names the two files of a map output.
type MapOutputPaths struct {
	Data  string `json:"data"`
	Index string `json:"index"`
	Codec Codec  `json:"codec"` // none or zstd
}

// OutputFile is the single file that a reduce or map-only task writes.
type OutputFile struct {
	Path  string `json:"path"`
	Codec Codec  `json:"codec"` // none or zstd
}

// ErrSpec is wrapped by every error about the content of a TaskSpec.
var ErrSpec = errors.New("task spec")

// WithDefaults returns a copy in which zero sizes and times have their defaults.
func (s TaskSpec) WithDefaults() TaskSpec {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&s.SortMemory, defaultSortMemory)
	def(&s.MaxLine, DefaultMaxLine)
	def(&s.StallMS, defaultStallMS)
	def(&s.GraceMS, defaultGraceMS)
	if s.FanIn == 0 {
		s.FanIn = defaultFanIn
	}
	return s
}

// ReadSpec reads and validates a spec and fills in defaults. An unknown field is
// an error, because ignoring an instruction is worse than refusing it.
func ReadSpec(path string) (*TaskSpec, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSpecBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	s, err := parseSpec(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// parseSpec is like ReadSpec for the content of the file.
func parseSpec(b []byte) (*TaskSpec, error) {
	if len(b) > maxSpecBytes {
		return nil, fmt.Errorf("%w: larger than %d bytes", ErrSpec, maxSpecBytes)
	}
	var s TaskSpec
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	if d.More() {
		return nil, fmt.Errorf("%w: text after the JSON object", ErrSpec)
	}
	s = s.WithDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &s, nil
}

// WriteSpec validates a spec and writes it (temporary name, rename).
func WriteSpec(path string, s *TaskSpec) error {
	full := s.WithDefaults()
	if err := full.Validate(); err != nil {
		return err
	}
	return writeJSON(path, &full)
}

// writeJSON writes v to a temporary file beside path, syncs it and renames it,
// so that a crash leaves either the old file or the new one.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
