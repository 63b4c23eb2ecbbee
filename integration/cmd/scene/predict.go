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

// prediction is what the simulator makes of the same arrivals and run times.
type prediction struct {
	Mode   preempt.Mode
	OnTime int
	Order  []int // the deadline jobs by their end
	Apart  int   // pairs of deadline jobs that ended in another order live
}

// predict replays the jobs of one run, as the coordinator's history has them, on
// machines of the same size under the same policy.
func (s *scene) predict(ctx context.Context, drover string, o *preempt.Outcome, run int) (*prediction, error) {
	file, err := s.historyOf(fmt.Sprintf("-%s-%d", o.Mode, run))
	if err != nil {
		return nil, err
	}
	cpu, memory, io, err := s.size(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, fmt.Sprintf("sim-%s-%d", o.Mode, run))
	cmd := exec.CommandContext(ctx, drover, "sim", "run", "-workload", file, "-format", "jsonl", "-nodes", strconv.Itoa(len(s.bed.Nodes)),
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

// readPrediction reads the simulator's jobs.csv.
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
			return nil, fmt.Errorf("jobs.csv of the simulator: %s never ended", r[col["name"]])
		}
		p.Order = append(p.Order, i)
		if r[col["met"]] == "true" {
			p.OnTime++
		}
	}
	sort.SliceStable(p.Order, func(a, b int) bool { return ends[p.Order[a]] < ends[p.Order[b]] })
	p.Apart = inversions(o.Order, p.Order)
	return p, nil
}

// inversions counts the pairs that two orders of the same jobs put apart.
func inversions(a, b []int) (n int) {
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

// historyOf puts the lines of the history whose jobs' names hold a word into a
// file.
func (s *scene) historyOf(word string) (string, error) {
	files, err := filepath.Glob(filepath.Join(s.cl.Dir(), "coordinator", "history", "history-*.jsonl"))
	if err != nil {
		return "", err
	}
	slices.Sort(files)
	var keep []byte
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
				keep = append(keep, line...)
			}
		}
	}
	if len(keep) == 0 {
		return "", fmt.Errorf("the history has no job with %q", word)
	}
	file := filepath.Join(s.dir, "history"+word+".jsonl")
	return file, os.WriteFile(file, keep, 0o644)
}

// size is what a machine hands out: the least of all.
func (s *scene) size(ctx context.Context) (cpu, memory, io int64, err error) {
	var list struct {
		Nodes []struct {
			Info struct {
				Allocatable struct{ CPU, Memory, IO string }
			}
		}
	}
	if err := s.cl.JSON(ctx, &list, "node", "list", "-json"); err != nil {
		return 0, 0, 0, err
	}
	for i, n := range list.Nodes {
		var v [3]int64
		for k, text := range []string{n.Info.Allocatable.CPU, n.Info.Allocatable.Memory, n.Info.Allocatable.IO} {
			if v[k], err = strconv.ParseInt(text, 10, 64); err != nil {
				return 0, 0, 0, fmt.Errorf("what %d hands out: %q", i, text)
			}
		}
		if i == 0 {
			cpu, memory, io = v[0], v[1], v[2]
		}
		cpu, memory, io = min(cpu, v[0]), min(memory, v[1]), min(io, v[2])
	}
	return cpu, memory, io, nil
}
