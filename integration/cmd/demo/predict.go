package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/drover-run/drover/integration/preempt"
)

// prediction is the simulator's result for the same arrivals and run times.
type prediction struct {
	Mode       preempt.Mode
	OnTime     int
	EndOrder   []int // the deadline jobs in the order of their ends
	Inversions int   // pairs of deadline jobs that ended in a different order in the real cluster
}

// predict simulates the jobs of one run from the coordinator's history, on nodes of the same size
// under the same policy.
func (s *demo) predict(ctx context.Context, drover string, o *preempt.Outcome, run int) (*prediction, error) {
	file, err := s.filterHistory(fmt.Sprintf("-%s-%d", o.Mode, run))
	if err != nil {
		return nil, err
	}
	cpu, memory, io, err := s.smallestNode(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, fmt.Sprintf("sim-%s-%d", o.Mode, run))
	cmd := exec.CommandContext(ctx, drover, "sim", "run", "-workload", file, "-format", "jsonl", "-nodes", strconv.Itoa(len(s.testbed.Nodes)),
		"-cpu", fmt.Sprintf("%dm", cpu), "-memory", strconv.FormatInt(memory, 10), "-io", fmt.Sprintf("%d/s", io), "-scheduler", "3dsf", "-set", "preempt="+string(o.Mode), "-out", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "jobs.csv"))
	if err != nil {
		return nil, err
	}
	return readPrediction(o, text)
}

// readPrediction parses the simulator's jobs.csv.
func readPrediction(o *preempt.Outcome, text []byte) (*prediction, error) {
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil || len(rows) == 0 {
		return nil, fmt.Errorf("jobs.csv of the simulator: %d rows, %v", len(rows), err)
	}
	col := map[string]int{}
	for i, name := range rows[0] {
		col[name] = i
	}
	p := &prediction{Mode: o.Mode}
	ends := map[int]float64{}
	for _, r := range rows[1:] {
		if r[col["deadline_s"]] == "" {
			continue
		}
		parts := strings.Split(r[col["name"]], "-")
		i, err := strconv.Atoi(parts[len(parts)-1])
		if err != nil {
			return nil, fmt.Errorf("jobs.csv of the simulator: name %q", r[col["name"]])
		}
		if ends[i], err = strconv.ParseFloat(r[col["finish_s"]], 64); err != nil {
			return nil, fmt.Errorf("jobs.csv of the simulator: job %s has no end", r[col["name"]])
		}
		p.EndOrder = append(p.EndOrder, i)
		if r[col["met"]] == "true" {
			p.OnTime++
		}
	}
	sort.SliceStable(p.EndOrder, func(a, b int) bool { return ends[p.EndOrder[a]] < ends[p.EndOrder[b]] })
	p.Inversions = countInversions(o.EndOrder, p.EndOrder)
	return p, nil
}

// countInversions counts the pairs that are in different order in a and b.
func countInversions(a, b []int) (n int) {
	at := map[int]int{}
	for i, x := range b {
		at[x] = i
	}
	for i := range a {
		for _, y := range a[i+1:] {
			if at[a[i]] > at[y] {
				n++
			}
		}
	}
	return n
}

// filterHistory writes the lines of the history whose job names contain a word to a file and
// returns its path.
func (s *demo) filterHistory(word string) (string, error) {
	files, err := filepath.Glob(filepath.Join(s.cluster.Dir(), "coordinator", "history", "history-*.jsonl"))
	if err != nil {
		return "", err
	}
	slices.Sort(files)
	var matching []byte
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		for line := range bytes.Lines(text) {
			var j struct {
				Name string `json:"name"`
			}
			if json.Unmarshal(line, &j) == nil && strings.Contains(j.Name+"-", word+"-") {
				matching = append(matching, line...)
			}
		}
	}
	if len(matching) == 0 {
		return "", fmt.Errorf("the history has no job with %q", word)
	}
	file := filepath.Join(s.dir, "history"+word+".jsonl")
	return file, os.WriteFile(file, matching, 0o644)
}

// smallestNode returns the minimum of the nodes' allocatable resources.
func (s *demo) smallestNode(ctx context.Context) (cpu, memory, io int64, err error) {
	var list struct {
		Nodes []struct {
			Info struct {
				Allocatable struct{ CPU, Memory, IO json.Number }
			}
		}
	}
	if err := s.cluster.JSON(ctx, &list, "node", "list", "-json"); err != nil {
		return 0, 0, 0, err
	}
	for i, n := range list.Nodes {
		var v [3]int64
		for k, text := range []json.Number{n.Info.Allocatable.CPU, n.Info.Allocatable.Memory, n.Info.Allocatable.IO} {
			if v[k], err = text.Int64(); err != nil {
				return 0, 0, 0, fmt.Errorf("allocatable resources of node %d: %q", i, text)
			}
		}
		if i == 0 {
			cpu, memory, io = v[0], v[1], v[2]
		}
		cpu, memory, io = min(cpu, v[0]), min(memory, v[1]), min(io, v[2])
	}
	return cpu, memory, io, nil
}
