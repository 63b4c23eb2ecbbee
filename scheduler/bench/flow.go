package bench

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// flow is the maximum flow by which matchJudge bounds what any matching could
// have placed at its data. It is plain: stage by stage, task by task, along
// augmenting paths. O(tasks of the stages x (replicas + stages)) at worst.
type flow struct {
	free   []scheduler.Resources
	slots  []int32   // of each node, -1 before it is asked for
	held   [][]int32 // tasks at each node
	seen   []uint32  // search that saw the node last
	stages []flowStage
	tasks  []flowTask
	demand [][]flowDemand // of each node, the tasks that could go there by stage
	search uint32
}

type flowStage struct {
	placed     int32 // tasks that the decision placed
	first, end int32 // its tasks
	seen       uint32
}

type flowTask struct {
	stage int32
	nodes []scheduler.NodeID // of its data, with room for it alone
	at    scheduler.NodeID   // NoNode: nowhere, onPath: asked to leave
}

// onPath is where a task is while the search looks for another place for it: it has
// its turn, so that its stage cannot give it one.
const onPath = scheduler.NoNode - 1

// flowDemand is how many tasks of one stage could go to a node.
type flowDemand struct {
	demand scheduler.Resources
	tasks  int32
}

func newFlow(free []scheduler.Resources) *flow {
	n := len(free)
	f := &flow{free: free, slots: make([]int32, n), held: make([][]int32, n), seen: make([]uint32, n), demand: make([][]flowDemand, n)}
	for i := range f.slots {
		f.slots[i] = -1
	}
	return f
}

// add takes in a stage with the tasks that were placed and those that still wait.
func (f *flow) add(k *nearby) {
	g := k.stage
	first := int32(len(f.tasks))
	at := map[scheduler.NodeID]int32{}
	take := func(i int32) {
		_, nodes, _ := g.Input(i)
		t := flowTask{stage: int32(len(f.stages)), at: scheduler.NoNode}
		for _, id := range nodes {
			if g.Spec.Demand.Fits(f.free[id]) {
				t.nodes = append(t.nodes, id)
				at[id]++
			}
		}
		if len(t.nodes) > 0 {
			f.tasks = append(f.tasks, t)
		}
	}
	for _, i := range k.tasks {
		take(i)
	}
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		take(i)
	}
	for id, n := range at { // the slots do not depend on the order
		f.demand[id] = append(f.demand[id], flowDemand{g.Spec.Demand, min(n, int32(len(k.tasks)))})
	}
	f.stages = append(f.stages, flowStage{placed: int32(len(k.tasks)), first: first, end: int32(len(f.tasks))})
}

// most is the value of the maximum flow.
func (f *flow) most() int {
	total := 0
	for i := range f.stages {
		for n := int32(0); n < f.stages[i].placed; n++ {
			f.search++
			if !f.grow(int32(i)) {
				break
			}
			total++
		}
	}
	return total
}

// grow gets one more task of a stage onto a node.
func (f *flow) grow(stage int32) bool {
	g := &f.stages[stage]
	if g.seen == f.search {
		return false
	}
	g.seen = f.search
	for i := g.first; i < g.end; i++ {
		if f.tasks[i].at == scheduler.NoNode && f.settle(i) {
			return true
		}
	}
	return false
}

// settle gets a task that is nowhere onto one of its nodes.
func (f *flow) settle(task int32) bool {
	for _, id := range f.tasks[task].nodes {
		if f.seen[id] == f.search || !f.clear(id) {
			continue
		}
		f.tasks[task].at = id
		f.held[id] = append(f.held[id], task)
		return true
	}
	return false
}

// clear gets a slot of a node: a free one, or that of a task which goes to another
// of its nodes or gives its turn to another one of its stage.
func (f *flow) clear(id scheduler.NodeID) bool {
	f.seen[id] = f.search
	if int32(len(f.held[id])) < f.slotsOf(id) {
		return true
	}
	for k, task := range f.held[id] {
		t := &f.tasks[task]
		t.at = onPath
		settled := f.settle(task)
		if settled || f.grow(t.stage) {
			if !settled {
				t.at = scheduler.NoNode
			}
			f.held[id] = slices.Delete(f.held[id], k, k+1)
			return true
		}
		t.at = id
	}
	return false
}

// slotsOf is how many of the tasks that could go to a node fit there by the
// scarcest resource, the smallest first.
func (f *flow) slotsOf(id scheduler.NodeID) int32 {
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
