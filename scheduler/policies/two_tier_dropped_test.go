package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A stage behind one with more tasks left than may run at once is not planned. If a lost output
// causes that, the plan is dropped, and the guarantee is violated: the end of the job is unknown.
func TestPlanBehindALostOutputIsDropped(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(2, 4, 100)).AddTenants("a")
	p := mustNew(t, "two_tier", nil)
	job := w.SubmitStages("a", []scheduler.StageSpec{
		{Name: "maps", Kind: scheduler.KindMap, Tasks: 3, MaxParallel: 2, Demand: schedtest.R(2, 2, 1)},
		{Name: "reduces", Kind: scheduler.KindReduce, Tasks: 2, After: []int32{0}, Demand: schedtest.R(2, 2, 1)},
	}, func(j *scheduler.JobSpec) { j.Bound = 10 * time.Second })
	owner := backfill.SingleJob(job)
	planned := func() (n int) {
		for _, r := range w.State.Job(job).Reservations() {
			if r.Stage == 1 {
				n++
			}
		}
		return n
	}
	cycle := func() {
		d := w.Cycle(p)
		if d.Wake == w.Now+1 {
			t.Errorf("at %v all is planned, yet the next decision is due at once:\n%s", w.Now, d.String())
		}
		w.Start()
	}
	cycle()
	if n := planned(); n != 0 {
		t.Fatalf("%d reduces are planned while only two of three maps are", n)
	}
	w.Advance(5 * time.Second)
	first := w.Attempts()[0]
	done := first.ID.TaskID
	w.End(first, scheduler.OutcomeSucceeded)
	cycle()
	_, guaranteed := w.State.PolicyState(backfill.StateKey(scheduler.GuaranteeState, owner))
	if n := planned(); n != 2 || !guaranteed {
		t.Fatalf("%d reduces are planned, guaranteed %v, want 2, true", n, guaranteed)
	}
	if err := w.State.Events().OutputLost(done); err != nil {
		t.Fatal(err)
	}
	cycle()
	v, violated := backfill.ViolationOf(w.State, owner)
	if n := planned(); n != 0 || !violated || v != backfill.ViolatedState(owner, backfill.CauseFailed, w.Now) {
		t.Errorf("%d reduces are planned and the violation is %+v, want none and %v", n, v, backfill.CauseFailed)
	}
}

// As above, with due reduces: their reservations are dropped before anything is planned.
func TestDuePlanBehindALostOutputIsDropped(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(2, 4, 100)).AddTenants("a")
	newPolicy := func() scheduler.Policy { return mustNew(t, "two_tier", nil) }
	p := newPolicy()
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	whole := schedtest.R(2, 2, 1)
	job := w.SubmitStages("a", []scheduler.StageSpec{
		{Name: "maps", Kind: scheduler.KindMap, Tasks: 3, MaxParallel: 2, Demand: whole},
		{Name: "reduces", Kind: scheduler.KindReduce, Tasks: 2, After: []int32{0}, Demand: whole},
	}, func(j *scheduler.JobSpec) { j.Project, j.Bound = 1, 10*time.Second })
	round := func() {
		t.Helper()
		policytest.Round(t, w.State, p, newPolicy, w.Now, 100) // it fails if Check refuses the decision
		w.Start()
	}
	round()
	w.Advance(5 * time.Second)
	var done []scheduler.TaskID
	for _, a := range w.Attempts() {
		done = append(done, a.ID.TaskID)
		w.End(a, scheduler.OutcomeSucceeded)
	}
	round()
	w.Advance(10 * time.Second)
	round()
	due := func() (n int) {
		for _, r := range w.State.Job(job).Reservations() {
			if r.Stage == 1 && r.Start <= w.Now {
				n++
			}
		}
		return n
	}
	if v, violated := backfill.ViolationOf(w.State, 1); due() != 2 || violated || !w.State.Project(1).HasState(scheduler.GuaranteeState) {
		t.Fatalf("%d reduces are due, the violation is %+v; want 2, and a guarantee that holds: this test proves nothing", due(), v)
	}
	for _, id := range done {
		if err := w.State.Events().OutputLost(id); err != nil {
			t.Fatal(err)
		}
	}
	round()
	v, violated := backfill.ViolationOf(w.State, 1)
	if n := due(); n != 0 || !violated || v != backfill.ViolatedState(1, backfill.CauseFailed, w.Now) {
		t.Errorf("%d reduces are planned and the violation is %+v, want none and %v", n, v, backfill.CauseFailed)
	}
}
