package backfill

import (
	"cmp"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Start records that a task starts now. The task must be planned for now or earlier; in
// the latter case its reservation moves to now, even if that takes a bin over capacity,
// so callers replan the LateTasks first. Unknown keys are ignored.
func (p *Planner) Start(k Key, now scheduler.Time) {
	it := p.item(k)
	if it == nil || !it.placed || it.started {
		return
	}
	if it.spot.At != now {
		p.setSpot(it, Spot{Bin: it.spot.Bin, Disk: it.spot.Disk, At: now})
	}
	it.started = true
	g := it.group
	if i := slices.Index(g.items, it); i > 0 && !g.items[i-1].started { // started items first
		j := slices.IndexFunc(g.items, func(o *item) bool { return !o.started })
		g.items = slices.Insert(slices.Delete(g.items, i, i+1), j, it)
	}
}

// End removes a task that ended, or will never run, from the plan. It reports whether
// the task released capacity before its bound, so that Compress can use it. Unknown
// keys are ignored.
func (p *Planner) End(k Key, now scheduler.Time) (early bool) {
	it := p.item(k)
	if it == nil {
		return false
	}
	if it.placed {
		early = it.end > now
		b := it.spot.Bin
		p.setSpot(it, Spot{Bin: -1})
		if early {
			p.MarkFreed(b)
		}
	}
	delete(p.items, k)
	g := it.group
	if i := slices.Index(g.items, it); i >= 0 {
		g.items = slices.Delete(g.items, i, i+1)
		if p.numItems--; g.eqClass != nil {
			g.eqClass.live--
		}
	}
	pr := g.project
	for _, o := range pr.groups {
		if len(o.items) > 0 {
			return early
		}
	}
	p.unregister(pr)
	return early
}

// Compress moves waiting tasks forward into released capacity: in submission order,
// each is removed and placed again at its earliest start. No task moves later, and a
// task that cannot start earlier keeps its bin. It returns the number of moved tasks.
// For each task it considers only bins where capacity was released since the task was
// last placed, so after one early end it costs O(waiting) plus a search for each task
// that the hole can serve.
func (p *Planner) Compress(now scheduler.Time) int {
	moved, _, _ := p.CompressSome(now, Position{Submitted: math.MinInt64}, math.MaxInt)
	return moved
}

// Position is the place of a project in submission order.
type Position struct {
	Submitted scheduler.Time
	ID        scheduler.ProjectID
}

// CompressSome is Compress for the projects after a position; it stops at the end of
// the project in which it has considered at least limit tasks, and where the budget is spent. It
// returns the number of moved tasks and either done or the position to continue after.
func (p *Planner) CompressSome(now scheduler.Time, after Position, limit int) (moved int, next Position, done bool) {
	p.now = now
	i, found := slices.BinarySearchFunc(p.submitOrder, after, func(pr *project, a Position) int {
		return cmp.Or(cmp.Compare(pr.Submitted, a.Submitted), cmp.Compare(pr.ID, a.ID))
	})
	if found {
		i++
	}
	for looked := 0; i < len(p.submitOrder); i++ {
		pr := p.submitOrder[i]
		if looked >= limit {
			return moved, after, false
		}
		for _, g := range pr.groups {
			from := now
			if len(g.predecessors) > 0 || g.req.MaxParallel > 0 || g.req.NotBefore > 0 {
				from = g.openTime(now)
			}
			for _, it := range g.items {
				if it.started || !it.placed {
					continue
				}
				looked++
				if !p.moveEarlier(it, it.earliestByParallelism(from), now) {
					continue
				}
				moved++
				if p.stepsLeft -= placeSteps; p.stepsLeft <= 0 {
					return moved, after, false
				}
			}
		}
		after = Position{pr.Submitted, pr.ID}
	}
	return moved, Position{}, true
}

// moveEarlier moves an item to an earlier start at or after from, if there is one.
func (p *Planner) moveEarlier(it *item, from, now scheduler.Time) bool {
	if it.spot.At <= from {
		return false
	}
	p.syncSearched(it)
	// A predecessor moved, or the account may have capacity again: consider every bin.
	all := (from < it.searchedFrom && it.searchedFrom > now) || (p.accounts != nil && it.group.project.Account != 0)
	if !all && p.binStates[p.lastFreedBin()].freedClock <= it.searchedClock {
		return false
	}
	was := it.spot
	var best Spot
	var found bool
	if all || it.pinned || p.alwaysLift {
		p.liftItem(it, 1)
		best, found = p.earliestSpotOnFreed(it, from, all)
		found = found && p.earliestByAccount(it, best.At, p.durationOn(it, best.Bin)) <= best.At
		p.liftItem(it, -1)
	} else {
		best, found = p.earliestOnFreedBins(it, from)
	}
	it.setSearched(p, p.freeClock, from)
	if !found {
		return false
	}
	p.setSpot(it, best)
	p.MarkFreed(was.Bin)
	return true
}

// liftItem takes an item out of the profile and its account for a search, or puts it
// back with sign -1.
func (p *Planner) liftItem(it *item, sign int64) {
	p.profile.ChangeUnlogged(it.spot.Bin, it.spot.Disk, it.spot.At, it.end, &it.group.req.Need, sign)
	p.chargeAccount(it, sign)
	if f := p.classOf(it.group).finder; f != nil && f.logPos != math.MaxUint64 {
		f.sync(p, p.now)
		f.updateBin(p, it.spot.Bin)
	}
}

// lastFreedBin returns the bin on which capacity was last released.
func (p *Planner) lastFreedBin() int32 {
	if len(p.recentlyFreed) == 0 {
		p.bin(0)
		return 0
	}
	return p.recentlyFreed[len(p.recentlyFreed)-1]
}

// cachedBins is the number of bins for which a class caches the earliest start.
const cachedBins = 16

// cachedStart is the earliest start at or after from of a class on a bin.
type cachedStart struct {
	version uint64 // 1 + the bin's version
	from    scheduler.Time
	spot    Spot // at Never if there is none
}

// earliestOnFreedBins returns what earliestSpotOnFreed finds with the item lifted, but
// does not lift it. The earliest start beside the item is cached for the whole class,
// and on the item's own bin its own reservation extends the capacity that is free just
// before it.
func (p *Planner) earliestOnFreedBins(it *item, from scheduler.Time) (best Spot, found bool) {
	best = it.spot
	for i := len(p.recentlyFreed) - 1; i >= 0; i-- {
		b := p.recentlyFreed[i]
		if p.binStates[b].freedClock <= it.searchedClock {
			break
		}
		if p.profile.Closed(b) || p.binStates[b].spare {
			continue
		}
		s := p.earliestOnBin(it, b, from, best.At)
		if b == it.spot.Bin {
			s = p.earliestOnOwnBin(it, from, s)
		}
		// Ties between bins go to the lowest, as in earliestSpot.
		if s.At < best.At || (found && s.At == best.At && s.Bin < best.Bin) {
			best, found = s, true
		}
	}
	return best, found
}

// earliestOnBin returns the earliest start at or after from on a bin for the item's
// class. If the item is the only one of its class, the search stops after by.
func (p *Planner) earliestOnBin(it *item, b int32, from, by scheduler.Time) Spot {
	c, need, duration := p.classOf(it.group), &it.group.req.Need, p.durationOn(it, b)
	if c.live == 1 {
		s, _ := p.profile.EarliestOn(b, from, duration, by.Add(1), need)
		return s
	}
	if c.cachedStarts == nil {
		c.cachedStarts = &[cachedBins]cachedStart{}
	}
	h := &c.cachedStarts[b%cachedBins]
	if v := p.profile.Version(b) + 1; h.spot.Bin != b || h.version != v || h.from != from {
		s, _ := p.profile.EarliestOn(b, from, duration, scheduler.Never, need)
		*h = cachedStart{v, from, s}
	}
	return h.spot
}

// earliestOnOwnBin returns the earlier of best and the spot on its own bin that the
// item can move to because its own reservation counts as free: the time since which
// capacity is free up to its start. Another disk qualifies if it has capacity from that
// start on as well; ties go to the lowest disk. If the bin is over capacity meanwhile,
// this reasoning fails, so the item is lifted and searched for.
func (p *Planner) earliestOnOwnBin(it *item, from scheduler.Time, best Spot) Spot {
	b, start, need := it.spot.Bin, it.spot.At, &it.group.req.Need
	if p.profile.FirstOverCapacity(b, start, it.end) != scheduler.Never {
		p.profile.ChangeUnlogged(b, it.spot.Disk, start, it.end, need, 1)
		best, _ = p.profile.EarliestOn(b, from, p.durationOn(it, b), scheduler.Never, need)
		p.profile.ChangeUnlogged(b, it.spot.Disk, start, it.end, need, -1)
		return best
	}
	disks := int16(p.profile.Disks(b))
	for disk := min(disks, 1) - 1; disk < max(disks, 1); disk++ {
		s := Spot{Bin: b, Disk: disk, At: p.profile.EarliestFreeUntil(b, disk, from, start, need)}
		if s.At >= start || s.At > best.At || (s.At == best.At && disk >= best.Disk) {
			continue
		}
		if own := (Need{Base: p.zeroBase(len(need.Base)), IO: need.IO, Space: need.Space}); disk == it.spot.Disk || p.profile.Fits(b, disk, start, s.At.Add(p.durationOn(it, b)), &own) {
			best = s
		}
	}
	return best
}

// zeroBase returns the base of a need of none of the given number of resources.
func (p *Planner) zeroBase(resources int) []int64 {
	for len(p.zeros) < resources {
		p.zeros = append(p.zeros, 0)
	}
	return p.zeros[:resources]
}

// earliestSpotOnFreed returns an earlier spot on the bins where capacity was released
// since the item was placed, or on all bins.
func (p *Planner) earliestSpotOnFreed(it *item, from scheduler.Time, all bool) (Spot, bool) {
	before := it.spot.At
	if all || it.pinned {
		return p.earliestSpot(it, from, before)
	}
	best, found := Spot{Bin: -1}, false
	for i := len(p.recentlyFreed) - 1; i >= 0; i-- {
		b := p.recentlyFreed[i]
		if p.binStates[b].freedClock <= it.searchedClock {
			break
		}
		if p.profile.Closed(b) || p.binStates[b].spare {
			continue
		}
		// Ties between bins go to the lowest, as in earliestSpot.
		limit := before
		if found && b < best.Bin {
			limit = before.Add(1)
		}
		if s, ok := p.profile.EarliestOn(b, from, p.durationOn(it, b), limit, &it.group.req.Need); ok {
			best, found, before = s, true, s.At
		}
	}
	return best, found
}

// isLate reports whether an item that waits has no spot or is planned to start before
// it can, given the openTime of its group.
func (it *item) isLate(open scheduler.Time) bool {
	return !it.started && (!it.placed || it.spot.At < it.earliestByParallelism(open))
}

// Replan places waiting tasks again, in the order given, as if they were new requests
// that displace no other task: tasks that are late or whose reservation was lost.
// Successors that would then start too early follow. It returns the guarantees violated
// by that, with the cause. A task that fits nowhere stays unplaced.
func (p *Planner) Replan(now scheduler.Time, cause Cause, keys ...Key) []Violation {
	p.now = now
	for _, k := range keys {
		if it := p.item(k); it != nil && !it.started {
			p.replanItem(it, now)
		}
	}
	if p.numConstrained > 0 || now > p.earliestWaiting {
		p.replanLate(now)
	}
	return p.violations(cause)
}

// replanLate places late items again, stage by stage. O(items).
func (p *Planner) replanLate(now scheduler.Time) {
	p.earliestWaiting = scheduler.Never
	for _, pr := range p.submitOrder {
		for _, g := range pr.groups {
			open := g.openTime(now)
			for _, it := range g.items {
				if it.placed && it.isLate(open) {
					p.replanItem(it, now)
				}
				if it.placed && !it.started {
					p.earliestWaiting = min(p.earliestWaiting, it.spot.At)
				}
			}
		}
	}
}

// replanItem removes an item from the plan and places it again.
func (p *Planner) replanItem(it *item, now scheduler.Time) {
	was := it.spot
	if it.placed {
		p.setSpot(it, Spot{Bin: -1, Disk: was.Disk, At: was.At})
		p.MarkFreed(was.Bin)
	}
	if it.pinned {
		it.spot.Bin = was.Bin
	}
	from := p.readyTime(it, now)
	if from != scheduler.Never && !p.placeEarliest(it, from, scheduler.Never) && it.group.req.Need.IsZero() {
		p.placeZeroNeed(it, now)
	}
}

// LoseBin records that a bin was lost. Its waiting tasks are placed again in submission
// order: at the same start time if there is capacity, first on a spare bin at least as
// large as the lost one, which then stops being spare; otherwise at their earliest
// start. Tasks that were running are placed after those. So no guarantee of waiting
// tasks is violated while such spare bins last.
func (p *Planner) LoseBin(b int32, now scheduler.Time) []Violation { return p.vacateBin(b, now, false) }

// DrainBin is LoseBin for a bin that accepts no new tasks but keeps those on it:
// started tasks stay, and suspended ones resume there.
func (p *Planner) DrainBin(b int32, now scheduler.Time) []Violation { return p.vacateBin(b, now, true) }

func (p *Planner) vacateBin(b int32, now scheduler.Time, keeps bool) []Violation {
	p.now = now
	p.profile.SetClosed(b, true)
	refuge := p.takeSpareBin(b)
	var waiting, ran []*item
	for _, pr := range p.submitOrder {
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
		p.setSpot(it, Spot{Bin: -1})
	}
	for _, it := range waiting {
		if s, ok := p.sameTimesElsewhere(it, refuge, now); ok {
			p.setSpot(it, s)
		} else {
			p.replanItem(it, now)
		}
	}
	for _, it := range ran {
		p.replanItem(it, now)
	}
	return p.Replan(now, CauseNodeLost)
}

// takeSpareBin returns a spare bin with at least the capacity of the lost one and makes
// it an ordinary bin. It returns -1 if there is none.
func (p *Planner) takeSpareBin(lost int32) int32 {
	for b := range p.profile.Bins() {
		if p.bin(b).spare && !p.profile.Closed(b) && p.profile.CanReplace(b, lost) {
			p.SetSpare(b, false)
			return b
		}
	}
	return -1
}

// sameTimesElsewhere returns a spot on another bin with exactly the item's start and
// end.
func (p *Planner) sameTimesElsewhere(it *item, refuge int32, now scheduler.Time) (Spot, bool) {
	if it.spot.At < now {
		return Spot{}, false // the profile does not tell of the past
	}
	need := &it.group.req.Need
	if refuge >= 0 && p.profile.Fits(refuge, it.spot.Disk, it.spot.At, it.end, need) {
		return Spot{Bin: refuge, Disk: it.spot.Disk, At: it.spot.At}, true
	}
	for b := range p.profile.Bins() {
		if p.profile.Closed(b) || p.bin(b).spare {
			continue
		}
		if s, ok := p.profile.EarliestOn(b, it.spot.At, p.durationOn(it, b), it.spot.At.Add(1), need); ok {
			return s, true
		}
	}
	return Spot{}, false
}

// violations returns, in submission order, the guarantees that no longer hold and were
// not reported yet. O(items of the projects of which an item moved).
func (p *Planner) violations(cause Cause) []Violation {
	var out []Violation
	slices.SortFunc(p.unchecked, bySubmission)
	for _, pr := range p.unchecked {
		pr.unchecked = false
		if !pr.guaranteed || pr.violated || p.projects[pr.ID] != pr {
			continue
		}
		if d := pr.departure(); d > pr.guarantee.Latest {
			p.alter(pr)
			pr.violated = true
			out = append(out, Violation{pr.ID, cause, d, pr.guarantee.Latest})
		}
	}
	clear(p.unchecked)
	p.unchecked = p.unchecked[:0]
	return out
}

// Repair restores capacity after a bin shrank or a task stayed past its bound: on each
// bin that is over capacity at some time, it replans the waiting task submitted last
// until the bin is within capacity. Started tasks stay. O(log n) for each bin that
// changed since the last Repair or was over capacity then.
func (p *Planner) Repair(now scheduler.Time, cause Cause) []Violation {
	p.now = now
	p.suspectBins = append(p.suspectBins[:0], p.overloadedBins...)
	if !p.profile.ChangedSince(p.repairedPos, func(b int32) { p.suspectBins = append(p.suspectBins, b) }) {
		p.suspectBins = p.suspectBins[:0]
		for b := range p.profile.Bins() {
			p.suspectBins = append(p.suspectBins, b)
		}
	}
	p.repairedPos = p.profile.ChangePosition() // items are placed only where they fit, so the bins changed below stay within capacity
	slices.Sort(p.suspectBins)
	p.overloadedBins = p.overloadedBins[:0]
	for _, b := range slices.Compact(p.suspectBins) {
		if !p.profile.IsWithinCapacity(b, now) && !p.repairBin(b, now) {
			p.overloadedBins = append(p.overloadedBins, b)
		}
	}
	return p.Replan(now, cause)
}

// repairBin is Repair for one bin. It returns false if the started items alone exceed
// its capacity.
func (p *Planner) repairBin(b int32, now scheduler.Time) bool {
	for from := now; ; {
		at := p.profile.FirstOverCapacity(b, from, scheduler.Never)
		if at == scheduler.Never {
			return from == now
		}
		var last *item
		for _, o := range p.bin(b).items {
			if !o.started && !o.group.req.Need.IsZero() && o.spot.At <= at && o.end > at && (last == nil || submittedAfter(o, last)) {
				last = o
			}
		}
		if last == nil {
			if from = p.profile.FirstWithinCapacity(b, at); from == scheduler.Never {
				return false
			}
			continue
		}
		p.replanItem(last, now)
	}
}

func submittedAfter(a, b *item) bool {
	if c := bySubmission(a.group.project, b.group.project); c != 0 {
		return c > 0
	}
	return a.key.Compare(b.key) > 0
}
