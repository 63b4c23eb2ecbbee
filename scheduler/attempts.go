package scheduler

import "iter"

// Attempts is the live attempts of a State: by task, by stage, by node and by suspension.
type Attempts struct{ s *State }

// Live returns the number of live attempts.
func (at Attempts) Live() int { return int(at.s.live) }

// Of yields the live attempts at a task: usually one, two with a speculative attempt.
func (at Attempts) Of(g *Stage, i int32) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for slot := g.active.get(i) - 1; slot >= 0; {
			a := at.at(slot)
			slot = a.sibling - 1
			if !yield(a) {
				return
			}
		}
	}
}

// On yields the live attempts on a node in order of placement. A migrating attempt is on its target.
func (at Attempts) On(n NodeID) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for _, slot := range at.s.cluster.nodes[n].attempts {
			if !yield(at.at(slot)) {
				return
			}
		}
	}
}

// In yields the live attempts of a stage by task.
func (at Attempts) In(g *Stage) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for i := g.busy.next(0); i >= 0; i = g.busy.next(i + 1) {
			for a := range at.Of(g, i) {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// Slots returns the slot numbers of the live attempts at a task, -1 for none. An attempt keeps its slot while
// it lives; the slot is reused afterwards. A caller may index its own table of attempts by slot. O(1).
func (at Attempts) Slots(id TaskID) (first, second int32) {
	g := at.s.Stage(id.StageID())
	if !g.hasTask(id.Index) || g.active.get(id.Index) == 0 {
		return -1, -1
	}
	first = g.active.get(id.Index) - 1
	return first, at.at(first).sibling - 1
}

// Prefetch loads the memory that ending the attempts in these slots (Slots) will read; it changes nothing.
// Ending an attempt waits for several dependent cache misses; here the misses of many attempts overlap. The
// result only keeps the compiler from dropping the loads. O(slots x attempts on a node / 16).
func (at Attempts) Prefetch(slots []int32) int64 {
	sum := int64(0)
	for _, slot := range slots {
		sum += int64(at.at(slot).Node)
	}
	for _, slot := range slots {
		a := at.at(slot)
		n := at.s.cluster.nodes[a.Node]
		sum += n.Free[CPU] + int64(len(n.attempts)) + at.s.cluster.fit.free[a.Node][0] + int64(at.s.stages[a.stage].active.get(a.ID.Index))
	}
	for _, slot := range slots {
		n := at.s.cluster.nodes[at.at(slot).Node]
		for i := 0; i < len(n.attempts); i += 16 { // 16 slots a cache line
			sum += int64(n.attempts[i])
		}
		for i := range n.Disks {
			sum += n.Disks[i].FreeIO
		}
	}
	return sum
}

// at returns the attempt in a slot. Slots are in chunks, so that pointers to attempts stay valid.
func (at Attempts) at(slot int32) *Attempt {
	return &at.s.chunks[slot>>chunkBits][slot&(1<<chunkBits-1)]
}

func (at Attempts) newSlot() int32 {
	if n := len(at.s.freeSlots); n > 0 {
		slot := at.s.freeSlots[n-1]
		at.s.freeSlots = at.s.freeSlots[:n-1]
		return slot
	}
	if int(at.s.slots) == len(at.s.chunks)<<chunkBits {
		at.s.chunks = append(at.s.chunks, make([]Attempt, 1<<chunkBits))
	}
	at.s.slots++
	return at.s.slots - 1
}

// NextAttempt returns the number of the next attempt at task i.
func (at Attempts) NextAttempt(g *Stage, i int32) int32 {
	n := g.pastAttempts[i].Last
	for slot := g.active.get(i) - 1; slot >= 0; slot = at.at(slot).sibling - 1 {
		n = max(n, at.at(slot).ID.Attempt)
	}
	return n + 1
}
