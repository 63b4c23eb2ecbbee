package timeline

import (
	"time"
)

// secondStart returns the start of the second step, Never if there is one step.
func (t *timeline) secondStart() Time {
	next := Never
	p := t.root
	for {
		if p.n > 1 {
			next = p.start[1]
		}
		if p.children == nil {
			return next
		}
		p = p.children[0]
	}
}

// freeAt copies the free amounts at a time into out.
func (t *timeline) freeAt(at Time, out []int64) {
	clear(out[:t.k])
	p := t.root
	for {
		i := p.floor(at)
		of := p.lo
		if p.children != nil {
			of = p.added
		}
		for r := range t.k {
			out[r] += of[i*t.k+r]
		}
		if p.children == nil {
			return
		}
		p = p.children[i]
	}
}

// firstWhere returns the first time at or after from at which d fits, or with want
// false does not fit; Never if there is none.
func (t *timeline) firstWhere(from Time, d []int64, want bool) Time {
	t.growScratch()
	return t.seekForward(t.root, 0, from, d, want)
}

// earliest returns the first start in [from, before) at which d fits for the whole
// duration, Never if there is none. A window is checked from its end: the next one
// starts after the last step in it that does not fit. So it costs O(log n) for each
// duration skipped, or for each change between fitting and not fitting if those are
// farther apart. O(n) on one page.
func (t *timeline) earliest(from, duration, before Time, d []int64) Time {
	if t.root.children == nil {
		return t.earliestOnLeaf(from, duration, before, d)
	}
	t.growScratch()
	for at := from; ; {
		at = t.seekForward(t.root, 0, at, d, true)
		if at >= before {
			return Never
		}
		end := at.Add(time.Duration(duration))
		next, bad := t.lastEnd(t.root, 0, at, end, Never, d, false)
		if !bad {
			return at
		}
		at = next
	}
}

// latest returns the last start in [from, by] at which d fits for the whole duration,
// -Never if there is none. A window is checked from its start: the next one ends where
// d last fitted before the first step that does not fit. O(log n) for each change
// between fitting and not fitting after the result.
func (t *timeline) latest(from, duration, by Time, d []int64) Time {
	t.growScratch()
	for at := by; at >= from; {
		bad := t.seekForward(t.root, 0, at, d, false)
		if bad >= at.Add(time.Duration(duration)) {
			return at
		}
		end, ok := t.lastEnd(t.root, 0, from, bad, Never, d, true)
		if !ok {
			break
		}
		at = min(end, bad).Add(-time.Duration(duration))
	}
	return -Never
}

// earliestOnLeaf is earliest on a timeline of one page.
func (t *timeline) earliestOnLeaf(from, duration, before Time, d []int64) Time {
	p, k := t.root, len(d)
	at := Never
	for i := p.floor(from); i < p.n; i++ {
		if at != Never && p.start[i]-at >= duration {
			return at
		}
		if !fits(d, p.lo[i*k:i*k+k]) {
			at = Never
			continue
		}
		if at == Never {
			if at = max(from, p.start[i]); at >= before {
				return Never
			}
		}
	}
	return at
}

// eachStep yields the steps from a time on until yield returns false. The slice is
// valid until yield returns.
func (t *timeline) eachStep(from Time, yield func(at Time, free []int64) bool) {
	var sum [maxDims]int64
	t.eachStepBelow(t.root, from, sum[:t.k], yield)
}

func (t *timeline) eachStepBelow(p *page, from Time, sum []int64, yield func(Time, []int64) bool) bool {
	for i := p.floor(from); i < p.n; i++ {
		var here [maxDims]int64
		of := p.lo
		if p.children != nil {
			of = p.added
		}
		for r := range t.k {
			here[r] = sum[r] + of[i*t.k+r]
		}
		if p.children == nil {
			if !yield(max(from, p.start[i]), here[:t.k]) {
				return false
			}
		} else if !t.eachStepBelow(p.children[i], from, here[:t.k], yield) {
			return false
		}
	}
	return true
}

// numSteps returns the number of steps.
func (t *timeline) numSteps() int { return countSteps(t.root) }

func countSteps(p *page) int {
	if p.children == nil {
		return p.n
	}
	n := 0
	for _, c := range p.children[:p.n] {
		n += countSteps(c)
	}
	return n
}

// growScratch makes scratch large enough for every level of the tree.
func (t *timeline) growScratch() {
	levels := 0
	for p := t.root; p.children != nil; p = p.children[0] {
		levels++
	}
	for len(t.scratch) < levels*t.k {
		t.scratch = append(t.scratch, 0)
	}
}

// growScratchPair makes scratch large enough for two vectors.
func (t *timeline) growScratchPair() {
	for len(t.scratch) < 2*t.k {
		t.scratch = append(t.scratch, 0)
	}
}

// demandBelow returns d less what was added to all of child i: what the child's own
// amounts must reach for d to fit.
func (t *timeline) demandBelow(p *page, i, level int, d []int64) []int64 {
	k := len(d)
	rest, add := t.scratch[level*k:(level+1)*k], p.added[i*k:(i+1)*k]
	for r, v := range d {
		rest[r] = v - add[r]
	}
	return rest
}

func (t *timeline) seekForward(p *page, level int, from Time, d []int64, want bool) Time {
	k := len(d)
	for i := p.floor(from); i < p.n; i++ {
		if p.children == nil {
			if fits(d, p.lo[i*k:i*k+k]) == want {
				return max(from, p.start[i])
			}
			continue
		}
		if want && !fits(d, p.hi[i*k:i*k+k]) || !want && fits(d, p.lo[i*k:i*k+k]) {
			continue
		}
		if at := t.seekForward(p.children[i], level+1, from, t.demandBelow(p, i, level, d), want); at != Never {
			return at
		}
	}
	return Never
}

// lastEnd returns the end of the last step in [from, to) at which d fits, or with want
// false does not fit, and whether there is one; end is where the page ends.
func (t *timeline) lastEnd(p *page, level int, from, to, end Time, d []int64, want bool) (Time, bool) {
	k := len(d)
	for i := p.floor(to - 1); i >= 0; i-- {
		stop := end
		if i+1 < p.n {
			stop = p.start[i+1]
		}
		if stop <= from {
			break
		}
		if p.children == nil {
			if fits(d, p.lo[i*k:i*k+k]) == want {
				return stop, true
			}
			continue
		}
		if want && !fits(d, p.hi[i*k:i*k+k]) || !want && fits(d, p.lo[i*k:i*k+k]) {
			continue
		}
		if at, ok := t.lastEnd(p.children[i], level+1, from, to, stop, t.demandBelow(p, i, level, d), want); ok {
			return at, true
		}
	}
	return 0, false
}

func fits(d, free []int64) bool {
	free = free[:len(d)]
	for r, v := range d {
		if v > free[r] {
			return false
		}
	}
	return true
}
