package bench

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// maxFlow computes the maximum flow by which matchingEvaluator bounds the node-local placements of
// any matching: stage by stage, task by task, along augmenting paths. O(tasks of the stages x
// (replicas + stages)) per path at worst.
type maxFlow struct {
	free     []scheduler.Resources
	slots    []int32   // of each node, -1 until computed
	assigned [][]int32 // tasks assigned to each node
	visited  []uint32  // the last search that visited the node
	stages   []flowStage
	tasks    []flowTask
	demand   [][]flowDemand // of each node: the tasks that could go there, by stage
	searchID uint32
}

type flowStage struct {
	placed     int32 // tasks that the decision placed
	first, end int32 // indexes of its tasks
	visited    uint32
}

type flowTask struct {
	stage      int32
	candidates []scheduler.NodeID // nodes with its data that it fits on alone
	node       scheduler.NodeID   // NoNode: unassigned; displaced: being moved
}

// displaced is the node of a task while the search looks for another node for it. The task still
// counts as one of its stage, so the stage cannot assign it again.
const displaced = scheduler.NoNode - 1

// flowDemand is the number of tasks of one stage that could go to a node.
type flowDemand struct {
	demand scheduler.Resources
	tasks  int32
}

func newFlow(free []scheduler.Resources) *maxFlow {
	n := len(free)
	f := &maxFlow{free: free, slots: make([]int32, n), assigned: make([][]int32, n), visited: make([]uint32, n), demand: make([][]flowDemand, n)}
	for i := range f.slots {
		f.slots[i] = -1
	}
	return f
}

// addStage adds a stage with its placed and its pending tasks.
func (f *maxFlow) addStage(k *stagePlacements) {
	g := k.stage
	first := int32(len(f.tasks))
	at := map[scheduler.NodeID]int32{}
	take := func(i int32) {
		_, nodes, _ := g.Input(i)
		t := flowTask{stage: int32(len(f.stages)), node: scheduler.NoNode}
		for _, id := range nodes {
			if g.Spec.Demand.Fits(f.free[id]) {
				t.candidates = append(t.candidates, id)
				at[id]++
			}
		}
		if len(t.candidates) > 0 {
			f.tasks = append(f.tasks, t)
		}
	}
	for _, i := range k.tasks {
		take(i)
	}
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		take(i)
	}
	for id, n := range at { // the result does not depend on the order
		f.demand[id] = append(f.demand[id], flowDemand{g.Spec.Demand, min(n, int32(len(k.tasks)))})
	}
	f.stages = append(f.stages, flowStage{placed: int32(len(k.tasks)), first: first, end: int32(len(f.tasks))})
}

// value computes the value of the maximum flow.
func (f *maxFlow) value() int {
	total := 0
	for i := range f.stages {
		for n := int32(0); n < f.stages[i].placed; n++ {
			f.searchID++
			if !f.augmentStage(int32(i)) {
				break
			}
			total++
		}
	}
	return total
}

// augmentStage assigns one more task of a stage to a node and reports whether it could.
func (f *maxFlow) augmentStage(stage int32) bool {
	g := &f.stages[stage]
	if g.visited == f.searchID {
		return false
	}
	g.visited = f.searchID
	for i := g.first; i < g.end; i++ {
		if f.tasks[i].node == scheduler.NoNode && f.assignTask(i) {
			return true
		}
	}
	return false
}

// assignTask assigns an unassigned task to one of its nodes and reports whether it could.
func (f *maxFlow) assignTask(task int32) bool {
	for _, id := range f.tasks[task].candidates {
		if f.visited[id] == f.searchID || !f.freeSlot(id) {
			continue
		}
		f.tasks[task].node = id
		f.assigned[id] = append(f.assigned[id], task)
		return true
	}
	return false
}

// freeSlot reports whether node id has a free slot, after moving an assigned task to another of its
// nodes or replacing it by another task of its stage if needed.
func (f *maxFlow) freeSlot(id scheduler.NodeID) bool {
	f.visited[id] = f.searchID
	if int32(len(f.assigned[id])) < f.slotsOf(id) {
		return true
	}
	for k, task := range f.assigned[id] {
		t := &f.tasks[task]
		t.node = displaced
		settled := f.assignTask(task)
		if settled || f.augmentStage(t.stage) {
			if !settled {
				t.node = scheduler.NoNode
			}
			f.assigned[id] = slices.Delete(f.assigned[id], k, k+1)
			return true
		}
		t.node = id
	}
	return false
}

// slotsOf returns how many of the tasks that could go to a node fit there by the scarcest resource,
// smallest first.
func (f *maxFlow) slotsOf(id scheduler.NodeID) int32 {
	if f.slots[id] >= 0 {
		return f.slots[id]
	}
	list := f.demand[id]
	for r := range scheduler.NumResources {
		slices.SortFunc(list, func(a, b flowDemand) int { return int(a.demand[r] - b.demand[r]) })
		n, left := int32(0), f.free[id][r]
		for _, d := range list {
			fit := d.tasks
			if d.demand[r] > 0 {
				fit = int32(min(int64(fit), left/d.demand[r]))
			}
			n += fit
			if left -= int64(fit) * d.demand[r]; fit < d.tasks {
				break
			}
		}
		if f.slots[id] < 0 || n < f.slots[id] {
			f.slots[id] = n
		}
	}
	return f.slots[id]
}
