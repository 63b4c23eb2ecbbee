package engine

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// The reasons of a decision hold until the next one, and all of that is waiting time.
func TestWaitedTimes(t *testing.T) {
	var w waitedTimes
	at := func(s int) scheduler.Time { return scheduler.Time(0).Add(time.Duration(s) * time.Second) }
	w.set([]scheduler.Waiting{{Reason: scheduler.ReasonNoCPU, Tasks: 3}, {Reason: scheduler.ReasonCap, Tasks: 1}, {Reason: scheduler.ReasonNoCPU, Tasks: 1}}, at(10))
	w.set([]scheduler.Waiting{{Reason: scheduler.ReasonCap, Tasks: 2}}, at(15))
	w.set(nil, at(16))
	w.set(nil, at(100))
	got := w.list()
	if len(got) != 2 || got[0] != (WaitedFor{scheduler.ReasonNoCPU, 20}) || got[1] != (WaitedFor{scheduler.ReasonCap, 7}) {
		t.Errorf("waited for %v; want no free cpu 20 s, over its cap 7 s", got)
	}
}
