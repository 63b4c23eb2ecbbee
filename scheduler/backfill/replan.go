package backfill

import (
	"cmp"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Start tells that a piece of work starts now. It must be planned for now, or
// for earlier: then its reservation moves to now, though that may be in the way
// of others (ask Late first). Unknown keys are ignored.
func (p *Planner) Start(k Key, now scheduler.Time) {
	it := p.items[k]
	if it == nil || !it.placed || it.started {
		return
	}
	if it.spot.At != now {
		p.set(it, Spot{it.spot.Bin, it.spot.Disk, now})
	}
	it.started = true
	g := it.group
	if i := slices.Index(g.items, it); i > 0 && !g.items[i-1].started { // started ones first
		j := slices.IndexFunc(g.items, func(o *item) bool { return !o.started })
		g.items = slices.Insert(slices.Delete(g.items, i, i+1), j, it)
	}
}

// End takes a piece of work that ended, or never will run, out of the plan, and
// tells whether it gave room back before its bound: then Walk gives the hole
// forward. Unknown keys are ignored.
func (p *Planner) End(k Key, now scheduler.Time) (early bool) {
	it := p.items[k]
	if it == nil {
		return false
	}
	if it.placed {
		early = it.end > now
		b := it.spot.Bin
		p.set(it, Spot{Bin: -1})
		if early {
			p.Freed(b)
		}
	}
	delete(p.items, k)
	g := it.group
	if i := slices.Index(g.items, it); i >= 0 {
		g.items = slices.Delete(g.items, i, i+1)
		g.class.n--
	}
	pr := g.proj
	for _, o := range pr.groups {
		if len(o.items) > 0 {
			return early
		}
	}
	p.drop(pr)
	return early
}

// Walk gives holes forward: the waiting are walked in submit order, each is
// removed and placed again at the earliest instant, and nobody moves later. Who
// can only be placed at the instant it has keeps its bin. It returns how many
// moved. A waiting item looks only at bins on which something was given back
// since its own spot was the earliest there was, so that after one early end a
// walk costs O(waiting) and a search for those that the hole can serve.
func (p *Planner) Walk(now scheduler.Time) int {
	moved, _, _ := p.WalkSome(now, Place{Submitted: math.MinInt64}, math.MaxInt)
	return moved
}

// Place is a project's place in promise order.
type Place struct {
	Submitted scheduler.Time
	ID        scheduler.ProjectID
}

// WalkSome is Walk from the first project behind a place on, until it has looked
// at most pieces of work and the project in hand is done. It returns how many
// moved, and whether it came to the end or where to go on.
func (p *Planner) WalkSome(now scheduler.Time, after Place, most int) (moved int, next Place, done bool) {
	p.now = now
	i, found := slices.BinarySearchFunc(p.order, after, func(pr *project, a Place) int {
		return cmp.Or(cmp.Compare(pr.Submitted, a.Submitted), cmp.Compare(pr.ID, a.ID))
	})
	if found {
		i++
	}
	for looked := 0; i < len(p.order); i++ {
		pr := p.order[i]
		if looked >= most {
			prev := p.order[i-1]
			return moved, Place{prev.Submitted, prev.ID}, false
		}
		for _, g := range pr.groups {
			from := now
			if len(g.after) > 0 || g.req.Parallel > 0 {
				from = g.opens(now)
			}
			for _, it := range g.items {
				if it.started || !it.placed {
					continue
				}
				looked++
				if p.earlier(it, it.inParallel(from), now) {
					moved++
				}
			}
		}
	}
	return moved, Place{}, true
}

// earlier moves an item to an earlier instant from an instant on if there is one.
func (p *Planner) earlier(it *item, from, now scheduler.Time) bool {
	if it.spot.At <= from {
		return false
	}
	// What came before it moved, or its account may have room again: look everywhere.
	all := (from < it.from && it.from > now) || (p.accounts != nil && it.group.proj.Account != 0)
	if !all && p.bins[p.lastFreed()].freed <= it.seen {
		return false
	}
	was := it.spot
	var best Spot
	var found bool
	if all || it.pinned || p.lifts {
		p.lift(it, 1)
		best, found = p.search2(it, from, all)
		found = found && p.allowed(it, best.At, p.span(it, best.Bin)) <= best.At
		p.lift(it, -1)
	} else {
		best, found = p.freedHole(it, from)
	}
	it.seen, it.from = p.clock, from
	if !found {
		return false
	}
	p.set(it, best)
	p.Freed(was.Bin)
	return true
}

// lift takes an item out of the profile and its account for a search, or with
// sign -1 puts it back.
func (p *Planner) lift(it *item, sign int64) {
	p.prof.changeBriefly(it.spot.Bin, it.spot.Disk, it.spot.At, it.end, &it.group.req.Need, sign)
	p.charge(it, sign)
	if f := it.group.class.find; f != nil && f.seen != math.MaxUint64 {
		f.catchUp(p, p.now)
		f.look(p, it.spot.Bin)
	}
}

// lastFreed is the bin on which something was given back last.
func (p *Planner) lastFreed() int32 {
	if len(p.recent) == 0 {
		p.bin(0)
		return 0
	}
	return p.recent[len(p.recent)-1]
}

// holes is how many bins a class remembers the earliest start on.
const holes = 16

// hole is the earliest start of a class on a bin from an instant on.
type hole struct {
	version uint64 // of the bin, and 1
	from    scheduler.Time
	spot    Spot // at Never where there is none
}

// freedHole is search2 with the item taken out of the profile, without taking it
// out: what a bin has beside it is asked once for all work of its class, and on its
// own bin what it gains by its own room is what is free just before it.
func (p *Planner) freedHole(it *item, from scheduler.Time) (best Spot, found bool) {
	best = it.spot
	for i := len(p.recent) - 1; i >= 0; i-- {
		b := p.recent[i]
		if p.bins[b].freed <= it.seen {
			break
		}
		if p.prof.bins[b].closed || p.bins[b].spare {
			continue
		}
		s := p.holeOn(it, b, from, best.At)
		if b == it.spot.Bin {
			s = p.holeBefore(it, from, s)
		}
		// Ties between bins go to the lowest, as in search.
		if s.At < best.At || (found && s.At == best.At && s.Bin < best.Bin) {
			best, found = s, true
		}
	}
	return best, found
}

// holeOn is the earliest start on a bin from an instant on for work of the item's
// class. Where it is the only work of its class it is sought up to an instant alone.
func (p *Planner) holeOn(it *item, b int32, from, by scheduler.Time) Spot {
	c, before := it.group.class, scheduler.Never
	if c.n == 1 {
		before = by.Add(1)
	}
	h := &c.holes[b%holes]
	if v := p.prof.Version(b) + 1; h.spot.Bin != b || h.version != v || h.from != from || before < scheduler.Never {
		s, _ := p.prof.EarliestOn(b, from, p.span(it, b), before, &it.group.req.Need)
		if *h = (hole{v, from, s}); before < scheduler.Never {
			h.version = 0 // good for this item alone
		}
	}
	return h.spot
}

// holeBefore is the earlier of a spot on an item's own bin and of what it can move
// to because its own room counts as free: it moves forward by as much as there is
// room up to its start; from its start on its own room does, and on another disk
// that has room as well. Ties go to the lowest disk. Where the bin is over its
// capacity meanwhile its own room may be none: then it is taken out and searched.
func (p *Planner) holeBefore(it *item, from scheduler.Time, best Spot) Spot {
	b, start, need := it.spot.Bin, it.spot.At, &it.group.req.Need
	if p.prof.Over(b, start, it.end) != scheduler.Never {
		p.prof.changeBriefly(b, it.spot.Disk, start, it.end, need, 1)
		best, _ = p.prof.EarliestOn(b, from, p.span(it, b), scheduler.Never, need)
		p.prof.changeBriefly(b, it.spot.Disk, start, it.end, need, -1)
		return best
	}
	disks := int16(p.prof.Disks(b))
	for disk := min(disks, 1) - 1; disk < max(disks, 1); disk++ {
		s := Spot{b, disk, p.prof.roomBefore(b, disk, from, start, need)}
		if s.At >= start || s.At > best.At || (s.At == best.At && disk >= best.Disk) {
			continue
		}
		if own := (Need{Base: p.nothing(len(need.Base)), IO: need.IO, Space: need.Space}); disk == it.spot.Disk || p.prof.Fits(b, disk, start, s.At.Add(p.span(it, b)), &own) {
			best = s
		}
	}
	return best
}

// nothing is a need of none of some resources.
func (p *Planner) nothing(resources int) []int64 {
	for len(p.zeros) < resources {
		p.zeros = append(p.zeros, 0)
	}
	return p.zeros[:resources]
}

// search2 looks for an earlier spot on the bins where something was given back
// since the item was placed, or on all.
func (p *Planner) search2(it *item, from scheduler.Time, all bool) (Spot, bool) {
	before := it.spot.At
	if all || it.pinned {
		return p.search(it, from, before)
	}
	best, found := Spot{Bin: -1}, false
	for i := len(p.recent) - 1; i >= 0; i-- {
		b := p.recent[i]
		if p.bins[b].freed <= it.seen {
			break
		}
		if p.prof.bins[b].closed || p.bins[b].spare {
			continue
		}
		// Ties between bins go to the lowest, as in search.
		limit := before
		if found && b < best.Bin {
			limit = before.Add(1)
		}
		if s, ok := p.prof.EarliestOn(b, from, p.span(it, b), limit, &it.group.req.Need); ok {
			best, found, before = s, true, s.At
		}
	}
	return best, found
}

// Late lists the work that should have started before now, or starts before
// what it comes after has ended, by (project's submission, project, request,
// task).
func (p *Planner) Late(now scheduler.Time) []Key {
	var out []Key
	for _, pr := range p.order {
		for _, g := range pr.groups {
			open := g.opens(now)
			for _, it := range g.items {
				if it.late(open) {
					out = append(out, it.key)
				}
			}
		}
	}
	return out
}

// late tells whether an item should start later than it is planned, of a group that
// is open from an instant on.
func (it *item) late(open scheduler.Time) bool {
	return !it.started && (!it.placed || it.spot.At < it.inParallel(open))
}

// Replan plans work again as a new request that displaces nobody, in the order
// given, after it was found to be late or its reservation was lost; what comes
// after it and is now too early follows. Promises that break are reported with
// the cause. What finds no room at all stays unplaced and is tried again by the
// next Replan.
func (p *Planner) Replan(now scheduler.Time, cause Cause, keys ...Key) []Broken {
	p.now = now
	for _, k := range keys {
		if it := p.items[k]; it != nil && !it.started {
			p.again(it, now)
		}
	}
	if p.tied > 0 || now > p.soonest {
		p.followUp(now)
	}
	return p.breaks(cause)
}

// followUp plans again what is late, stage by stage. O(work).
func (p *Planner) followUp(now scheduler.Time) {
	p.soonest = scheduler.Never
	for _, pr := range p.order {
		for _, g := range pr.groups {
			open := g.opens(now)
			for _, it := range g.items {
				if it.placed && it.late(open) {
					p.again(it, now)
				}
				if it.placed && !it.started {
					p.soonest = min(p.soonest, it.spot.At)
				}
			}
		}
	}
}

// again removes an item and places it anew.
func (p *Planner) again(it *item, now scheduler.Time) {
	was := it.spot
	if it.placed {
		p.set(it, Spot{Bin: -1, Disk: was.Disk, At: was.At})
		p.Freed(was.Bin)
	}
	if it.pinned {
		it.spot.Bin = was.Bin
	}
	from := p.ready(it, now)
	if from != scheduler.Never && !p.settle(it, from, scheduler.Never) && it.group.req.Need.IsZero() {
		p.anywhere(it, now)
	}
}

// Overrun tells that a piece of work ran past its bound and was stopped: it is
// planned again as a new request, on its own bin where it was suspended there
// (pin). Others keep their plan; the promise of its own project is void.
func (p *Planner) Overrun(k Key, now scheduler.Time, pin bool) []Broken {
	it := p.items[k]
	if it == nil || !it.started {
		return nil
	}
	it.started, it.pinned = false, pin
	return p.Replan(now, CauseOverrun, k)
}

// Lose tells that a bin was lost. Its waiting work is planned again in promise
// order: at the very instant it had if there is room, first on a spare bin as
// large as the lost one, which then is a spare no more; otherwise at the
// earliest. What ran there starts again after those. So no waiting promise
// breaks as long as there are such spare bins.
func (p *Planner) Lose(b int32, now scheduler.Time) []Broken { return p.leave(b, now, false) }

// Drain is Lose for a bin that takes no work any more but keeps what is there:
// what is suspended on it comes back there.
func (p *Planner) Drain(b int32, now scheduler.Time) []Broken { return p.leave(b, now, true) }

func (p *Planner) leave(b int32, now scheduler.Time, keeps bool) []Broken {
	p.now = now
	p.prof.Close(b, true)
	refuge := p.refuge(b)
	var waiting, ran []*item
	for _, pr := range p.order {
		for _, g := range pr.groups {
			for _, it := range g.items {
				if !it.placed || it.spot.Bin != b || (keeps && (it.pinned || it.started)) {
					continue
				}
				it.pinned = false
				if it.started {
					it.started = false
					ran = append(ran, it)
				} else {
					waiting = append(waiting, it)
				}
			}
		}
	}
	for _, it := range ran {
		p.set(it, Spot{Bin: -1})
	}
	for _, it := range waiting {
		if s, ok := p.same(it, refuge); ok {
			p.set(it, s)
		} else {
			p.again(it, now)
		}
	}
	for _, it := range ran {
		p.again(it, now)
	}
	return p.Replan(now, CauseNodeLost)
}

// refuge picks a spare bin with at least the capacity of a lost one, or -1.
func (p *Planner) refuge(lost int32) int32 {
	for b := range p.prof.Bins() {
		x, y := &p.prof.bins[b], &p.prof.bins[lost]
		if p.bin(b).spare && !x.closed && x.base == y.base && x.disks == y.disks && fits(y.total, x.total) {
			p.Spare(b, false)
			return b
		}
	}
	return -1
}

// same finds another bin with room at exactly the item's times.
func (p *Planner) same(it *item, refuge int32) (Spot, bool) {
	need := &it.group.req.Need
	if refuge >= 0 && p.prof.Fits(refuge, it.spot.Disk, it.spot.At, it.end, need) {
		return Spot{refuge, it.spot.Disk, it.spot.At}, true
	}
	for b := range p.prof.Bins() {
		if p.prof.bins[b].closed || p.bin(b).spare {
			continue
		}
		if s, ok := p.prof.EarliestOn(b, it.spot.At, p.span(it, b), it.spot.At.Add(1), need); ok {
			return s, true
		}
	}
	return Spot{}, false
}

// breaks lists the promises that do not hold any more and were not reported, in
// promise order. O(work of the projects of which something moved).
func (p *Planner) breaks(cause Cause) []Broken {
	var out []Broken
	slices.SortFunc(p.doubtful, bySubmission)
	for _, pr := range p.doubtful {
		pr.doubtful = false
		if !pr.promised || pr.broken || p.projects[pr.ID] != pr {
			continue
		}
		if d := pr.departure(); d > pr.quote.Latest {
			pr.broken = true
			out = append(out, Broken{pr.ID, cause, d, pr.quote.Latest})
		}
	}
	clear(p.doubtful)
	p.doubtful = p.doubtful[:0]
	return out
}

// Repair plans again what does not fit any more, because a bin shrank or work
// stays past its bound: on each bin that is over capacity at some instant the
// waiting work promised last goes first, until nothing is over. What runs stays.
// O(log n) for each bin that changed since the last Repair, or was over then.
func (p *Planner) Repair(now scheduler.Time, cause Cause) []Broken {
	p.now = now
	p.suspects = append(p.suspects[:0], p.unsound...)
	if !p.prof.log.since(p.repaired, func(b int32) { p.suspects = append(p.suspects, b) }) {
		p.suspects = p.suspects[:0]
		for b := range p.prof.Bins() {
			p.suspects = append(p.suspects, b)
		}
	}
	p.repaired = p.prof.log.head // work goes only where it fits: what changes below stays sound
	slices.Sort(p.suspects)
	p.unsound = p.unsound[:0]
	for _, b := range slices.Compact(p.suspects) {
		if p.bin(b).sound != p.prof.Version(b)+1 && !p.mend(b, now) {
			p.unsound = append(p.unsound, b)
		}
	}
	return p.Replan(now, cause)
}

// mend is Repair for one bin; false where what runs there is too much by itself.
func (p *Planner) mend(b int32, now scheduler.Time) bool {
	for from := now; ; {
		at := p.prof.Over(b, from, scheduler.Never)
		if at == scheduler.Never {
			if from == now {
				p.bins[b].sound = p.prof.Version(b) + 1
			}
			return from == now
		}
		var last *item
		for _, o := range p.bins[b].items {
			if !o.started && !o.group.req.Need.IsZero() && o.spot.At <= at && o.end > at && (last == nil || promisedAfter(o, last)) {
				last = o
			}
		}
		if last == nil {
			if from = p.prof.nextFit(b, at); from == scheduler.Never {
				return false
			}
			continue
		}
		p.again(last, now)
	}
}

func promisedAfter(a, b *item) bool {
	if c := bySubmission(a.group.proj, b.group.proj); c != 0 {
		return c > 0
	}
	return a.key.Compare(b.key) > 0
}
