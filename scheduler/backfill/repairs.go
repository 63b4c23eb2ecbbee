package backfill

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// repairs finds violated guarantees and bins over capacity.
type repairs struct {
	unchecked      []*project // projects whose guarantee violations must check, see markUnchecked
	repairedPos    uint64     // position in the profile's change log up to which Repair has read
	overloadedBins []int32    // bins over capacity by their started items alone
	suspectBins    []int32    // scratch
	takenOut       []takenOut // scratch of takeOutSuccessors, empty between calls
}

// takenOut is an item that is temporarily without a place, and where it was.
type takenOut struct {
	item *item
	spot Spot
}

// markUnchecked makes the next call of violations check the guarantee of a project.
func (e *repairs) markUnchecked(pr *project) {
	if pr.unchecked == 0 {
		e.unchecked = append(e.unchecked, pr)
		pr.unchecked = len(e.unchecked)
	}
}

// unmarkUnchecked undoes markUnchecked. O(1): the last entry of the list moves into the gap.
func (e *repairs) unmarkUnchecked(pr *project) {
	if pr.unchecked == 0 {
		return
	}
	last := len(e.unchecked) - 1
	e.unchecked[pr.unchecked-1] = e.unchecked[last]
	e.unchecked[pr.unchecked-1].unchecked = pr.unchecked
	e.unchecked[last], pr.unchecked = nil, 0
	e.unchecked = e.unchecked[:last]
}

// Replan places waiting tasks again, in the order given, as if they were new requests that displace
// no other task: tasks that are late or whose reservation was lost. Successors that would then
// start too early follow; successors of tasks that still have no place stay where they are. Replan
// returns the guarantees that this violates, with the cause. A task that fits nowhere stays
// unplaced; when the budget is spent, the remaining tasks stay as they are.
func (p *Planner) Replan(now scheduler.Time, cause Cause, keys ...Key) []Violation {
	p.now = now
	var pr *project // the project of the last key
	for _, k := range keys {
		if p.stepsLeft <= 0 {
			break
		}
		if it := p.registry.item(k); it != nil && !it.started {
			if pr != it.group.project {
				pr = it.group.project
				p.repairs.putBack(p, now)
				p.repairs.takeOutSuccessors(p, pr, now)
			}
			p.repairs.replanItem(p, it, now)
		}
	}
	p.repairs.putBack(p, now)
	if p.registry.numConstrained > 0 || now > p.bins.earliestWaiting {
		p.repairs.replanLate(p, now)
	}
	return p.repairs.violations(p, cause)
}

// takeOutSuccessors takes out the waiting successors of a project's unplaced items, so that these
// are not placed around them, and too late; putBack must follow. O(items of the project).
func (e *repairs) takeOutSuccessors(p *Planner, pr *project, now scheduler.Time) {
	for _, g := range pr.groups {
		if g.openTime(now) != scheduler.Never {
			continue
		}
		for _, it := range g.items {
			if it.placed && !it.started && !it.pinned {
				e.takenOut = append(e.takenOut, takenOut{it, it.spot})
				p.bins.markFreed(it.spot.Bin)
				p.setSpot(it, Spot{Bin: -1, Disk: it.spot.Disk, At: it.spot.At})
			}
		}
	}
}

// putBack places the items that takeOutSuccessors took out and that are still unplaced: behind their predecessors,
// or where they were if these have no place. If another item is there now, the guarantee cannot be kept.
func (e *repairs) putBack(p *Planner, now scheduler.Time) {
	for _, x := range e.takenOut {
		it := x.item
		if it.placed {
			continue
		}
		if it.group.openTime(now) != scheduler.Never {
			e.replanItem(p, it, now)
			continue
		}
		if it.tried = p.isOpen(x.spot.Bin) && !p.search.stillFits(p, it, x.spot); !it.tried { // on a lost bin it stays lost
			p.setSpot(it, x.spot)
		}
	}
	clear(e.takenOut)
	e.takenOut = e.takenOut[:0]
}

// replanLate places late items again, stage by stage, and items that wait for their predecessors'
// places. Other items whose predecessors have no place yet stay where they are. O(items).
func (e *repairs) replanLate(p *Planner, now scheduler.Time) {
	p.bins.earliestWaiting = scheduler.Never
	for _, pr := range p.registry.submitOrder {
		for _, g := range pr.groups {
			open := g.openTime(now)
			for _, it := range g.items {
				if open != scheduler.Never && it.isLate(open) && (it.placed || it.follows) {
					e.replanItem(p, it, now)
				}
				if it.placed && !it.started {
					p.bins.earliestWaiting = min(p.bins.earliestWaiting, it.spot.At)
				}
			}
		}
	}
}

func (e *repairs) replanItem(p *Planner, it *item, now scheduler.Time) {
	was, from := it.spot, it.group.openTime(now)
	it.follows = from == scheduler.Never
	it.tried = it.tried || !it.follows
	if it.placed {
		p.setSpot(it, Spot{Bin: -1, Disk: was.Disk, At: was.At})
		p.bins.markFreed(was.Bin)
	}
	if it.pinned {
		it.spot.Bin = was.Bin
	}
	if !it.follows && !p.search.placeEarliest(p, it, from, scheduler.Never) && it.group.req.Need.IsZero() {
		p.placement.placeZeroNeed(p, it, now)
	}
}

// LoseBins records that bins were lost. Their waiting tasks are placed again, bin by bin, in
// submission order: at the same start time if there is capacity, first on a spare bin at least as
// large as the lost one, which then stops being spare; otherwise at their earliest start. Tasks
// that were running are placed after those. So no guarantee of waiting tasks is violated while such
// spare bins last. A bin for which keeps returns true accepts no new tasks but keeps those on it:
// started tasks stay, and suspended ones resume there.
//
// It stops before the first bin for which the budget is already spent, and returns false: the tasks on
// the other bins stay until the next call, whose lost must include all bins that still have work.
func (p *Planner) LoseBins(now scheduler.Time, lost []int32, keeps func(b int32) bool) (violated []Violation, done bool) {
	p.now = now
	for _, b := range lost {
		p.space.profile.SetClosed(b, true)
	}
	done = true
	for _, b := range lost {
		if done = p.stepsLeft > 0; !done {
			break
		}
		p.repairs.vacateBin(p, b, now, keeps(b))
	}
	return p.Replan(now, CauseNodeLost), done
}

func (e *repairs) vacateBin(p *Planner, b int32, now scheduler.Time, keeps bool) {
	refuge := e.takeSpareBin(p, b)
	var waiting, ran []*item
	for _, it := range p.bins.bin(b).items {
		if keeps && (it.pinned || it.started) {
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
	slices.SortFunc(ran, inPlanOrder)
	slices.SortFunc(waiting, inPlanOrder)
	for _, it := range ran {
		p.setSpot(it, Spot{Bin: -1})
	}
	for _, it := range waiting {
		if s, ok := p.search.sameTimesElsewhere(p, it, refuge, now); ok {
			p.setSpot(it, s)
		} else {
			e.replanItem(p, it, now)
		}
	}
	for _, it := range ran {
		e.replanItem(p, it, now)
	}
}

func inPlanOrder(a, b *item) int {
	return cmp.Or(bySubmission(a.group.project, b.group.project), a.key.Compare(b.key))
}

// takeSpareBin returns a spare bin with at least the capacity of the lost one and makes
// it an ordinary bin. It returns -1 if there is none.
func (e *repairs) takeSpareBin(p *Planner, lost int32) int32 {
	for b := range p.space.profile.Bins() {
		if p.bins.bin(b).spare && !p.space.profile.Closed(b) && p.space.profile.CanReplace(b, lost) {
			p.bins.setSpare(p.space.profile, b, false)
			return b
		}
	}
	return -1
}

// violations returns, in submission order, the guarantees that no longer hold and were not reported
// yet. A guarantee that held so far is left to the next call if a task has no place only because
// none was searched for yet. O(items of the projects of which an item moved).
func (e *repairs) violations(p *Planner, cause Cause) []Violation {
	var out []Violation
	slices.SortFunc(e.unchecked, bySubmission)
	left := e.unchecked[:0]
	for _, pr := range e.unchecked {
		pr.unchecked = 0
		if !pr.guaranteed || pr.violated || p.registry.projects[pr.ID] != pr {
			continue
		}
		d, untried := pr.departureSoFar()
		switch {
		case d > pr.guarantee.Latest:
			p.rounds.alter(pr)
			pr.violated = true
			out = append(out, Violation{pr.ID, cause, d, pr.guarantee.Latest})
		case untried:
			left = append(left, pr)
			pr.unchecked = len(left)
		}
	}
	clear(e.unchecked[len(left):])
	e.unchecked = left
	return out
}

// Repair restores capacity after a bin shrank or a task stayed past its bound: on each
// bin that is over capacity at some time, it replans the waiting task submitted last
// until the bin is within capacity. Started tasks stay. O(log n) for each bin that
// changed since the last Repair or was over capacity then.
func (p *Planner) Repair(now scheduler.Time, cause Cause) []Violation {
	p.now = now
	e := &p.repairs
	e.suspectBins = append(e.suspectBins[:0], e.overloadedBins...)
	if !p.space.profile.ChangedSince(e.repairedPos, func(b int32) { e.suspectBins = append(e.suspectBins, b) }) {
		e.suspectBins = e.suspectBins[:0]
		for b := range p.space.profile.Bins() {
			e.suspectBins = append(e.suspectBins, b)
		}
	}
	e.repairedPos = p.space.profile.ChangePosition() // items are placed only where they fit, so the bins changed below stay within capacity
	slices.Sort(e.suspectBins)
	e.overloadedBins = e.overloadedBins[:0]
	for _, b := range slices.Compact(e.suspectBins) {
		if !p.space.profile.IsWithinCapacity(b, now) && !e.repairBin(p, b, now) {
			e.overloadedBins = append(e.overloadedBins, b)
		}
	}
	return p.Replan(now, cause)
}

// repairBin is Repair for one bin. It returns false if the started items alone exceed
// its capacity.
func (e *repairs) repairBin(p *Planner, b int32, now scheduler.Time) bool {
	for from := now; ; {
		at := p.space.profile.FirstOverCapacity(b, from, scheduler.Never)
		if at == scheduler.Never {
			return from == now
		}
		var last *item
		for _, o := range p.bins.bin(b).items {
			if !o.started && !o.group.req.Need.IsZero() && o.spot.At <= at && o.end > at && (last == nil || inPlanOrder(o, last) > 0) {
				last = o
			}
		}
		if last == nil {
			if from = e.firstToRepair(p, b, at); from == scheduler.Never {
				return false
			}
			continue
		}
		e.replanItem(p, last, now)
	}
}

// firstToRepair returns, after at, when started items alone exceed a bin's capacity, the first time
// when that ends or a waiting item begins, Never if neither happens.
func (e *repairs) firstToRepair(p *Planner, b int32, at scheduler.Time) scheduler.Time {
	first := p.space.profile.FirstWithinCapacity(b, at)
	for _, o := range p.bins.bin(b).items {
		if !o.started && !o.group.req.Need.IsZero() && o.spot.At > at {
			first = min(first, o.spot.At)
		}
	}
	return first
}
