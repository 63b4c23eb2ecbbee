package match

import "slices"

// sized returns s with length n, all zero, without allocating if its capacity suffices.
func sized[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// groupTasks groups the tasks with the same set of replicas, in order of their first
// task, by an open hash table over the sorted sets.
func (s *Solver) groupTasks(p *Problem) {
	tasks := p.tasks()
	size := 16
	for size < 2*tasks {
		size *= 2
	}
	s.table = sized(s.table, size)
	s.groupOf, s.rank = sized(s.groupOf, tasks), sized(s.rank, tasks)
	s.count = s.count[:0]
	s.setStart, s.sets = append(s.setStart[:0], 0), s.sets[:0]
	for t := range tasks {
		from := len(s.sets)
		s.sets = append(s.sets, p.Replicas[p.Offsets[t]:p.Offsets[t+1]]...)
		slices.Sort(s.sets[from:])
		s.sets = s.sets[:from+len(slices.Compact(s.sets[from:]))]
		g := s.lookup(s.sets[from:], size)
		if int(g) == len(s.count) { // a new group owns its set
			s.setStart = append(s.setStart, int32(len(s.sets)))
			s.count = append(s.count, 0)
		} else {
			s.sets = s.sets[:from]
		}
		s.groupOf[t], s.rank[t] = g, s.count[g]
		s.count[g]++
	}
}

// lookup returns the group of a set; a new set becomes the next group.
func (s *Solver) lookup(set []int32, size int) int32 {
	h := uint64(14695981039346656037)
	for _, v := range set {
		h = (h ^ uint64(uint32(v))) * 1099511628211
	}
	h ^= h >> 29
	for i := int(h) & (size - 1); ; i = (i + 1) & (size - 1) { // at most half full
		g := s.table[i] - 1
		if g < 0 {
			s.table[i] = int32(len(s.count)) + 1
			return int32(len(s.count))
		}
		if slices.Equal(s.sets[s.setStart[g]:s.setStart[g+1]], set) {
			return g
		}
	}
}

// buildEdges builds the edges of each group, and lists those of each node. Nodes without a slot get
// no edge.
func (s *Solver) buildEdges(p *Problem) {
	s.edgeStart = append(s.edgeStart[:0], 0)
	s.edgeNode, s.edgeGroup = s.edgeNode[:0], s.edgeGroup[:0]
	for g := range s.count {
		for _, v := range s.sets[s.setStart[g]:s.setStart[g+1]] {
			if p.Nodes[v].Slots > 0 {
				s.edgeNode, s.edgeGroup = append(s.edgeNode, v), append(s.edgeGroup, int32(g))
			}
		}
		s.edgeStart = append(s.edgeStart, int32(len(s.edgeNode)))
	}
	s.nodeStart, s.nodeEdge = invert(s.nodeStart, s.nodeEdge, s.edgeNode, len(p.Nodes))
}

// invert returns for each value v below n the indices i with of[i] = v, in order:
// items[start[v]:start[v+1]].
func invert(start, items, of []int32, n int) (newStart, newItems []int32) {
	start, items = sized(start, n+2), sized(items, len(of))
	for _, v := range of {
		start[v+2]++
	}
	for v := 1; v < len(start); v++ {
		start[v] += start[v-1]
	}
	for i, v := range of {
		items[start[v+1]] = int32(i)
		start[v+1]++
	}
	return start[:n+1], items
}
