package scheduler

// inverse tells for each node which tasks of one stage have data there: the
// tasks of node n are tasks[start[n]:start[n+1]], in order.
type inverse struct {
	start []int32
	tasks []int32
}

// TasksOn lists the tasks of the stage, pending or not, whose input lies (in
// part) on node n, in order. The slice belongs to State. The first call after
// submission builds the lists in O(tasks x replicas), 4 bytes a replica.
func (s *State) TasksOn(g *Stage, n NodeID) []int32 {
	if g.Spec.Inputs == nil || n < 0 {
		return nil
	}
	if g.inverse == nil {
		g.inverse = invert(g)
	}
	if int(n)+1 >= len(g.inverse.start) {
		return nil
	}
	return g.inverse.tasks[g.inverse.start[n]:g.inverse.start[n+1]]
}

func invert(g *Stage) *inverse {
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
	v := &inverse{start: make([]int32, top+2), tasks: make([]int32, total)}
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
