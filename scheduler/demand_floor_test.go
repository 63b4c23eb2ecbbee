package scheduler_test

import (
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// TestFloorIsRecountedInParts checks, while jobs end and others are submitted between them in the queue, that a
// node that fits some stage is never denied, and that it is found out in the end that none fits any.
func TestFloorIsRecountedInParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.New(t), 1))
	w := schedtest.New(t).AddNodes(3, schedtest.R(4, 4, 100)).AddTenants("a")
	q := w.State.Queue()
	var small, large []scheduler.JobID
	end := func(id scheduler.JobID) {
		if err := w.State.Events().EndJob(id); err != nil {
			t.Fatal(err)
		}
	}
	submit := func(cores float64) scheduler.JobID {
		return w.Submit("a", 1, schedtest.R(cores, 1, 10), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
			j.Submitted = scheduler.Time(1 + rng.IntN(1000))
		})
	}
	for range 1500 {
		large = append(large, submit(5))
		small = append(small, submit(1))
	}
	for len(small) > 0 {
		i := rng.IntN(len(small))
		end(small[i])
		small[i] = small[len(small)-1]
		if small = small[:len(small)-1]; rng.IntN(4) == 0 {
			small = append(small, submit(1))
		}
		if got := q.CapacityForAny(); len(small) > 0 && !got {
			t.Fatalf("no capacity for any of %d small jobs", len(small))
		}
	}
	for i := 0; q.CapacityForAny(); i++ { // it is recounted when an eighth is gone
		if i == len(large) {
			t.Fatal("capacity for jobs that fit nowhere")
		}
		one := submit(1)
		for range rng.IntN(20) {
			if !q.CapacityForAny() {
				t.Fatal("no capacity for a small job that was submitted while stages are recounted")
			}
		}
		end(one)
		end(large[i])
	}
}

// A stage at its max_parallel does not keep the floor low. Of any number of such stages none is
// passed over while it may start a task that fits.
func TestFloorLeavesOutStagesAtTheirLimit(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 1000, 1000)).AddTenants("a")
	q, r := w.State.Queue(), rand.New(rand.NewPCG(seed.New(t), 2))
	var jobs []scheduler.JobID
	for range 200 {
		jobs = append(jobs, w.Submit("a", 3, schedtest.R(float64(1+r.IntN(4)), 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.MaxParallel = 1 }))
	}
	w.Submit("a", 1, schedtest.R(5, 1, 1)) // it fits on no node
	fits := func() (any bool) {
		for j := range w.State.Jobs() {
			any = any || j.Stages[0].Startable() > 0 && w.State.Cluster().NextNode(j.Stages[0], 0) != scheduler.NoNode
		}
		return any
	}
	for range 2000 {
		if some := q.CapacityForAny(); !some && fits() {
			t.Fatal("CapacityForAny is false, and a stage fits")
		}
		running := w.Attempts()
		if g := w.State.Job(jobs[r.IntN(len(jobs))]).Stages[0]; g.Startable() > 0 && w.State.Cluster().NextNode(g, 0) != scheduler.NoNode {
			w.Place(g.Task(g.NextPending(0)), 0)
		} else if len(running) > 0 {
			w.Start().End(running[r.IntN(len(running))], scheduler.OutcomeKilled)
		}
	}
	for _, a := range w.Start().Attempts() {
		w.End(a, scheduler.OutcomeKilled)
	}
	small := w.Submit("a", 2, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) { g.MaxParallel = 1 })
	w.Place(scheduler.TaskID{Job: small}, 0)
	for _, id := range jobs {
		if err := w.State.Events().StopJob(id); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // it is recounted in parts
		q.CapacityForAny()
	}
	if q.CapacityForAny() {
		t.Error("a stage at its max_parallel holds the floor down")
	}
}
