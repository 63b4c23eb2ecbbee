package engine

import "github.com/drover-run/drover/scheduler"

// WaitedFor says how long tasks waited for one reason.
type WaitedFor struct {
	Reason      scheduler.Reason
	TaskSeconds float64
}

// waitedTimes integrates the reasons of waiting tasks over time: the reasons of a decision hold
// until the next one.
type waitedTimes struct {
	since   scheduler.Time
	waiting []int64 // tasks by reason, since then
	total   []float64
}

// set takes the reasons of a decision at time now. O(reasons).
func (t *waitedTimes) set(list []scheduler.Waiting, now scheduler.Time) {
	d := now.Sub(t.since).Seconds()
	for r, n := range t.waiting {
		t.total[r] += d * float64(n)
		t.waiting[r] = 0
	}
	t.since = now
	for i := range list {
		for int(list[i].Reason) >= len(t.waiting) {
			t.waiting, t.total = append(t.waiting, 0), append(t.total, 0)
		}
		t.waiting[list[i].Reason] += int64(list[i].Tasks)
	}
}

// list returns the reasons that tasks waited for, in order of their numbers.
func (t *waitedTimes) list() (out []WaitedFor) {
	for r, v := range t.total {
		if v > 0 {
			out = append(out, WaitedFor{scheduler.Reason(r), v})
		}
	}
	return out
}
