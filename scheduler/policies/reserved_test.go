package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// newReservedWorld returns a world of one node and a job with a guarantee for all of
// it in 10 s.
func newReservedWorld(t *testing.T, levels scheduler.LevelSet) (*schedtest.World, scheduler.JobID) {
	w := schedtest.New(t)
	spec := schedtest.NodeSpec(0, "/r", schedtest.R(4, 8, 100))
	spec.Levels = levels
	if err := w.State.Events().AddNode(spec); err != nil {
		t.Fatal(err)
	}
	w.AddTenants("a", "b")
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Tenant: 0, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	first := w.Submit("a", 1, schedtest.R(4, 8, 50), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Project, j.Bound, g.Estimate = 1, time.Minute, time.Minute
		g.After = nil
	})
	r := scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: 7, Kind: scheduler.ReserveProject, Job: first,
		Project: 1, Node: 0, Demand: schedtest.R(4, 8, 50), Start: w.Now.Add(10 * time.Second), End: w.Now.Add(70 * time.Second)}}
	if err := w.State.Apply(&r, w.Now); err != nil {
		t.Fatal(err)
	}
	return w, first
}

// P1: at the start of its reservation a guaranteed job preempts regular tasks, which
// may use the capacity until then because they can be suspended.
func TestReservedCapacityIsUsedAndReturned(t *testing.T) {
	w, first := newReservedWorld(t, scheduler.AllLevels)
	newPolicy := func() scheduler.Policy { return mustNew(t, "3dsf", map[string]string{"guarantees": "false"}) }
	p := newPolicy()
	busy := w.Submit("b", 1, schedtest.R(1, 1, 1))
	w.Place(scheduler.TaskID{Job: busy}, 0) // so that the project cannot start at once
	w.Submit("b", 2, schedtest.R(1, 1, 1))
	d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	if len(d.Actions) != 2 || d.Wake != w.Now.Add(10*time.Second) {
		t.Fatalf("before the reservation: %s, wake %v", d.String(), d.Wake)
	}
	w.Start()
	w.Advance(10 * time.Second)
	d = policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	for _, a := range w.Attempts() {
		if a.Phase != scheduler.AttemptSuspending {
			t.Fatalf("at the reservation's start %s is %v:\n%s", a.ID, a.Phase, d.String())
		}
		if err := w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, scheduler.Footprint{Memory: a.Demand[1], Swap: a.Demand[1]}, w.Now); err != nil {
			t.Fatal(err)
		}
	}
	d = policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	if w.State.Job(first).Live != 1 {
		t.Errorf("the guaranteed job does not run:\n%s", d.String())
	}
}

// Where nothing can be suspended, only tasks that end by their bound may use
// reserved capacity; others name the reservation that blocks them.
func TestReservedCapacityIsNotUsedByNonPreemptibleTasks(t *testing.T) {
	w, first := newReservedWorld(t, scheduler.Levels(scheduler.LevelFrozen))
	newPolicy := func() scheduler.Policy {
		return mustNew(t, "3dsf", map[string]string{"guarantees": "false", "reserve": "false"})
	}
	busy := w.Submit("b", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 9 * time.Second })
	w.Place(scheduler.TaskID{Job: busy}, 0)
	endless := w.Submit("b", 1, schedtest.R(1, 1, 1))
	short := w.Submit("b", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 9 * time.Second })
	d := policytest.Round(t, w.State, newPolicy(), newPolicy, w.Now, 100)
	if w.State.Job(short).Live != 1 || w.State.Job(endless).Live != 0 || w.State.Job(first).Live != 0 {
		t.Fatalf("%s", d.String())
	}
	for i := range d.Waiting {
		if x := &d.Waiting[i]; x.Stage.Job == endless && (x.Reason != scheduler.ReasonReservation || x.Reservation != 7) {
			t.Errorf("%s", x.String())
		}
	}
}
