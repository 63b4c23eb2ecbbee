package scheduler

import "slices"

// tasksByNode lists for each node the tasks of one stage with data there, in order. The tasks of
// nodes[k], or of node k if nodes is nil, are tasks[start[k]:start[k+1]].
type tasksByNode struct {
	nodes []NodeID // in order; nil if there are at least as many replicas as nodes
	start []int32
	tasks []int32
}

// TasksOn returns the tasks of the stage, pending or not, whose input is (partly) on node n, in order. The slice belongs
// to State. O(1) for a stage with as many replicas as the cluster has nodes, else O(log replicas). The first call after
// submission builds the lists in O(replicas log replicas), up to 12 bytes a replica, unless the submission did.
func (g *Stage) TasksOn(n NodeID) []int32 {
	if g.Spec.Inputs == nil || n < 0 {
		return nil
	}
	if g.tasksByNode == nil {
		g.tasksByNode = indexTasksByNode(g)
	}
	v, k := g.tasksByNode, int(n)
	if v.nodes != nil {
		at, found := slices.BinarySearch(v.nodes, n)
		if !found {
			return nil
		}
		k = at
	}
	if k+1 >= len(v.start) {
		return nil
	}
	return v.tasks[v.start[k]:v.start[k+1]]
}

// NextPendingNear returns the lowest pending task of the stage in [from, stop) that may have capacity
// at its input now, or -1. The tasks that it passes over have none. O(tasks passed x replicas).
func (q Queue) NextPendingNear(g *Stage, from, stop int32) int32 {
	c := &q.s.cluster
	i := g.pending.next(from)
	if in := g.Spec.Inputs; in != nil && len(g.moved) == 0 {
		if c.fitsNowhere(g) {
			return -1
		}
		class := c.classOfStage(g)
		c.fit.catchUp(class)
		for i >= 0 && i < stop && !slices.ContainsFunc(in.Nodes[in.Start[i]:in.Start[i+1]], func(n NodeID) bool { return c.fit.mayFit(class, n) }) {
			i = g.pending.next(i + 1)
		}
	}
	if i >= stop {
		return -1
	}
	return i
}

// mayFit reports whether a node may fit a class that caught up. False is certain. It reads the
// candidates first, which are a small part of the index.
func (f *fitIndex) mayFit(class *equivalenceClass, id NodeID) bool {
	if id < 0 || int(id) >= len(f.free) || !class.candidates.has(int32(id)) {
		return false
	}
	if class.need.fits(&f.free[id]) {
		return true
	}
	class.candidates.clear(int32(id))
	return false
}

const manyReplicas = 1 << 18 // number of replicas from which on the submission builds the lists, not a decision

// indexTasksByNode builds the lists, by counting sort unless the stage has fewer replicas than there are nodes.
func indexTasksByNode(g *Stage) *tasksByNode {
	top, total := NodeID(-1), 0
	each := func(visit func(task int32, n NodeID)) {
		for i := range g.Spec.Tasks {
			_, nodes, _ := g.Input(i)
			for _, n := range nodes {
				visit(i, n)
			}
		}
	}
	each(func(_ int32, n NodeID) { top, total = max(top, n), total+1 })
	if total <= int(top) {
		return sortTasksByNode(total, each)
	}
	v := &tasksByNode{start: make([]int32, top+2), tasks: make([]int32, total)}
	each(func(_ int32, n NodeID) { v.start[n+1]++ })
	for n := range v.start[1:] {
		v.start[n+1] += v.start[n]
	}
	at := append([]int32(nil), v.start...)
	each(func(i int32, n NodeID) {
		v.tasks[at[n]] = i
		at[n]++
	})
	return v
}

// sortTasksByNode builds the lists of a stage with few replicas, without an entry for each node.
func sortTasksByNode(replicas int, each func(visit func(task int32, n NodeID))) *tasksByNode {
	pairs := make([]int64, 0, replicas)
	each(func(i int32, n NodeID) { pairs = append(pairs, int64(n)<<32|int64(i)) })
	slices.Sort(pairs)
	v := &tasksByNode{nodes: make([]NodeID, 0, replicas), start: make([]int32, 0, replicas+1), tasks: make([]int32, 0, replicas)}
	for k, p := range pairs {
		if n := NodeID(p >> 32); k == 0 || n != v.nodes[len(v.nodes)-1] {
			v.nodes, v.start = append(v.nodes, n), append(v.start, int32(k))
		}
		v.tasks = append(v.tasks, int32(p))
	}
	v.start = append(v.start, int32(replicas))
	return v
}
