package locality

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Compared with a scan of every waiting task, NearTasks yields waiting tasks in
// order, at most the requested number, and skips none with capacity at its data.
func TestNearTasksSkipsNoTaskWithCapacityAtItsData(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	skipping := 0
	for range 60 {
		const nodes = 12
		w := schedtest.New(t).AddNodes(nodes, schedtest.R(1, 100, 1000)).AddTenants("a")
		busy := w.Submit("a", nodes, schedtest.R(1, 1, 1))
		for n := range int32(r.IntN(nodes + 1)) {
			w.Place(scheduler.TaskID{Job: busy, Index: n}, scheduler.NodeID(n))
		}
		on := make([][]scheduler.NodeID, 1+r.IntN(400))
		for i := range on {
			for range 1 + r.IntN(3) {
				on[i] = append(on[i], scheduler.NodeID(r.IntN(nodes)))
			}
		}
		job := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(on)),
			Demand: schedtest.R(1, 1, 1), Inputs: schedtest.Inputs(schedtest.MiB, on...)}})
		g := w.State.Job(job).Stages[0]
		m := w.State.Journal().Mark()
		for range r.IntN(4) { // gaps among the waiting tasks
			id, i := w.State.Cluster().NextNode(g, 0), g.NextPending(int32(r.IntN(len(on)))/2)
			if id == scheduler.NoNode || i < 0 {
				continue
			}
			a := w.State.Attempts().PlaceAction(g, i, id, 0)
			if err := w.State.Apply(&a, w.Now); err != nil {
				t.Fatal(err)
			}
		}
		from, most := int32(r.IntN(len(on))), int32(1+r.IntN(len(on)))
		got := slices.Collect(NearTasks(w.State, g, from, most))
		var want []int32
		for i, k := g.NextPending(from), int32(0); i >= 0 && k < most; i, k = g.NextPending(i+1), k+1 {
			if len(LocalNodes(w.State, g, i, nil)) > 0 {
				want = append(want, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("from %d, most %d: got %v, want %v", from, most, got, want)
		}
		if len(want) > 0 && len(want) < int(min(most, g.Pending)) {
			skipping++
		}
		w.State.Journal().Rollback(m)
	}
	if skipping < 5 {
		t.Errorf("only %d of 60 iterations skipped some tasks and yielded others", skipping)
	}
}
