package match

// prioritise exchanges placed tasks for unplaced ones of better priority without changing the loads: the matroid greedy
// over tasks, best first. If a task finds no exchange, all groups and nodes that its search visited are closed.
func (s *Solver) prioritise() {
	s.clearMarks()
	for t, g := range s.groupOf {
		if s.rank[t] < s.count[g]-s.left[g] {
			s.committed[g] = s.rank[t] + 1
			continue
		}
		if s.groupSeen[g] == closed {
			continue
		}
		if s.exchange(g) {
			s.committed[g] = s.rank[t] + 1
		}
		if s.exhausted {
			return
		}
	}
}

// exchange places one more unit of group g in exchange for a placed unit of another group that is
// not committed, along an alternating path. It reports whether there is one.
func (s *Solver) exchange(g int32) bool {
	s.stamp++
	s.groupSeen[g] = s.stamp
	s.groupVia[g] = root
	nodes := int32(len(s.nodes))
	s.queue = append(s.queue[:0], nodes+g) // nodes, then groups
	for i := 0; i < len(s.queue) && !s.exhausted; i++ {
		if x := s.queue[i]; x >= nodes {
			s.visitNodesOf(x - nodes)
		} else if s.evict(x) {
			return true
		}
	}
	if s.exhausted {
		return false
	}
	for _, x := range s.queue {
		if x >= nodes {
			s.groupSeen[x-nodes] = closed
		} else {
			s.nodeSeen[x] = closed
		}
	}
	return false
}

// visitNodesOf queues the nodes that a unit of group g could go to.
func (s *Solver) visitNodesOf(g int32) {
	from, to := s.edgeRange(g)
	s.countWork(int(to - from))
	for e := from; e < to; e++ {
		if node := s.edgeNode[e]; s.nodeSeen[node] < s.stamp {
			s.nodeSeen[node], s.nodeVia[node] = s.stamp, e
			s.queue = append(s.queue, node)
		}
	}
}

// evict queues the groups with a unit that could leave a node, and reports whether the exchange is complete.
func (s *Solver) evict(node int32) bool {
	s.countWork(len(s.edgesInto(node)))
	for _, e := range s.edgesInto(node) {
		h := s.edgeGroup[e]
		if s.flow[e] == 0 || s.groupSeen[h] >= s.stamp {
			continue
		}
		s.groupSeen[h], s.groupVia[h] = s.stamp, e
		if s.count[h]-s.left[h] > s.committed[h] {
			s.applyExchange(h)
			return true
		}
		s.queue = append(s.queue, int32(len(s.nodes))+h)
	}
	return false
}

// applyExchange executes the exchange that ends with a unit of group h unplaced.
func (s *Solver) applyExchange(h int32) {
	s.left[h]++
	for out := s.groupVia[h]; out != root; out = s.groupVia[h] {
		s.flow[out]--
		in := s.nodeVia[s.edgeNode[out]]
		s.flow[in]++
		h = s.edgeGroup[in]
	}
	s.left[h]--
}
