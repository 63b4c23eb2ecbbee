package bench

import (
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// flowCase is a random graph: stages with tasks that a decision placed and others that are pending,
// and the free capacity of the nodes with their data.
type flowCase struct {
	free   []scheduler.Resources
	stages []*stagePlacements
}

// newFlowCase makes a random case with limits on its nodes, stages and tasks per stage.
func newFlowCase(t *testing.T, r *rand.Rand, nodes, stages, tasks int) *flowCase {
	w := schedtest.New(t).AddNodes(nodes, schedtest.R(1000, 1000, 1000)).AddTenants("a")
	c := &flowCase{}
	for range nodes {
		free := schedtest.R(float64(r.IntN(7)), float64(r.IntN(9)), float64(r.IntN(9)))
		if r.IntN(10) == 0 {
			free = scheduler.Resources{-1, -1, -1} // not schedulable
		}
		c.free = append(c.free, free)
	}
	for range 1 + r.IntN(stages) {
		data := make([][]scheduler.NodeID, 1+r.IntN(tasks))
		for i := range data {
			for _, id := range r.Perm(nodes)[:min(nodes, r.IntN(4))] {
				data[i] = append(data[i], scheduler.NodeID(id))
			}
		}
		id := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(data)),
			Demand: schedtest.R(float64(1+r.IntN(3)), float64(r.IntN(4)), float64(r.IntN(4))), Inputs: schedtest.Inputs(schedtest.MiB, data...)}})
		k := &stagePlacements{}
		for _, i := range r.Perm(len(data))[:1+r.IntN(len(data))] {
			w.Place(scheduler.TaskID{Job: id, Index: int32(i)}, 0)
			k.tasks = append(k.tasks, int32(i))
		}
		k.stage = w.State.Stage(scheduler.StageID{Job: id})
		c.stages = append(c.stages, k)
	}
	return c
}

// judgeTasks lists the tasks of a case: the stage of each and its possible nodes.
func (c *flowCase) judgeTasks() (stages []int, nodes [][]scheduler.NodeID) {
	for s, k := range c.stages {
		for i := range k.stage.Spec.Tasks {
			_, data, _ := k.stage.Input(i)
			var on []scheduler.NodeID
			for _, id := range data {
				if k.stage.Spec.Demand.Fits(c.free[id]) {
					on = append(on, id)
				}
			}
			stages, nodes = append(stages, s), append(nodes, on)
		}
	}
	return stages, nodes
}

// judgeSlots tries all numbers of tasks of each stage, at most those that the decision placed and
// that have their data there, within the free amount of each resource. The resource that admits the
// fewest tasks decides.
func (c *flowCase) judgeSlots(id scheduler.NodeID) int {
	stages, nodes := c.judgeTasks()
	could := make([]int, len(c.stages))
	for i := range stages {
		for _, n := range nodes[i] {
			if n == id {
				could[stages[i]]++
			}
		}
	}
	fewest := -1
	for r := range scheduler.NumResources {
		var most func(stage int, left int64) int
		most = func(stage int, left int64) int {
			if stage == len(c.stages) {
				return 0
			}
			best, d := 0, c.stages[stage].stage.Spec.Demand[r]
			for n := 0; n <= min(could[stage], len(c.stages[stage].tasks)) && int64(n)*d <= left; n++ {
				best = max(best, n+most(stage+1, left-int64(n)*d))
			}
			return best
		}
		if n := most(0, c.free[id][r]); fewest < 0 || n < fewest {
			fewest = n
		}
	}
	return max(fewest, 0)
}

// judgeTry computes the maximum by trying every node for every task.
func (c *flowCase) judgeTry() int {
	stages, nodes := c.judgeTasks()
	slots, placesLeft := make([]int, len(c.free)), make([]int, len(c.stages))
	for id := range slots {
		slots[id] = c.judgeSlots(scheduler.NodeID(id))
	}
	for s, k := range c.stages {
		placesLeft[s] = len(k.tasks)
	}
	var try func(task int) int
	try = func(task int) int {
		if task == len(stages) {
			return 0
		}
		best := try(task + 1)
		for _, id := range nodes[task] {
			if placesLeft[stages[task]] == 0 || slots[id] == 0 {
				continue
			}
			placesLeft[stages[task]]--
			slots[id]--
			best = max(best, 1+try(task+1))
			placesLeft[stages[task]]++
			slots[id]++
		}
		return best
	}
	return try(0)
}

// judgePaths computes the maximum by Ford and Fulkerson on the capacity matrix: source, stages,
// tasks, nodes, sink.
func (c *flowCase) judgePaths() int {
	stages, nodes := c.judgeTasks()
	task, node := 1+len(c.stages), 1+len(c.stages)+len(stages)
	sink := node + len(c.free)
	residual := make([][]int, sink+1)
	for i := range residual {
		residual[i] = make([]int, sink+1)
	}
	for s, k := range c.stages {
		residual[0][1+s] = len(k.tasks)
	}
	for i := range stages {
		residual[1+stages[i]][task+i] = 1
		for _, id := range nodes[i] {
			residual[task+i][node+int(id)] = 1
		}
	}
	for id := range c.free {
		residual[node+id][sink] = c.judgeSlots(scheduler.NodeID(id))
	}
	seen := make([]bool, len(residual))
	var push func(at int) bool
	push = func(at int) bool {
		seen[at] = true
		for to, left := range residual[at] {
			if left > 0 && !seen[to] && (to == sink || push(to)) {
				residual[at][to]--
				residual[to][at]++
				return true
			}
		}
		return at == sink
	}
	for n := 0; ; n++ {
		if clear(seen); !push(0) {
			return n
		}
	}
}

// The benchmark's bound on matching is the maximum flow: it equals an exhaustive search on small
// graphs and a plain path search on larger ones.
func TestMatchingBoundIsMaximumFlow(t *testing.T) {
	testFlow(t, 5957441526632499633) // a displaced task was counted twice, also by its stage
	testFlow(t, seed.New(t))
}

func testFlow(t *testing.T, seed uint64) {
	for name, c := range map[string]struct {
		cases, nodes, stages, tasks int
		judge                       func(*flowCase) int
	}{
		"small graphs, exhaustive search": {1500, 4, 3, 3, (*flowCase).judgeTry},
		"larger graphs, path search":      {300, 8, 6, 12, (*flowCase).judgePaths},
	} {
		t.Run(name, func(t *testing.T) {
			full := 0
			for i := range c.cases {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				g := newFlowCase(t, r, 1+r.IntN(c.nodes), c.stages, c.tasks)
				f, placed := newFlow(g.free), 0
				for _, k := range g.stages {
					f.addStage(k)
					placed += len(k.tasks)
				}
				for id := range g.free {
					if got, want := int(f.slotsOf(scheduler.NodeID(id))), g.judgeSlots(scheduler.NodeID(id)); got != want {
						t.Fatalf("seed %d, case %d: node %d has %d slots, want %d", seed, i, id, got, want)
					}
				}
				got, want := f.value(), c.judge(g)
				if got != want {
					t.Fatalf("seed %d, case %d: the flow is %d, want %d", seed, i, got, want)
				}
				if got == placed {
					full++
				}
			}
			t.Logf("in %d of %d graphs all tasks fit", full, c.cases)
		})
	}
}
