package rigid

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/publictrace"
	"github.com/drover-run/drover/scheduler"
)

func parseInt(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// In the KTH-SP2 log, 28,481 jobs on 100 processors, every job starts in the same
// second as in an independent simulator (pyss), under each rule.
func TestKTHSP2StartsEqualThoseOfAnIndependentSimulator(t *testing.T) {
	var jobs []Job
	for _, f := range publictrace.Rows(t, publictrace.KTHSP2) {
		jobs = append(jobs, Job{Submit: scheduler.Time(parseInt(t, f[1])), RunTime: time.Duration(parseInt(t, f[3])), Bound: time.Duration(parseInt(t, f[8])), Need: []int64{parseInt(t, f[7])}})
	}
	if len(jobs) != 28_481 {
		t.Fatalf("%d jobs", len(jobs))
	}
	waits := publictrace.Rows(t, publictrace.KTHSP2Waits)
	for column, c := range []struct {
		name           string
		rule           Rule
		wait, slowdown float64
	}{
		{"fcfs", FCFS, 353776.4091, 6814.973310},
		{"easy", EASY, 6836.8721, 92.576540},
		{"conservative", Conservative, 7310.5512, 88.997275},
	} {
		t.Run(c.name, func(t *testing.T) {
			starts, err := Simulate(c.rule, []int64{100}, jobs)
			if err != nil {
				t.Fatal(err)
			}
			wrong := 0
			var wait, slowdown float64
			for i, f := range waits {
				if want := jobs[i].Submit + scheduler.Time(parseInt(t, f[column])); starts[i] != want {
					if wrong++; wrong < 5 {
						t.Errorf("job %d starts at %d, want %d", i+1, starts[i], want)
					}
				}
				w, r := float64(starts[i]-jobs[i].Submit), float64(jobs[i].RunTime)
				wait += w
				slowdown += max(1, (w+r)/max(r, 10))
			}
			n := float64(len(jobs))
			if wrong > 0 || math.Abs(wait/n-c.wait) > 1e-4 || math.Abs(slowdown/n-c.slowdown) > 1e-6 {
				t.Errorf("%d starts differ; mean wait %.4f, want %.4f; mean bounded slowdown %.6f, want %.6f",
					wrong, wait/n, c.wait, slowdown/n, c.slowdown)
			}
		})
	}
}

func TestSmallTraces(t *testing.T) {
	sec := func(n int64) scheduler.Time { return scheduler.Time(n) }
	jobs := []Job{ // a runs 4 of 10; b needs all; c fits beside a and ends before b could start; d is too long for that
		{0, 4, 10, []int64{3}}, {1, 5, 5, []int64{5}}, {2, 8, 8, []int64{2}}, {3, 20, 20, []int64{2}},
	}
	for name, c := range map[string]struct {
		rule Rule
		want []scheduler.Time
	}{
		"first come first served": {FCFS, []scheduler.Time{0, 4, 9, 9}},
		// At 4 a has ended: b waits for c alone, which was backfilled at 2 with a bound
		// of 10.
		"easy":         {EASY, []scheduler.Time{0, 10, 2, 15}},
		"conservative": {Conservative, []scheduler.Time{0, 10, 2, 15}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Simulate(c.rule, []int64{5}, jobs)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range c.want {
				if got[i] != sec(int64(w)) {
					t.Errorf("starts %v, want %v", got, c.want)
					break
				}
			}
		})
	}
}

func TestBadTracesAreRefused(t *testing.T) {
	for name, jobs := range map[string][]Job{
		"more than there is":      {{0, 1, 1, []int64{6}}},
		"another number of parts": {{0, 1, 1, []int64{1, 1}}},
		"runs past its bound":     {{0, 2, 1, []int64{1}}},
		"no bound":                {{0, 0, 0, []int64{1}}},
		"out of order":            {{5, 1, 1, []int64{1}}, {4, 1, 1, []int64{1}}},
		"negative":                {{0, 1, 1, []int64{-1}}},
	} {
		if _, err := Simulate(FCFS, []int64{5}, jobs); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Simulate(0, []int64{5}, nil); err == nil {
		t.Error("rule 0: accepted")
	}
}
