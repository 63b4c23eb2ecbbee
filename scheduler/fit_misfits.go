package scheduler

// Bounds of misfits. When maxMisfits is reached all are forgotten, which costs time but changes no answer.
const (
	maxMisfits       = 1 << 17
	maxLowestMisfits = 16
	excessesEach     = 2 // for each component
	maxExcesses      = excessesEach * len(capacityVec{})
)

// misfits remembers needs that have no class and fitted on no node, so that very many different needs cost neither
// a class nor a comparison with every node each: only the nodes that gained capacity since are compared, and often
// none, because a need at least as large as one that fits nowhere fits nowhere. It is a cache over fitIndex.
type misfits struct {
	at map[capacityVec]uint64 // by need: entries of gained that it was compared with
	// lowest are needs that fitted on no node when last compared (lowMisfit.pos). Until a node gains capacity,
	// no need that is at least as large in every component fits either. A need is at its number modulo the
	// length. The first maxExcesses places are for excesses, excessesEach per component: more of that component
	// than any node had free, and nothing of the others. An excess stays when a node fits it, because a moment
	// later none may, and counts only while none does (recheck). The other places hold needs of at. None of
	// these is at least as large as another in every component, and one that fits a node is dropped.
	lowest [maxLowestMisfits]lowMisfit
	count  int32 // number of needs ever in lowest
}

// lowMisfit is a need in misfits.lowest.
type lowMisfit struct {
	need   capacityVec
	pos    uint64 // entries of gained that it was compared with
	number int32  // from 1, 0 for none
}

// below returns the number of a need in lowest that fits nowhere and is at most need in each component, 0 for none.
func (m *misfits) below(c *Cluster, need *capacityVec) int32 {
	for i := range m.lowest {
		if low := &m.lowest[i]; low.number != 0 && low.need.fits(need) && m.recheck(c, low.number) {
			return low.number
		}
	}
	return 0
}

// recheck compares a need of lowest with the nodes that gained capacity since it was last compared, drops it if one of
// them fits it, and returns whether it still fits nowhere. Amortised O(1).
func (m *misfits) recheck(c *Cluster, number int32) bool {
	slot := number % maxLowestMisfits
	low := &m.lowest[slot]
	if low.number != number {
		return false
	}
	if low.pos == c.fit.gainedCount {
		return true
	}
	if need := low.need; int(slot) < maxExcesses { // compare may drop all
		if c.fit.blocks.mayFit(&need, c.fit.free) {
			return false
		}
	} else if !m.compare(c, &need) {
		*low = lowMisfit{}
		return false
	}
	low.pos = c.fit.gainedCount
	return low.number == number
}

// addExcess records an excess of the first component of which need is more than any node has free.
func (m *misfits) addExcess(f *fitIndex, need *capacityVec) {
	for r := range need {
		most := f.blocks.all[r]
		if need[r] <= most {
			continue
		}
		slot := m.excessSlot(r, most)
		low := &m.lowest[slot]
		if low.number != 0 && low.need[r] > most && low.need[r] <= need[r] {
			return
		}
		if low.number == 0 || low.need[r] <= most {
			low.number = m.nextNumber(slot)
		}
		low.need, low.pos = capacityVec{}, f.gainedCount
		low.need[r] = most + 1 // any need that exceeded the old value exceeds this one too
		return
	}
}

// excessSlot returns where to store an excess of component r, of which the freest node has most: the place of the lowest
// excess above most, else a free place, else that of the highest, as a lower one may exceed what is free a moment later.
func (m *misfits) excessSlot(r int, most int64) int32 {
	rank := func(low *lowMisfit) (int, int64) {
		switch {
		case low.number == 0:
			return 2, 0
		case low.need[r] > most:
			return 1, low.need[r]
		default:
			return 3, -low.need[r]
		}
	}
	of := m.lowest[r*excessesEach : (r+1)*excessesEach]
	best := 0
	for i := range of {
		a, x := rank(&of[i])
		if b, y := rank(&of[best]); a < b || (a == b && x < y) {
			best = i
		}
	}
	return int32(r*excessesEach + best)
}

// nextNumber returns a new number for a need at an index of lowest. Numbers wrap around after so
// many needs that no job keeps the number of a need dropped that long ago.
func (m *misfits) nextNumber(slot int32) int32 {
	m.count = m.count%(1<<26) + 1
	return m.count*maxLowestMisfits + slot
}

// compare reports whether no node fits a need, and remembers it. Amortised O(1), O(nodes) for a new one.
func (m *misfits) compare(c *Cluster, need *capacityVec) bool {
	f := &c.fit
	pos, known := m.at[*need]
	if known && pos == f.gainedCount {
		return true
	}
	if known && f.gainedCount-pos <= min(nodesPerBlock, uint64(len(f.gained))) {
		for ; pos < f.gainedCount; pos++ {
			if id := f.gained[pos&uint64(len(f.gained)-1)]; c.fits(id, need) {
				delete(m.at, *need)
				return false
			}
		}
	} else if c.fitsOne(need) {
		delete(m.at, *need)
		return false
	}
	if m.at == nil || len(m.at) >= maxMisfits {
		m.at, m.lowest = map[capacityVec]uint64{}, [maxLowestMisfits]lowMisfit{}
	}
	m.at[*need] = f.gainedCount
	if !known {
		m.addLowest(need, f.gainedCount)
	}
	return true
}

// addLowest adds a need to lowest, unless a smaller one is there. It replaces larger needs, or else any need.
func (m *misfits) addLowest(need *capacityVec, pos uint64) {
	for i := range m.lowest {
		if low := &m.lowest[i]; low.number != 0 && low.need.fits(need) {
			return
		}
	}
	slot := int32(maxExcesses) + m.count%int32(maxLowestMisfits-maxExcesses)
	for i := int32(maxExcesses); i < maxLowestMisfits; i++ {
		if low := &m.lowest[i]; low.number != 0 && need.fits(&low.need) {
			*low = lowMisfit{}
			slot = i
		}
	}
	m.lowest[slot] = lowMisfit{*need, pos, m.nextNumber(slot)}
}

// fitsOne reports whether some node, avoided or not, fits a need. O(blocks); O(nodes) if their maxima do not decide.
func (c *Cluster) fitsOne(need *capacityVec) bool {
	f := &c.fit
	if !f.blocks.mayFit(need, f.free) {
		return false
	}
	for block := range f.blocks.max {
		if !f.blocks.mayFitIn(int32(block), need, f.free) {
			continue
		}
		for id := block * nodesPerBlock; id < min((block+1)*nodesPerBlock, len(f.free)); id++ {
			if c.fits(NodeID(id), need) {
				return true
			}
		}
	}
	return false
}

func (c *Cluster) fits(id NodeID, need *capacityVec) bool {
	return need.fits(&c.fit.free[id]) && (len(c.nodes[id].Disks) < 2 || tightestDisk(c.nodes[id].Disks, need[2], need[3]) >= 0)
}
