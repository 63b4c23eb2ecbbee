package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
)

// harnessCounters are the harness's counters of a map or reduce stage, in the order in
// which records pass them, with their names for users. The keys are
// KIND:FLOW_records and KIND:FLOW_bytes. What is "as stored" may be compressed.
var harnessCounters = []struct{ key, text string }{
	{"in", "input"}, {"map_out", "output of the mapper"}, {"combine_in", "into the combiner"}, {"combine_out", "out of the combiner"},
	{"spilled", "spilled to disk"}, {"out", "output"}, {"stored", "output as stored"}, {"fetched", "fetched as stored"},
}

// counterKinds are the stage kinds with harness counters.
var counterKinds = []string{"map", "reduce"}

// printCounters prints the harness's counters as a table of records and bytes, then the
// counters of the programs (reporter:counter:GROUP,NAME,N) by group.
func printCounters(w io.Writer, counters map[string]int64) {
	var rows [][]string
	own := map[string]bool{}
	for _, kind := range counterKinds {
		for _, f := range harnessCounters {
			records, bytes := kind+":"+f.key+"_records", kind+":"+f.key+"_bytes"
			own[records], own[bytes] = true, true
			if counters[records] != 0 || counters[bytes] != 0 {
				rows = append(rows, []string{kind, f.text, withThousands(counters[records]), jobspec.FormatSize(counters[bytes])})
			}
		}
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		printTable(w, []string{"kind", "what", "records", "bytes"}, rows)
	}
	rows = nil
	for _, key := range slices.Sorted(maps.Keys(counters)) {
		if !own[key] && key != facts.CountersDropped {
			rows = append(rows, append(splitCounterKey(key), withThousands(counters[key])))
		}
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	if len(rows) > 0 {
		fmt.Fprintln(w)
		printTable(w, []string{"group", "counter", "value"}, rows)
	}
	if n := counters[facts.CountersDropped]; n > 0 {
		fmt.Fprintf(w, "WARNING: a job has at most %d counters; %s of tasks with further names are missing above. The totals above are complete.\n", facts.MaxCounters, countText(int(n), "count"))
	}
}

// splitCounterKey returns the group and the name of a counter.
func splitCounterKey(key string) []string {
	group, name, ok := strings.Cut(key, ":")
	if !ok {
		return []string{"", key}
	}
	return []string{group, name}
}
