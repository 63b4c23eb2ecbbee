package scheduler

import "slices"

// Bounds of misfits. When maxMisfits is reached all are forgotten, which costs time but changes no answer.
const (
	maxMisfits       = 1 << 17
	maxLowestMisfits = 16
)

// misfits remembers needs without a class that fitted on no node. So very many different ones cost
// neither a class each nor a look at every node again: only at those that gained capacity since,
// and mostly none, for what needs more than one that fits nowhere fits nowhere. It is a cache over fitIndex.
type misfits struct {
	at map[capacityVec]uint64 // by need: entries of gained that it was compared with
	// lowest are some needs of at, the newest last, of which none needs as much of everything as another.
	lowest []capacityVec
}

// has reports whether no node fits a need that has no class.
func (m *misfits) has(c *Cluster, need *capacityVec) bool {
	for i := range m.lowest {
		if m.lowest[i].fits(need) {
			if low := m.lowest[i]; m.compare(c, &low) {
				return true
			}
			m.lowest = slices.Delete(m.lowest, i, i+1)
			break
		}
	}
	return m.compare(c, need)
}

// compare finds out whether no node fits a need, and remembers it. Amortised O(1), O(nodes) for a new one.
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
		m.at, m.lowest = map[capacityVec]uint64{}, m.lowest[:0]
	}
	m.at[*need] = f.gainedCount
	if !known {
		m.addLowest(need)
	}
	return true
}

// addLowest adds a need to lowest unless one there needs less.
func (m *misfits) addLowest(need *capacityVec) {
	for i := range m.lowest {
		if m.lowest[i].fits(need) {
			return
		}
	}
	m.lowest = slices.DeleteFunc(m.lowest, func(low capacityVec) bool { return need.fits(&low) })
	if len(m.lowest) == maxLowestMisfits {
		m.lowest = slices.Delete(m.lowest, 0, 1)
	}
	m.lowest = append(m.lowest, *need)
}

// fitsOne reports whether some node fits a need, avoided or not. O(blocks), O(nodes) where the maxima of
// the blocks do not say it.
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

// fits reports whether a node fits a need.
func (c *Cluster) fits(id NodeID, need *capacityVec) bool {
	return need.fits(&c.fit.free[id]) && (len(c.nodes[id].Disks) < 2 || c.nodes[id].tightestDisk(need[2], need[3]) >= 0)
}
