package scheduler

// Lacking counts, over the nodes that take work, how many lack each resource
// and disk space for one task of the stage; Together counts those that have
// enough of each but on no one disk.
type Lacking struct {
	Nodes    int32
	Lack     [NumResources + 1]int32
	Together int32
	Fit      int32
}

// lacking is Lacking for one shape as it was after the first pos changes of room,
// with what each node counted for, so that only nodes that changed are looked at
// again. It is there only for shapes that were asked for.
type lacking struct {
	Lacking
	of  []lackOf
	pos uint64
}

// lackOf is what one node counts for: bits of the resources it lacks, or one of
// the values below.
type lackOf uint8

const (
	lackAbsent   lackOf = 1 << 6 // the node takes no work
	lackTogether lackOf = 1 << 7
)

// Lacking explains why a stage's next task finds no node. O(nodes whose room
// changed since it was last asked for this demand), at most O(nodes); it
// allocates a byte for each node at the first question for a demand.
func (s *State) Lacking(g *Stage) Lacking {
	f := &s.fit
	sh := s.shapeOfStage(g)
	l := sh.lack
	if l == nil {
		l = &lacking{of: make([]lackOf, len(f.room))}
		sh.lack = l
	}
	since := f.turned - l.pos
	if l.pos == 0 || since >= uint64(min(len(f.room), len(f.turns))) {
		s.countLacking(sh)
	} else {
		for ; l.pos < f.turned; l.pos++ {
			id := f.turns[l.pos&uint64(len(f.turns)-1)]
			if now := s.lackOf(&sh.need, id); now != l.of[id] {
				l.count(l.of[id], -1)
				l.count(now, 1)
				l.of[id] = now
			}
		}
	}
	return l.Lacking
}

// countLacking counts all nodes anew.
func (s *State) countLacking(sh *shape) {
	l := sh.lack
	l.Lacking = Lacking{}
	for id := range l.of {
		l.of[id] = s.lackOf(&sh.need, NodeID(id))
		l.count(l.of[id], 1)
	}
	l.pos = s.fit.turned
}

// lackOf gives what a node counts for.
func (s *State) lackOf(need *room, id NodeID) lackOf {
	r := &s.fit.room[id]
	if *r == noRoom {
		return lackAbsent
	}
	of := lackOf(0)
	for k := range need {
		if need[k] > r[k] {
			of |= 1 << k
		}
	}
	if of == 0 && len(s.nodes[id].Disks) > 1 && s.nodes[id].disk(need[2], need[3]) < 0 {
		return lackTogether
	}
	return of
}

func (l *Lacking) count(of lackOf, sign int32) {
	if of == lackAbsent {
		return
	}
	l.Nodes += sign
	switch of {
	case 0:
		l.Fit += sign
	case lackTogether:
		l.Together += sign
	default:
		for k := range l.Lack {
			l.Lack[k] += sign * int32(of>>k&1)
		}
	}
}

// Most gives the resource that most nodes lack (ties to the first of CPU,
// Memory, IO, DiskSpace) and on how many. Nodes that have enough I/O and space
// but not on one disk count as lacking I/O.
func (l *Lacking) Most() (Resource, int32) {
	best, most := CPU, int32(-1)
	for r, n := range l.Lack {
		if Resource(r) == IO {
			n += l.Together
		}
		if n > most {
			best, most = Resource(r), n
		}
	}
	return best, most
}
