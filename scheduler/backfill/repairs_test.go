package backfill

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// A bin leaves while a task runs on it. Waiting work there is placed elsewhere, also if it begins
// while the running task alone exceeds the bin's capacity.
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

// Successors of a task that lost its place wait for its next place: meanwhile they stay where they
// are, also if the budget does not reach that task, and violate nothing.
func TestReplanKeepsWhatComesAfterALostTask(t *testing.T) {
	newPlan := func() (p *Planner, first, second Key) {
		prof := &Profile{}
		prof.AddBin([]int64{4})
		p = NewPlanner(Config{Variant: FlexibleSF, SlackFactor: 0.5, PreemptionLimit: NoLimit}, prof)
		first, second = Key{Job: 1}, Key{Job: 1, Stage: 1}
		need := Need{Base: []int64{4}}
		spots := map[Key]Existing{second: {Reserved: Reserved{Spot: Spot{Bin: 0, Disk: -1, At: 10}, End: 20, Need: need, Kept: true}}}
		prof.Change(0, -1, 10, 20, &need, -1)
		p.Restore(Project{ID: 1, Requests: []Request{{Job: 1, Tasks: []int32{0}, Need: need, Bound: 10}, {Job: 1, Stage: 1, Tasks: []int32{0}, Need: need, Bound: 10, After: []int32{0}}}},
			Guarantee{Departure: 20, Latest: 30}, true, func(k Key, _ *Need) Existing { return spots[k] })
		return p, first, second
	}
	wantAt := func(p *Planner, k Key, at scheduler.Time) {
		t.Helper()
		if x, _ := p.Find(k); x.Spot.At != at {
			t.Errorf("task %v is planned at %d, want %d", k, x.Spot.At, at)
		}
	}
	p, first, second := newPlan()
	if v := p.Replan(2, CauseLate); len(v) > 0 {
		t.Errorf("violations %+v, want none", v)
	}
	wantAt(p, second, 10)
	if v := p.Replan(2, CauseFailed, first); len(v) > 0 {
		t.Errorf("violations %+v, want none", v)
	}
	wantAt(p, first, 2)
	wantAt(p, second, 12)

	p, first, second = newPlan()
	if v := p.Replan(2, CauseLate, second); len(v) > 0 {
		t.Errorf("violations %+v, want none", v)
	}
	p.Replan(2, CauseFailed, first)
	wantAt(p, first, 2)
	wantAt(p, second, 12)

	p, first, second = newPlan()
	p.SetBudget(0)
	if _, err := p.CompletePlan(2, 1); !errors.Is(err, ErrUnfinished) {
		t.Errorf("got %v, want %v", err, ErrUnfinished)
	}
	wantAt(p, first, scheduler.Never)
	wantAt(p, second, 10)
	p.SetBudget(math.MaxInt)
	if _, err := p.CompletePlan(2, 1); err != nil {
		t.Error(err)
	}
	wantAt(p, first, 2)
	wantAt(p, second, 12)
}
