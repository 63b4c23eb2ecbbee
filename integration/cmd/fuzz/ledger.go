package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// entry is the work done for a target by all runs since its line was added to the ledger.
type entry struct {
	Target   string  `json:"target"`
	Inputs   int64   `json:"inputs"`
	Guided   int64   `json:"guided,omitempty"`  // inputs of Go's engine among them
	Seconds  float64 `json:"seconds"`           // CPU time; wall time for Go's engine
	Largest  int64   `json:"largest,omitempty"` // maximum of the bytes allocated for one input; unknown for Go's engine
	Failures int     `json:"failures,omitempty"`
	Since    string  `json:"since"` // commit of the first input
	Until    string  `json:"until"` // commit of the last input
}

func (e *entry) count(p part, commit string) {
	if e.Since == "" {
		e.Since = commit
	}
	if e.Until = commit; p.Failed {
		e.Failures++
	}
	if p.Guided {
		e.Guided += p.Inputs
	}
	e.Inputs += p.Inputs
	e.Seconds += p.Seconds
	e.Largest = max(e.Largest, p.Largest)
}

// ledger is a sorted file with one line of JSON for each target. It outlives machines, because
// millions of inputs of all targets take many hours. To restart a target whose failure was mended,
// remove its line.
type ledger struct {
	file   string
	commit string // the commit of this run
	lines  map[string]entry
}

func openLedger(file, commit string) (*ledger, error) {
	l := &ledger{file: file, commit: commit, lines: map[string]entry{}}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	} else if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		l.lines[e.Target] = e
	}
	return l, nil
}

// load sets a target's entry from the ledger.
func (l *ledger) load(t *target) {
	t.entry = l.lines[t.String()]
	t.Target = t.String()
}

// forget drops the lines of targets that are no longer in the repository; all lists the present
// ones.
func (l *ledger) forget(all []*target) {
	there := map[string]bool{}
	for _, t := range all {
		there[t.String()] = true
	}
	maps.DeleteFunc(l.lines, func(name string, _ entry) bool { return !there[name] })
}

// add adds a part to its target's entry and writes the ledger.
func (l *ledger) add(t *target, p part) error {
	t.count(p, l.commit)
	l.lines[t.Target] = t.entry
	all := make([]entry, 0, len(l.lines))
	for _, e := range l.lines {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.Target, b.Target) })
	var b bytes.Buffer
	for _, e := range all {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	if err := os.MkdirAll(filepath.Dir(l.file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(l.file+".new", b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(l.file+".new", l.file)
}
