package backfill

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Submit plans a project and guarantees its departure time (Alg. 1-3). Tasks that can
// start at once are planned for now; the caller must call Start for them. An error
// (ErrNeverFits, ErrTooLate, or an inconsistent project) leaves the plan as it was;
// with ErrTooLate, Guarantee.Departure is when the project could depart. O(tasks of the
// project x bins), plus the displacements tried.
func (p *Planner) Submit(now scheduler.Time, in Project) (Guarantee, error) {
	p.beginRecording(now)
	defer p.endRecording()
	return p.submit(now, in)
}

func (p *Planner) beginRecording(now scheduler.Time) {
	p.undoLog, p.recording, p.now = p.undoLog[:0], true, now
}

func (p *Planner) endRecording() { p.undoLog, p.recording = p.undoLog[:0], false }

func (p *Planner) submit(now scheduler.Time, in Project) (Guarantee, error) {
	pr, err := p.register(in)
	if err != nil {
		return Guarantee{}, err
	}
	if err := p.completePlan(now, pr); err != nil {
		p.unregister(pr)
		return pr.guarantee, err
	}
	return pr.guarantee, nil
}

// isFlexible reports whether tasks of a new project may take backfill times, at which reservations of
// others are moved.
func (p *Planner) isFlexible(pr *project) bool {
	return p.cfg.Variant == Flexible || p.cfg.Variant == FlexibleSF || (p.cfg.Variant == Priority && pr.HighPriority)
}

// completePlan places the unplaced tasks of a project and guarantees its departure if
// it has no guarantee.
func (p *Planner) completePlan(now scheduler.Time, pr *project) error {
	budget := p.stepsLeft
	flexible := p.isFlexible(pr)
	for _, g := range pr.groups {
		for _, it := range g.items {
			if it.placed {
				continue
			}
			if p.stepsLeft <= 0 {
				return fmt.Errorf("project %d: %w", pr.ID, ErrUnfinished)
			}
			if !p.placeItem(it, now, flexible) {
				p.rollback(0)
				p.stepsLeft = budget // so that CompleteWhatFits gets as far
				return fmt.Errorf("project %d, job %d stage %d task %d: %w", pr.ID, it.key.Job, it.key.Stage, it.key.Task, ErrNeverFits)
			}
		}
	}
	if pr.guaranteed {
		return nil
	}
	p.alter(pr)
	pr.guarantee = p.computeGuarantee(pr)
	if pr.Deadline > 0 && pr.guarantee.Departure > pr.Deadline {
		p.rollback(0)
		return fmt.Errorf("project %d: %w", pr.ID, ErrTooLate)
	}
	pr.guaranteed = true
	return nil
}

// CompleteWhatFits is CompletePlan for a project of which some tasks may fit nowhere:
// it places the others and guarantees nothing. It returns false if the budget is spent before
// all have been tried.
func (p *Planner) CompleteWhatFits(now scheduler.Time, id scheduler.ProjectID) (done bool) {
	pr := p.projects[id]
	if pr == nil {
		return true
	}
	p.beginRecording(now)
	defer p.endRecording()
	for _, g := range pr.groups {
		for _, it := range g.items {
			if it.placed {
				continue
			}
			if p.stepsLeft <= 0 {
				return false
			}
			if !p.placeItem(it, now, false) && !it.pinned {
				break // the others need the same, and may start no earlier
			}
		}
	}
	return true
}

// Restore adds a project to a planner of tries (Reset). at describes each of its tasks, given
// its need. Nothing of the project is referred to afterwards, except what Occupied points to.
// guarantee is the project's guarantee if guaranteed is true. CompletePlan places the
// tasks without a place.
func (p *Planner) Restore(in Project, guarantee Guarantee, guaranteed bool, at func(Key, *Need) Existing) error {
	pr, err := p.register(in)
	if err != nil {
		return err
	}
	pr.guarantee, pr.guaranteed = guarantee, guaranteed
	p.markUnchecked(pr)
	for _, g := range pr.groups {
		for _, it := range g.items {
			x := at(it.key, &g.req.Need)
			it.home, it.pinned, it.moved = x.Reserved, x.Pinned, x.Changed
			p.restoreItem(it, &x)
		}
	}
	return nil
}

// Existing describes a task of a project that is restored.
type Existing struct {
	Reserved
	Lost     bool // the reservation cannot stay: the task needs another place
	Changed  bool // PlannedTask.Moved is to be true even if the task stays
	Searched bool // if the round is searched (NextRound), no earlier start is possible except on bins that are marked freed
	Pinned   bool // the task is suspended on Bin and Disk, and must stay there
	Bin      int32
	Disk     int16
}

// restoreItem puts an item where its reservation is, and takes the reservation out of
// the profile if that is Lost.
func (p *Planner) restoreItem(it *item, x *Existing) {
	if x.Kept && !x.Lost {
		it.spot, it.end, it.placed = x.Spot, x.Spot.At.Add(p.durationOn(it, x.Spot.Bin)), true
		p.link(it)
	} else if x.Pinned {
		it.spot = Spot{Bin: x.Bin, Disk: x.Disk}
	}
	if !x.Kept {
		it.moved = true
		return
	}
	p.numKept++
	if it.isAtHome() {
		it.wasSearched = x.Searched && !it.group.isConstrained()
		return
	}
	it.moved = true
	p.touch(it)
	p.occupy(it, &it.home.Spot, x.End, &it.home.Need, 1)
	p.MarkFreed(it.home.Spot.Bin)
	if it.placed {
		p.occupy(it, &it.spot, it.end, &it.group.req.Need, -1)
		p.occupyBeyond(it, -1)
	}
}

// Withdraw takes a reservation of the owner that belongs to no task of a restored
// project out of the profile. account is as in Project.
func (p *Planner) Withdraw(r Reserved, account int32) {
	it := &item{group: &group{project: &project{Project: Project{Account: account}}}, home: r}
	p.touch(it)
	p.occupy(it, &it.home.Spot, r.End, &it.home.Need, 1)
	p.MarkFreed(r.Spot.Bin)
}

// CompletePlan places the tasks that Restore left unplaced and guarantees the project's
// departure if it has no guarantee. With ErrNeverFits nothing changes; with ErrUnfinished some
// of them are placed, and nothing is guaranteed.
func (p *Planner) CompletePlan(now scheduler.Time, id scheduler.ProjectID) (Guarantee, error) {
	pr := p.projects[id]
	if pr == nil {
		return Guarantee{}, fmt.Errorf("project %d is not planned", id)
	}
	p.beginRecording(now)
	defer p.endRecording()
	err := p.completePlan(now, pr)
	return pr.guarantee, err
}

// computeGuarantee computes td and td + SF x tn (Alg. 2 lines 19-22, Alg. 3 lines 7-11;
// the printed td_d and tn_(u,v) are td_u and tn_u).
func (p *Planner) computeGuarantee(pr *project) Guarantee {
	td := pr.departure()
	q := Guarantee{Departure: td, Latest: td}
	if pr.Deadline > 0 {
		q.Latest = max(td, pr.Deadline)
		return q
	}
	sf := p.cfg.SlackFactor
	if p.cfg.Variant == Priority && pr.HighPriority {
		sf = 0 // (1 - pi) x SF with pi = 1
	}
	if slack := sf * float64(td.Sub(pr.Submitted)); slack > 0 && td != scheduler.Never {
		q.Latest = scheduler.Never
		if slack < float64(scheduler.Never-td) {
			q.Latest = td + scheduler.Time(slack)
		}
	}
	return q
}

// register adds a project without placing any of its tasks.
func (p *Planner) register(in Project) (*project, error) {
	if p.projects[in.ID] != nil {
		return nil, fmt.Errorf("project %d is already planned", in.ID)
	}
	pr := p.memory.newProject()
	pr.Project = in
	pr.Requests = nil
	if cap(pr.groups) < len(in.Requests) {
		pr.groups = carve(&p.memory, &p.memory.groupLists, len(in.Requests))
	}
	for i := range in.Requests {
		r := &in.Requests[i]
		if err := p.checkRequest(pr, r); err != nil {
			return nil, fmt.Errorf("project %d, job %d stage %d: %w", in.ID, r.Job, r.Stage, err)
		}
		p.addGroup(pr, r)
	}
	for _, g := range pr.groups {
		p.numItems += len(g.items)
		if p.items != nil {
			for _, it := range g.items {
				p.items[it.key] = it
			}
		}
		if p.classified {
			p.classify(g)
		}
		if g.isConstrained() {
			p.numConstrained++
		}
	}
	p.projects[in.ID] = pr
	if n := len(p.submitOrder); n == 0 || bySubmission(p.submitOrder[n-1], pr) < 0 {
		p.submitOrder = append(p.submitOrder, pr)
		return pr, nil
	}
	i, _ := slices.BinarySearchFunc(p.submitOrder, pr, bySubmission)
	p.submitOrder = slices.Insert(p.submitOrder, i, pr)
	return pr, nil
}

// addGroup adds the tasks of a request to a project.
func (p *Planner) addGroup(pr *project, r *Request) {
	g := p.memory.newGroup()
	g.project, g.req = pr, *r
	if cap(g.base) < len(r.Need.Base) {
		g.base = carve(&p.memory, &p.memory.amounts, len(r.Need.Base))
	}
	g.base = append(g.base, r.Need.Base...)
	g.req.Need.Base, g.req.Tasks = g.base, nil
	if cap(g.items) < len(r.Tasks) {
		g.items = carve(&p.memory, &p.memory.itemLists, len(r.Tasks))
	}
	if p.accounts != nil {
		total := carve(&p.memory, &p.memory.amounts, len(r.Need.Base)+1)
		g.accountNeed = Need{Base: append(append(total, r.Need.Base...), r.Need.IO)}
	}
	for _, a := range r.After {
		for _, o := range pr.groups {
			if o.req.Job == r.Job && o.req.Stage == a {
				g.predecessors, o.successors = append(g.predecessors, o), append(o.successors, g)
			}
		}
	}
	for _, t := range r.Tasks {
		it := p.memory.newItem()
		it.key, it.group, it.spot.Bin = Key{r.Job, r.Stage, t}, g, -1
		g.items = append(g.items, it)
	}
	pr.groups = append(pr.groups, g)
}

// isConstrained reports whether the group's items can become late other than by the
// passing of time: they have predecessors, a parallelism limit or an earliest start.
func (g *group) isConstrained() bool {
	return len(g.predecessors) > 0 || g.req.MaxParallel > 0 || g.req.NotBefore > 0
}

// hasTask reports whether an earlier request of the same stage has the task.
func (p *project) hasTask(k Key) bool {
	for _, g := range p.groups {
		if g.req.Job == k.Job && g.req.Stage == k.Stage && slices.ContainsFunc(g.items, func(it *item) bool { return it.key == k }) {
			return true
		}
	}
	return false
}

func bySubmission(a, b *project) int {
	return cmp.Or(cmp.Compare(a.Submitted, b.Submitted), cmp.Compare(a.ID, b.ID))
}

func (p *Planner) checkRequest(pr *project, r *Request) error {
	if err := r.Need.Check(); err != nil {
		return err
	}
	if r.Bound <= 0 {
		return fmt.Errorf("bound is %v: want more than 0", r.Bound)
	}
	if r.MaxParallel < 0 {
		return fmt.Errorf("parallelism limit is %d: want at least 0", r.MaxParallel)
	}
	for i, t := range r.Tasks {
		k := Key{r.Job, r.Stage, t}
		if (p.items != nil && p.items[k] != nil) || (i > 0 && t <= r.Tasks[i-1]) || pr.hasTask(k) {
			return fmt.Errorf("task %d is already planned or out of order", t)
		}
	}
	return nil
}

// unregister forgets a project none of whose items is placed.
func (p *Planner) unregister(pr *project) {
	for _, g := range pr.groups {
		for _, it := range g.items {
			delete(p.items, it.key)
		}
		p.numItems -= len(g.items)
		if g.eqClass != nil {
			g.eqClass.live -= len(g.items)
		}
		if g.isConstrained() {
			p.numConstrained--
		}
	}
	p.dropUnusedClasses()
	delete(p.projects, pr.ID)
	if i, ok := slices.BinarySearchFunc(p.submitOrder, pr, bySubmission); ok {
		p.submitOrder = slices.Delete(p.submitOrder, i, i+1)
	}
}

// placeItem places one item of a new project and reports whether it fits.
func (p *Planner) placeItem(it *item, now scheduler.Time, flexible bool) bool {
	p.stepsLeft -= placeSteps
	return p.placeItemFrom(it, p.readyTime(it, now), now, flexible)
}

// placeItemFrom is placeItem given the readyTime of the item.
func (p *Planner) placeItemFrom(it *item, from, now scheduler.Time, flexible bool) bool {
	if from == scheduler.Never {
		return false
	}
	if it.group.req.Need.IsZero() {
		return p.placeEarliest(it, from, scheduler.Never) || p.placeZeroNeed(it, now)
	}
	s, ok := p.earliestSpot(it, from, scheduler.Never)
	seen := p.freeClock
	if flexible && !it.pinned && p.tryBackfillTimes(it, from, now, s, ok) {
		it.setSearched(p, seen, from) // as of before the displaced items freed bins
		return true
	}
	if !ok {
		return false
	}
	p.setSpot(it, s)
	it.setSearched(p, p.freeClock, from)
	return true
}

// placeZeroNeed places an item that needs nothing where even that does not fit: a job
// with all-zero needs occupies nothing.
func (p *Planner) placeZeroNeed(it *item, now scheduler.Time) bool {
	for b := range p.profile.Bins() {
		if len(it.group.req.Need.Base) == p.profile.BaseSize(b) && !p.profile.Closed(b) {
			p.setSpot(it, Spot{Bin: b, Disk: -1, At: p.readyTime(it, now)})
			return true
		}
	}
	return false
}

// tryBackfillTimes tries the backfill times before the earliest hole in ascending
// order: the loop over BT of Alg. 2. limit is the earliest hole if bounded is true.
func (p *Planner) tryBackfillTimes(it *item, from, now scheduler.Time, limit Spot, bounded bool) bool {
	end := scheduler.Never
	if bounded {
		end = limit.At
	}
	p.listBackfillTimes(it, from, end)
	for n, s := range p.candidateTimes {
		if (p.cfg.MaxTries > 0 && n >= p.cfg.MaxTries) || p.stepsLeft <= 0 {
			break
		}
		p.stepsLeft -= trySteps
		if p.profile.FitsAt(s.Bin, s.Disk, s.At, &it.group.req.Need) && p.shiftReservations(it, s, now) {
			return true
		}
	}
	return false
}

// listBackfillTimes lists from and the starts and ends of reservations in (from, end)
// in candidateTimes, by time, bin and disk: feasibleBackfillingTimes of Table 5. The
// caller checks whether the item fits then. With Config.MaxTries it lists only the
// first so many.
func (p *Planner) listBackfillTimes(it *item, from, end scheduler.Time) {
	p.candidateTimes = p.candidateTimes[:0]
	if from >= end {
		return
	}
	limit := end // later times exceed MaxTries
	add := func(b int32, at scheduler.Time) {
		if at >= limit {
			return
		}
		disks := int16(p.profile.Disks(b))
		if disks == 0 {
			p.candidateTimes = append(p.candidateTimes, Spot{Bin: b, Disk: -1, At: at})
		}
		for d := range disks {
			p.candidateTimes = append(p.candidateTimes, Spot{Bin: b, Disk: d, At: at})
		}
		if most := p.cfg.MaxTries; most > 0 && len(p.candidateTimes) >= 8*most+64 {
			p.sortTimes()
			p.candidateTimes = p.candidateTimes[:min(most, len(p.candidateTimes))]
			if len(p.candidateTimes) == most { // other spots at the very last time must still be compared
				limit = min(limit, p.candidateTimes[most-1].At.Add(1))
			}
		}
	}
	for b := range p.profile.Bins() {
		if !p.profile.Closed(b) && !p.bin(b).spare {
			add(b, from)
		}
	}
	if most := p.cfg.MaxTries; most > 0 && len(p.candidateTimes) >= most {
		limit = min(limit, from.Add(1)) // nothing is earlier than from
	}
	for b := range p.profile.Bins() {
		if limit <= from.Add(1) {
			break
		}
		if p.profile.Closed(b) || p.bin(b).spare {
			continue
		}
		p.stepsLeft -= len(p.binStates[b].items) // listed and sorted
		for _, o := range p.binStates[b].items {
			if o.spot.At > from {
				add(b, o.spot.At)
			}
			if o.end > from {
				add(b, o.end)
			}
		}
	}
	p.sortTimes()
}

// sortTimes sorts candidateTimes and removes duplicates.
func (p *Planner) sortTimes() {
	slices.SortFunc(p.candidateTimes, func(a, b Spot) int {
		switch {
		case a.At != b.At:
			return cmp.Compare(a.At, b.At)
		case a.Bin != b.Bin:
			return cmp.Compare(a.Bin, b.Bin)
		default:
			return cmp.Compare(a.Disk, b.Disk)
		}
	})
	p.candidateTimes = slices.Compact(p.candidateTimes)
}

// shiftReservations puts an item at a spot and delays the reservations in its way,
// within their latest starts and the preemption limit: shiftReservations of Table 5. If
// the item's account is overdrawn, only reservations of the same account are delayed.
// On failure it restores the plan and returns false.
func (p *Planner) shiftReservations(it *item, s Spot, now scheduler.Time) bool {
	mark := len(p.undoLog)
	p.delayed = p.delayed[:0]
	p.setSpot(it, s)
	for {
		at, overdrawn := p.profile.FirstOverCapacity(s.Bin, s.At, it.end), p.accountOverdrawn(it)
		if at == scheduler.Never && !overdrawn {
			p.markVictimBinsFreed(it, mark)
			return true
		}
		v := p.pickVictim(it, s.Bin, at, overdrawn)
		if v == nil || !p.delayVictim(v, now) {
			p.rollback(mark)
			return false
		}
	}
}

// accountOverdrawn reports whether the item's account is over its capacity during the
// item's reservation.
func (p *Planner) accountOverdrawn(it *item) bool {
	a := it.group.project.Account
	return p.accounts != nil && a > 0 && p.accounts.FirstOverCapacity(a-1, it.spot.At, it.end) < scheduler.Never
}

// markVictimBinsFreed marks the bins that the displaced items left since the undo log
// had mark entries.
func (p *Planner) markVictimBinsFreed(it *item, mark int) {
	for i := mark; i < len(p.undoLog); i++ {
		if u := &p.undoLog[i]; u.item != it && u.placed {
			p.MarkFreed(u.spot.Bin)
		}
	}
}

// delayVictim moves a displaced item to its earliest spot that displaces no other item
// and respects its latest start. It returns false if there is none, or if too many
// projects would depart later.
func (p *Planner) delayVictim(v *item, now scheduler.Time) bool {
	pr := v.group.project
	limited := p.cfg.PreemptionLimit != NoLimit
	if limited && !slices.ContainsFunc(p.delayed, func(d delayedProject) bool { return d.project == pr }) {
		p.delayed = append(p.delayed, delayedProject{pr, pr.departure()})
	}
	p.stepsLeft -= placeSteps + pr.size()/8
	latest, was := p.latestStart(v), v.spot
	p.setSpot(v, Spot{Bin: -1, Disk: was.Disk, At: was.At})
	if v.pinned {
		v.spot.Bin = was.Bin
	}
	if !p.placeEarliest(v, p.readyTime(v, now), latest.Add(1)) {
		return false
	}
	if !limited {
		return true
	}
	late := 0
	for _, d := range p.delayed {
		if d.project.departure() > d.before {
			late++
		}
	}
	return late <= p.cfg.PreemptionLimit
}

// size returns the number of items of a project. O(groups).
func (p *project) size() (n int) {
	for _, g := range p.groups {
		n += len(g.items)
	}
	return n
}

// pickVictim returns the item of another project that covers a time on a bin, has not
// started and has the largest latest start; ties go to the smallest key. If own is
// true, it must belong to the account of it. nil if there is none.
func (p *Planner) pickVictim(it *item, b int32, at scheduler.Time, own bool) *item {
	var best *item
	var most scheduler.Time
	for _, o := range p.binStates[b].items {
		if o.started || o.group.req.Occupied != nil || o.spot.At > at || o.end <= at || o.group.project == it.group.project || !o.group.project.guaranteed {
			continue
		}
		if (p.cfg.Variant == Priority && o.group.project.HighPriority) || (own && o.group.project.Account != it.group.project.Account) {
			continue
		}
		lts := o.group.project.guarantee.Latest.Add(-p.durationOn(o, b))
		if best == nil || lts > most || (lts == most && o.key.Compare(best.key) < 0) {
			best, most = o, lts
		}
	}
	return best
}
