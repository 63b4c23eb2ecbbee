package backfill

import (
	"math"

	"github.com/drover-run/drover/scheduler"
)

type search struct {
	zeros []int64 // all 0, see zeroBase
}

// earliestSpot returns the earliest spot for an item in [from, before) that displaces
// no reservation: earliestStartingTime of Table 5. While the account of the item's
// project has too little, the search continues from the time at which it has enough;
// each retry passes a step of the account.
func (f *search) earliestSpot(p *Planner, it *item, from, before scheduler.Time) (Spot, bool) {
	if !it.group.req.SoftBound {
		from = p.space.earliestByAccount(it, from, it.group.req.Bound)
	}
	for {
		s, ok := f.earliestSpotOnBins(p, it, from, before)
		if !ok {
			return s, false
		}
		at := p.space.earliestByAccount(it, s.At, p.bins.durationOn(&it.group.req, s.Bin))
		if at <= s.At {
			return s, true
		}
		if from = at; from >= before {
			return Spot{Bin: -1}, false
		}
	}
}

func (f *search) earliestSpotOnBins(p *Planner, it *item, from, before scheduler.Time) (Spot, bool) {
	best, found := Spot{Bin: -1}, false
	if from >= before {
		return best, false
	}
	p.stepsLeft -= p.classes.costOfSearch(p, it)
	if it.pinned {
		return f.earliestOn(p, &it.group.req, it.spot.Bin, it.spot.Disk, from, before)
	}
	if from == p.now {
		if f := p.classes.finderOf(p, it); f != nil {
			return f.earliest(p, from, before)
		}
	}
	for b := range p.openBins {
		if s, ok := f.earliestOn(p, &it.group.req, b, anyDisk, from, before); ok {
			if best, found = s, true; s.At <= from {
				break
			}
			before = s.At
		}
	}
	return best, found
}

// stillFits reports whether an item without a place fits at its former spot.
func (f *search) stillFits(p *Planner, it *item, s Spot) bool {
	_, fits := f.earliestOn(p, &it.group.req, s.Bin, s.Disk, s.At, s.At.Add(1))
	return fits && p.space.earliestByAccount(it, s.At, p.bins.durationOn(&it.group.req, s.Bin)) <= s.At
}

// placeEarliest puts an item at its earliest spot in [from, before) and reports whether
// there is one.
func (f *search) placeEarliest(p *Planner, it *item, from, before scheduler.Time) bool {
	s, ok := f.earliestSpot(p, it, from, before)
	if ok {
		p.setSpot(it, s)
		it.setSearched(p, p.bins.freeClock, from)
	}
	return ok
}

// moveEarlier moves an item to an earlier start at or after from, if there is one.
func (f *search) moveEarlier(p *Planner, it *item, from, now scheduler.Time) bool {
	if it.spot.At <= from {
		return false
	}
	p.rounds.syncSearched(it)
	// A predecessor moved, or the account may have capacity again: consider every bin.
	all := (from < it.searched.from && it.searched.from > now) || p.space.isCharged(it)
	if !all && p.bins.freeClock <= it.searched.clock {
		return false
	}
	was := it.spot
	var best Spot
	var found bool
	if all || it.pinned {
		f.liftItem(p, it, 1)
		best, found = f.earliestSpot(p, it, from, it.spot.At)
		found = found && p.space.earliestByAccount(it, best.At, p.bins.durationOn(&it.group.req, best.Bin)) <= best.At
		f.liftItem(p, it, -1)
	} else {
		best, found = f.earliestOnFreedBins(p, it, from)
	}
	it.setSearched(p, p.bins.freeClock, from)
	if !found {
		return false
	}
	p.setSpot(it, best)
	p.bins.markFreed(was.Bin)
	return true
}

// liftItem takes an item out of the profile and its account for a search, or puts it
// back with sign -1.
func (f *search) liftItem(p *Planner, it *item, sign int64) {
	p.space.profile.ChangeUnlogged(it.spot.Bin, it.spot.Disk, it.spot.At, it.end, &it.group.req.Need, sign)
	p.space.charge(it, it.spot.At, it.end, &it.group.req.Need, sign)
	if f := p.classes.classOf(p, it.group).finder; f != nil && f.logPos != math.MaxUint64 {
		f.sync(p, p.now)
		f.updateBin(p, it.spot.Bin)
	}
}

const cachedBins = 64

// cachedStart is the earliest start at or after from of a class on a bin.
type cachedStart struct {
	version uint64 // 1 + the bin's version
	from    scheduler.Time
	spot    Spot // at Never if there is none
}

// earliestOnFreedBins returns what earliestSpot would find with the item lifted, if that is on a
// bin where capacity was released since the item was placed, but it does not lift the item. The
// earliest start beside the item is cached for the whole class, and on the item's own bin its own
// reservation extends the capacity that is free just before it.
func (f *search) earliestOnFreedBins(p *Planner, it *item, from scheduler.Time) (best Spot, found bool) {
	if s, ok, known := f.earliestByFinder(p, it, from); known {
		return s, ok
	}
	best = it.spot
	for i := len(p.bins.recentlyFreed) - 1; i >= 0; i-- {
		b := p.bins.recentlyFreed[i]
		if p.bins.states[b].freedClock <= it.searched.clock {
			break
		}
		if !p.isOpen(b) {
			continue
		}
		s := f.earliestOnBin(p, it, b, from, best.At)
		if b == it.spot.Bin {
			s = f.earliestOnOwnBin(p, it, from, s)
		}
		// Ties between bins go to the lowest, as in earliestSpot.
		if s.At < best.At || (found && s.At == best.At && s.Bin < best.Bin) {
			best, found = s, true
		}
	}
	return best, found
}

// earliestByFinder is earliestOnFreedBins by the finder of the item's class, which knows the
// earliest start on all bins: if that is earlier than the item's, it is on a freed bin. known is
// false if there is no finder, few bins were freed, or the earliest start is elsewhere.
func (f *search) earliestByFinder(p *Planner, it *item, from scheduler.Time) (best Spot, found, known bool) {
	freed, few := p.bins.recentlyFreed, p.classes.finderThreshold
	if n := len(freed); from != p.now || n < few || p.bins.states[freed[n-few]].freedClock <= it.searched.clock {
		return best, false, false
	}
	finder := p.classes.finderOf(p, it)
	if finder == nil {
		return best, false, false
	}
	best, found = finder.earliest(p, from, it.spot.At)
	if found && p.bins.states[best.Bin].freedClock <= it.searched.clock {
		return best, false, false
	}
	own := it.spot.Bin
	if p.bins.states[own].freedClock <= it.searched.clock || !p.isOpen(own) {
		return best, found, true
	}
	s := f.earliestOnOwnBin(p, it, from, f.earliestOnBin(p, it, own, from, it.spot.At))
	if s.At < it.spot.At && (!found || best.Bin == own || s.At < best.At || (s.At == best.At && own < best.Bin)) {
		best, found = s, true
	}
	return best, found, true
}

// earliestOnBin returns the earliest start at or after from on a bin for the item's
// class. If the item is the only one of its class, the search stops after by.
func (f *search) earliestOnBin(p *Planner, it *item, b int32, from, by scheduler.Time) Spot {
	c, r := p.classes.classOf(p, it.group), &it.group.req
	if c.live == 1 {
		s, _ := f.earliestOn(p, r, b, anyDisk, from, by.Add(1))
		return s
	}
	if c.cachedStarts == nil {
		c.cachedStarts = &[cachedBins]cachedStart{}
	}
	h := &c.cachedStarts[b%cachedBins]
	if v := p.space.profile.Version(b) + 1; h.spot.Bin != b || h.version != v || h.from != from {
		s, _ := f.earliestOn(p, r, b, anyDisk, from, scheduler.Never)
		*h = cachedStart{v, from, s}
	}
	return h.spot
}

// earliestOnOwnBin returns the earlier of best and the spot on its own bin that the item can move
// to because its own reservation counts as free: the time since which capacity is free up to its
// start. Another disk qualifies if it has capacity from that start on as well; ties go to the
// lowest disk. If the bin is over capacity meanwhile, or its tasks stay until it leaves, this
// reasoning fails, so the item is lifted and searched for.
func (f *search) earliestOnOwnBin(p *Planner, it *item, from scheduler.Time, best Spot) Spot {
	b, start, need := it.spot.Bin, it.spot.At, &it.group.req.Need
	if p.bins.leaves(&it.group.req, b) || p.space.profile.FirstOverCapacity(b, start, it.end) != scheduler.Never {
		p.space.profile.ChangeUnlogged(b, it.spot.Disk, start, it.end, need, 1)
		best, _ = f.earliestOn(p, &it.group.req, b, anyDisk, from, scheduler.Never)
		p.space.profile.ChangeUnlogged(b, it.spot.Disk, start, it.end, need, -1)
		return best
	}
	disks := int16(p.space.profile.Disks(b))
	for disk := min(disks, 1) - 1; disk < max(disks, 1); disk++ {
		s := Spot{Bin: b, Disk: disk, At: p.space.profile.EarliestFreeUntil(b, disk, from, start, need)}
		if s.At >= start || s.At > best.At || (s.At == best.At && disk >= best.Disk) {
			continue
		}
		if own := (Need{Base: f.zeroBase(len(need.Base)), IO: need.IO, Space: need.Space}); disk == it.spot.Disk || p.space.profile.Fits(b, disk, start, s.At.Add(p.bins.durationOn(&it.group.req, b)), &own) {
			best = s
		}
	}
	return best
}

func (f *search) zeroBase(resources int) []int64 {
	for len(f.zeros) < resources {
		f.zeros = append(f.zeros, 0)
	}
	return f.zeros[:resources]
}

// sameTimesElsewhere returns a spot on another bin with exactly the item's start and
// end.
func (f *search) sameTimesElsewhere(p *Planner, it *item, refuge int32, now scheduler.Time) (Spot, bool) {
	if it.spot.At < now {
		return Spot{}, false // the profile has no past
	}
	need := &it.group.req.Need
	if refuge >= 0 && p.space.profile.Fits(refuge, it.spot.Disk, it.spot.At, it.end, need) {
		return Spot{Bin: refuge, Disk: it.spot.Disk, At: it.spot.At}, true
	}
	for b := range p.openBins {
		if s, ok := f.earliestOn(p, &it.group.req, b, anyDisk, it.spot.At, it.spot.At.Add(1)); ok {
			return s, true
		}
	}
	return Spot{}, false
}
