package backfill

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// workOf returns the work of the last search for an item's place. The finder serves only searches
// from the time of the call.
func (t *placement) workOf(p *Planner, it *item, later bool) int {
	work := workPerTask
	if later || p.classes.finderOf(p, it) == nil {
		work += 2 * int(p.space.profile.Bins())
	}
	if n := t.numTimes; n > 0 {
		work += int(p.space.profile.Bins()) + p.bins.numPlaced + workPerTry*min(n, p.cfg.MaxTries)
	}
	return work
}

// placement places the items of a project, and displaces others for them.
type placement struct {
	numTimes       int    // backfill times examined for the last item
	candidateTimes []Spot // scratch
	delayed        []delayedProject
}

type delayedProject struct {
	project *project
	before  scheduler.Time
}

// placeItem places one item of a new project, given the openTime of its group, and reports whether it fitted.
func (t *placement) placeItem(p *Planner, it *item, from, now scheduler.Time, flexible bool) bool {
	p.stepsLeft -= placeSteps
	it.tried = true
	if from == scheduler.Never {
		return false
	}
	if it.group.req.Need.IsZero() {
		return p.search.placeEarliest(p, it, from, scheduler.Never) || t.placeZeroNeed(p, it, now)
	}
	s, ok := p.search.earliestSpot(p, it, from, scheduler.Never)
	seen := p.bins.freeClock
	if flexible && !it.pinned && t.tryBackfillTimes(p, it, from, now, s, ok) {
		it.setSearched(p, seen, from) // as of before the displaced items freed bins
		return true
	}
	if !ok {
		return false
	}
	p.setSpot(it, s)
	it.setSearched(p, p.bins.freeClock, from)
	return true
}

// placeZeroNeed places an item that needs nothing even where a zero need does not fit: a job with
// all-zero needs occupies nothing.
func (t *placement) placeZeroNeed(p *Planner, it *item, now scheduler.Time) bool {
	for b := range p.space.profile.Bins() {
		if len(it.group.req.Need.Base) == p.space.profile.BaseSize(b) && !p.space.profile.Closed(b) {
			p.setSpot(it, Spot{Bin: b, Disk: -1, At: it.group.openTime(now)})
			return true
		}
	}
	return false
}

// tryBackfillTimes tries the backfill times before the earliest hole in ascending
// order, by time, bin and disk: the loop over BT of Alg. 2, the first Config.MaxTries of them.
// limit is the earliest hole if bounded is true.
func (t *placement) tryBackfillTimes(p *Planner, it *item, from, now scheduler.Time, limit Spot, bounded bool) bool {
	end := scheduler.Never
	if bounded {
		end = limit.At
	}
	t.numTimes = 0
	if from >= end {
		return false
	}
	if t.tryAtOnce(p, it, from, now) {
		return true
	}
	most := p.cfg.MaxTries - t.numTimes
	if most <= 0 || p.stepsLeft <= 0 {
		return false
	}
	t.listBackfillTimes(p, from, end, most)
	t.numTimes += len(t.candidateTimes)
	for n, s := range t.candidateTimes {
		if n >= most || p.stepsLeft <= 0 {
			break
		}
		p.stepsLeft -= trySteps
		if t.trySpot(p, it, s, now) {
			return true
		}
	}
	return false
}

// tryAtOnce tries the first of the backfill times, from, on all bins. On bins full of running tasks
// it only examines each of the first Config.MaxTries disks: the class's finder knows from when on
// its need fits on a bin. It counts the spots in numTimes.
func (t *placement) tryAtOnce(p *Planner, it *item, from, now scheduler.Time) bool {
	f := p.classes.finderOf(p, it)
	bins := 0
	for b := range p.openBins {
		disks := int16(p.space.profile.Disks(b))
		if bins++; bins%binsPerStep == 0 {
			p.stepsLeft--
		}
		first := min(disks, 1) - 1
		if f != nil && !f.fitsAt(p, b, from) {
			t.numTimes += int(disks - first)
			first = disks
		}
		for disk := first; disk < disks && t.numTimes < p.cfg.MaxTries && p.stepsLeft > 0; disk++ {
			t.numTimes++
			p.stepsLeft -= trySteps
			if t.trySpot(p, it, Spot{Bin: b, Disk: disk, At: from}, now) {
				return true
			}
		}
		if t.numTimes >= p.cfg.MaxTries || p.stepsLeft <= 0 {
			return false
		}
	}
	return false
}

// trySpot puts an item at a backfill time if its need fits there, and others can make place for the
// rest of its duration.
func (t *placement) trySpot(p *Planner, it *item, s Spot, now scheduler.Time) bool {
	return !p.bins.leavesTooEarly(&it.group.req, &s) && p.space.profile.FitsAt(s.Bin, s.Disk, s.At, &it.group.req.Need) && t.shiftReservations(p, it, s, now)
}

// listBackfillTimes lists the first most starts and ends of reservations in (from, end) in
// candidateTimes, by time, bin and disk: feasibleBackfillingTimes of Table 5, except for from. The
// caller checks whether the item fits then.
func (t *placement) listBackfillTimes(p *Planner, from, end scheduler.Time, most int) {
	t.candidateTimes = t.candidateTimes[:0]
	limit := end // later times exceed most
	add := func(b int32, at scheduler.Time) {
		if at >= limit {
			return
		}
		disks := int16(p.space.profile.Disks(b))
		for d := min(disks, 1) - 1; d < disks; d++ {
			t.candidateTimes = append(t.candidateTimes, Spot{Bin: b, Disk: d, At: at})
		}
		if len(t.candidateTimes)/8 >= most+8 {
			t.sortTimes()
			t.candidateTimes = t.candidateTimes[:min(most, len(t.candidateTimes))]
			if len(t.candidateTimes) == most { // other spots at the very last time must still be compared
				limit = min(limit, t.candidateTimes[most-1].At.Add(1))
			}
		}
	}
	for b := range p.openBins {
		p.stepsLeft -= len(p.bins.states[b].items) // listed and sorted
		for _, o := range p.bins.states[b].items {
			if o.spot.At > from {
				add(b, o.spot.At)
			}
			if o.end > from {
				add(b, o.end)
			}
		}
	}
	t.sortTimes()
}

func (t *placement) sortTimes() {
	slices.SortFunc(t.candidateTimes, func(a, b Spot) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Bin, b.Bin), cmp.Compare(a.Disk, b.Disk))
	})
	t.candidateTimes = slices.Compact(t.candidateTimes)
}

// shiftReservations puts an item at a spot and delays the reservations in its way, within their
// latest starts and the preemption limit: shiftReservations of Table 5. If the item's account is
// overdrawn, it delays only reservations of the same account. It delays none for a cap alone. On
// failure it restores the plan and returns false.
func (t *placement) shiftReservations(p *Planner, it *item, s Spot, now scheduler.Time) bool {
	p.stepsLeft -= shiftSteps
	mark := len(p.journal.log)
	t.delayed = t.delayed[:0]
	p.setSpot(it, s)
	for {
		at, overdrawn := p.space.profile.FirstOverCapacity(s.Bin, s.At, it.end), p.space.accountOverdrawn(it)
		if at == scheduler.Never && !overdrawn && !p.space.exceedsCaps(it) {
			t.markVictimBinsFreed(p, it, mark)
			return true
		}
		v := t.pickVictim(p, it, s.Bin, at, overdrawn)
		if v == nil || !t.delayVictim(p, v, now) {
			p.journal.rollback(p, mark)
			return false
		}
	}
}

// markVictimBinsFreed marks the bins that the displaced items left since the undo log
// had mark entries.
func (t *placement) markVictimBinsFreed(p *Planner, it *item, mark int) {
	for i := mark; i < len(p.journal.log); i++ {
		if u := &p.journal.log[i]; u.item != it && u.was.placed {
			p.bins.markFreed(u.was.spot.Bin)
		}
	}
}

// delayVictim moves a displaced item to its earliest spot that displaces no other item
// and respects its latest start. It returns false if there is none, or if too many
// projects would depart later.
func (t *placement) delayVictim(p *Planner, v *item, now scheduler.Time) bool {
	pr := v.group.project
	limited := p.cfg.PreemptionLimit != NoLimit
	if limited && !slices.ContainsFunc(t.delayed, func(d delayedProject) bool { return d.project == pr }) {
		t.delayed = append(t.delayed, delayedProject{pr, pr.departure()})
	}
	p.stepsLeft -= shiftSteps
	if limited {
		p.stepsLeft -= pr.size() / 8
	}
	latest, was := p.bins.latestStart(v), v.spot
	p.setSpot(v, Spot{Bin: -1, Disk: was.Disk, At: was.At})
	if v.pinned {
		v.spot.Bin = was.Bin
	}
	if !p.search.placeEarliest(p, v, v.group.openTime(now), latest.Add(1)) {
		return false
	}
	p.stepsLeft -= placeSteps
	if !limited {
		return true
	}
	late := 0
	for _, d := range t.delayed {
		if d.project.departure() > d.before {
			late++
		}
	}
	return late <= p.cfg.PreemptionLimit
}

// pickVictim returns the item of another project that covers a time on a bin, has not started and
// has the largest latest start; ties go to the smallest key. If own is true, the victim must belong
// to the account of it. It returns nil if there is none.
func (t *placement) pickVictim(p *Planner, it *item, b int32, at scheduler.Time, own bool) *item {
	var best *item
	var most scheduler.Time
	for _, o := range p.bins.states[b].items {
		if o.started || o.group.req.Occupied != nil || o.spot.At > at || o.end <= at || o.group.project == it.group.project || !o.group.project.guaranteed {
			continue
		}
		if (p.cfg.Variant == Priority && o.group.project.HighPriority) || (own && o.group.project.Account != it.group.project.Account) {
			continue
		}
		lts := o.group.project.guarantee.Latest.Add(-p.bins.durationOn(&o.group.req, b))
		if best == nil || lts > most || (lts == most && o.key.Compare(best.key) < 0) {
			best, most = o, lts
		}
	}
	return best
}
