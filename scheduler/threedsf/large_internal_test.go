package threedsf

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Of a stage with more tasks than are scanned one by one, the search for tasks with a free node at their input finds all that there are, each
// once: with one replica each, a node gets as many as it has slots for and tasks of. The first hundreds are on a full node.
func TestLocalTasksOfALargeStageAreFound(t *testing.T) {
	seed := seed.New(t)
	for round := range 12 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := schedtest.New(t).AddNodes(1, schedtest.R(1, 64, 0)).AddTenants("a")
		slots, onNode := []int{0}, []int{0}
		for range 3 + r.IntN(20) {
			slots, onNode = append(slots, r.IntN(4)), append(onNode, 0)
			w.AddNodes(1, schedtest.R(float64(1+slots[len(slots)-1]), 64, 0))
		}
		for id := range slots { // a core of each node is taken
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, scheduler.NodeID(id))
		}
		var data [][]scheduler.NodeID
		for i := range 400 + r.IntN(1000) {
			id := scheduler.NodeID(0)
			if i > 300+r.IntN(400) {
				id = scheduler.NodeID(r.IntN(len(slots)))
			}
			onNode[id]++
			data = append(data, []scheduler.NodeID{id})
		}
		g := w.State.Stage(scheduler.StageID{Job: w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(data)),
			Demand: schedtest.R(1, 1, 0), Inputs: schedtest.Inputs(128*schedtest.MiB, data...)}})})
		want := 0
		for id, n := range slots {
			want += min(n, onNode[id])
		}
		p := New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Locality: true, Preempt: deadline.None})
		p.begin(w.State, w.Now, 10_000)
		p.beginPass()
		near, found := localSearch{stage: g}, 0
		for {
			task, node := p.finder.findLocalTask(g, &near)
			if node == scheduler.NoNode {
				break
			}
			if !g.IsPending(task) || !slices.Contains(data[task], node) {
				t.Fatalf("seed %d, round %d: task %d (waits: %v) with its input on %v is found for node %d", seed, round, task, g.IsPending(task), data[task], node)
			}
			p.cycle.place(g, task, node)
			found++
		}
		if found != want || !near.exhausted {
			t.Errorf("seed %d, round %d: %d of %d tasks are found, want %d; nothing is left: %v", seed, round, found, len(data), want, near.exhausted)
		}
	}
}
