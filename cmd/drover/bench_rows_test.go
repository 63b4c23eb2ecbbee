package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/coordinator/bench"
	schedulerbench "github.com/drover-run/drover/scheduler/bench"
)

// A row of the table of floods has a cell for each name, in their order, and each number in the unit that its name says.
func TestFloodRows(t *testing.T) {
	r := bench.FloodResult{Flood: "lists", Ratio: 1.25, Kept: []float64{0.9, 0.5, 0.95}, RSSBefore: 100 << 20, RSSPeak: 384 << 20}
	r.Attempts, r.Answered, r.Told, r.Failed = 2000, 1500, 499, 1
	r.Quiet.ReadMS, r.During.ReadMS, r.Quiet.PlaceMS, r.During.PlaceMS = 0.54, 1.26, 3, 4
	r.Quiet.PlanMS, r.During.PlanMS, r.Quiet.ConnectMS, r.During.ConnectMS = 5, 6, 7, 8.04
	r.Quiet.PlacedPerSecond, r.During.PlacedPerSecond = 12_345.6, 11_111.4
	want := []string{"lists", "2000", "1500", "499", "1", "0.5", "1.3", "3.0", "4.0", "5.0", "6.0", "7.0", "8.0", "1.2x", "12346", "11111", "0.90 (0.50 to 0.95)", "100 MiB", "384 MiB"}
	if got := benchFloodRow(&r); !slices.Equal(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
	if got := keptText(&bench.FloodResult{}); got != "-" {
		t.Errorf("of no round: %q", got)
	}
}

// A table of worst cycles says what its numbers are, and has the longest of any run beside that of the shortest times.
func TestWorstTableSaysWhatItIs(t *testing.T) {
	k := schedulerbench.WorstCases()[0]
	runs := &schedulerbench.WorstRuns{Case: k, Config: schedulerbench.WorstConfig{Nodes: 10, Cycles: 2, Policy: "fifo", Scale: 10_000, Limit: time.Second}}
	at := time.Duration(0)
	for _, took := range []time.Duration{9 * time.Millisecond, 4 * time.Millisecond} {
		if err := runs.Run(schedulerbench.Meter{CPU: func() time.Duration { at += took; return at }}); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	printWorst(&out, []string{"fifo"}, 2, []*schedulerbench.WorstRuns{runs})
	const first = "ms of CPU time of one thread: the longest of 60 cycles, by each cycle's shortest time in 2 runs; in brackets the longest cycle of any run\n"
	if !strings.HasPrefix(out.String(), first) || !strings.Contains(out.String(), "4.0 (9.0, 2 cycles)") {
		t.Errorf("%s", out.String())
	}
}

// Throughput, durations and foreign output, as tables and errors of benchmarks show them.
func TestTextsOfBenchmarks(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{throughputText(100<<20, []int64{500_000, 1_000_000, 2_000_000}), "104.9"},
		{throughputText(100<<20, nil), ""},
		{throughputText(0, []int64{5}), ""},
		{throughputText(100, []int64{0}), ""},
		{medianText(nil), ""},
		{medianText([]int64{1_234_567}), "1.23457s"},
		{quantileText([]int64{10, 20, 30, 40}, 1), "40µs"},
		{joinLines([]byte("a\n\x1b[2J")), `"a\n\x1b[2J"`},
		{joinLines([]byte(strings.Repeat("x", 1000))), `"` + strings.Repeat("x", 300) + `"`},
		{joinLines(nil), `""`},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
