package match

// pass lets nodes pull tasks, greatest next weight first, ties by index, until
// no node with a free slot can. With racks it is the second pass: nodes also
// draw from their racks, within the division of the first.
func (s *Solver) pass(racks bool) {
	s.forget()
	s.heap = s.heap[:0]
	for v := range s.nodes {
		if s.load[v] < s.nodes[v].Slots && !(racks && s.openNode[v]) {
			s.key[v] = s.nodes[v].Weight(s.load[v])
			s.heap = append(s.heap, int32(v))
		}
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.sink(i)
	}
	for len(s.heap) > 0 && s.leftTotal > 0 {
		v := s.heap[0]
		if s.pull(v, racks) {
			s.leftTotal--
			s.key[v] = s.nodes[v].Weight(s.load[v])
			if s.load[v] < s.nodes[v].Slots {
				s.sink(0)
				continue
			}
		}
		last := len(s.heap) - 1
		s.heap[0] = s.heap[last]
		s.heap = s.heap[:last]
		s.sink(0)
	}
}

// before is the order of the heap.
func (s *Solver) before(a, b int32) bool {
	if s.key[a] != s.key[b] {
		return s.key[a] > s.key[b]
	}
	return a < b
}

func (s *Solver) sink(i int) {
	h := s.heap
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && s.before(h[c+1], h[c]) {
			c++
		}
		if !s.before(h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// direct finds an edge into place whose group has a unit left. Groups only lose
// units here, so each edge is passed once in all.
func (s *Solver) direct(place int32) (e int32, ok bool) {
	end := s.placeStart[place+1]
	for ; s.next[place] < end; s.next[place]++ {
		if e := s.placeEdge[s.next[place]]; s.left[s.edgeGroup[e]] > 0 {
			return e, true
		}
	}
	return 0, false
}

// pull gets one more unit onto node v: breadth first over places that need a
// unit, each filled by a group that then leaves another place. If there is none
// the places and groups seen are closed for good: no unit that is left can ever
// reach them.
func (s *Solver) pull(v int32, racks bool) bool {
	if s.placeSeen[v] == closed {
		return false
	}
	s.stamp++
	s.queue = s.queue[:0]
	if s.reach(v, root) {
		return true
	}
	for i := 0; i < len(s.queue); i++ {
		if s.exhausted {
			return false // one step deep only, nothing is known to be closed
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
		for _, e := range s.at(place) {
			if g := s.edgeGroup[e]; s.groupSeen[g] == s.stamp {
				s.groupSeen[g] = closed
			}
		}
	}
	return false
}

// reach notes that place needs a unit, and ends the search if one is at hand.
func (s *Solver) reach(place, via int32) bool {
	s.placeSeen[place] = s.stamp
	s.placeVia[place] = via
	if e, ok := s.direct(place); ok {
		s.shift(e)
		return true
	}
	s.queue = append(s.queue, place)
	return false
}

// refill looks for what could fill a place: groups placed elsewhere, or for a
// node its rack, or for a rack the nodes that draw from it.
func (s *Solver) refill(place int32, racks bool) bool {
	for _, e := range s.at(place) {
		g := s.edgeGroup[e]
		if s.groupSeen[g] >= s.stamp || !s.allowed(e) {
			continue
		}
		s.groupSeen[g] = s.stamp
		s.groupVia[g] = e
		from, to := s.edges(g)
		s.spend(int(to - from))
		for out := from; out < to; out++ {
			if s.flow[out] > 0 && s.placeSeen[s.edgePlace[out]] < s.stamp && s.reach(s.edgePlace[out], out) {
				return true
			}
		}
	}
	s.spend(len(s.at(place)))
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
		return s.reach(rack, viaOwner)
	}
	mates := s.rackNode[s.rackStart[place-nodes]:s.rackStart[place-nodes+1]]
	s.spend(len(mates))
	for _, u := range mates {
		if s.fromRack[u] > 0 && s.placeSeen[u] < s.stamp && s.reach(u, viaRack) {
			return true
		}
	}
	return false
}

// spend counts edges looked at.
func (s *Solver) spend(edges int) {
	s.work += edges
	if s.work > s.maxWork {
		s.exhausted = true
	}
}

// shift moves units along the path of the search: one that was left enters by
// edge e, and each place on the way passes one on, until the root has one more.
func (s *Solver) shift(e int32) {
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
