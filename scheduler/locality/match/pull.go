package match

// pullAll lets nodes pull tasks, greatest next weight first, ties by index, until none with a free slot can.
func (s *Solver) pullAll() {
	s.heap = s.heap[:0]
	for v := range s.nodes {
		if s.load[v] < s.nodes[v].Slots {
			s.key[v] = s.nodes[v].weight(s.load[v])
			s.heap = append(s.heap, int32(v))
		}
	}
	s.order.Init(s.heap)
	for len(s.heap) > 0 && s.leftTotal > 0 {
		v := s.heap[0]
		if s.pullUnit(v) {
			s.leftTotal--
			s.key[v] = s.nodes[v].weight(s.load[v])
			if s.load[v] < s.nodes[v].Slots {
				s.order.Fix(s.heap, 0)
				continue
			}
		}
		s.order.Pop(&s.heap)
	}
}

// directEdge returns an edge into node whose group has an unplaced unit. Groups only lose units
// here, so each edge is passed only once.
func (s *Solver) directEdge(node int32) (e int32, ok bool) {
	end := s.nodeStart[node+1]
	for ; s.next[node] < end; s.next[node]++ {
		if e := s.nodeEdge[s.next[node]]; s.left[s.edgeGroup[e]] > 0 {
			return e, true
		}
	}
	return 0, false
}

// pullUnit brings one more unit onto node v and reports whether it found one. It searches breadth first
// over nodes that need a unit, each filled by a group that then leaves another node. If it finds no
// unit, the visited nodes and groups are closed for good: no unplaced unit can ever reach them.
func (s *Solver) pullUnit(v int32) bool {
	if s.nodeSeen[v] == closed {
		return false
	}
	s.stamp++
	s.queue = s.queue[:0]
	if s.visitNode(v, root) {
		return true
	}
	for i := 0; i < len(s.queue); i++ {
		if s.exhausted {
			return false // one step deep only, so nothing is known to be closed
		}
		if s.refill(s.queue[i]) {
			return true
		}
	}
	if s.exhausted {
		return false
	}
	for _, node := range s.queue {
		s.nodeSeen[node] = closed
		for _, e := range s.edgesInto(node) {
			if g := s.edgeGroup[e]; s.groupSeen[g] == s.stamp {
				s.groupSeen[g] = closed
			}
		}
	}
	return false
}

// visitNode records that a node needs a unit, and completes the path if one is available directly.
func (s *Solver) visitNode(node, via int32) bool {
	s.nodeSeen[node], s.nodeVia[node] = s.stamp, via
	if e, ok := s.directEdge(node); ok {
		s.augment(e)
		return true
	}
	s.queue = append(s.queue, node)
	return false
}

// refill visits the nodes whose groups could fill a node, and reports whether the path is complete.
func (s *Solver) refill(node int32) bool {
	for _, e := range s.edgesInto(node) {
		g := s.edgeGroup[e]
		if s.groupSeen[g] >= s.stamp {
			continue
		}
		s.groupSeen[g], s.groupVia[g] = s.stamp, e
		from, to := s.edgeRange(g)
		s.countWork(int(to - from))
		for out := from; out < to; out++ {
			if s.flow[out] > 0 && s.nodeSeen[s.edgeNode[out]] < s.stamp && s.visitNode(s.edgeNode[out], out) {
				return true
			}
		}
	}
	s.countWork(len(s.edgesInto(node)))
	return false
}

func (s *Solver) countWork(edges int) {
	s.work += edges
	if s.work > s.maxWork {
		s.exhausted = true
	}
}

// augment moves units along the path of the search: an unplaced unit enters by edge e,
// and each node on the way passes one on, until the root has one more.
func (s *Solver) augment(e int32) {
	s.left[s.edgeGroup[e]]--
	s.flow[e]++
	node := s.edgeNode[e]
	for via := s.nodeVia[node]; via != root; via = s.nodeVia[node] {
		s.flow[via]--
		in := s.groupVia[s.edgeGroup[via]]
		s.flow[in]++
		node = s.edgeNode[in]
	}
	s.load[node]++
}
