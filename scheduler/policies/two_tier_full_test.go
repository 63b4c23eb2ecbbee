package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// When the State accepts no more reservations, tasks get those left in order of submission, nothing is
// guaranteed if a task has none, and the rest follows as reservations become free. In the end every task runs.
func TestPlansWithinTheReservationsThatAreLeft(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 100)).AddTenants("a")
	w.LeaveReservations(keptReservations + 2)
	p := mustNew(t, "two_tier", nil)
	job := w.Submit("a", 5, schedtest.R(4, 4, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 10 * time.Second })
	last := w.Submit("a", 1, schedtest.R(4, 4, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 10 * time.Second })
	reserved := func(id scheduler.JobID) int {
		if j := w.State.Job(id); j != nil {
			return len(j.Reservations())
		}
		return 0
	}
	isGuaranteed := func(id scheduler.JobID) bool {
		_, ok := w.State.PolicyState(backfill.StateKey(scheduler.GuaranteeState, backfill.SingleJob(id)))
		return ok
	}
	for i, want := range []struct {
		first, last int  // reservations
		guaranteed  bool // the first job
	}{{2, 0, false}, {2, 0, false}, {2, 0, true}, {1, 1, true}, {0, 1, true}, {0, 0, false}} {
		policytest.Round(t, w.State, p, func() scheduler.Policy { return mustNew(t, "two_tier", nil) }, w.Now, 10_000)
		if n, m := reserved(job), reserved(last); n != want.first || m != want.last || len(w.Attempts()) != 1 {
			t.Fatalf("round %d: %d and %d reservations and %d tasks run, want %d and %d, 1", i, n, m, len(w.Attempts()), want.first, want.last)
		}
		if ok := isGuaranteed(job); ok != want.guaranteed {
			t.Errorf("round %d: the departure is guaranteed: %v, want %v", i, ok, want.guaranteed)
		}
		w.Start().Advance(10 * time.Second)
		a := w.Attempts()[0]
		if w.End(a, scheduler.OutcomeSucceeded); schedtest.Complete(w.State.Job(a.ID.Job)) {
			if err := w.State.Events().EndJob(a.ID.Job); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A task that would fit now, but would be in the way of a task planned before it, has the reason
// "not examined" while no reservation is left for it.
func TestUnreservedTaskWaitsForAReason(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 100)).AddTenants("a")
	w.LeaveReservations(keptReservations + 1)
	p, fresh := mustNew(t, "two_tier", nil), func() scheduler.Policy { return mustNew(t, "two_tier", nil) }
	submit := func(cores float64, bound time.Duration) scheduler.JobID {
		return w.Submit("a", 1, schedtest.R(cores, cores, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
	}
	submit(2, 10*time.Second)
	submit(4, 10*time.Second)
	long := submit(2, time.Minute)
	d := policytest.Round(t, w.State, p, fresh, w.Now, 10_000)
	if w.State.Reservations().Left() != keptReservations || len(w.State.Job(long).Reservations()) != 0 {
		t.Fatalf("%d reservations are left, the last job has %d", w.State.Reservations().Left(), len(w.State.Job(long).Reservations()))
	}
	reasons := map[scheduler.JobID]scheduler.Reason{}
	for _, x := range d.Waiting {
		reasons[x.Stage.Job] = x.Reason
	}
	if len(reasons) != 2 || reasons[long] != scheduler.ReasonNotExamined {
		t.Errorf("the reasons are %v, want that job %d was %q", reasons, long, scheduler.ReasonNotExamined)
	}
	w.DropReservation()
	d = policytest.Round(t, w.State, p, fresh, w.Now, 10_000)
	if len(w.State.Job(long).Reservations()) != 1 {
		t.Errorf("one reservation is left and job %d got none:\n%s", long, d.String())
	}
}
