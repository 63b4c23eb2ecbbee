package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Each limit takes time, and dd leaves no file behind.
func TestLimits(t *testing.T) {
	b := &bench{ctx: t.Context(), dir: t.TempDir(), runs: 1, divide: 512}
	rows, err := b.measureMachine()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.value <= 0 || r.unit != "MB/s" || !strings.HasSuffix(r.name, " of 1 MB") {
			t.Errorf("%+v", r)
		}
	}
	if len(rows) != 1 && len(rows) != 3 { // without and with dd
		t.Errorf("%d limits: %+v", len(rows), rows)
	}
	if left, err := os.ReadDir(b.dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// The rate over that of a limit is the limit's time over ours, run by run.
func TestRateOverLimits(t *testing.T) {
	ours, copies := []resourceUse{{wall: 2}, {wall: 4}, {wall: 2}}, []resourceUse{{wall: 0.5}, {wall: 0.5}, {wall: 1}}
	got := rateOverLimits("sort, ", 10e6, ours, []limit{{name: "memory copy"}}, [][]resourceUse{copies})
	want := []figure{
		{"sort, input rate", 5, "MB/s", "input bytes per second of wall time"},
		{"sort, input rate over memory copy", 0.25, "times", "median of 3 pairs, 0.12 to 0.50"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
