package deadline

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Whatever happens to attempts between two calls, the cached ends are those that a search finds.
func TestNextEndsFollowTheState(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	const nodes, tasks = 6, 40
	w := schedtest.New(t).AddNodes(nodes, schedtest.R(8, 100, 1000)).AddTenants("a")
	job := w.Submit("a", tasks, schedtest.R(1, 1, 1))
	g := w.State.Job(job).Stages[0]
	var x Preemptor
	var live []scheduler.AttemptID
	for step := range 2000 {
		switch k := r.IntN(len(live) + 4); {
		case k < len(live) && r.IntN(8) == 0:
			if err := w.State.Events().AttemptEnded(live[k], 1, scheduler.OutcomeFailedInfra, w.Now); err != nil {
				t.Fatal(err)
			}
			live = append(live[:k], live[k+1:]...)
		case k < len(live):
			if err := w.State.Events().AttemptProgress(live[k], 1, 0.5, time.Duration(1+r.IntN(10))*5*time.Second); err != nil {
				t.Fatal(err)
			}
		case k == len(live):
			if err := w.State.Events().SetEstimate(g.ID(), time.Duration(1+r.IntN(10))*5*time.Second); err != nil {
				t.Fatal(err)
			}
		default:
			id := w.State.Cluster().NextNode(g, scheduler.NodeID(r.IntN(nodes)))
			i := g.NextPending(int32(r.IntN(tasks)))
			if id == scheduler.NoNode || i < 0 {
				break
			}
			a := w.State.Attempts().PlaceAction(g, i, id, 0)
			m := w.State.Journal().Mark()
			if err := w.State.Apply(&a, w.Now); err != nil {
				t.Fatal(err)
			}
			if r.IntN(2) == 0 {
				x.nextEnd(w.State, id, w.Now)
				w.State.Journal().Rollback(m)
				break
			}
			w.State.Journal().Keep(m)
			live = append(live, a.AttemptID())
		}
		w.Start()
		if r.IntN(4) == 0 {
			if err := freezeOrResume(w, r); err != nil {
				t.Fatal(err)
			}
		}
		if w.Now = w.Now.Add(time.Duration(r.IntN(2)) * time.Second); r.IntN(100) == 0 {
			w.Now = w.Now.Add(-time.Second)
		}
		id := scheduler.NodeID(r.IntN(nodes))
		got, at, frees := x.nextEnd(w.State, id, w.Now), scheduler.Never, (*scheduler.Attempt)(nil)
		for a := range w.State.Attempts().On(id) {
			if end, known := locality.PredictedEnd(w.State, a); known && a.Phase == scheduler.AttemptRunning && end > w.Now && end < at {
				at, frees = end, a
			}
		}
		if got.At != at || got.Attempt != frees {
			t.Fatalf("step %d, node %d: got %v %p, want %v %p", step, id, got.At, got.Attempt, at, frees)
		}
	}
}

// freezeOrResume brings a random attempt one step further on its way to be frozen, or to run again.
func freezeOrResume(w *schedtest.World, r *rand.Rand) error {
	all := w.Attempts()
	if len(all) == 0 {
		return nil
	}
	a := all[r.IntN(len(all))]
	switch a.Phase {
	case scheduler.AttemptSuspending:
		return w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelFrozen, scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}, w.Now)
	case scheduler.AttemptResuming:
		return w.State.Events().AttemptResumed(a.ID, a.Run, w.Now)
	case scheduler.AttemptSuspended:
		act := a.Act(scheduler.ActResume)
		return w.State.Apply(&act, w.Now)
	default:
		act := a.Act(scheduler.ActSuspend)
		act.Level = scheduler.LevelFrozen
		return w.State.Apply(&act, w.Now)
	}
}
