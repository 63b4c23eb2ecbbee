package scheduler_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// The answers cached in a job equal those from its stages, tasks and reservations, under random events, windows and tries.
func TestJobsTellWhatTheirStagesWould(t *testing.T) {
	misfits, planned := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		changes, ready := map[scheduler.TenantID]uint64{}, map[scheduler.JobID]readyJob{}
		compare := func() {
			c.State.SetTime(c.Now)
			for j := range c.State.Jobs() {
				was, known := ready[j.Spec.ID]
				now := readyWork(j)
				if j.Ready > 0 && (!known || was != now) && changes[j.Spec.Tenant] == c.State.Tenant(j.Spec.Tenant).ReadyChanges {
					t.Fatalf("job %d: ready work was %v, is %v, and its tenant did not change", j.Spec.ID, was, now)
				}
				ready[j.Spec.ID] = now
			}
			for _, tenant := range c.State.Tenants() {
				changes[tenant.Spec.ID] = tenant.ReadyChanges
			}
			for j := range c.State.Jobs() {
				misfits += checkFitsNowhere(t, c.State, j)
				until := slowPlannedUntil(j)
				if got := j.PlannedUntil(); max(got, 0) != until {
					t.Fatalf("job %d: planned until %d, its reservations say %d", j.Spec.ID, got, until)
				}
				if until > 0 {
					planned++
				}
				for _, g := range j.Stages {
					checkPendingNear(t, c.State, g)
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.Step()
			if c.R.IntN(20) == 0 {
				c.OrderWindows()
			}
			applyAll(t, c, append(c.Actions(c.R.IntN(3)), planSome(c)...))
			compare()
			m := c.State.Journal().Mark()
			applyAll(t, c, append(c.Actions(c.R.IntN(5)), planSome(c)...))
			compare()
			c.State.Journal().Rollback(m)
			compare()
		}
	})
	if misfits == 0 || planned == 0 {
		t.Errorf("%d jobs that fit nowhere, %d with guarantees for all tasks: want both", misfits, planned)
	}
}

// readyJob is the facts that a tenant's ready work depends on.
type readyJob struct {
	ready, stages int
	pending       int32
	planned       scheduler.Time
}

func readyWork(j *scheduler.Job) readyJob {
	x := readyJob{ready: int(j.Ready), planned: slowPlannedUntil(j)}
	for i, g := range j.Stages {
		if g.Ready() {
			x.stages, x.pending = x.stages|1<<i, x.pending+g.Pending
		}
	}
	return x
}

// The version of a tenant's policy states changes with these alone, in tries too.
func TestStateVersionFollowsThePolicyStatesOfATenant(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 1, 1)).AddTenants("a", "b")
	job, ps := w.Submit("a", 1, schedtest.R(1, 1, 1)), w.State.PolicyStates()
	a, b := w.Tenant("a").Spec.ID, w.Tenant("b").Spec.ID
	seen := map[uint64]bool{}
	apply := func(n scheduler.PolicyState) {
		t.Helper()
		if err := ps.Apply([]scheduler.PolicyState{n}); err != nil {
			t.Fatal(err)
		}
	}
	changed := func(what string, want bool) {
		t.Helper()
		if v := w.State.Tenant(a).StateVersion; seen[v] == want {
			t.Errorf("%s: version %d, changed %v", what, v, !want)
		}
		seen[w.State.Tenant(a).StateVersion] = true
	}
	of := scheduler.PolicyStateKey{Kind: scheduler.DeficitState, Tenant: a, Slot: 1}
	changed("at first", true)
	m := w.State.Journal().Mark()
	apply(scheduler.PolicyState{PolicyStateKey: of, Value: 1})
	changed("stored in a try", true)
	w.State.Journal().Rollback(m)
	changed("rolled back", true)
	apply(scheduler.PolicyState{PolicyStateKey: of, Value: 2})
	changed("stored", true)
	apply(scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.DeficitState, Tenant: b, Slot: 1}, Value: 2})
	apply(scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: job}, Value: 2})
	changed("of another tenant and of a job", false)
	of.Kind = scheduler.TombstoneState
	apply(scheduler.PolicyState{PolicyStateKey: of, Value: int64(scheduler.DeficitState)})
	changed("deleted", true)
}

// checkFitsNowhere returns 1 if the job is said to fit nowhere.
func checkFitsNowhere(t *rapid.T, s *scheduler.State, j *scheduler.Job) int {
	for range 2 { // the second time the demand was searched for
		if q := s.Queue(); q.ClassFitsNowhere(q.MisfitClassOf(j)) {
			for _, g := range j.Stages {
				if id := s.Cluster().NextNode(g, 0); g.Ready() && id != scheduler.NoNode {
					t.Fatalf("stage %s fits on node %d, and its job nowhere", g.ID(), id)
				}
			}
			return 1
		}
		for _, g := range j.Stages {
			s.Cluster().NextNode(g, 0)
		}
	}
	return 0
}

// slowPlannedUntil looks at every reservation.
func slowPlannedUntil(j *scheduler.Job) scheduler.Time {
	until := scheduler.Time(0)
	if j.Ready == 1 {
		for _, g := range j.Stages {
			if !g.Ready() {
				continue
			}
			n := int32(0)
			for _, r := range j.Reservations() {
				if r.Kind.IsGuarantee() && r.IsOfTask() && r.Stage == g.Index && g.IsPending(r.Task) {
					if n++; until == 0 || r.End < until {
						until = r.End
					}
				}
			}
			if n < g.Pending {
				return 0
			}
		}
	}
	return until
}

// checkPendingNear compares the next task with capacity at its input with a scan of every task.
func checkPendingNear(t *rapid.T, s *scheduler.State, g *scheduler.Stage) {
	if g.Spec.Inputs == nil {
		return
	}
	got := s.Queue().NextPendingNear(g, 0, g.Spec.Tasks)
	for i := g.NextPending(0); i >= 0 && i != got; i = g.NextPending(i + 1) {
		_, nodes, _ := g.Input(i)
		for _, id := range nodes {
			if s.Cluster().HasCapacity(g, id) {
				t.Fatalf("task %s has capacity on node %d, and the next one is %d", g.Task(i), id, got)
			}
		}
	}
}

// planSome makes or drops a few guarantees for single tasks.
func planSome(c *schedtest.Chaos) (out []scheduler.Action) {
	for j := range c.State.Jobs() {
		g := j.Stages[0]
		if c.R.IntN(3) > 0 || g.Spec.Tasks == 0 || g.Spec.Tasks > 4 {
			continue
		}
		start := c.Now.Add(time.Duration(c.R.IntN(60)) * time.Second)
		out = append(out, scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: scheduler.ReservationID(10 + c.R.IntN(30)),
			Kind: scheduler.ReserveProject + scheduler.ReservationKind(c.R.IntN(3)), Job: j.Spec.ID, Task: int32(c.R.IntN(int(g.Spec.Tasks))),
			Node: scheduler.NodeID(c.R.IntN(len(c.State.Nodes()))), Start: start, End: start.Add(time.Minute)}})
		if c.R.IntN(3) == 0 {
			out = append(out, scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: scheduler.ReservationID(10 + c.R.IntN(30))}})
		}
	}
	return out
}
