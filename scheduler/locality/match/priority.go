package match

// prioritise exchanges placed tasks for unplaced ones of better priority, with
// all loads and the number of node-local tasks kept: the matroid greedy over
// tasks, best first. A task that finds no exchange closes all that it saw.
func (s *Solver) prioritise() {
	s.forget()
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

// exchange places one more unit of group g in exchange for a placed unit of
// another group that is not committed, along an alternating path.
func (s *Solver) exchange(g int32) bool {
	s.stamp++
	s.groupSeen[g] = s.stamp
	s.groupVia[g] = root
	s.queue = append(s.queue[:0], s.places+g) // places, then groups
	for i := 0; i < len(s.queue) && !s.exhausted; i++ {
		if x := s.queue[i]; x >= s.places {
			s.enter(x - s.places)
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

// enter lists the places that a unit of group g could go to.
func (s *Solver) enter(g int32) {
	from, to := s.edges(g)
	s.spend(int(to - from))
	for e := from; e < to; e++ {
		if place := s.edgePlace[e]; s.placeSeen[place] < s.stamp && s.allowed(e) {
			s.touch(place, e)
		}
	}
}

func (s *Solver) touch(place, via int32) {
	s.placeSeen[place] = s.stamp
	s.placeVia[place] = via
	s.queue = append(s.queue, place)
}

// evict lists what could leave a place for a unit that comes: a unit of a
// group, from a node also one that it draws from its rack, and from a rack also
// a unit that goes to another of its nodes.
func (s *Solver) evict(place int32) bool {
	s.spend(len(s.at(place)))
	for _, e := range s.at(place) {
		h := s.edgeGroup[e]
		if s.flow[e] == 0 || s.groupSeen[h] >= s.stamp {
			continue
		}
		s.groupSeen[h] = s.stamp
		s.groupVia[h] = e
		if s.openGroup[h] && s.count[h]-s.left[h] > s.committed[h] {
			s.swap(h)
			return true
		}
		s.queue = append(s.queue, s.places+h)
	}
	nodes := int32(len(s.nodes))
	if s.isNode(place) {
		if rack := nodes + s.rackOf[place]; s.fromRack[place] > 0 && s.placeSeen[rack] < s.stamp {
			s.rackFor[rack] = place
			s.touch(rack, viaOwner)
		}
		return false
	}
	mates := s.rackNode[s.rackStart[place-nodes]:s.rackStart[place-nodes+1]]
	s.spend(len(mates))
	for _, u := range mates {
		if !s.openNode[u] && s.load[u] > s.fromRack[u] && s.placeSeen[u] < s.stamp {
			s.touch(u, viaRack)
		}
	}
	return false
}

// swap carries out the exchange that ends with a unit of group h unplaced.
func (s *Solver) swap(h int32) {
	s.left[h]++
	e := s.groupVia[h]
	s.flow[e]--
	place := s.edgePlace[e]
	for range 2*int(s.places) + len(s.count) + 2 {
		switch via := s.placeVia[place]; via {
		case viaOwner: // a unit drawn by rackFor left the rack's account
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
