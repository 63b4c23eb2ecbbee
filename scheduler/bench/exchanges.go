package bench

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// exchangeSearch searches for node-local placements that a decision missed. It moves placements of the
// decision to other nodes, where they fit with all other placements, along paths of at most
// maxExchangeDepth tasks that make room for each other. maxFlow counts too many: there a task away from
// its data needs no capacity. This search finds too few: no longer paths, and no two tasks that leave
// one node together. The true number missed is between the two. Reservations are ignored.
// considered.
type exchangeSearch struct {
	free    []scheduler.Resources // of each node, after the decision
	tasks   []exchangeTask        // tasks with input that the decision placed
	onNode  map[scheduler.NodeID][]int
	waiting map[*scheduler.Stage][]int32 // tasks that could replace a placed task of their stage
	visited map[scheduler.NodeID]bool    // nodes where this path could make no room
	steps   int
}

// exchangeTask is a task that the decision placed.
type exchangeTask struct {
	stage  *scheduler.Stage
	index  int32
	node   scheduler.NodeID
	local  bool
	moving bool // on the path
}

// On the bench's workload no longer path finds more; maxExchangeSteps bounds the search for one task.
const (
	maxExchangeDepth = 5
	maxExchangeSteps = 20_000
)

func newExchangeSearch(s *scheduler.State) *exchangeSearch {
	x := &exchangeSearch{onNode: map[scheduler.NodeID][]int{}, waiting: map[*scheduler.Stage][]int32{}}
	for _, n := range s.Nodes() {
		free := n.Free
		if !n.Schedulable() {
			free = scheduler.Resources{-1, -1, -1}
		}
		x.free = append(x.free, free)
	}
	return x
}

// addTask adds a task that the decision placed.
func (x *exchangeSearch) addTask(g *scheduler.Stage, index int32, node scheduler.NodeID, local bool) {
	if _, known := x.waiting[g]; !known {
		list := []int32{}
		for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
			list = append(list, i)
		}
		x.waiting[g] = list
	}
	x.onNode[node] = append(x.onNode[node], len(x.tasks))
	x.tasks = append(x.tasks, exchangeTask{stage: g, index: index, node: node, local: local})
}

// value returns how many more tasks can be placed at their data, short paths first.
func (x *exchangeSearch) value() int {
	found := 0
	for depth := range maxExchangeDepth + 1 {
		for again := true; again; {
			again = false
			for t := range x.tasks {
				if !x.tasks[t].local && x.makeLocal(t, depth) {
					found++
					again = true
				}
			}
		}
	}
	return found
}

// makeLocal moves a task that is away from its data, or another task of its stage instead, to a
// node with its data, and reports whether it could.
func (x *exchangeSearch) makeLocal(t, depth int) bool {
	at, demand := x.tasks[t].node, x.tasks[t].stage.Spec.Demand
	x.visited, x.steps = map[scheduler.NodeID]bool{}, 0
	x.free[at] = x.free[at].Add(demand)
	if x.moveToData(t, depth) {
		return true
	}
	x.free[at] = x.free[at].Sub(demand)
	return false
}

// moveToData moves a task whose capacity was returned to another node with its data, or places a
// waiting task of its stage at that task's data instead. It reports whether it could.
func (x *exchangeSearch) moveToData(t, depth int) bool {
	o := &x.tasks[t]
	o.moving = true
	defer func() { o.moving = false }()
	for k := -1; k < len(x.waiting[o.stage]); k++ {
		index := o.index
		if k >= 0 {
			index = x.waiting[o.stage][k]
		}
		_, nodes, _ := o.stage.Input(index)
		for _, id := range nodes {
			x.steps++
			if (id == o.node && o.local) || !x.takeCapacity(id, o.stage.Spec.Demand, depth) {
				continue
			}
			if k >= 0 {
				x.waiting[o.stage][k] = o.index
			}
			x.setNode(t, id)
			o.index, o.local = index, true
			return true
		}
	}
	return false
}

// takeCapacity takes capacity of a node, if necessary from a task of the decision that can move
// elsewhere, and reports whether it could.
func (x *exchangeSearch) takeCapacity(id scheduler.NodeID, demand scheduler.Resources, depth int) bool {
	if demand.Fits(x.free[id]) {
		x.free[id] = x.free[id].Sub(demand)
		return true
	}
	if depth == 0 || x.visited[id] || x.steps > maxExchangeSteps {
		return false
	}
	x.visited[id] = true
	for _, t := range slices.Clone(x.onNode[id]) {
		o := &x.tasks[t]
		has := o.stage.Spec.Demand
		if o.moving || !demand.Fits(x.free[id].Add(has)) {
			continue
		}
		x.free[id] = x.free[id].Add(has).Sub(demand)
		if x.moveToData(t, depth-1) || (!o.local && x.moveAnywhere(t)) {
			return true
		}
		x.free[id] = x.free[id].Add(demand).Sub(has)
	}
	return false
}

// moveAnywhere moves a task to any other node with free capacity and reports whether there is one.
func (x *exchangeSearch) moveAnywhere(t int) bool {
	o := &x.tasks[t]
	for id := range x.free {
		if scheduler.NodeID(id) != o.node && o.stage.Spec.Demand.Fits(x.free[id]) {
			x.free[id] = x.free[id].Sub(o.stage.Spec.Demand)
			x.setNode(t, scheduler.NodeID(id))
			return true
		}
	}
	return false
}

func (x *exchangeSearch) setNode(t int, to scheduler.NodeID) {
	o := &x.tasks[t]
	x.onNode[o.node] = slices.DeleteFunc(slices.Clone(x.onNode[o.node]), func(k int) bool { return k == t })
	x.onNode[to] = append(x.onNode[to], t)
	o.node = to
}
