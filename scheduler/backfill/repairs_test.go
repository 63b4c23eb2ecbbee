package backfill

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// A bin leaves while a task runs on it. What waits there is placed elsewhere, also where it begins while the
// running task alone exceeds what the bin has.
func TestRepairMovesWhatBeginsWhileStartedTasksExceedABin(t *testing.T) {
	prof := &Profile{}
	prof.AddBin([]int64{4})
	p := NewPlanner(Config{Variant: Strict}, prof)
	submit := func(id int, bound int64) Key {
		k := Key{Job: scheduler.JobID(id)}
		_, err := p.Submit(0, Project{ID: scheduler.ProjectID(id), Submitted: scheduler.Time(id), Requests: []Request{{Job: k.Job, Tasks: []int32{0}, Need: Need{Base: []int64{3}}, Bound: time.Duration(bound)}}})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	running := submit(1, 10)
	p.Start(running, 0)
	first, second := submit(2, 10), submit(3, 10) // from 10 and from 20
	prof.AddBin([]int64{3})
	prof.Change(0, -1, 5, scheduler.Never, &Need{Base: []int64{4}}, -1)
	if at := prof.FirstWithinCapacity(0, 5); at != 30 {
		t.Fatalf("the first bin is within its capacity from %d, want 30: else this test proves nothing", at)
	}
	violations := p.Repair(1, CauseNodeLost)
	for k, want := range map[Key]scheduler.Time{first: 1, second: 11} {
		if x, _ := p.Find(k); x.Spot.Bin != 1 || x.Spot.At != want {
			t.Errorf("task %v is planned on bin %d at %d, want bin 1 at %d", k, x.Spot.Bin, x.Spot.At, want)
		}
	}
	if len(violations) > 0 {
		t.Errorf("violations: %+v, want none: both end earlier", violations)
	}
}
