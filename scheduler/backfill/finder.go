package backfill

import (
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/timeline"
)

// equivalenceClass groups all tasks with equal needs and bounds: the earliest start on
// a bin is the same for each of them. A class with many tasks keeps the earliest start
// on every bin in a finder.
type equivalenceClass struct {
	need         Need
	bound        time.Duration
	soft         bool
	live         int // tasks that have not ended
	finder       *finder
	cachedStarts *[cachedBins]cachedStart // see earliestOnBin, nil until it is used
}

type equivalenceKey struct {
	base      [timeline.MaxBase]int64
	dims      int
	io, space int64
	bound     time.Duration
	soft      bool
}

// classOf returns the class of a group. The first call for a planner of tries finds the
// classes of all groups: many tries search for nothing.
func (p *Planner) classOf(g *group) *equivalenceClass {
	if !p.classified {
		p.classified = true
		for _, pr := range p.submitOrder {
			for _, g := range pr.groups {
				p.classify(g)
			}
		}
	}
	return g.eqClass
}

// classify adds a group's items to their class.
func (p *Planner) classify(g *group) {
	g.eqClass = p.equivalenceClassOf(&g.req)
	g.eqClass.live += len(g.items)
}

// finderMinItems is the number of tasks in a class from which a finder pays off:
// building one costs a search on every bin.
const finderMinItems = 16

// equivalenceClassOf returns the class of a request and creates it if it is new.
func (p *Planner) equivalenceClassOf(r *Request) *equivalenceClass {
	k := equivalenceKey{dims: len(r.Need.Base), io: r.Need.IO, space: r.Need.Space, bound: r.Bound, soft: r.SoftBound}
	copy(k.base[:], r.Need.Base)
	if p.eqClasses == nil {
		p.eqClasses = map[equivalenceKey]*equivalenceClass{}
	}
	c := p.eqClasses[k]
	if c == nil {
		c = &equivalenceClass{need: Need{Base: slices.Clone(r.Need.Base), IO: r.Need.IO, Space: r.Need.Space}, bound: r.Bound, soft: r.SoftBound}
		p.eqClasses[k] = c
	}
	return c
}

// dropUnusedClasses deletes the classes without tasks once there are many more classes
// than projects, so the map stays bounded.
func (p *Planner) dropUnusedClasses() {
	if len(p.eqClasses) <= 2*len(p.projects)+64 {
		return
	}
	for k, c := range p.eqClasses {
		if c.live == 0 {
			delete(p.eqClasses, k)
		}
	}
}

// finder keeps, for one class, the earliest start on each bin in a tournament tree; the
// root is the earliest over all bins. A stored start is exact for the time it was
// computed for and a lower bound for later times, so a start that has passed is
// computed again when it reaches the root.
type finder struct {
	eqClass *equivalenceClass
	now     scheduler.Time // time of the last query
	starts  []scheduler.Time
	disks   []int16
	tree    []int32 // tree[1] is the root; the leaves begin at half the length
	logPos  uint64  // position in the profile's change log up to which the finder is in sync
}

// finderOf returns the finder of the item's class, or nil if the class or the profile
// is too small for one to pay off.
func (p *Planner) finderOf(it *item) *finder {
	c := p.classOf(it.group)
	if c.finder == nil {
		if c.live < p.finderThreshold || p.profile.Bins() < int32(p.finderThreshold) {
			return nil
		}
		c.finder = &finder{eqClass: c, logPos: math.MaxUint64}
	}
	return c.finder
}

// earliest returns the earliest spot in [now, before), ties to the lowest bin. The
// result equals a search on every bin. Cost: O(log bins) plus one search for each bin
// that changed since the last query.
func (f *finder) earliest(p *Planner, now, before scheduler.Time) (Spot, bool) {
	f.sync(p, now)
	for {
		b := f.tree[1]
		switch at := f.starts[b]; {
		case at >= before:
			return Spot{Bin: -1}, false
		case at >= now:
			return Spot{Bin: b, Disk: f.disks[b], At: at}, true
		}
		f.updateBin(p, b)
	}
}

// sync applies the profile's changes since the last query. It rebuilds the tree if the
// change log has wrapped, the clock went back, or bins were added.
func (f *finder) sync(p *Planner, now scheduler.Time) {
	known := f.logPos != math.MaxUint64 && now >= f.now && len(f.starts) == int(p.profile.Bins())
	f.now = now
	if !known || !p.profile.ChangedSince(f.logPos, func(b int32) { f.updateBin(p, b) }) {
		f.rebuild(p)
	}
	f.logPos = p.profile.ChangePosition()
}

// rebuild computes the earliest start on every bin.
func (f *finder) rebuild(p *Planner) {
	n := int(p.profile.Bins())
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	f.starts = slices.Grow(f.starts[:0], n)[:n]
	f.disks = slices.Grow(f.disks[:0], n)[:n]
	f.tree = slices.Grow(f.tree[:0], 2*leaves)[:2*leaves]
	for i := range leaves {
		f.tree[leaves+i] = int32(min(i, n-1))
	}
	for b := range int32(n) {
		f.computeStart(p, b)
	}
	for i := leaves - 1; i > 0; i-- {
		f.tree[i] = f.earlierBin(f.tree[2*i], f.tree[2*i+1])
	}
}

// updateBin computes the earliest start on one bin again and updates its path to the
// root.
func (f *finder) updateBin(p *Planner, b int32) {
	was := f.starts[b]
	f.computeStart(p, b)
	if f.starts[b] == was {
		return
	}
	for i := (len(f.tree)/2 + int(b)) / 2; i > 0; i /= 2 {
		f.tree[i] = f.earlierBin(f.tree[2*i], f.tree[2*i+1])
	}
}

func (f *finder) computeStart(p *Planner, b int32) {
	f.starts[b] = scheduler.Never
	if p.profile.Closed(b) || p.bin(b).spare {
		return
	}
	duration := f.eqClass.bound
	if f.eqClass.soft && p.bin(b).nonPreemptible {
		duration = math.MaxInt64
	}
	if s, ok := p.profile.EarliestOn(b, f.now, duration, scheduler.Never, &f.eqClass.need); ok {
		f.starts[b], f.disks[b] = s.At, s.Disk
	}
}

func (f *finder) earlierBin(a, b int32) int32 {
	if f.starts[a] < f.starts[b] || (f.starts[a] == f.starts[b] && a <= b) {
		return a
	}
	return b
}
