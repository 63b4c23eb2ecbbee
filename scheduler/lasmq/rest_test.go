package lasmq

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A job that rests is passed over in later passes, until its time, until a node fits it, or until it changes.
func TestRestEnds(t *testing.T) {
	const bound = 10 * time.Second
	end := map[string]func(w *schedtest.World, first *scheduler.Job, filler *scheduler.Attempt){
		"not without a reason": nil,
		"its time":             func(w *schedtest.World, _ *scheduler.Job, _ *scheduler.Attempt) { w.Advance(bound) },
		"a node fits it": func(w *schedtest.World, _ *scheduler.Job, filler *scheduler.Attempt) {
			w.Start().End(filler, scheduler.OutcomeSucceeded)
		},
		"it changes": func(w *schedtest.World, first *scheduler.Job, _ *scheduler.Attempt) {
			act := scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: 1, Kind: scheduler.ReserveData, Job: first.Spec.ID,
				Stage: -1, Task: -1, Node: 0, Start: w.Now, End: w.Now.Add(bound)}}
			if err := w.State.Apply(&act, w.Now); err != nil {
				t.Fatal(err)
			}
		},
	}
	for why, happen := range end {
		t.Run(why, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 100)).AddTenants("a")
			first := w.State.Job(w.Submit("a", 1, schedtest.R(3, 1, 1)))
			second := w.State.Job(w.Submit("a", 1, schedtest.R(3, 1, 1)))
			if id := w.State.Cluster().NextNode(first.Stages[0], 0); id != 0 {
				t.Fatalf("the first job fits on node %d", id)
			}
			filler := w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(2, 1, 1))}, 0)
			x := NewIndex(testConfig(nil), false, oneGroup, noAccount)
			next := func() *scheduler.Job {
				t.Helper()
				x.Sync(w.State, w.Now, 1)
				q := x.Queues(0)
				q.Begin(w.Now)
				n, ok := q.Next(false)
				if !ok {
					t.Fatal("no job is next")
				}
				return n.Job
			}
			if next() != first {
				t.Fatal("the first job is not next")
			}
			q := x.Queues(0)
			q.Rest(w.State.Queue().MisfitClassOf(first), w.Now.Add(bound))
			if n, ok := q.Next(false); !ok || n.Job != second {
				t.Fatal("the second job does not follow the first one in the pass")
			}
			want := second
			if happen != nil {
				happen(w, first, filler)
				want = first
			}
			if got := next(); got != want {
				t.Errorf("job %d is next, want %d", got.Spec.ID, want.Spec.ID)
			}
		})
	}
}
