package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// The bytes of the large text and of the lines to sort, of the small text, and the number of tasks
// of one stage; all are divided in quick runs.
const (
	mib       = 1 << 20
	largeSize = int64(512 * mib)
	smallSize = int64(64 * mib)
	manyTasks = 2000
)

// mb returns the size of a file in the names of figures.
func mb(size int64) string { return fmt.Sprintf("%.0f MB", float64(size)/1e6) }

// target is the most that the figure of a name may be: seconds, or a ratio. A rate has a lower
// bound, so a rate with a target is given by its inverse.
type target struct {
	part string // of devbench
	name string
	most float64
	unit string
}

func (t target) text() string { return fmt.Sprintf("%g %s", t.most, t.unit) }

// hdfsPart is the part that is measured inside `testbed hdfs` alone.
const hdfsPart = "hdfs"

// targets returns all targets, of amounts of work that are divided.
func targets(divide int) []target {
	large, small := mb(largeSize/int64(divide)), mb(smallSize/int64(divide))
	return []target{
		{"start", "start of a command", 0.015, "s"},
		{"start", "drover dev until it is ready", 0.15, "s"},
		{"one", "job of one task, submit to done", 0.025, "s"},
		{"many", fmt.Sprintf("%d tasks of true in one stage, wall over xargs -P 2", manyTasks/divide), 2, "times"},
		{"words", "built-in word count of " + large + ", wall", 3, "s"},
		{"sort", "sort of " + large + " of lines, wall over sort --parallel=2 -S 1G", 0.6, "times"},
		{"streaming", "Python word count of " + small + ", CPU over that without Drover", 1.03, "times"},
		{"streaming", "Python word count of " + small + ", combiner, CPU over that without Drover", 1.08, "times"},
		{hdfsPart, large + " read from HDFS by one task, CPU over hdfs dfs -cat", 0.5, "times"},
	}
}

// targetOf returns the target of a figure.
func targetOf(all []target, name string) (target, bool) {
	i := slices.IndexFunc(all, func(t target) bool { return t.name == name })
	if i < 0 {
		return target{}, false
	}
	return all[i], true
}

// checkTargets returns an error if a part has figures, but none of the name of one of its targets:
// such a target would never be checked.
func checkTargets(part string, rows []figure, all []target) error {
	for _, t := range all {
		if t.part == part && len(rows) > 0 && !slices.ContainsFunc(rows, func(r figure) bool { return r.name == t.name }) {
			return fmt.Errorf("part %s has a target for %q, but no such figure", part, t.name)
		}
	}
	return nil
}

// listTargets prints the targets of parts, separated by commas, as a table of figures that were not
// measured; by default of all parts but HDFS.
func listTargets(to io.Writer, parts string) error {
	w := newTable(to)
	for _, t := range targets(1) {
		if parts == "" && t.part != hdfsPart || slices.Contains(strings.Split(parts, ","), t.part) {
			fmt.Fprintf(w, "%s\t-\t%s\t%s\t\n", t.name, t.text(), notMeasured)
		}
	}
	return w.Flush()
}
