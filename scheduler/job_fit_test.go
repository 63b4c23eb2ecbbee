package scheduler_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// What a job alone tells is what its stages, tasks and reservations say, under random events, windows and tries.
func TestJobsTellWhatTheirStagesWould(t *testing.T) {
	misfits, planned := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		compare := func() {
			c.State.SetTime(c.Now)
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
			applyAll(t, c, planSome(c))
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

// checkFitsNowhere returns 1 if the job is said to fit nowhere.
func checkFitsNowhere(t *rapid.T, s *scheduler.State, j *scheduler.Job) int {
	for range 2 { // the second time the demand was searched for
		if s.Queue().FitsNowhere(j) {
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
	got := s.Cluster().NextPendingNear(g, 0, g.Spec.Tasks)
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
