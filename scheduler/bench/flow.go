package bench

import (
	"cmp"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// maxFlow computes the maximum flow by which matchingEvaluator bounds the node-local placements of
// any matching: stage by stage, task by task, along augmenting paths. O(tasks of the stages x
// (replicas + stages)) per path at worst.
type maxFlow struct {
	free     []scheduler.Resources
	nodes    map[scheduler.NodeID]*flowNode
	stages   []flowStage
	tasks    []flowTask
	searchID uint32
}

type flowStage struct {
	placed     int32 // tasks that the decision placed
	first, end int32 // indexes of its tasks
	visited    uint32
}

type flowTask struct {
	stage      int32
	demand     scheduler.Resources
	candidates []scheduler.NodeID // nodes with its data that it fits on alone
	node       scheduler.NodeID   // NoNode: unassigned; displaced: being moved
}

// displaced is the node of a task while the search looks for another node for it. The task still
// counts as assigned in its stage, so the stage cannot assign it again.
const displaced = scheduler.NoNode - 1

// flowNode is a node with data. For each k, the tasks of demand k or larger are bounded by how many of
// them fit together: a chain of edges to the sink, which a task enters at the edge of its demand.
type flowNode struct {
	demands  []flowDemand // different demands of the tasks that could go there, in order of size after order
	most     []int32      // number that fits, of demand k or larger; nil before order
	taken    []int32      // assigned tasks of demand k or larger
	assigned []int32      // tasks
	visited  uint32       // last search that visited the node
	from     int          // least k from which that search tried to displace tasks
}

// flowDemand is the number of tasks of one demand that could go to a node.
type flowDemand struct {
	demand scheduler.Resources
	tasks  int32
}

func newFlow(free []scheduler.Resources) *maxFlow {
	return &maxFlow{free: free, nodes: map[scheduler.NodeID]*flowNode{}}
}

// addStage adds a stage with its placed and its pending tasks.
func (f *maxFlow) addStage(k *stagePlacements) {
	g := k.stage
	first := int32(len(f.tasks))
	at := map[scheduler.NodeID]int32{}
	take := func(i int32) {
		_, nodes, _ := g.Input(i)
		t := flowTask{stage: int32(len(f.stages)), demand: g.Spec.Demand, node: scheduler.NoNode}
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
		if f.nodes[id] == nil {
			f.nodes[id] = &flowNode{}
		}
		f.nodes[id].demands = append(f.nodes[id].demands, flowDemand{g.Spec.Demand, min(n, int32(len(k.tasks)))})
	}
	f.stages = append(f.stages, flowStage{placed: int32(len(k.tasks)), first: first, end: int32(len(f.tasks))})
}

// value computes the value of the maximum flow.
func (f *maxFlow) value() int {
	for id, n := range f.nodes {
		n.order(f.free[id])
	}
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
	t := &f.tasks[task]
	for _, id := range t.candidates {
		n := f.nodes[id]
		if k := n.indexOf(t.demand); f.makeRoom(n, k) {
			t.node = id
			n.assigned = append(n.assigned, task)
			n.count(k, 1)
			return true
		}
	}
	return false
}

// makeRoom reports whether a node has room for a task of demand k, if necessary after moving an
// assigned task to another of its nodes or replacing it by another task of its stage.
func (f *maxFlow) makeRoom(n *flowNode, k int) bool {
	for k >= 0 && n.taken[k] < n.most[k] {
		k--
	}
	if k < 0 {
		return true
	}
	if n.visited == f.searchID && n.from <= k {
		return false
	}
	n.visited, n.from = f.searchID, k
	for _, task := range slices.Clone(n.assigned) { // the search may return here with a smaller demand
		t := &f.tasks[task]
		of := n.indexOf(t.demand)
		if of < k || t.node == displaced {
			continue
		}
		at := t.node
		t.node = displaced
		settled := f.assignTask(task)
		if settled || f.augmentStage(t.stage) {
			if !settled {
				t.node = scheduler.NoNode
			}
			i := slices.Index(n.assigned, task)
			n.assigned = slices.Delete(n.assigned, i, i+1)
			n.count(of, -1)
			return true
		}
		t.node = at
	}
	return false
}

func (n *flowNode) indexOf(demand scheduler.Resources) int {
	return slices.IndexFunc(n.demands, func(d flowDemand) bool { return d.demand == demand })
}

// count adds an assigned task of demand k (sign 1), or removes it (sign -1).
func (n *flowNode) count(k int, sign int32) {
	for i := range n.taken[:k+1] {
		n.taken[i] += sign
	}
}

// order sorts the demands by their largest share of the free capacity, and computes how many fit together.
func (n *flowNode) order(free scheduler.Resources) {
	slices.SortFunc(n.demands, func(a, b flowDemand) int {
		return cmp.Or(cmp.Compare(a.demand.DominantShare(free), b.demand.DominantShare(free)), slices.Compare(a.demand[:], b.demand[:]))
	})
	list := n.demands[:0]
	for _, d := range n.demands {
		if last := len(list) - 1; last >= 0 && list[last].demand == d.demand {
			list[last].tasks += d.tasks
			continue
		}
		list = append(list, d)
	}
	n.demands, n.taken = list, make([]int32, len(list))
	for k := range list {
		n.most = append(n.most, mostThatFit(list[k:], free))
	}
}

// maxExactFit is the size up to which mostThatFit tries all sets of tasks.
const maxExactFit = 4

// mostThatFit returns an upper bound on how many of some tasks fit together: by the scarcest
// resource, smallest first, and by trying all sets of a few tasks.
func mostThatFit(of []flowDemand, free scheduler.Resources) int32 {
	most, list := int32(math.MaxInt32), slices.Clone(of)
	for r := range scheduler.NumResources {
		slices.SortFunc(list, func(a, b flowDemand) int { return cmp.Compare(a.demand[r], b.demand[r]) })
		n, left := int32(0), free[r]
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
		most = min(most, n)
	}
	for n := int32(2); n <= min(most, maxExactFit); n++ {
		if !fitTogether(list, n, free) {
			return n - 1
		}
	}
	return most
}

// fitTogether reports whether some n of the tasks fit together.
func fitTogether(of []flowDemand, n int32, free scheduler.Resources) bool {
	if n == 0 {
		return true
	}
	for i := range of {
		d := &of[i]
		if d.tasks == 0 || !d.demand.Fits(free) {
			continue
		}
		d.tasks--
		ok := fitTogether(of[i:], n-1, free.Sub(d.demand))
		d.tasks++
		if ok {
			return true
		}
	}
	return false
}
