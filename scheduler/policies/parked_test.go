package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func park(w *schedtest.World, a *scheduler.Attempt, parked bool) {
	w.Helper()
	if err := w.State.Events().SetParked(a.ID, a.Run, parked); err != nil {
		w.Fatalf("%v", err)
	}
}

// goesOn reports whether a decision resumes or moves an attempt.
func goesOn(d *scheduler.Decision, a *scheduler.Attempt) bool {
	for _, act := range d.Actions {
		if (act.Kind == scheduler.ActResume || act.Kind == scheduler.ActMigrate) && act.AttemptID() == a.ID {
			return true
		}
	}
	return false
}

// No policy resumes a task that a user suspended, or that a drain moved out of memory, until that ends.
func TestParkedTaskStaysSuspended(t *testing.T) {
	for _, info := range table {
		for what, drain := range map[string]bool{"by a user": false, "by a drain": true} {
			t.Run(info.Name+"/"+what, func(t *testing.T) {
				w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
				w.Submit("a", 1, schedtest.R(1, 1, 1))
				newPolicy := func() scheduler.Policy { return mustNew(t, info.Name, nil) }
				p := newPolicy()
				setDrain := func(on bool) {
					if !drain {
						return
					}
					if err := w.State.Events().SetDrain(0, on); err != nil {
						t.Fatal(err)
					}
				}
				policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
				w.Start().Advance(time.Second)
				a := w.Attempts()[0]
				setDrain(true)
				suspend(w, a, scheduler.LevelCheckpointed)
				park(w, a, true)
				for range 3 {
					if d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100); goesOn(&d, a) {
						t.Fatalf("a parked task goes on: %s", d.String())
					}
					w.Advance(time.Second)
				}
				setDrain(false)
				park(w, a, false)
				for range 3 {
					d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
					if goesOn(&d, a) {
						return
					}
					w.Advance(max(time.Second, d.Wake.Sub(w.Now)))
				}
				t.Error("the task that is no longer parked is not resumed")
			})
		}
	}
}

// wholeNode is the demand of a task that has a node of newGuaranteedTask for itself.
var wholeNode = schedtest.R(4, 1, 1)

// newGuaranteedTask returns a world with some nodes and a job of one task, which takes a whole node for 10 s at
// most and is placed on the first. It is the only job of project 1, whose departure two_tier guarantees with
// the slack factor 2. round lets the policy decide, and fails if Check refuses the decision.
func newGuaranteedTask(t *testing.T, nodes int) (w *schedtest.World, job scheduler.JobID, round func() scheduler.Decision) {
	w = schedtest.New(t).AddNodes(nodes, schedtest.R(4, 8, 100)).AddTenants("a")
	newPolicy := func() scheduler.Policy { return mustNew(t, "two_tier", map[string]string{"sf": "2"}) }
	p := newPolicy()
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	job = w.Submit("a", 1, wholeNode, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 1, 10*time.Second })
	round = func() scheduler.Decision { return policytest.Round(t, w.State, p, newPolicy, w.Now, 100) }
	round()
	return w, job, round
}

// A task that is parked while its guarantee would still hold has no place in the plan any more: that violates the guarantee.
func TestParkingViolatesTheGuarantee(t *testing.T) {
	w, job, round := newGuaranteedTask(t, 1)
	w.Start().Advance(time.Second)
	a := w.Attempts()[0]
	suspend(w, a, scheduler.LevelCheckpointed)
	other := w.Submit("a", 1, wholeNode, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 5 * time.Second })
	w.Place(scheduler.TaskID{Job: other}, 0)
	w.Start()
	round()
	if _, violated := backfill.ViolationOf(w.State, 1); violated || len(w.State.Job(job).Reservations()) != 1 {
		t.Fatalf("violated %v, reservations %v; want one: this test proves nothing", violated, w.State.Job(job).Reservations())
	}
	park(w, a, true)
	round() // it fails if Check refuses the decision
	if _, violated := backfill.ViolationOf(w.State, 1); !violated || len(w.State.Job(job).Reservations()) != 0 {
		t.Errorf("violated %v, reservations %v; want none", violated, w.State.Job(job).Reservations())
	}
	park(w, a, false)
	w.End(w.State.Attempt(scheduler.AttemptID{TaskID: scheduler.TaskID{Job: other}, Attempt: 1}), scheduler.OutcomeSucceeded)
	if d := round(); !goesOn(&d, a) {
		t.Errorf("the task that is no longer parked is not resumed: %s", d.String())
	}
}

// Successors of a parked task are not planned: their start is unknown, and others need the capacity.
func TestNothingIsReservedBehindAParkedTask(t *testing.T) {
	for _, name := range []string{"two_tier", "conservative"} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
			whole := schedtest.R(4, 1, 1)
			job := w.SubmitStages("a", []scheduler.StageSpec{
				{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: whole},
				{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 1, Demand: whole, After: []int32{0}},
				{Name: "report", Kind: scheduler.KindGroup, Tasks: 1, Demand: whole, After: []int32{1}},
			}, func(j *scheduler.JobSpec) { j.Bound = 10 * time.Second })
			newPolicy := func() scheduler.Policy { return mustNew(t, name, nil) }
			p := newPolicy()
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			w.Start().Advance(time.Second)
			a := w.Attempts()[0]
			suspend(w, a, scheduler.LevelCheckpointed)
			park(w, a, true)
			other := w.Submit("a", 1, whole, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = time.Hour })
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			w.Start()
			if n := len(w.State.Job(job).Reservations()); n != 0 || w.State.Job(other).Live != 1 {
				t.Fatalf("behind the parked task %d are reserved, and %d of the other job run; want 0 and 1", n, w.State.Job(other).Live)
			}
			park(w, a, false)
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			if n := len(w.State.Job(job).Reservations()); n != 3 {
				t.Errorf("%d are reserved of the job that goes on, want 3", n)
			}
		})
	}
}

// The cause of a violation is an event of the project's own tasks: another project's suspended task
// past its bound is no cause.
func TestViolationNamesItsOwnCause(t *testing.T) {
	for event, want := range map[string]backfill.Cause{"fails": backfill.CauseFailed, "is suspended": backfill.CauseSuspended} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")
		newPolicy := func() scheduler.Policy { return mustNew(t, "two_tier", map[string]string{"sf": "0"}) }
		p := newPolicy()
		submit := func(project scheduler.ProjectID, bound time.Duration) scheduler.JobID {
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: project, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
				t.Fatal(err)
			}
			return w.Submit("a", 1, wholeNode, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = project, bound })
		}
		attempt := func(job scheduler.JobID) *scheduler.Attempt {
			return w.State.Attempt(scheduler.AttemptID{TaskID: scheduler.TaskID{Job: job}, Attempt: 1})
		}
		round := func() { policytest.Round(t, w.State, p, newPolicy, w.Now, 100) }
		overruns, other := submit(1, 20*time.Second), submit(2, 30*time.Second)
		round()
		submit(3, 30*time.Second) // where the first is suspended
		round()
		w.Start().Advance(21 * time.Second)
		round()
		if a := attempt(overruns); a.Phase <= scheduler.AttemptRunning {
			t.Fatalf("the task past its bound is %v: this test proves nothing", a.Phase)
		} else if err := w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelCheckpointed, scheduler.Footprint{Image: schedtest.GiB}, w.Now); err != nil {
			t.Fatal(err)
		}
		round()
		w.Start().Advance(time.Second)
		if a := attempt(other); event == "fails" {
			w.End(a, scheduler.OutcomeFailedInfra)
		} else {
			suspend(w, a, scheduler.LevelCheckpointed)
		}
		w.Advance(time.Second) // what is left of the bound no longer fits before the guaranteed departure
		if attempt(overruns).Phase != scheduler.AttemptSuspended {
			t.Fatal("the task past its bound goes on: this test proves nothing")
		}
		round()
		if n, violated := backfill.ViolationOf(w.State, 2); !violated || backfill.Cause(n.Slot) != want {
			t.Errorf("the task %s: violated %v, because %v; want %v", event, violated, backfill.Cause(n.Slot), want)
		}
	}
}

// newGuaranteedProject returns a world with project 1, which will have jobs jobs, and two_tier with
// a slack factor. round lets the policy decide, and fails if Check refuses the decision.
func newGuaranteedProject(t *testing.T, nodes int, slack string, jobs int32) (w *schedtest.World, round func()) {
	w = schedtest.New(t).AddNodes(nodes, schedtest.R(4, 8, 100)).AddTenants("a")
	newPolicy := func() scheduler.Policy { return mustNew(t, "two_tier", map[string]string{"sf": slack}) }
	p := newPolicy()
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: jobs}); err != nil {
		t.Fatal(err)
	}
	return w, func() { policytest.Round(t, w.State, p, newPolicy, w.Now, 100) }
}

// requireCause fails the test unless the guarantee of project 1 is violated with a cause, or holds if want is 0.
func requireCause(w *schedtest.World, want backfill.Cause) {
	w.Helper()
	n, violated := backfill.ViolationOf(w.State, 1)
	if violated != (want != 0) || backfill.Cause(n.Slot) != want {
		w.Fatalf("violated %v, because %v; want %v", violated, backfill.Cause(n.Slot), want)
	}
}

// A suspended task that has its place in the plan, in time, is not why its project is late when another task fails.
func TestSuspendedTaskThatIsInTimeIsNoCause(t *testing.T) {
	w, round := newGuaranteedProject(t, 2, "0", 2)
	submit := func(project scheduler.ProjectID, bound time.Duration) scheduler.AttemptID {
		job := w.Submit("a", 1, wholeNode, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = project, bound })
		return scheduler.AttemptID{TaskID: scheduler.TaskID{Job: job}, Attempt: 1}
	}
	suspended, fails := submit(1, 10*time.Second), submit(1, 20*time.Second)
	round()
	w.Start().Advance(time.Second)
	suspend(w, w.State.Attempt(suspended), scheduler.LevelCheckpointed)
	w.Place(submit(0, 5*time.Second).TaskID, 0)
	w.Start()
	round()
	requireCause(w, 0)
	if w.State.Stage(suspended.StageID()).PlannedAt(0) == nil {
		t.Fatal("the suspended task has no place: this test proves nothing")
	}
	w.Advance(2 * time.Second)
	w.End(w.State.Attempt(fails), scheduler.OutcomeFailedInfra)
	round()
	requireCause(w, backfill.CauseFailed)
}

// A reduce that gave way to a map whose output was lost is late because of the map; one that an operator suspended is itself
// the cause, also where it waits for such a map.
func TestReduceThatGaveWayIsNoCause(t *testing.T) {
	for name, want := range map[string]backfill.Cause{"gave way": backfill.CauseFailed, "parked": backfill.CauseSuspended} {
		t.Run(name, func(t *testing.T) {
			w, round := newGuaranteedProject(t, 1, "0.25", 1) // planned to depart after 60 s, guaranteed to after 75 s
			job := w.SubmitStages("a", []scheduler.StageSpec{
				{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: wholeNode},
				{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 1, Demand: wholeNode, After: []int32{0}},
				{Name: "report", Kind: scheduler.KindGroup, Tasks: 1, Demand: wholeNode, After: []int32{1}},
			}, func(j *scheduler.JobSpec) { j.Project, j.Bound = 1, 20*time.Second })
			lost, reduce := scheduler.TaskID{Job: job}, scheduler.AttemptID{TaskID: scheduler.TaskID{Job: job, Stage: 1}, Attempt: 1}
			round()
			w.Start().Advance(15 * time.Second)
			w.End(w.State.Attempt(scheduler.AttemptID{TaskID: lost, Attempt: 1}), scheduler.OutcomeSucceeded)
			round()
			w.Start().Advance(10 * time.Second)
			if err := w.State.Events().OutputLost(lost); err != nil {
				t.Fatal(err)
			}
			round() // the map is planned behind the reduce, and the report behind the map: it ends in time
			requireCause(w, 0)
			suspend(w, w.State.Attempt(reduce), scheduler.LevelCheckpointed) // as Cycle does for the map
			park(w, w.State.Attempt(reduce), name == "parked")
			w.Advance(time.Second)
			round() // the reduce goes on behind the map, 1 s later than the report can wait; nothing is planned behind a parked one
			requireCause(w, want)
		})
	}
}
