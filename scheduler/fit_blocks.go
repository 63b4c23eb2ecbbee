package scheduler

import "slices"

// fitBlocks has the largest free capacity in each block of nodes, by component, and over all blocks. A demand
// above it in one component fits on no node of the block. So a demand that is new to the fit index and fits
// nowhere usually costs a few comparisons instead of one for each node. It is a cache over fitIndex.free. When
// the node with the maximum loses capacity, the maximum stays too large until it is next read.
type fitBlocks struct {
	max   []capacityVec
	all   capacityVec
	exact []bool // by block: its max is exact, not too large
	stale bitset // blocks that became inexact since all was computed
}

const nodesPerBlock = 64 // nodes in a block of fitBlocks, as many as a word of a bitset has bits

// grow adds blocks for n nodes and makes all of them stale.
func (b *fitBlocks) grow(n int) {
	for len(b.max)*nodesPerBlock < n {
		b.max, b.exact = append(b.max, unschedulable), append(b.exact, false)
	}
	b.stale.grow(int32(len(b.max)))
	for i := range b.max {
		b.markStale(int32(i))
	}
}

func (b *fitBlocks) markStale(block int32) {
	b.exact[block] = false
	b.stale.set(block)
}

// update records a change of the free capacity of a node. O(1).
func (b *fitBlocks) update(id NodeID, was, now *capacityVec) {
	block := int32(id) / nodesPerBlock
	m := &b.max[block]
	for r, x := range now {
		switch {
		case x > m[r]:
			m[r], b.all[r] = x, max(b.all[r], x)
		case x < was[r] && was[r] == m[r]:
			b.markStale(block)
		}
	}
}

// mayFit reports whether some node may fit a need. False is certain. O(blocks + nodes of stale blocks),
// O(1) if the need exceeds all capacity that is free anywhere.
func (b *fitBlocks) mayFit(need *capacityVec, free []capacityVec) bool {
	if !need.fits(&b.all) {
		return false
	}
	if b.stale.next(0) >= 0 {
		b.refresh(free)
	}
	return need.fits(&b.all) && slices.ContainsFunc(b.max, func(m capacityVec) bool { return need.fits(&m) })
}

func (b *fitBlocks) refresh(free []capacityVec) {
	for block := b.stale.next(0); block >= 0; block = b.stale.next(block + 1) {
		b.stale.clear(block)
		if !b.exact[block] {
			b.refreshBlock(block, free)
		}
	}
	b.all = unschedulable
	for i := range b.max {
		b.all.raise(&b.max[i])
	}
}

func (b *fitBlocks) refreshBlock(block int32, free []capacityVec) {
	m := &b.max[block]
	*m, b.exact[block] = unschedulable, true
	for _, x := range free[block*nodesPerBlock : min(int(block+1)*nodesPerBlock, len(free))] {
		m.raise(&x)
	}
}

// mayFitIn is mayFit in one block. O(1), O(nodes of the block) if its maximum may be too large.
func (b *fitBlocks) mayFitIn(block int32, need *capacityVec, free []capacityVec) bool {
	if !b.exact[block] {
		b.refreshBlock(block, free)
	}
	return need.fits(&b.max[block])
}

// raise makes n the larger of both in each component.
func (n *capacityVec) raise(to *capacityVec) {
	for r, x := range to {
		n[r] = max(n[r], x)
	}
}

// fitsNowhere reports whether no node fits a task of the stage. It returns false, which proves nothing, if the index
// has a class for the demand. Amortised O(1); O(nodes) for a new demand that the maxima of the blocks do not rule out.
func (c *Cluster) fitsNowhere(g *Stage) bool {
	f := &c.fit
	if g.eqClassGeneration == f.generation && g.eqClassGeneration != 0 {
		return false
	}
	need := g.need()
	if !need.fits(&f.blocks.all) {
		f.misfits.addExcess(f, &need)
		return true
	}
	if _, known := f.byNeed[DemandClass{need: need}]; known {
		return false
	}
	return f.misfits.below(c, &need) != 0 || f.misfits.compare(c, &need)
}
