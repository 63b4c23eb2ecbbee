package match

// prioritise exchanges placed tasks for unplaced ones of better priority without
// changing the loads or the number of node-local tasks: the matroid greedy over tasks,
// best first. A task that finds no exchange closes all that its search visited.
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

// exchange places one more unit of group g in exchange for a placed unit of another
// group that is not committed, along an alternating path. It reports whether there is
// one.
func (s *Solver) exchange(g int32) bool {
	s.stamp++
	s.groupSeen[g] = s.stamp
	s.groupVia[g] = root
	s.queue = append(s.queue[:0], s.places+g) // places, then groups
	for i := 0; i < len(s.queue) && !s.exhausted; i++ {
		if x := s.queue[i]; x >= s.places {
			s.visitPlacesOf(x - s.places)
		} else if s.evict(x) {
			return true
		}
	}
	if s.exhausted {
		return false
	}
	for _, x := range s.queue {
		if x >= s.places {
			s.groupSeen[x-s.places] = closed
		} else {
			s.placeSeen[x] = closed
		}
	}
	return false
}

// visitPlacesOf queues the places that a unit of group g could go to.
func (s *Solver) visitPlacesOf(g int32) {
	from, to := s.edgeRange(g)
	s.countWork(int(to - from))
	for e := from; e < to; e++ {
		if place := s.edgePlace[e]; s.placeSeen[place] < s.stamp && s.canMove(e) {
			s.markPlace(place, e)
		}
	}
}

func (s *Solver) markPlace(place, via int32) {
	s.placeSeen[place] = s.stamp
	s.placeVia[place] = via
	s.queue = append(s.queue, place)
}

// evict queues what could leave a place to make way for a unit: a unit of a group; from
// a node, also one that it draws from its rack; from a rack, also a unit that moves to
// another of its nodes. It reports whether the exchange is complete.
func (s *Solver) evict(place int32) bool {
	s.countWork(len(s.edgesInto(place)))
	for _, e := range s.edgesInto(place) {
		h := s.edgeGroup[e]
		if s.flow[e] == 0 || s.groupSeen[h] >= s.stamp {
			continue
		}
		s.groupSeen[h] = s.stamp
		s.groupVia[h] = e
		if s.openGroup[h] && s.count[h]-s.left[h] > s.committed[h] {
			s.applyExchange(h)
			return true
		}
		s.queue = append(s.queue, s.places+h)
	}
	nodes := int32(len(s.nodes))
	if s.isNode(place) {
		if rack := nodes + s.rackOf[place]; s.fromRack[place] > 0 && s.placeSeen[rack] < s.stamp {
			s.rackFor[rack] = place
			s.markPlace(rack, viaOwner)
		}
		return false
	}
	mates := s.rackNode[s.rackStart[place-nodes]:s.rackStart[place-nodes+1]]
	s.countWork(len(mates))
	for _, u := range mates {
		if !s.openNode[u] && s.load[u] > s.fromRack[u] && s.placeSeen[u] < s.stamp {
			s.markPlace(u, viaRack)
		}
	}
	return false
}

// applyExchange executes the exchange that ends with a unit of group h unplaced.
func (s *Solver) applyExchange(h int32) {
	s.left[h]++
	e := s.groupVia[h]
	s.flow[e]--
	place := s.edgePlace[e]
	for range 2*int(s.places) + len(s.count) + 2 {
		switch via := s.placeVia[place]; via {
		case viaOwner: // a unit drawn by rackFor left the rack
			place = s.rackFor[place]
			s.fromRack[place]--
		case viaRack: // the rack's unit moved onto this node
			s.fromRack[place]++
			place = int32(len(s.nodes)) + s.rackOf[place]
		default:
			s.flow[via]++
			g := s.edgeGroup[via]
			out := s.groupVia[g]
			if out == root {
				s.left[g]--
				return
			}
			s.flow[out]--
			place = s.edgePlace[out]
		}
	}
	panic("match: the path of an exchange has no end")
}
