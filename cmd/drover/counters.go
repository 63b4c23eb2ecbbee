package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/drover-run/drover/jobspec"
)

// flows are the harness's own counters of a map or reduce stage in the order in
// which records go through it, with what they are called for people. Their keys
// are KIND:FLOW_records and KIND:FLOW_bytes.
var flows = []struct{ key, text string }{
	{"in", "input"}, {"map_out", "output of the mapper"}, {"combine_in", "into the combiner"}, {"combine_out", "out of the combiner"},
	{"spilled", "spilled to disk"}, {"out", "output"},
}

// flowKinds are the kinds that the harness counts for.
var flowKinds = []string{"map", "reduce"}

// printCounters writes the harness's counters as a table of records and bytes,
// then those of the programs (reporter:counter:GROUP,NAME,N) by their group.
func printCounters(w io.Writer, counters map[string]int64) {
	var rows [][]string
	own := map[string]bool{}
	for _, kind := range flowKinds {
		for _, f := range flows {
			records, bytes := kind+":"+f.key+"_records", kind+":"+f.key+"_bytes"
			own[records], own[bytes] = true, true
			if counters[records] != 0 || counters[bytes] != 0 {
				rows = append(rows, []string{kind, f.text, grouped(counters[records]), jobspec.FormatSize(counters[bytes])})
			}
		}
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		columns(w, []string{"kind", "what", "records", "bytes"}, rows)
	}
	rows = nil
	for _, key := range sortedKeys(counters) {
		if !own[key] {
			rows = append(rows, append(cutGroup(key), grouped(counters[key])))
		}
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	if len(rows) > 0 {
		fmt.Fprintln(w)
		columns(w, []string{"group", "counter", "value"}, rows)
	}
}

// cutGroup gives the group and the name of a counter.
func cutGroup(key string) []string {
	group, name, ok := strings.Cut(key, ":")
	if !ok {
		return []string{"", key}
	}
	return []string{group, name}
}
