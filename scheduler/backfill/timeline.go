package backfill

import (
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// fan is the most steps or children of a page. Nodes with few reservations have
// one page, which is scanned.
const fan = 32

// dawn is the start of the first step of every timeline.
const dawn scheduler.Time = math.MinInt64

// timeline is what is free of k resources at every instant: steps ordered by
// start, each good until the next one starts, the last one for ever. It is a
// B+tree; what is added to a whole page is kept in its parent and never pushed
// down, so that the free amount of a step is the sum along its path.
type timeline struct {
	k    int
	root *page
	rest []int64 // scratch, k for each level
}

// page holds steps (a leaf) or pages.
type page struct {
	n     int
	start [fan]scheduler.Time
	kids  []*page // nil in a leaf
	lo    []int64 // k for each: a step's free amounts, or the least in the page below
	hi    []int64 // the most in the page below; nil in a leaf
	add   []int64 // what was added to all of the page below; nil in a leaf
}

func newPage(k int, leaf bool) *page {
	p := &page{lo: make([]int64, fan*k)}
	if !leaf {
		p.kids, p.hi, p.add = make([]*page, fan), make([]int64, fan*k), make([]int64, fan*k)
	}
	return p
}

func newTimeline(free []int64) timeline {
	t := timeline{k: len(free), root: newPage(len(free), true)}
	t.root.n = 1
	t.root.start[0] = dawn
	copy(t.root.lo, free)
	return t
}

// change adds d to what is free in [from, to). O(log n).
func (t *timeline) change(from, to scheduler.Time, d []int64) {
	if from >= to {
		return
	}
	t.cut(from)
	if to != scheduler.Never {
		t.cut(to)
	}
	t.spread(t.root, from, to, scheduler.Never, d)
	t.heal(from)
	if to != scheduler.Never {
		t.heal(to)
	}
}

// cut makes an instant the start of a step.
func (t *timeline) cut(at scheduler.Time) {
	right := t.insert(t.root, at)
	if right == nil {
		return
	}
	root := newPage(t.k, false)
	root.n = 2
	root.kids[0], root.kids[1] = t.root, right
	root.start[0], root.start[1] = t.root.start[0], right.start[0]
	t.sum(root, 0)
	t.sum(root, 1)
	t.root = root
}

// floor gives the last step or child that starts at or before an instant.
func (p *page) floor(at scheduler.Time) int {
	i, j := 0, p.n
	for j-i > 1 {
		if m := int(uint(i+j) >> 1); p.start[m] <= at {
			i = m
		} else {
			j = m
		}
	}
	return i
}

// insert cuts below p and gives the page split off to its right, if any.
func (t *timeline) insert(p *page, at scheduler.Time) *page {
	i := p.floor(at)
	if p.kids == nil {
		if p.start[i] == at {
			return nil
		}
		right := t.room(p)
		if right != nil && i >= p.n {
			p, i = right, i-p.n
		}
		t.open(p, i+1)
		p.start[i+1] = at
		copy(p.lo[(i+1)*t.k:(i+2)*t.k], p.lo[i*t.k:(i+1)*t.k])
		return right
	}
	split := t.insert(p.kids[i], at)
	if split == nil {
		return nil
	}
	right := t.room(p)
	if right != nil && i >= p.n {
		p, i = right, i-p.n
	}
	t.open(p, i+1)
	p.kids[i+1], p.start[i+1] = split, split.start[0]
	copy(p.add[(i+1)*t.k:(i+2)*t.k], p.add[i*t.k:(i+1)*t.k])
	t.sum(p, i)
	t.sum(p, i+1)
	return right
}

// room splits a full page in two and gives the right half.
func (t *timeline) room(p *page) *page {
	if p.n < fan {
		return nil
	}
	const half = fan / 2
	q := newPage(t.k, p.kids == nil)
	q.n, p.n = fan-half, half
	copy(q.start[:], p.start[half:])
	copy(q.lo, p.lo[half*t.k:])
	if p.kids != nil {
		copy(q.kids, p.kids[half:])
		clear(p.kids[half:])
		copy(q.hi, p.hi[half*t.k:])
		copy(q.add, p.add[half*t.k:])
	}
	return q
}

// open makes a gap at place i.
func (t *timeline) open(p *page, i int) {
	k := t.k
	copy(p.start[i+1:p.n+1], p.start[i:p.n])
	copy(p.lo[(i+1)*k:(p.n+1)*k], p.lo[i*k:p.n*k])
	if p.kids != nil {
		copy(p.kids[i+1:p.n+1], p.kids[i:p.n])
		copy(p.hi[(i+1)*k:(p.n+1)*k], p.hi[i*k:p.n*k])
		copy(p.add[(i+1)*k:(p.n+1)*k], p.add[i*k:p.n*k])
	}
	p.n++
}

// shut takes place i out.
func (t *timeline) shut(p *page, i int) {
	k := t.k
	copy(p.start[i:p.n-1], p.start[i+1:p.n])
	copy(p.lo[i*k:(p.n-1)*k], p.lo[(i+1)*k:p.n*k])
	if p.kids != nil {
		copy(p.kids[i:p.n-1], p.kids[i+1:p.n])
		p.kids[p.n-1] = nil
		copy(p.hi[i*k:(p.n-1)*k], p.hi[(i+1)*k:p.n*k])
		copy(p.add[i*k:(p.n-1)*k], p.add[(i+1)*k:p.n*k])
	}
	p.n--
}

// sum works out least and most of child i again.
func (t *timeline) sum(p *page, i int) {
	c, k := p.kids[i], t.k
	hi := c.hi
	if hi == nil {
		hi = c.lo
	}
	for r := range k {
		least, most := c.lo[r], hi[r]
		for j := 1; j < c.n; j++ {
			least, most = min(least, c.lo[j*k+r]), max(most, hi[j*k+r])
		}
		p.lo[i*k+r], p.hi[i*k+r] = least+p.add[i*k+r], most+p.add[i*k+r]
	}
}

// spread adds d to the steps in [from, to), which are cut there; end is where
// the page ends.
func (t *timeline) spread(p *page, from, to, end scheduler.Time, d []int64) {
	k := t.k
	for i := p.floor(from); i < p.n && p.start[i] < to; i++ {
		stop := end
		if i+1 < p.n {
			stop = p.start[i+1]
		}
		if stop <= from {
			continue
		}
		if p.kids != nil && (p.start[i] < from || stop > to) {
			t.spread(p.kids[i], from, to, stop, d)
			t.sum(p, i)
			continue
		}
		for r, v := range d {
			p.lo[i*k+r] += v
			if p.kids != nil {
				p.hi[i*k+r] += v
				p.add[i*k+r] += v
			}
		}
	}
}

// heal joins the step that starts at an instant with the one before it where
// both have the same amounts free.
func (t *timeline) heal(at scheduler.Time) {
	if at == dawn {
		return
	}
	p, q := t.root, t.root // the paths to the step and to the one before
	t.prepare2()
	sp, sq := t.rest[:t.k], t.rest[t.k:2*t.k]
	clear(t.rest[:2*t.k])
	for p.kids != nil {
		i, j := p.floor(at), q.floor(at-1)
		for r := range t.k {
			sp[r] += p.add[i*t.k+r]
			sq[r] += q.add[j*t.k+r]
		}
		p, q = p.kids[i], q.kids[j]
	}
	i, j := p.floor(at), q.floor(at-1)
	if p.start[i] != at {
		return
	}
	for r := range t.k {
		if p.lo[i*t.k+r]+sp[r] != q.lo[j*t.k+r]+sq[r] {
			return
		}
	}
	t.remove(t.root, at)
	t.lower()
}

// remove takes the step that starts at an instant out and tells whether the
// page is empty now.
func (t *timeline) remove(p *page, at scheduler.Time) bool {
	i := p.floor(at)
	if p.kids == nil || t.remove(p.kids[i], at) {
		t.shut(p, i)
	} else {
		p.start[i] = p.kids[i].start[0]
		t.sum(p, i)
	}
	return p.n == 0
}

// lower drops roots with one child.
func (t *timeline) lower() {
	for t.root.kids != nil && t.root.n == 1 {
		c := t.root.kids[0]
		for i := range c.n {
			for r := range t.k {
				v := t.root.add[r]
				c.lo[i*t.k+r] += v
				if c.kids != nil {
					c.hi[i*t.k+r] += v
					c.add[i*t.k+r] += v
				}
			}
		}
		t.root = c
	}
}

// forget drops the steps that ended at or before an instant.
func (t *timeline) forget(before scheduler.Time) {
	for {
		second := t.second()
		if second == scheduler.Never || second > before {
			return
		}
		t.remove(t.root, dawn)
		t.lower()
		for p := t.root; ; p = p.kids[0] {
			p.start[0] = dawn
			if p.kids == nil {
				break
			}
		}
	}
}

// second gives the start of the second step.
func (t *timeline) second() scheduler.Time {
	next := scheduler.Never
	p := t.root
	for {
		if p.n > 1 {
			next = p.start[1]
		}
		if p.kids == nil {
			return next
		}
		p = p.kids[0]
	}
}

// at copies what is free at an instant into out.
func (t *timeline) at(at scheduler.Time, out []int64) {
	clear(out[:t.k])
	p := t.root
	for {
		i := p.floor(at)
		of := p.lo
		if p.kids != nil {
			of = p.add
		}
		for r := range t.k {
			out[r] += of[i*t.k+r]
		}
		if p.kids == nil {
			return
		}
		p = p.kids[i]
	}
}

// first gives the first instant at or after from at which there is room for d
// (room true) or there is none (room false); Never where there is no such.
func (t *timeline) first(from scheduler.Time, d []int64, room bool) scheduler.Time {
	t.prepare()
	return t.seek(t.root, 0, from, d, room)
}

// prepare makes scratch for as many levels as there are.
func (t *timeline) prepare() {
	levels := 0
	for p := t.root; p.kids != nil; p = p.kids[0] {
		levels++
	}
	for len(t.rest) < levels*t.k {
		t.rest = append(t.rest, 0)
	}
}

// prepare2 makes scratch for two vectors.
func (t *timeline) prepare2() {
	for len(t.rest) < 2*t.k {
		t.rest = append(t.rest, 0)
	}
}

// below is what is needed of child i's own numbers for d to be there.
func (t *timeline) below(p *page, i, level int, d []int64) []int64 {
	k := len(d)
	rest, add := t.rest[level*k:(level+1)*k], p.add[i*k:(i+1)*k]
	for r, v := range d {
		rest[r] = v - add[r]
	}
	return rest
}

func (t *timeline) seek(p *page, level int, from scheduler.Time, d []int64, room bool) scheduler.Time {
	k := len(d)
	for i := p.floor(from); i < p.n; i++ {
		if p.kids == nil {
			if fits(d, p.lo[i*k:i*k+k]) == room {
				return max(from, p.start[i])
			}
			continue
		}
		if room && !fits(d, p.hi[i*k:i*k+k]) || !room && fits(d, p.lo[i*k:i*k+k]) {
			continue
		}
		if at := t.seek(p.kids[i], level+1, from, t.below(p, i, level, d), room); at != scheduler.Never {
			return at
		}
	}
	return scheduler.Never
}

// last gives the end of the last step in [from, to) with room for d (room true) or
// without (room false), and whether there is one; end is where the page ends.
func (t *timeline) last(p *page, level int, from, to, end scheduler.Time, d []int64, room bool) (scheduler.Time, bool) {
	k := len(d)
	for i := p.floor(to - 1); i >= 0; i-- {
		stop := end
		if i+1 < p.n {
			stop = p.start[i+1]
		}
		if stop <= from {
			break
		}
		if p.kids == nil {
			if fits(d, p.lo[i*k:i*k+k]) == room {
				return stop, true
			}
			continue
		}
		if room && !fits(d, p.hi[i*k:i*k+k]) || !room && fits(d, p.lo[i*k:i*k+k]) {
			continue
		}
		if at, ok := t.last(p.kids[i], level+1, from, to, stop, t.below(p, i, level, d), room); ok {
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

// earliest gives the first instant in [from, before) from which on there is
// room for d during span; Never where there is none. A window is judged from
// its end: behind the last step without room the next one starts, so it costs
// O(log n) for each span passed over, and for each change between room and
// none where those are further apart. O(n) on one page.
func (t *timeline) earliest(from, span, before scheduler.Time, d []int64) scheduler.Time {
	if t.root.kids == nil {
		return t.scan(from, span, before, d)
	}
	t.prepare()
	for at := from; ; {
		at = t.seek(t.root, 0, at, d, true)
		if at >= before {
			return scheduler.Never
		}
		end := at.Add(time.Duration(span))
		next, bad := t.last(t.root, 0, at, end, scheduler.Never, d, false)
		if !bad {
			return at
		}
		at = next
	}
}

// latest gives the last instant in [from, by] from which on there is room for d
// during span; -Never where there is none. A window is judged from its start: the
// next one ends where room ended before the first step without. O(log n) for each
// change between room and none behind the answer.
func (t *timeline) latest(from, span, by scheduler.Time, d []int64) scheduler.Time {
	t.prepare()
	for at := by; at >= from; {
		bad := t.seek(t.root, 0, at, d, false)
		if bad >= at.Add(time.Duration(span)) {
			return at
		}
		end, ok := t.last(t.root, 0, from, bad, scheduler.Never, d, true)
		if !ok {
			break
		}
		at = min(end, bad).Add(-time.Duration(span))
	}
	return -scheduler.Never
}

// scan is earliest on a timeline of one page.
func (t *timeline) scan(from, span, before scheduler.Time, d []int64) scheduler.Time {
	p, k := t.root, len(d)
	at := scheduler.Never
	for i := p.floor(from); i < p.n; i++ {
		if at != scheduler.Never && p.start[i]-at >= span {
			return at
		}
		if !fits(d, p.lo[i*k:i*k+k]) {
			at = scheduler.Never
			continue
		}
		if at == scheduler.Never {
			if at = max(from, p.start[i]); at >= before {
				return scheduler.Never
			}
		}
	}
	return at
}

// each walks the steps from an instant on until yield says stop. free is good
// until yield returns.
func (t *timeline) each(from scheduler.Time, yield func(at scheduler.Time, free []int64) bool) {
	var sum [maxDims]int64
	t.walk(t.root, from, sum[:t.k], yield)
}

func (t *timeline) walk(p *page, from scheduler.Time, sum []int64, yield func(scheduler.Time, []int64) bool) bool {
	for i := p.floor(from); i < p.n; i++ {
		var here [maxDims]int64
		of := p.lo
		if p.kids != nil {
			of = p.add
		}
		for r := range t.k {
			here[r] = sum[r] + of[i*t.k+r]
		}
		if p.kids == nil {
			if !yield(max(from, p.start[i]), here[:t.k]) {
				return false
			}
		} else if !t.walk(p.kids[i], from, here[:t.k], yield) {
			return false
		}
	}
	return true
}

// steps counts the steps.
func (t *timeline) steps() int { return countSteps(t.root) }

func countSteps(p *page) int {
	if p.kids == nil {
		return p.n
	}
	n := 0
	for _, c := range p.kids[:p.n] {
		n += countSteps(c)
	}
	return n
}
