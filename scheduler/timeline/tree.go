package timeline

import (
	"math"
	"math/bits"
	"slices"
)

// fanout is the largest number of steps or children of a page. A bin with few
// reservations has one page, which is scanned.
const fanout = 32

// minTime is the start of the first step of every timeline.
const minTime Time = math.MinInt64

// timeline records the free amounts of k resources over time: steps ordered by start,
// each valid until the next one starts, the last one for ever. It is a B+tree. An
// amount added to a whole page is stored in its parent and never pushed down, so the
// free amount of a step is the sum along its path.
type timeline struct {
	k       int
	root    *page
	scratch []int64 // scratch, k values for each level
}

// page holds steps (a leaf) or child pages.
type page struct {
	n        int
	start    [fanout]Time
	children []*page // nil in a leaf
	lo       []int64 // k values for each entry: the free amounts of a step, or the minimum over the child page; see insertGap
	hi       []int64 // the maximum over the child page; nil in a leaf
	added    []int64 // the amount added to all of the child page; nil in a leaf
}

func newPage(k int, leaf bool) *page {
	p := &page{lo: make([]int64, fanout*k)}
	if !leaf {
		p.children, p.hi, p.added = make([]*page, fanout), make([]int64, fanout*k), make([]int64, fanout*k)
	}
	return p
}

// firstSteps is the number of steps that a new timeline has space for: many bins never have more.
const firstSteps = 4

func newTimeline(free []int64) timeline {
	t := timeline{k: len(free), root: &page{n: 1, lo: make([]int64, firstSteps*len(free))}}
	t.root.start[0] = minTime
	copy(t.root.lo, free)
	return t
}

// change adds d to the free amounts in [from, to). O(log n).
func (t *timeline) change(from, to Time, d []int64) {
	if from >= to {
		return
	}
	t.splitAt(from)
	if to != Never {
		t.splitAt(to)
	}
	t.addRange(t.root, from, to, Never, d)
	t.mergeAt(from)
	if to != Never {
		t.mergeAt(to)
	}
}

// splitAt makes a time the start of a step.
func (t *timeline) splitAt(at Time) {
	right := t.insert(t.root, at)
	if right == nil {
		return
	}
	root := newPage(t.k, false)
	root.n = 2
	root.children[0], root.children[1] = t.root, right
	root.start[0], root.start[1] = t.root.start[0], right.start[0]
	t.updateBounds(root, 0)
	t.updateBounds(root, 1)
	t.root = root
}

// floor returns the index of the last step or child that starts at or before a time. No branch
// depends on a start, which would be unpredictable.
func (p *page) floor(at Time) int {
	const sign = 1 << 63 // turns the order of signed numbers into that of unsigned ones
	i := 0
	for n := p.n; n > 1; {
		half := n >> 1
		_, later := bits.Sub64(uint64(at)^sign, uint64(p.start[(i+half)&(fanout-1)])^sign, 0)
		i += half & (int(later) - 1)
		n -= half
	}
	return i
}

// insert splits the step at a time below p and returns the page split off to the right
// of p, or nil.
func (t *timeline) insert(p *page, at Time) *page {
	i := p.floor(at)
	if p.children == nil {
		if p.start[i] == at {
			return nil
		}
		right := t.splitIfFull(p)
		if right != nil && i >= p.n {
			p, i = right, i-p.n
		}
		t.insertGap(p, i+1)
		p.start[i+1] = at
		copy(p.lo[(i+1)*t.k:(i+2)*t.k], p.lo[i*t.k:(i+1)*t.k])
		return right
	}
	split := t.insert(p.children[i], at)
	if split == nil {
		return nil
	}
	right := t.splitIfFull(p)
	if right != nil && i >= p.n {
		p, i = right, i-p.n
	}
	t.insertGap(p, i+1)
	p.children[i+1], p.start[i+1] = split, split.start[0]
	copy(p.added[(i+1)*t.k:(i+2)*t.k], p.added[i*t.k:(i+1)*t.k])
	t.updateBounds(p, i)
	t.updateBounds(p, i+1)
	return right
}

// splitIfFull splits a full page in two and returns the right half, or nil.
func (t *timeline) splitIfFull(p *page) *page {
	if p.n < fanout {
		return nil
	}
	const half = fanout / 2
	q := newPage(t.k, p.children == nil)
	q.n, p.n = fanout-half, half
	copy(q.start[:], p.start[half:])
	copy(q.lo, p.lo[half*t.k:])
	if p.children != nil {
		copy(q.children, p.children[half:])
		clear(p.children[half:])
		copy(q.hi, p.hi[half*t.k:])
		copy(q.added, p.added[half*t.k:])
	}
	return q
}

// insertGap makes a gap at entry i. It makes space for all entries in the first page of a timeline
// when that has none left.
func (t *timeline) insertGap(p *page, i int) {
	k := t.k
	if (p.n+1)*k > len(p.lo) {
		p.lo = append(make([]int64, 0, fanout*k), p.lo...)[:fanout*k]
	}
	copy(p.start[i+1:p.n+1], p.start[i:p.n])
	copy(p.lo[(i+1)*k:(p.n+1)*k], p.lo[i*k:p.n*k])
	if p.children != nil {
		copy(p.children[i+1:p.n+1], p.children[i:p.n])
		copy(p.hi[(i+1)*k:(p.n+1)*k], p.hi[i*k:p.n*k])
		copy(p.added[(i+1)*k:(p.n+1)*k], p.added[i*k:p.n*k])
	}
	p.n++
}

// removeEntry removes entry i.
func (t *timeline) removeEntry(p *page, i int) {
	k := t.k
	copy(p.start[i:p.n-1], p.start[i+1:p.n])
	copy(p.lo[i*k:(p.n-1)*k], p.lo[(i+1)*k:p.n*k])
	if p.children != nil {
		copy(p.children[i:p.n-1], p.children[i+1:p.n])
		p.children[p.n-1] = nil
		copy(p.hi[i*k:(p.n-1)*k], p.hi[(i+1)*k:p.n*k])
		copy(p.added[i*k:(p.n-1)*k], p.added[(i+1)*k:p.n*k])
	}
	p.n--
}

// updateBounds recomputes the minimum and maximum of child i.
func (t *timeline) updateBounds(p *page, i int) {
	c, k := p.children[i], t.k
	hi := c.hi
	if hi == nil {
		hi = c.lo
	}
	lows, highs := c.lo[:c.n*k], hi[:c.n*k]
	for r := range k {
		least, most := lows[r], highs[r]
		for j := r + k; j < len(lows) && j < len(highs); j += k {
			least, most = min(least, lows[j]), max(most, highs[j])
		}
		p.lo[i*k+r], p.hi[i*k+r] = least+p.added[i*k+r], most+p.added[i*k+r]
	}
}

// addRange adds d to the steps in [from, to), which must start and end at step
// boundaries; end is where the page ends.
func (t *timeline) addRange(p *page, from, to, end Time, d []int64) {
	k := t.k
	for i := p.floor(from); i < p.n && p.start[i] < to; i++ {
		stop := end
		if i+1 < p.n {
			stop = p.start[i+1]
		}
		if stop <= from {
			continue
		}
		if p.children != nil && (p.start[i] < from || stop > to) {
			t.addRange(p.children[i], from, to, stop, d)
			t.updateBounds(p, i)
			continue
		}
		for r, v := range d {
			p.lo[i*k+r] += v
			if p.children != nil {
				p.hi[i*k+r] += v
				p.added[i*k+r] += v
			}
		}
	}
}

// mergeAt merges the step that starts at a time with the one before it if both have the
// same free amounts.
func (t *timeline) mergeAt(at Time) {
	if at == minTime {
		return
	}
	p := t.root // the page that contains both steps
	i := p.floor(at)
	for p.start[i] != at && p.children != nil {
		p = p.children[i]
		i = p.floor(at)
	}
	if p.start[i] != at {
		return
	}
	q, j := p, i-1
	if p.children == nil { // both in one leaf: no start and no bound above it changes
		if k := t.k; slices.Equal(p.lo[i*k:(i+1)*k], p.lo[j*k:(j+1)*k]) {
			t.removeEntry(p, i)
		}
		return
	}
	t.growScratchPair()
	sp, sq := t.scratch[:t.k], t.scratch[t.k:2*t.k]
	clear(t.scratch[:2*t.k])
	for p.children != nil { // below p the step is the first one, below q the one before it is the last
		for r := range t.k {
			sp[r] += p.added[i*t.k+r]
			sq[r] += q.added[j*t.k+r]
		}
		p, q = p.children[i], q.children[j]
		i, j = 0, q.n-1
	}
	for r := range t.k {
		if p.lo[i*t.k+r]+sp[r] != q.lo[j*t.k+r]+sq[r] {
			return
		}
	}
	t.removeStep(t.root, at)
	t.collapseRoot()
}

// removeStep removes the step that starts at a time and reports whether the page is
// empty now.
func (t *timeline) removeStep(p *page, at Time) bool {
	i := p.floor(at)
	if p.children == nil || t.removeStep(p.children[i], at) {
		t.removeEntry(p, i)
	} else {
		p.start[i] = p.children[i].start[0]
		t.updateBounds(p, i)
	}
	return p.n == 0
}

// collapseRoot replaces a root with one child by the child.
func (t *timeline) collapseRoot() {
	for t.root.children != nil && t.root.n == 1 {
		c := t.root.children[0]
		for i := range c.n {
			for r := range t.k {
				v := t.root.added[r]
				c.lo[i*t.k+r] += v
				if c.children != nil {
					c.hi[i*t.k+r] += v
					c.added[i*t.k+r] += v
				}
			}
		}
		t.root = c
	}
}

// forget drops the steps that ended at or before a time.
func (t *timeline) forget(before Time) {
	for {
		second := t.secondStart()
		if second == Never || second > before {
			return
		}
		t.removeStep(t.root, minTime)
		t.collapseRoot()
		for p := t.root; ; p = p.children[0] {
			p.start[0] = minTime
			if p.children == nil {
				break
			}
		}
	}
}
