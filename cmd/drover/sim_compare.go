package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
)

// compared is the JSON of compare and plan.
type compared struct {
	Base    string           `json:"base"`
	Columns []report.Summary `json:"columns"`
	// Ratios are each column's number over the base's, paired by seed.
	Ratios []map[string]ratio `json:"ratios"`
}

type ratio struct {
	Mean float64 `json:"mean"`
	CI95 float64 `json:"ci95,omitempty"`
}

// column is one scheduler, or one cluster, and its runs.
type column struct {
	name  string
	setup *run.Setup
	outs  []*run.Outcome
}

func simCompareCommand() *cli.Command {
	return &cli.Command{
		Name:  "compare",
		Usage: "several schedulers side by side on one workload, with confidence intervals over seeds",
		Flags: simFlags(&cli.StringSliceFlag{Name: "scheduler", Usage: "policy, or policy:key=value,key=value; repeatable, the first is what others are compared with"},
			&cli.StringFlag{Name: "out", Usage: "folder for comparison.json and plots"}),
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			names := schedulerList(c.StringSlice("scheduler"))
			if len(names) < 2 {
				return usage("compare wants at least two -scheduler")
			}
			in, err := readSim(c)
			if err != nil {
				return err
			}
			var cols []column
			for _, n := range names {
				name, outs, setup, err := in.outcomes(c, n)
				endProgress(c)
				if err != nil {
					return err
				}
				cols = append(cols, column{name, setup, outs})
			}
			return showColumns(c, in, cols)
		},
	}
}

// schedulerList joins again what the parser of lists cut at commas:
// "a:x=1,y=2" came as "a:x=1" and "y=2".
func schedulerList(list []string) []string {
	var out []string
	for _, s := range list {
		if n := len(out); n > 0 && isParam(s) {
			out[n-1] += "," + s
			continue
		}
		out = append(out, s)
	}
	return out
}

// isParam tells key=value from a scheduler with parameters, which has a colon
// before its first equals sign.
func isParam(s string) bool {
	for _, r := range s {
		switch r {
		case ':':
			return false
		case '=':
			return true
		}
	}
	return false
}

// showColumns prints and writes a comparison.
func showColumns(c *cli.Context, in *simInput, cols []column) error {
	all := compared{Base: cols[0].name}
	for _, col := range cols {
		sum := col.setup.Summary(col.outs, in.shown)
		sum.Scheduler, sum.Model = col.name, in.model
		all.Columns = append(all.Columns, sum)
		all.Ratios = append(all.Ratios, ratios(cols[0].outs, col.outs))
	}
	if dir := c.String("out"); dir != "" {
		if err := writeColumns(dir, all, cols); err != nil {
			return err
		}
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, all)
	}
	header := []string{"number"}
	for _, col := range cols {
		header = append(header, col.name)
	}
	var rows [][]string
	for _, name := range report.Names() {
		row := []string{name}
		for i := range all.Columns {
			v, _ := all.Columns[i].Get(name)
			cell := fmt.Sprintf("%.5g", v)
			if h := all.Columns[i].CI95[name]; h > 0 {
				cell += fmt.Sprintf(" ± %.2g", h)
			}
			if r, ok := all.Ratios[i][name]; i > 0 && ok {
				cell += fmt.Sprintf("  (x%.3f)", r.Mean)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	columns(c.App.Writer, header, rows)
	return nil
}

// ratios pairs the runs of one seed.
func ratios(base, outs []*run.Outcome) map[string]ratio {
	m := map[string]ratio{}
	for _, name := range report.Names() {
		var x []float64
		for i := range outs {
			a, _ := base[i].Numbers.Get(name)
			b, _ := outs[i].Numbers.Get(name)
			if a != 0 {
				x = append(x, b/a)
			}
		}
		if e := report.Estimate(x); len(x) == len(outs) {
			r := ratio{Mean: e.Mean}
			if !math.IsInf(e.Half, 0) {
				r.CI95 = e.Half
			}
			m[name] = r
		}
	}
	return m
}

func writeColumns(dir string, all compared, cols []column) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "comparison.json"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := report.WriteJSON(f, all); err != nil {
		return err
	}
	var names []string
	var runs []*engine.Result
	for i, col := range cols {
		names, runs = append(names, col.name), append(runs, col.outs[0].Result)
		if err := run.Write(filepath.Join(dir, fmt.Sprintf("%d-%s", i+1, col.setup.Scheduler)), all.Columns[i], col.outs[0]); err != nil {
			return err
		}
	}
	p, err := report.Responses(names, runs)
	if err != nil {
		return err
	}
	return report.Save(p, filepath.Join(dir, "responses"))
}
