package mapreduce

import (
	"encoding/json"
	"fmt"
	"os"
)

// ResultVersion is the version of Result and Progress.
const ResultVersion = 1

// Counters are group, name, value, as the program reported them.
type Counters map[string]map[string]int64

// Flow counts what passed one door of the task. For text a record is a line.
type Flow struct {
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"` // uncompressed
}

// Result is how a task ended. It is written once, last, under a temporary
// name and renamed: if the file is there it is whole, and every file it names
// was complete before.
type Result struct {
	Version int    `json:"version"`
	Names   Names  `json:"names"`
	Kind    Kind   `json:"kind"`
	Class   Class  `json:"class"`
	Error   string `json:"error,omitempty"` // one line for the user; empty if Class is ok

	UserExit   int    `json:"user_exit"`             // status of the program, -1: did not end by itself or was never started
	UserSignal string `json:"user_signal,omitempty"` // signal that ended the program

	StderrTail string `json:"stderr_tail,omitempty"` // last lines of the program's stderr, at most 2 KiB

	Counters        Counters `json:"counters,omitempty"`
	CountersDropped int64    `json:"counters_dropped,omitempty"` // reports beyond the limits of a task
	Status          string   `json:"status,omitempty"`           // last reporter:status

	In         Flow  `json:"in"`         // lines of the split, or records of the partitions
	MapOut     Flow  `json:"map_out"`    // records the mapper wrote, before combining
	CombineIn  Flow  `json:"combine_in"` // through the combiner, all runs of it
	CombineOut Flow  `json:"combine_out"`
	Spilled    Flow  `json:"spilled"` // records written to runs, the last one included
	Out        Flow  `json:"out"`     // final: partitions or output file
	Groups     int64 `json:"groups,omitempty"`

	Spills      int `json:"spills,omitempty"`
	MergePasses int `json:"merge_passes,omitempty"`

	Index  *Index  `json:"index,omitempty"`  // map output, as in the index file
	Output *Stored `json:"output,omitempty"` // output file

	WallMS         int64 `json:"wall_ms"`
	UserCPUMS      int64 `json:"user_cpu_ms"`      // program and its waited-for children, user + system
	HarnessCPUMS   int64 `json:"harness_cpu_ms"`   // user + system
	UserPeakRSS    int64 `json:"user_peak_rss"`    // bytes, largest single process
	HarnessPeakRSS int64 `json:"harness_peak_rss"` // bytes
}

// Stored describes a finished output file: what a commit entry must name.
type Stored struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`  // as stored, compressed if Codec says so
	CRC32C uint32 `json:"crc32c"` // of the stored bytes
	Codec  Codec  `json:"codec"`
}

// Progress is a Result's younger sister, rewritten while the task runs.
type Progress struct {
	Version  int      `json:"version"`
	In       Flow     `json:"in"`
	Out      Flow     `json:"out"`
	Segments int      `json:"segments,omitempty"` // reduce: partition files present
	Status   string   `json:"status,omitempty"`
	Counters Counters `json:"counters,omitempty"`
}

// WriteResult writes a result (temporary name, sync, rename).
func WriteResult(path string, r *Result) error { return writeJSON(path, r) }

// WriteProgress writes progress; the file is replaced as a whole.
func WriteProgress(path string, p *Progress) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// ReadResult reads a result. Fields it does not know are skipped, so that a
// daemon can read what a newer harness wrote; a higher version is an error.
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
