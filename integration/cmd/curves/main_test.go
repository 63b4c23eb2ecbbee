package main

import (
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler/sim/engine"
)

func TestSlopes(t *testing.T) {
	for name, c := range map[string]struct {
		x1, y1, x2, y2 float64
		want           string
	}{
		"constant":  {10, 3, 100, 3, "0.00"},
		"linear":    {10, 3, 100, 30, "1.00"},
		"quadratic": {10, 3, 40, 48, "2.00"},
		"falling":   {10, 4, 100, 0.4, "-1.00"},
		"nothing":   {10, 0, 100, 3, "-"},
	} {
		if got := slopeText(c.x1, c.y1, c.x2, c.y2); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestNumbersOfAResult(t *testing.T) {
	r := result{"a": 2.0, "idle": map[string]any{"seconds": 3.0}, "text": "x"}
	if r.number("a") != 2 || r.number("idle.seconds") != 3 {
		t.Error("a number is not found")
	}
	for _, path := range []string{"b", "text", "idle", "a.b", "idle.b"} {
		if n := r.number(path); n == n {
			t.Errorf("%s: %v", path, n)
		}
	}
}

// The cost of a split is CPU time: for a few blocks it is above zero and below the CPU time of the
// process.
func TestSplitsAreMeasuredInCPUTime(t *testing.T) {
	before, err := processCPU()
	if err != nil {
		t.Fatal(err)
	}
	const blocks = 1000
	r, err := planSplits(t.Context(), blocks)
	if err != nil {
		t.Fatal(err)
	}
	after, err := processCPU()
	if all := after - before; err != nil || r.number("us") <= 0 || r.number("us")*blocks*1000 > float64(all.Nanoseconds()) {
		t.Errorf("%g µs for each block; the process had %s, %v", r.number("us"), all, err)
	}
}

func TestDispatch(t *testing.T) {
	job := func(at int, work ...time.Duration) engine.Job {
		return engine.Job{Submit: time.Duration(at) * time.Second, Stages: []engine.Stage{{Tasks: int32(len(work)), WorkPerTask: work}}}
	}
	const s = time.Second
	jobs := []engine.Job{
		job(0, 10*s, 10*s), // 20 task-seconds to the first cluster
		job(0, 5*s),        // 5 to the second
		job(0, 5*s),        // 5 more to the second
		job(2, 1*s),        // after two seconds of two cores, 16 and 6 are left: to the second
		job(20, 1*s),       // no work is left: to the first
	}
	jobs[3].Stages = append(jobs[3].Stages, engine.Stage{Tasks: 3, Work: 2 * s})
	if got, want := leastWork(jobs, 2, 2), []int{0, 1, 1, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("least work: %v, want %v", got, want)
	}
	if got, want := inTurn(jobs, 3, 2), []int{0, 1, 2, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("in turn: %v, want %v", got, want)
	}
	if got, want := earliestEnd(jobs, 2, 2), []int{0, 1, 1, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("earliest end: %v, want %v", got, want)
	}
	if got, want := taskTimes(&jobs[3]), []time.Duration{s, 2 * s, 2 * s, 2 * s}; !slices.Equal(got, want) {
		t.Errorf("tasks %v, want %v", got, want)
	}
	cores := make(coreTimes, 2)
	if end := cores.run(s, []time.Duration{3 * s, s, s}); end != 4*s || cores[0] != 3*s || cores[1] != 4*s {
		t.Errorf("end %v, cores free at %v", end, cores)
	}
}
