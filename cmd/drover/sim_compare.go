package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
)

// comparison is the JSON output of compare and plan.
type comparison struct {
	Base    string           `json:"base"`
	Columns []report.Summary `json:"columns"`
	// Ratios are each column's numbers divided by those of the base, paired by seed.
	Ratios []map[string]ratio `json:"ratios"`
}

type ratio struct {
	Mean float64 `json:"mean"`
	CI95 float64 `json:"ci95,omitempty"`
}

// comparedSetup is one scheduler or cluster with its simulations.
type comparedSetup struct {
	name     string
	setup    *run.Setup
	outcomes []*run.Outcome
}

func simCompareCommand() *cli.Command {
	return &cli.Command{
		Name:  "compare",
		Usage: "several schedulers side by side on one workload, with confidence intervals over seeds",
		Flags: simFlags(&cli.StringSliceFlag{Name: "scheduler", Usage: "policy, or policy:key=value,key=value; repeatable; the others are compared with the first"},
			&cli.StringFlag{Name: "out", Usage: "folder for comparison.json and plots"}, simJSONLinesFlag, simHTMLFlag),
		Action: func(c *cli.Context) (err error) {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			names := rejoinSchedulers(c.StringSlice("scheduler"))
			if len(names) < 2 {
				return usageErrorf("compare needs at least two -scheduler flags")
			}
			in, err := parseSimFlags(c)
			if err != nil {
				return err
			}
			pages, err := newSimulationPages(c, in.model)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, pages.close("Schedulers compared", err)) }()
			defer func() { err = errors.Join(err, in.discardLogs()) }()
			var cols []comparedSetup
			for i, n := range names {
				dir := pages.logDir(columnDir(c.String("out"), i, n), i)
				name, outs, setup, err := in.simulate(c, n, dir)
				clearProgressLine(c)
				if err == nil {
					err = pages.add(name, outs[0])
				}
				if err != nil {
					return err
				}
				cols = append(cols, comparedSetup{name, setup, outs})
			}
			return printComparison(c, in, cols)
		},
	}
}

// rejoinSchedulers joins again what the flag parser split at commas: "a:x=1,y=2" arrives
// as "a:x=1" and "y=2".
func rejoinSchedulers(list []string) []string {
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

// isParam reports whether s is key=value rather than a scheduler with parameters, which
// has a colon before its first equals sign.
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

// printComparison prints and writes a comparison.
func printComparison(c *cli.Context, in *simInput, cols []comparedSetup) error {
	all := comparison{Base: cols[0].name}
	for _, col := range cols {
		sum := col.setup.Summary(col.outcomes, in.parameters)
		sum.Scheduler, sum.Model = col.name, in.model
		all.Columns = append(all.Columns, sum)
		all.Ratios = append(all.Ratios, pairedRatios(cols[0].outcomes, col.outcomes))
	}
	if dir := c.String("out"); dir != "" {
		if err := writeComparison(dir, all, cols, c.Bool("jsonl")); err != nil {
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
	for _, name := range report.NumberNames() {
		row := []string{name}
		for i := range all.Columns {
			v, _ := all.Columns[i].Get(name)
			if !all.Columns[i].Known(name, all.Columns[i].Jobs) {
				row = append(row, "-")
				continue
			}
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
	printTable(c.App.Writer, header, rows)
	return nil
}

// pairedRatios returns the mean ratios to the base, paired by seed.
func pairedRatios(base, outs []*run.Outcome) map[string]ratio {
	m := map[string]ratio{}
	for _, name := range report.NumberNames() {
		var x []float64
		for i := range outs {
			a, _ := base[i].Numbers.Get(name)
			b, _ := outs[i].Numbers.Get(name)
			if a != 0 && outs[i].Numbers.Known(name, len(outs[i].Result.Jobs)) {
				x = append(x, b/a)
			}
		}
		if e := report.Estimate(x); len(x) == len(outs) {
			r := ratio{Mean: e.Mean}
			if !math.IsInf(e.HalfWidth, 0) {
				r.CI95 = e.HalfWidth
			}
			m[name] = r
		}
	}
	return m
}

// columnDir is the folder of one column of a comparison, "" without -out.
func columnDir(dir string, i int, scheduler string) string {
	if dir == "" {
		return ""
	}
	name, _, _ := strings.Cut(scheduler, ":")
	return filepath.Join(dir, fmt.Sprintf("%d-%s", i+1, name))
}

func writeComparison(dir string, all comparison, cols []comparedSetup, jsonl bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := run.WriteFile(filepath.Join(dir, "comparison.json"), func(w io.Writer) error { return report.WriteJSON(w, all) }); err != nil {
		return err
	}
	var names []string
	var runs []*engine.Result
	for i, col := range cols {
		names, runs = append(names, col.name), append(runs, col.outcomes[0].Result)
		own := columnDir(dir, i, col.setup.Scheduler)
		if err := run.WriteResults(own, all.Columns[i], col.outcomes[0]); err != nil {
			return err
		}
		if jsonl {
			if err := run.WriteJSONLines(own); err != nil {
				return err
			}
		}
	}
	p, err := report.PlotResponses(names, runs)
	if err != nil {
		return err
	}
	return report.SavePlot(p, filepath.Join(dir, "responses"))
}
