package backfill

import (
	"cmp"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// bins lists the items on each bin, and where capacity was released since.
type bins struct {
	states          []binState
	recentlyFreed   []int32        // bins by freedClock, the latest last; may hold outdated duplicates
	freeClock       uint64         // number of releases so far
	numPlaced       int            // items with a spot
	earliestWaiting scheduler.Time // no waiting item starts before it
}

type binState struct {
	items          []*item
	freedClock     uint64 // freeClock at the last release on the bin
	spare          bool
	nonPreemptible bool
	windows        []scheduler.Window // see SetWindows
}

func (s *bins) reset() {
	for i := range s.states {
		b := &s.states[i]
		*b = binState{items: b.items[:0]}
	}
	*s = bins{states: s.states, recentlyFreed: s.recentlyFreed[:0], earliestWaiting: scheduler.Never}
}

func (s *bins) bin(b int32) *binState {
	for int(b) >= len(s.states) {
		s.states = append(s.states, binState{})
	}
	return &s.states[b]
}

func (s *bins) markFreed(b int32) {
	s.freeClock++
	s.bin(b).freedClock = s.freeClock
	s.recentlyFreed = append(s.recentlyFreed, b)
	if len(s.recentlyFreed) > 2*len(s.states)+8 {
		s.compactFreed()
	}
}

func (s *bins) compactFreed() {
	slices.Sort(s.recentlyFreed)
	s.recentlyFreed = slices.Compact(s.recentlyFreed)
	slices.SortFunc(s.recentlyFreed, func(a, b int32) int { return cmp.Compare(s.states[a].freedClock, s.states[b].freedClock) })
}

// latestStart returns the latest start of a placed item that preserves the guarantee
// (eq. 7) and the planned starts of its successors.
func (s *bins) latestStart(it *item) scheduler.Time {
	duration := s.durationOn(&it.group.req, it.spot.Bin)
	at := it.group.project.guarantee.Latest.Add(-duration)
	for _, g := range it.group.successors {
		for _, o := range g.items {
			if o.placed {
				at = min(at, o.spot.At.Add(-duration))
			}
		}
	}
	return at
}

func (s *bins) link(it *item) {
	s.earliestWaiting = min(s.earliestWaiting, it.spot.At)
	b := s.bin(it.spot.Bin)
	it.binIndex = len(b.items)
	b.items = append(b.items, it)
	s.numPlaced++
}

func (s *bins) unlink(it *item) {
	list := s.bin(it.spot.Bin).items
	last := len(list) - 1
	list[it.binIndex] = list[last]
	list[it.binIndex].binIndex = it.binIndex
	list[last] = nil
	s.states[it.spot.Bin].items = list[:last]
	s.numPlaced--
}

// setSpare excludes a bin of a profile from every plan, or includes it again.
func (s *bins) setSpare(prof *Profile, b int32, spare bool) {
	if x := s.bin(b); x.spare != spare {
		x.spare = spare
		prof.MarkChanged(b)
		if !spare {
			s.markFreed(b)
		}
	}
}

func (p *Planner) isOpen(b int32) bool { return !p.space.profile.Closed(b) && !p.bins.bin(b).spare }

func (p *Planner) openBins(yield func(b int32) bool) {
	for b := range p.space.profile.Bins() {
		if p.isOpen(b) && !yield(b) {
			return
		}
	}
}

// space is the future free capacity: of bins, of accounts, and below caps.
type space struct {
	profile  *Profile
	accounts *Profile // nil without accounts
	caps     *Profile // nil without caps
}

// occupy takes a need of an item's task from the profile, its project's account and its caps (sign
// -1), or returns it (sign 1).
func (c *space) occupy(it *item, s *Spot, end scheduler.Time, need *Need, sign int64) {
	c.profile.Change(s.Bin, s.Disk, s.At, end, need, sign)
	c.charge(it, s.At, end, need, sign)
}

// charge takes a need of an item's task from its project's account and its caps, or returns it with sign 1.
func (c *space) charge(it *item, at, end scheduler.Time, need *Need, sign int64) {
	if !c.isCharged(it) {
		return
	}
	total := &it.group.accountNeed
	if !equalNeeds(need, &it.group.req.Need) {
		total = &Need{Base: append(slices.Clone(need.Base), need.IO)}
	}
	if a := it.group.project.Account; a != 0 {
		c.accounts.Change(a-1, -1, at, end, total, sign)
	}
	for _, b := range it.group.req.Caps {
		c.caps.Change(b, -1, at, end, total, sign)
	}
}

// isCharged reports whether an item is charged to an account or to caps.
func (c *space) isCharged(it *item) bool {
	return c.accounts != nil && (it.group.project.Account != 0 || len(it.group.req.Caps) > 0)
}

// occupyBeyond returns, from a suspended task's planned end on, what the task occupies already
// (sign -1), or takes it again (sign 1).
func (c *space) occupyBeyond(it *item, sign int64) {
	if occupied := it.group.req.Occupied; occupied != nil {
		c.profile.Change(it.spot.Bin, it.spot.Disk, it.end, scheduler.Never, occupied, -sign)
	}
}

// earliestByAccount returns the first time at or after at from which the account of the item's
// project, and its caps, have enough for the item during the given duration.
func (c *space) earliestByAccount(it *item, at scheduler.Time, duration time.Duration) scheduler.Time {
	if !c.isCharged(it) {
		return at
	}
	for {
		from := at
		if a := it.group.project.Account; a != 0 {
			s, _ := c.accounts.EarliestAt(a-1, -1, at, duration, scheduler.Never, &it.group.accountNeed)
			at = s.At
		}
		for _, b := range it.group.req.Caps {
			s, _ := c.caps.EarliestAt(b, -1, at, duration, scheduler.Never, &it.group.accountNeed)
			at = s.At
		}
		if at == from || at == scheduler.Never || len(it.group.req.Caps) == 0 {
			return at
		}
	}
}

// accountOverdrawn reports whether the item's account is over its capacity during the
// item's reservation.
func (c *space) accountOverdrawn(it *item) bool {
	a := it.group.project.Account
	return c.accounts != nil && a > 0 && c.accounts.FirstOverCapacity(a-1, it.spot.At, it.end) < scheduler.Never
}

// exceedsCaps reports whether one of the item's caps is exceeded during the item's reservation.
func (c *space) exceedsCaps(it *item) bool {
	return slices.ContainsFunc(it.group.req.Caps, func(b int32) bool { return c.caps.FirstOverCapacity(b, it.spot.At, it.end) < scheduler.Never })
}
