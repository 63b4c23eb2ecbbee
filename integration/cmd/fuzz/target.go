package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// part is the work of one execution of a target.
type part struct {
	Inputs  int64
	Guided  bool    // Go's engine drew the inputs
	Seconds float64 // CPU time; wall time for Go's engine
	Largest int64   // maximum of the bytes allocated for one input; unknown for Go's engine
	Failed  bool
}

// target is a fuzz target with its entry of the ledger.
type target struct {
	dir, name string
	entry
	running int   // parts that run
	begun   int64 // inputs of the running parts
}

func (t *target) String() string { return strings.TrimPrefix(t.dir, "./") + " " + t.name }

var targetLine = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// findTargets returns the targets below root; if names are given, only these targets.
func findTargets(root string, names []string) ([]*target, error) {
	var all []*target
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == "testdata" || e.Name() == "out" || strings.HasPrefix(e.Name(), ".") && path != root) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") || filepath.Base(filepath.Dir(path)) == "fuzztest" {
			return nil // fuzztest's target is for its own tests
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range targetLine.FindAllStringSubmatch(string(text), -1) {
			if len(names) == 0 || slices.Contains(names, m[1]) {
				all = append(all, &target{dir: filepath.Dir(path), name: m[1]})
			}
		}
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no target %q", names)
	}
	return all, err
}

// rate returns inputs per second, 0 if unknown.
func (t *target) rate() float64 {
	if t.Seconds == 0 {
		return 0
	}
	return float64(t.Inputs) / t.Seconds
}

// nextInputs returns how many inputs the next part has: a few at first, then as many as take about
// partLength, so that little is lost when a part is stopped.
func (t *target) nextInputs(wanted int64) int64 {
	n := int64(t.rate() * partLength.Seconds())
	if t.Inputs == t.Guided {
		n = firstInputs
	}
	return max(1, min(n, wanted-t.Inputs-t.begun))
}

const (
	partLength  = 10 * time.Second
	firstInputs = 2000
)

// printTable prints the work done, and returns an error if a target failed or lacks inputs.
func printTable(w io.Writer, targets []*target, wanted int64) error {
	var sum entry
	failed, short := 0, 0
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "TARGET\tINPUTS\tOF GO'S ENGINE\tINPUTS/S\tFAILURES\tMOST ALLOCATED FOR ONE\tSINCE")
	for _, t := range targets {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%.0f\t%d\t%s\t%s\n", t, t.Inputs, t.Guided, t.rate(), t.Failures, size(t.Largest), t.Since)
		sum.Inputs += t.Inputs
		sum.Seconds += t.Seconds
		sum.Largest = max(sum.Largest, t.Largest)
		failed += min(1, t.Failures)
		if t.Inputs < wanted {
			short++
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d targets, %d inputs in %s of one processor; %d targets failed; at most %s allocated for one input\n",
		len(targets), sum.Inputs, time.Duration(sum.Seconds*float64(time.Second)).Round(time.Second), failed, size(sum.Largest))
	if wanted > 0 {
		fmt.Fprintf(w, "%d of %d targets had %d inputs\n", len(targets)-short, len(targets), wanted)
	}
	if failed > 0 || short > 0 {
		return fmt.Errorf("%d targets failed, %d had fewer than %d inputs", failed, short, wanted)
	}
	return nil
}

// size returns bytes as text for people.
func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", (n+1023)>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
