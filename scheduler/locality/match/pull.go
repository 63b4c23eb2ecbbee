package match

// pullAll lets nodes pull tasks, greatest next weight first, ties by index, until no
// node with a free slot can. With racks it is the second pass: nodes also draw from
// their racks, within the division of the first pass.
func (s *Solver) pullAll(racks bool) {
	s.clearMarks()
	s.heap = s.heap[:0]
	for v := range s.nodes {
		if s.load[v] < s.nodes[v].Slots && !(racks && s.openNode[v]) {
			s.key[v] = s.nodes[v].weight(s.load[v])
			s.heap = append(s.heap, int32(v))
		}
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.siftDown(i)
	}
	for len(s.heap) > 0 && s.leftTotal > 0 {
		v := s.heap[0]
		if s.pullUnit(v, racks) {
			s.leftTotal--
			s.key[v] = s.nodes[v].weight(s.load[v])
			if s.load[v] < s.nodes[v].Slots {
				s.siftDown(0)
				continue
			}
		}
		last := len(s.heap) - 1
		s.heap[0] = s.heap[last]
		s.heap = s.heap[:last]
		s.siftDown(0)
	}
}

// heapLess is the order of the heap.
func (s *Solver) heapLess(a, b int32) bool {
	if s.key[a] != s.key[b] {
		return s.key[a] > s.key[b]
	}
	return a < b
}

func (s *Solver) siftDown(i int) {
	h := s.heap
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && s.heapLess(h[c+1], h[c]) {
			c++
		}
		if !s.heapLess(h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// directEdge returns an edge into place whose group has an unplaced unit. Groups only
// lose units here, so each edge is passed once in all.
func (s *Solver) directEdge(place int32) (e int32, ok bool) {
	end := s.placeStart[place+1]
	for ; s.next[place] < end; s.next[place]++ {
		if e := s.placeEdge[s.next[place]]; s.left[s.edgeGroup[e]] > 0 {
			return e, true
		}
	}
	return 0, false
}

// pullUnit brings one more unit onto node v and reports whether there is one. It
// searches breadth first over places that need a unit, each filled by a group that then
// leaves another place. If no unit is found, the visited places and groups are closed
// for good: no unplaced unit can ever reach them.
func (s *Solver) pullUnit(v int32, racks bool) bool {
	if s.placeSeen[v] == closed {
		return false
	}
	s.stamp++
	s.queue = s.queue[:0]
	if s.visitPlace(v, root) {
		return true
	}
	for i := 0; i < len(s.queue); i++ {
		if s.exhausted {
			return false // one step deep only, so nothing is known to be closed
		}
		if s.refill(s.queue[i], racks) {
			return true
		}
	}
	if s.exhausted {
		return false
	}
	for _, place := range s.queue {
		s.placeSeen[place] = closed
		for _, e := range s.edgesInto(place) {
			if g := s.edgeGroup[e]; s.groupSeen[g] == s.stamp {
				s.groupSeen[g] = closed
			}
		}
	}
	return false
}

// visitPlace records that place needs a unit, and completes the path if one is
// available directly.
func (s *Solver) visitPlace(place, via int32) bool {
	s.placeSeen[place] = s.stamp
	s.placeVia[place] = via
	if e, ok := s.directEdge(place); ok {
		s.augment(e)
		return true
	}
	s.queue = append(s.queue, place)
	return false
}

// refill visits what could fill a place: groups placed elsewhere, for a node its rack,
// for a rack the nodes that draw from it. It reports whether the path is complete.
func (s *Solver) refill(place int32, racks bool) bool {
	for _, e := range s.edgesInto(place) {
		g := s.edgeGroup[e]
		if s.groupSeen[g] >= s.stamp || !s.canMove(e) {
			continue
		}
		s.groupSeen[g] = s.stamp
		s.groupVia[g] = e
		from, to := s.edgeRange(g)
		s.countWork(int(to - from))
		for out := from; out < to; out++ {
			if s.flow[out] > 0 && s.placeSeen[s.edgePlace[out]] < s.stamp && s.visitPlace(s.edgePlace[out], out) {
				return true
			}
		}
	}
	s.countWork(len(s.edgesInto(place)))
	if !racks {
		return false
	}
	return s.refillByRack(place)
}

func (s *Solver) refillByRack(place int32) bool {
	nodes := int32(len(s.nodes))
	if s.isNode(place) {
		rack := nodes + s.rackOf[place]
		if s.openNode[place] || s.placeSeen[rack] >= s.stamp {
			return false
		}
		s.rackFor[rack] = place
		return s.visitPlace(rack, viaOwner)
	}
	mates := s.rackNode[s.rackStart[place-nodes]:s.rackStart[place-nodes+1]]
	s.countWork(len(mates))
	for _, u := range mates {
		if s.fromRack[u] > 0 && s.placeSeen[u] < s.stamp && s.visitPlace(u, viaRack) {
			return true
		}
	}
	return false
}

// countWork counts visited edges against the limit.
func (s *Solver) countWork(edges int) {
	s.work += edges
	if s.work > s.maxWork {
		s.exhausted = true
	}
}

// augment moves units along the path of the search: an unplaced unit enters by edge e,
// and each place on the way passes one on, until the root has one more.
func (s *Solver) augment(e int32) {
	s.left[s.edgeGroup[e]]--
	s.flow[e]++
	place := s.edgePlace[e]
	for range 2*int(s.places) + 2 {
		switch via := s.placeVia[place]; via {
		case root:
			s.load[place]++
			return
		case viaRack:
			s.fromRack[place]--
			place = int32(len(s.nodes)) + s.rackOf[place]
		case viaOwner:
			place = s.rackFor[place]
			s.fromRack[place]++
		default:
			s.flow[via]--
			in := s.groupVia[s.edgeGroup[via]]
			s.flow[in]++
			place = s.edgePlace[in]
		}
	}
	panic("match: the path of a search has no end")
}
