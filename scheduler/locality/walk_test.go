package locality

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// The judge looks at every waiting task: a walk lists waiting tasks in order, the
// first most at most, and leaves out none that has room at its data.
func TestAWalkLeavesOutNoTaskWithRoomAtItsData(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	few := 0
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
		m := w.State.Mark()
		for range r.IntN(4) { // holes among those that wait
			id, i := w.State.NextNode(g, 0), g.NextPending(int32(r.IntN(len(on)))/2)
			if id == scheduler.NoNode || i < 0 {
				continue
			}
			a := w.State.Place(g, i, id, 0)
			if err := w.State.Apply(&a, w.Now); err != nil {
				t.Fatal(err)
			}
		}
		from, most := int32(r.IntN(len(on))), int32(1+r.IntN(len(on)))
		var walk Walk
		walk.Begin(w.State, g, from, most)
		if walk.few {
			few++
		}
		var got []int32
		for i := walk.Next(); i >= 0; i = walk.Next() {
			got = append(got, i)
		}
		var want, all []int32
		for i := g.NextPending(from); i >= 0 && len(all) < int(most); i = g.NextPending(i + 1) {
			all = append(all, i)
			if len(Near(w.State, g, i, nil)) > 0 {
				want = append(want, i)
			}
		}
		if !walk.few {
			want = all
		}
		if !slices.Equal(got, want) {
			t.Fatalf("few %v, from %d, most %d: got %v, want %v", walk.few, from, most, got, want)
		}
		w.State.Rollback(m)
	}
	if few < 5 {
		t.Errorf("only %d of 60 walks went by the nodes", few)
	}
}
