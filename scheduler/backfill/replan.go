package backfill

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Start records that a task starts now. The task must be planned for now or earlier; in the latter
// case its reservation moves to now, even if that takes a bin over capacity, so callers must replan
// late tasks first. Unknown keys are ignored.
func (p *Planner) Start(k Key, now scheduler.Time) {
	it := p.registry.item(k)
	if it == nil || !it.placed || it.started {
		return
	}
	if it.spot.At != now {
		p.setSpot(it, Spot{Bin: it.spot.Bin, Disk: it.spot.Disk, At: now})
	}
	it.started = true
}

// End removes a task that ended, or will never run, from the plan. It reports whether
// the task released capacity before its bound, so that Compress can use it. Unknown
// keys are ignored.
func (p *Planner) End(k Key, now scheduler.Time) (early bool) {
	it := p.registry.item(k)
	if it == nil {
		return false
	}
	if it.placed {
		early = it.end > now
		b := it.spot.Bin
		p.setSpot(it, Spot{Bin: -1})
		if early {
			p.bins.markFreed(b)
		}
	}
	delete(p.registry.items, k)
	g := it.group
	if i := slices.Index(g.items, it); i >= 0 {
		g.items = slices.Delete(g.items, i, i+1)
		if p.registry.numItems--; g.eqClass != nil {
			g.eqClass.live--
		}
	}
	pr := g.project
	if pr.size() == 0 {
		p.registry.unregister(p, pr)
	}
	return early
}

// Compress moves waiting tasks forward into released capacity: in submission order,
// each is removed and placed again at its earliest start. No task moves later, and a
// task that cannot start earlier keeps its bin.
// For each task it considers only bins where capacity was released since the task was
// last placed, so after one early end it costs O(waiting) plus a search for each task
// that the hole can serve.
//
// It begins after a position, and stops at the end of the project in which it has considered at
// least limit tasks, or when the budget is spent. It returns either done or the position to
// continue after.
func (p *Planner) Compress(now scheduler.Time, after Position, limit int) (next Position, done bool) {
	p.now = now
	i, found := slices.BinarySearchFunc(p.registry.submitOrder, after, func(pr *project, a Position) int { return pr.position().compare(a) })
	if found {
		i++
	}
	for looked := 0; i < len(p.registry.submitOrder); i++ {
		pr := p.registry.submitOrder[i]
		if looked >= limit {
			return after, false
		}
		for _, g := range pr.groups {
			from := now
			if g.isConstrained() {
				from = g.openTime(now)
			}
			for _, it := range g.items {
				if it.started || !it.placed {
					continue
				}
				looked++
				if !p.search.moveEarlier(p, it, from, now) {
					continue
				}
				if p.stepsLeft -= placeSteps; p.stepsLeft <= 0 {
					return after, false
				}
			}
		}
		after = pr.position()
	}
	return Position{}, true
}
