package backfill

import (
	"maps"
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
	req          Request // its need and bound
	live         int     // tasks that have not ended
	finder       *finder
	cachedStarts *[cachedBins]cachedStart // see earliestOnBin, nil until it is used
}

type equivalenceKey struct {
	base      [timeline.MaxBase]int64
	dims      int
	io, space int64
	bound     time.Duration
	soft      bool
	stays     bool
	unknown   bool
}

// classOf returns the class of a group. The first call classifies all groups; that is deferred
// since many rounds search nothing.
func (c *classes) classOf(p *Planner, g *group) *equivalenceClass {
	if !c.classified {
		c.classified = true
		for _, pr := range p.registry.submitOrder {
			for _, g := range pr.groups {
				c.classify(g)
			}
		}
	}
	return g.eqClass
}

func (c *classes) classify(g *group) {
	g.eqClass = c.equivalenceClassOf(&g.req)
	g.eqClass.live += len(g.items)
}

// finderMinItems is the number of tasks in a class from which a finder pays off:
// building one costs a search on every bin.
const finderMinItems = 16

func (c *classes) equivalenceClassOf(r *Request) *equivalenceClass {
	k := equivalenceKey{dims: len(r.Need.Base), io: r.Need.IO, space: r.Need.Space, bound: r.Bound, soft: r.SoftBound, stays: r.Stays, unknown: r.Unknown}
	copy(k.base[:], r.Need.Base)
	class := c.byKey[k]
	if class == nil {
		class = &equivalenceClass{req: Request{Need: Need{Base: slices.Clone(r.Need.Base), IO: r.Need.IO, Space: r.Need.Space}, Bound: r.Bound, SoftBound: r.SoftBound, Stays: r.Stays, Unknown: r.Unknown}}
		c.byKey[k] = class
	}
	return class
}

// dropUnused deletes the classes without tasks where they may be many, given the number of projects.
func (c *classes) dropUnused(projects int) {
	if len(c.byKey) > 2*projects+64 {
		maps.DeleteFunc(c.byKey, func(_ equivalenceKey, class *equivalenceClass) bool { return class.live == 0 })
	}
}

// finder keeps, for one class, the earliest start on each bin in a tournament tree; the root is the
// earliest over all bins. A stored start is exact for the time it was computed for and a lower
// bound for later times. When a start that has passed, or that was not computed yet, reaches the
// root, it is computed again.
type finder struct {
	eqClass *equivalenceClass
	now     scheduler.Time // time of the last query
	starts  []scheduler.Time
	disks   []int16    // notComputed if starts is only a lower bound
	fits    []firstFit // see fitsAt
	tree    []int32    // tree[1] is the root; the leaves begin at half the length
	logPos  uint64     // position in the profile's change log up to which the finder is in sync
}

// notComputed stands for the disk of a start that was not computed.
const notComputed = -3

// firstFit is the first time at or after from at which the need of a class fits on some disk of a
// bin, if only for a moment.
type firstFit struct {
	version  uint64 // 1 + the bin's version
	from, at scheduler.Time
}

// fitsAt reports whether the class's need fits on some disk of a bin at a time. O(1) if the bin is
// unchanged and the time is not after the first fit found.
func (f *finder) fitsAt(p *Planner, b int32, at scheduler.Time) bool {
	for int(b) >= len(f.fits) { // often only the first bins are searched
		f.fits = append(f.fits, firstFit{})
	}
	x := &f.fits[b]
	if v := p.space.profile.Version(b) + 1; x.version != v || at < x.from || at > x.at {
		*x = firstFit{v, at, p.space.profile.FirstFit(b, at, &f.eqClass.req.Need)}
	}
	return x.at == at
}

// finderOf returns the finder of the item's class, or nil if the class or the profile
// is too small for one to pay off.
func (c *classes) finderOf(p *Planner, it *item) *finder {
	class := c.classOf(p, it.group)
	if class.finder == nil {
		if class.live < c.finderThreshold || p.space.profile.Bins() < int32(c.finderThreshold) {
			return nil
		}
		class.finder = &finder{eqClass: class, logPos: math.MaxUint64}
	}
	return class.finder
}

// earliest returns the earliest spot in [now, before), ties to the lowest bin. The
// result equals a search on every bin. Cost: O(log bins) plus one search for each bin
// that changed since the last query, or was not searched yet and is before the result.
func (f *finder) earliest(p *Planner, now, before scheduler.Time) (Spot, bool) {
	f.sync(p, now)
	for {
		b := f.tree[1]
		switch at := f.starts[b]; {
		case at >= before:
			return Spot{Bin: -1}, false
		case at >= now && f.disks[b] != notComputed:
			return Spot{Bin: b, Disk: f.disks[b], At: at}, true
		}
		f.updateBin(p, b)
	}
}

// sync applies the profile's changes since the last query. It rebuilds the tree if the
// change log has wrapped, the clock went back, or bins were added.
func (f *finder) sync(p *Planner, now scheduler.Time) {
	known := f.logPos != math.MaxUint64 && now >= f.now && len(f.starts) == int(p.space.profile.Bins())
	f.now = now
	if !known || !p.space.profile.ChangedSince(f.logPos, func(b int32) { f.updateBin(p, b) }) {
		f.rebuild(p)
	}
	f.logPos = p.space.profile.ChangePosition()
}

// rebuild computes the earliest start on every bin up to the first bin that is free at once, which
// is the earliest of all.
func (f *finder) rebuild(p *Planner) {
	n := int(p.space.profile.Bins())
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
	free := false
	for b := range int32(n) {
		if free {
			f.starts[b], f.disks[b] = f.now, notComputed
			continue
		}
		f.computeStart(p, b)
		free = f.starts[b] == f.now
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
	f.starts[b], f.disks[b] = scheduler.Never, anyDisk
	if !p.isOpen(b) {
		return
	}
	if s, ok := p.search.earliestOn(p, &f.eqClass.req, b, anyDisk, f.now, scheduler.Never); ok {
		f.starts[b], f.disks[b] = s.At, s.Disk
	}
}

func (f *finder) earlierBin(a, b int32) int32 {
	if f.starts[a] < f.starts[b] || (f.starts[a] == f.starts[b] && a <= b) {
		return a
	}
	return b
}

// costOfSearch returns the steps of a search of all bins. It depends only on the plan, not on
// caches: a finder that exists costs as much as one that must be built.
func (c *classes) costOfSearch(p *Planner, it *item) int {
	bins := int(p.space.profile.Bins())
	if it.pinned || (bins >= c.finderThreshold && c.classOf(p, it.group).live >= c.finderThreshold) {
		return searchSteps
	}
	return searchSteps + bins*searchSteps/4
}

type classes struct {
	byKey           map[equivalenceKey]*equivalenceClass
	classified      bool // classOf has classified all groups
	finderThreshold int  // finderMinItems, or a test's value
}
