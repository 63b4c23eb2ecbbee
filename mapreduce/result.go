package mapreduce

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// ResultVersion is the version of Result and Progress.
const ResultVersion = 1

// Limits on what a task reports. The node enforces them too, because the program can write the
// harness's files.
const (
	MaxResultBytes = 256 << 10 // of the file with the result or the progress
	maxErrorBytes  = 8 << 10   // of Result.Error, if the file is over MaxResultBytes
)

// Counters are group, name, value, as the program reported them.
type Counters map[string]map[string]int64

// Flow counts the records and bytes that passed one point of the task. For text
// a record is a line.
type Flow struct {
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"` // uncompressed, but for Result.Stored and Result.Fetched
}

// Result describes how a task ended. It is written once and last, under a
// temporary name, and renamed: if the file exists, it is complete, and so is
// every file that it names.
type Result struct {
	Version  int          `json:"version"`
	Identity TaskIdentity `json:"identity"`
	Kind     Kind         `json:"kind"`
	Class    ExitClass    `json:"class"`
	Error    string       `json:"error,omitempty"` // one line for the user; empty if Class is ok
	// Permanent says that another attempt would fail in the same way.
	Permanent bool `json:"permanent,omitempty"`

	UserExit   int    `json:"user_exit"`             // exit status of the program; -1: ended by a signal or never started
	UserSignal string `json:"user_signal,omitempty"` // signal that ended the program

	StderrTail string `json:"stderr_tail,omitempty"` // last lines of the program's stderr, at most 2 KiB

	Counters        Counters `json:"counters,omitempty"`
	CountersDropped int64    `json:"counters_dropped,omitempty"` // reports beyond the limits of a task
	Status          string   `json:"status,omitempty"`           // last reporter:status

	Input      Flow  `json:"in"`         // lines of the split, or records of the partitions
	MapOutput  Flow  `json:"map_out"`    // records the mapper wrote, before combining
	CombineIn  Flow  `json:"combine_in"` // input of the combiner, summed over all its executions
	CombineOut Flow  `json:"combine_out"`
	Spilled    Flow  `json:"spilled"`          // records written to segments, including the last one
	Final      Flow  `json:"out"`              // final: partitions or output file
	Stored     Flow  `json:"stored,omitzero"`  // map: the partitions in Final, with their bytes as stored
	Fetched    Flow  `json:"fetched,omitzero"` // reduce: the partitions of all map tasks, with their bytes as stored
	Groups     int64 `json:"groups,omitempty"`

	Spills      int `json:"spills,omitempty"`
	MergePasses int `json:"merge_passes,omitempty"`

	Index  *Index      `json:"index,omitempty"`  // map output, as in the index file; left out if the result would be too long
	Output *StoredFile `json:"output,omitempty"` // output file

	WallMS         int64 `json:"wall_ms"`
	UserCPUMS      int64 `json:"user_cpu_ms"`      // program and its waited-for children, user + system
	HarnessCPUMS   int64 `json:"harness_cpu_ms"`   // user + system
	UserPeakRSS    int64 `json:"user_peak_rss"`    // bytes, largest single process
	HarnessPeakRSS int64 `json:"harness_peak_rss"` // bytes
}

// StoredFile describes a finished output file, as the commit records it.
type StoredFile struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`  // as stored, compressed if Codec says so
	CRC32C uint32 `json:"crc32c"` // of the stored bytes
	Codec  Codec  `json:"codec"`
}

// Progress is the part of a Result that is known while the task runs; the file is rewritten.
type Progress struct {
	Version  int      `json:"version"`
	Input    Flow     `json:"in"`
	Output   Flow     `json:"out"`
	Segments int      `json:"segments,omitempty"` // reduce: partition files present
	Status   string   `json:"status,omitempty"`
	Counters Counters `json:"counters,omitempty"`
}

// WriteResult writes a result (temporary name, sync, rename). If a result is longer than
// MaxResultBytes, it drops the parts that the reader can do without.
func WriteResult(path string, r *Result) error {
	short := *r
	for _, drop := range []func(){
		func() { short.Index = nil },
		func() {
			short.CountersDropped, short.Counters = short.CountersDropped+int64(short.Counters.count()), nil
		},
		func() {
			short.StderrTail, short.Status = "", ""
			short.Error = strings.ToValidUTF8(short.Error[:min(len(short.Error), maxErrorBytes)], "")
		},
	} {
		b, err := json.Marshal(&short)
		if err != nil {
			return err
		}
		if len(b) < MaxResultBytes {
			break
		}
		drop()
	}
	return writeJSON(path, &short)
}

// count returns the number of counters.
func (c Counters) count() (n int) {
	for _, names := range c {
		n += len(names)
	}
	return n
}

// WriteProgress writes progress; the file is replaced as a whole. It leaves the counters out if the
// file would otherwise be longer than MaxResultBytes.
func WriteProgress(path string, p *Progress) error {
	b, err := json.Marshal(p)
	if err == nil && len(b) >= MaxResultBytes {
		short := *p
		short.Counters = nil
		b, err = json.Marshal(&short)
	}
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// ReadResult reads a result. Unknown fields are skipped, so that a daemon can
// read what a newer harness wrote; another version is an error.
func ReadResult(path string) (*Result, error) {
	var r Result
	if err := readJSON(path, &r); err != nil {
		return nil, err
	}
	if r.Version != ResultVersion {
		return nil, fmt.Errorf("mapreduce: result %s has version %d, this program knows %d", path, r.Version, ResultVersion)
	}
	if r.Class < ClassOK || r.Class > ClassInternal {
		return nil, fmt.Errorf("mapreduce: result %s has no class", path)
	}
	return &r, nil
}

// ReadProgress reads progress.
func ReadProgress(path string) (*Progress, error) {
	var p Progress
	if err := readJSON(path, &p); err != nil {
		return nil, err
	}
	if p.Version != ResultVersion {
		return nil, fmt.Errorf("mapreduce: progress %s has version %d, this program knows %d", path, p.Version, ResultVersion)
	}
	return &p, nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("mapreduce: %s: %w", path, err)
	}
	return nil
}
