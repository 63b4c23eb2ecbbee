package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/median"
)

// dayQuantity is something that may not grow.
type dayQuantity struct {
	name  string
	of    func(*daySample) float64
	slack float64 // growth that is never too much
}

var dayQuantities = []dayQuantity{
	{"memory, MiB", func(s *daySample) float64 { return s.MemoryMiB }, 32},
	{"in use, MiB", func(s *daySample) float64 { return s.InUseMiB }, 16},
	{"goroutines", func(s *daySample) float64 { return s.Goroutines }, 100},
	{"file descriptors", func(s *daySample) float64 { return s.Descs }, 50},
	{"attempts", func(s *daySample) float64 { return s.Attempts }, 500},
	{"folders", func(s *daySample) float64 { return s.Folders }, 1000},
	{"files", func(s *daySample) float64 { return s.Files }, 1000},
	{"disk, MiB", func(s *daySample) float64 { return s.DiskMiB }, 64},
}

// change returns how much a quantity grew from start to end, and a text that says whether it stayed
// within the allowed growth, or only within the slack.
func (q dayQuantity) change(start, end, allowed float64) (growth, state string, grows bool) {
	growth = "-"
	if start > 0 {
		growth = fmt.Sprintf("%+.0f%%", 100*(end/start-1))
	}
	switch {
	case end <= start*(1+allowed):
		return growth, fmt.Sprintf("within %.0f%%", 100*allowed), false
	case end <= start+q.slack:
		return growth, fmt.Sprintf("within a slack of %.0f", q.slack), false
	default:
		return growth, "GROWS", true
	}
}

// daySlack lists the slack of each quantity.
func daySlack() string {
	var all []string
	for _, q := range dayQuantities {
		all = append(all, fmt.Sprintf("%s %.0f", q.name, q.slack))
	}
	return strings.Join(all, "; ")
}

// dayColumns is the width of the plot.
const dayColumns = 60

// report prints the table and the plots, and returns an error if something grew.
func (r *dayRun) report(took time.Duration) error {
	var bad []error
	for _, reason := range slices.Sorted(maps.Keys(r.failures)) {
		bad = append(bad, fmt.Errorf("%d of %d jobs failed: %s", r.failures[reason], r.jobs, reason))
	}
	if len(r.samples) < 8 {
		return errors.Join(append(bad, fmt.Errorf("%d samples are too few: run more jobs", len(r.samples)))...)
	}
	w := r.c.App.Writer
	if !r.c.Bool("json") {
		tasks, jobs := r.jobs*r.c.Int("tasks"), r.jobs
		if r.c.String("shape") == dayOne {
			jobs = 1
		}
		fmt.Fprintf(w, "%d jobs, %d tasks in %s: %.0f jobs/s, %.0f tasks/s\n\n", jobs, tasks, took.Round(time.Second), float64(jobs)/took.Seconds(), float64(tasks)/took.Seconds())
	}
	var rows [][]string
	var plots strings.Builder
	for _, q := range dayQuantities {
		first, start, middle, end := dayMedian(r.samples, 0, 0.25, q.of), dayMedian(r.samples, 0.25, 0.5, q.of), dayMedian(r.samples, 0.5, 0.75, q.of), dayMedian(r.samples, 0.75, 1, q.of)
		growth, state, grows := q.change(start, end, r.c.Float64("growth"))
		if grows {
			bad = append(bad, fmt.Errorf("%s: %.0f in the second quarter, %.0f in the last", q.name, start, end))
		}
		rows = append(rows, []string{q.name, fmt.Sprintf("%.0f", first), fmt.Sprintf("%.0f", start), fmt.Sprintf("%.0f", middle), fmt.Sprintf("%.0f", end), growth, state})
		line, top := dayPlot(r.samples, q.of)
		fmt.Fprintf(&plots, "%-17s 0 to %-6.0f |%s|\n", q.name, top, line)
	}
	if !r.c.Bool("json") {
		printTable(w, []string{"median of", "first quarter", "second", "third", "last", "last over second", ""}, rows)
		fmt.Fprintf(w, "\nFrom the first job to the last:\n%s", plots.String())
	}
	return errors.Join(bad...)
}

// dayMedian returns the median of a part of the samples.
func dayMedian(all []daySample, from, to float64, of func(*daySample) float64) float64 {
	n := float64(len(all))
	var v []float64
	for i := int(n * from); i < int(n*to); i++ {
		v = append(v, of(&all[i]))
	}
	return median.Of(v)
}

// dayPlot draws the samples as a line of bars, from 0 to the highest, which it returns.
func dayPlot(all []daySample, of func(*daySample) float64) (line string, top float64) {
	bars := []rune(" ▁▂▃▄▅▆▇█")
	for i := range all {
		top = max(top, of(&all[i]))
	}
	for k := range dayColumns {
		v := of(&all[k*len(all)/dayColumns])
		if top > 0 {
			line += string(bars[int(v/top*float64(len(bars)-1)+0.5)])
		}
	}
	return line, top
}
