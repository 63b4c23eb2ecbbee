package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
)

// maxSweepPoints limits the points of a grid.
const maxSweepPoints = 10_000

func simSweepCommand() *cli.Command {
	flags := simFlags(&cli.StringFlag{Name: "scheduler", Usage: "policy", Value: "3dsf"},
		&cli.StringSliceFlag{Name: "vary", Usage: "what to vary, as `KEY=VALUE,VALUE,…`, repeatable: scheduler, nodes, cpu, memory, io, set.KEY, rule.KEY or world.KEY"},
		&cli.StringFlag{Name: "out", Usage: "`FILE` instead of standard output"})
	flags[slices.Index(flags, cli.Flag(jsonFlag))] = &cli.BoolFlag{Name: "json", Usage: "one JSON object per row, one per line, instead of CSV"}
	return &cli.Command{
		Name:  "sweep",
		Usage: "a grid of parameters: one CSV row for each combination",
		Flags: flags,
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			axes, err := parseAxes(c.StringSlice("vary"))
			if err != nil {
				return err
			}
			s, err := newSweep(c, axes)
			if err != nil {
				return err
			}
			return s.run(c)
		},
	}
}

// axis is one parameter of a grid with its values.
type axis struct {
	key    string
	values []string
}

// parseAxes reads -vary. The parser of lists cuts at commas, so a value without a key belongs to the
// key before it.
func parseAxes(list []string) ([]axis, error) {
	var out []axis
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok {
			if len(out) == 0 {
				return nil, usageErrorf("-vary %q: want KEY=VALUE,VALUE,…", s)
			}
			a := &out[len(out)-1]
			a.values = append(a.values, s)
			continue
		}
		if !validAxis(k) {
			return nil, usageErrorf("-vary %s: use scheduler, nodes, cpu, memory, io, set.KEY, rule.KEY or world.KEY", k)
		}
		if slices.ContainsFunc(out, func(a axis) bool { return a.key == k }) {
			return nil, usageErrorf("-vary gives %s twice", k)
		}
		out = append(out, axis{k, []string{v}})
	}
	points := 1
	for _, a := range out {
		if points *= len(a.values); points > maxSweepPoints {
			return nil, usageErrorf("the grid has more than %d points: vary less", maxSweepPoints)
		}
	}
	if len(out) == 0 {
		return nil, usageErrorf("sweep wants at least one -vary KEY=VALUE,VALUE,…")
	}
	return out, nil
}

func validAxis(key string) bool {
	if slices.Contains([]string{"scheduler", "nodes", "cpu", "memory", "io"}, key) {
		return true
	}
	prefix, name, ok := strings.Cut(key, ".")
	return ok && name != "" && slices.Contains([]string{"set", "rule", "world"}, prefix)
}

// sweep is a grid of simulations.
type sweep struct {
	axes   []axis
	inputs []*simInput
}

// newSweep reads and checks every point before the first one runs.
func newSweep(c *cli.Context, axes []axis) (*sweep, error) {
	s := &sweep{axes: axes}
	for values := range gridPoints(axes) {
		in, err := parseSimFlagsWith(c, values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", describePoint(axes, values), err)
		}
		if in.model != "tasks" {
			return nil, usageErrorf("sweep works with -model tasks")
		}
		if c.String("cluster") != "" && slices.ContainsFunc(axes, func(a axis) bool { return slices.Contains([]string{"nodes", "cpu", "memory", "io"}, a.key) }) {
			return nil, usageErrorf("-cluster and -vary of nodes, cpu, memory or io exclude each other")
		}
		in.setup.Scheduler, in.setup.Params = c.String("scheduler"), in.params
		if name, ok := values["scheduler"]; ok {
			in.setup.Scheduler = name
		}
		if err := run.CheckScheduler(in.setup.Scheduler, in.params); err != nil {
			return nil, exitError{exitRefused, fmt.Errorf("%s: %w", describePoint(axes, values), err)}
		}
		s.inputs = append(s.inputs, in)
	}
	return s, nil
}

// gridPoints yields all combinations of values, the last key varying fastest.
func gridPoints(axes []axis) func(yield func(map[string]string) bool) {
	return func(yield func(map[string]string) bool) {
		at := make([]int, len(axes))
		for {
			values := map[string]string{}
			for i, a := range axes {
				values[a.key] = a.values[at[i]]
			}
			if !yield(values) {
				return
			}
			i := len(axes) - 1
			for ; i >= 0; i-- {
				if at[i]++; at[i] < len(axes[i].values) {
					break
				}
				at[i] = 0
			}
			if i < 0 {
				return
			}
		}
	}
}

func describePoint(axes []axis, values map[string]string) string {
	var parts []string
	for _, a := range axes {
		parts = append(parts, a.key+"="+values[a.key])
	}
	return strings.Join(parts, " ")
}

// run simulates all points, as many at a time as there are processors, and writes their rows in the
// order of the grid as soon as they and all before them are done.
func (s *sweep) run(c *cli.Context) error {
	var ended error
	write := func(w io.Writer) (err error) {
		ended, err = s.writeRows(c, w)
		return err
	}
	var err error
	if path := c.String("out"); path != "" {
		err = run.WriteFile(path, write)
	} else {
		err = write(c.App.Writer)
	}
	return cmp.Or(err, ended)
}

// writeRows returns two errors: that of the points, whose rows are valid nevertheless, and that of
// the rows that have no result.
func (s *sweep) writeRows(c *cli.Context, w io.Writer) (ended, err error) {
	write, err := s.rowWriter(w, c.Bool("json"))
	if err != nil {
		return nil, err
	}
	rows, next, failed := make([][]string, len(s.inputs)), 0, 0
	var mu sync.Mutex
	var writeErr error
	parallel := runtime.GOMAXPROCS(0)
	report := progressPrinter(c)
	run.ForEachParallel(len(rows), parallel, func(i int) {
		row, ok := s.inputs[i].sweepRow(c, s.point(i))
		mu.Lock()
		defer mu.Unlock()
		rows[i] = row
		if !ok {
			failed++
		}
		for ; next < len(rows) && rows[next] != nil && writeErr == nil && c.Context.Err() == nil; next++ {
			writeErr = write(rows[next])
		}
		report(next, len(rows), engine.Progress{})
	})
	clearProgressLine(c)
	switch err := c.Context.Err(); {
	case err != nil && next == 0:
		return nil, fmt.Errorf("%w; nothing was written: none of %d points is done", context.Cause(c.Context), len(rows))
	case err != nil:
		ended = fmt.Errorf("%w; %d of %d points are done, and written", context.Cause(c.Context), next, len(rows))
	case failed > 0:
		ended = fmt.Errorf("%d of %d points failed: see the column error", failed, len(rows))
	}
	return ended, writeErr
}

// rowWriter returns a function that writes a row at once, as CSV below a line of names or as a JSON
// object. In JSON, varied parameters and the error are text, the rest are numbers, and unknown
// values are left out.
func (s *sweep) rowWriter(w io.Writer, asJSON bool) (func([]string) error, error) {
	if !asJSON {
		out := csv.NewWriter(w)
		write := func(row []string) error {
			if err := out.Write(row); err != nil {
				return err
			}
			out.Flush()
			return out.Error()
		}
		return write, write(s.header())
	}
	names := s.header()
	return func(row []string) error {
		fields := map[string]any{}
		for i, text := range row {
			switch v, err := strconv.ParseFloat(text, 64); {
			case text == "":
			case i < len(s.axes) || i == len(row)-1 || err != nil || math.IsNaN(v) || math.IsInf(v, 0):
				fields[names[i]] = text
			default:
				fields[names[i]] = json.Number(text)
			}
		}
		return json.NewEncoder(w).Encode(fields)
	}, nil
}

// point returns the values of the i-th point in the order of the axes.
func (s *sweep) point(i int) []string {
	out := make([]string, len(s.axes))
	for k := len(s.axes) - 1; k >= 0; k-- {
		n := len(s.axes[k].values)
		out[k], i = s.axes[k].values[i%n], i/n
	}
	return out
}

// header names the columns: the varied parameters, the runs, each number with the half width of its
// 95% interval, and the error of a point that failed.
func (s *sweep) header() []string {
	var out []string
	for _, a := range s.axes {
		out = append(out, a.key)
	}
	out = append(out, "runs")
	for _, n := range report.NumberNames() {
		out = append(out, n, n+"_ci95")
	}
	return append(out, "error")
}

// sweepRow simulates one point and returns its row, and whether it succeeded.
func (in *simInput) sweepRow(c *cli.Context, row []string) ([]string, bool) {
	outs, err := in.setup.SimulateSeeds(c.Context, in.seeds, 1, nil)
	row = append(row, strconv.Itoa(len(in.seeds)))
	if err != nil {
		row = append(row, make([]string, 2*len(report.NumberNames()))...)
		return append(row, err.Error()), false
	}
	sum := in.setup.Summary(outs, in.parameters)
	for _, name := range report.NumberNames() {
		v, _ := sum.Get(name)
		if !sum.Known(name, sum.Jobs) {
			row = append(row, "", "")
			continue
		}
		half := ""
		if h, ok := sum.CI95[name]; ok {
			half = strconv.FormatFloat(h, 'g', 10, 64)
		}
		row = append(row, strconv.FormatFloat(v, 'g', 10, 64), half)
	}
	return append(row, ""), true
}
