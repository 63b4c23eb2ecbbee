package policies

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// restoredOwners lists the owners (projects, or jobs planned alone) whose work the planner has in
// the same state as the State. It is valid for one timeline of one State. A round reads the owners
// that changed, or all if it cannot tell which.
type restoredOwners struct {
	state    *scheduler.State
	timeline *scheduler.Timeline
	readAll  bool   // all owners were read in this round
	readTo   uint64 // position in the State's change log
	readAt   scheduler.Time
	byID     map[scheduler.ProjectID]*restoredOwner
	ordered  []*restoredOwner // by their first active jobs
	reserved int              // sum over all
	movable  int              // tasks of owners that may be left out, see chooseWindow
	changed  []*restoredOwner // in this round
	entered  []*restoredOwner // owners that the window reached in this round
	leftOut  int              // owners that the window has not reached
	stale    []staleReservation

	closedStage     *scheduler.Stage // the last closed stage whose due reservation was read in this round
	unplannedBefore bool             // tasks before it have no reservation
}

// staleReservation is a reservation of work that is no longer planned, or not there.
type staleReservation struct {
	id   scheduler.ReservationID
	task backfill.Key
}

// restoredOwner is one owner as it was read. It is one cache line, since there may be 100,000.
type restoredOwner struct {
	id         scheduler.ProjectID
	first      *scheduler.Job // its first active job, nil for none
	submitted  scheduler.Time // of first
	job        scheduler.JobID
	firstStart scheduler.Time // of its reservations
	reserved   int32          // reservations of the plan
	movable    int32          // its waiting tasks if nothing of it is planned yet, else 0; see chooseWindow
	volatile   bool           // the values read depend on more than the owner's own work
	planned    bool           // the planner has it
	guaranteed bool
	incomplete bool // not planned in full, or without a guarantee
	unplaced   bool // not planned in full, as far as is known; see completePlans
	truncated  bool // more of its tasks wait than are planned
	listed     bool // in changed
	leftOut    bool // not in the window
}

func (o *restoredOwner) compare(x *restoredOwner) int {
	return cmp.Or(cmp.Compare(o.submitted, x.submitted), cmp.Compare(o.job, x.job))
}

func (w *restoredOwners) mark(id scheduler.ProjectID) {
	o := w.byID[id]
	if o == nil {
		o = &restoredOwner{id: id}
		w.byID[id] = o
	}
	if !o.listed {
		o.listed = true
		w.changed = append(w.changed, o)
	}
}

// findChanged lists the owners that must be read again in this round, and prepares the planner for
// them. O(owners + nodes + changes), O(jobs) if all must be.
func (p *roundPlan) findChanged(keep bool) {
	w := &p.restored
	w.changed, w.stale, w.closedStage = w.changed[:0], w.stale[:0], nil
	known := keep && w.state == p.s && w.timeline == p.timeline && p.now >= w.readAt
	if w.readAll = false; known && p.markChanged() && len(w.changed) <= 64+len(w.ordered)/2 {
		for _, o := range w.changed {
			p.planner.Forget(o.id)
		}
	} else {
		n := p.s.JobCount()
		*w = restoredOwners{state: p.s, timeline: p.timeline, readAll: true, byID: make(map[scheduler.ProjectID]*restoredOwner, n), readTo: w.readTo,
			ordered: slices.Grow(w.ordered[:0], n), changed: slices.Grow(w.changed[:0], n), entered: w.entered, stale: w.stale}
		p.planner.Reset(p.timeline.Nodes, nil, nil)
		p.planner.NextRound(p.searched, nil)
		for j := range p.s.Jobs() {
			w.mark(ownerOf(j, p.projects))
		}
	}
	w.readAt = p.now
}

// markChanged marks the owners that changed since the last round, that it tried elsewhere, or that
// depend on the time. It returns false if these are unknown.
func (p *roundPlan) markChanged() bool {
	w := &p.restored
	p.planner.NextRound(p.searched, func(id scheduler.ProjectID) { w.mark(id) })
	for _, o := range w.ordered {
		if o.volatile || o.firstStart <= p.now {
			w.mark(o.id)
		}
	}
	return p.s.ChangeLog().Since(w.readTo, func(c scheduler.ChangedOwner) {
		switch {
		case c.ProgressOnly:
		case p.projects && c.Project != 0:
			w.mark(c.Project)
		case c.Job != 0:
			w.mark(backfill.SingleJob(c.Job))
		}
	})
}

// readReservations reads the reservations of the changed owners, and lists those of work that is no
// longer planned as stale. O(owners), O(1) if none changed.
func (p *roundPlan) readReservations() {
	w := &p.restored
	if len(w.changed) == 0 {
		return
	}
	for _, o := range w.changed {
		if p.readOwner(o); !o.isKnown() {
			delete(w.byID, o.id)
		}
	}
	for _, list := range []*[]*restoredOwner{&w.changed, &w.ordered} {
		*list = slices.DeleteFunc(*list, func(o *restoredOwner) bool { return !o.isKnown() })
		slices.SortFunc(*list, (*restoredOwner).compare)
	}
	slices.SortFunc(w.stale, func(a, b staleReservation) int { return cmp.Compare(a.id, b.id) })
	w.reserved, w.movable, w.leftOut = 0, 0, 0
	for _, o := range w.ordered {
		w.reserved += int(o.reserved)
		w.movable += int(o.movable)
		if o.leftOut {
			w.leftOut++
		}
	}
}

func (p *roundPlan) readOwner(o *restoredOwner) {
	if !o.isKnown() {
		p.restored.ordered = append(p.restored.ordered, o)
	}
	*o = restoredOwner{id: o.id, firstStart: scheduler.Never}
	inPlan := false
	for _, j := range p.jobsOf(o.id) {
		p.readJob(o, j)
		inPlan = o.countMovable(j) || inPlan
	}
	if inPlan || o.first == nil || p.isGuaranteed(o) {
		o.movable = 0
	}
}

// isKnown reports whether an owner was read and has jobs.
func (o *restoredOwner) isKnown() bool { return o.job != 0 }

// jobsOf returns the jobs of a project, or the single job that it stands for; none if it is
// unknown. The result is valid until the next call.
func (p *roundPlan) jobsOf(id scheduler.ProjectID) []*scheduler.Job {
	p.jobs = p.jobs[:0]
	if j := p.s.Job(backfill.JobOf(id)); j != nil {
		p.jobs = append(p.jobs, j)
	} else if pr := p.s.Project(id); pr != nil {
		for _, j := range pr.Jobs {
			p.jobs = append(p.jobs, p.s.Job(j))
		}
	}
	return p.jobs
}

// readJob reads the reservations of a job of an owner, and records whether it is the owner's first.
func (p *roundPlan) readJob(o *restoredOwner, j *scheduler.Job) {
	active := j.Phase == scheduler.JobActive
	earlier := j.Spec.Submitted < o.submitted || (j.Spec.Submitted == o.submitted && j.Spec.ID < o.job)
	if o.job == 0 || (active && o.first == nil) || (active == (o.first != nil) && earlier) {
		o.submitted, o.job, o.first = j.Spec.Submitted, j.Spec.ID, nil
		if active {
			o.first = j
		}
	}
	if !hasReservations(j) {
		return
	}
	for _, r := range j.Reservations() {
		if !r.IsPlanOfTask() {
			continue
		}
		if g := p.s.Stage(r.StageID()); g == nil || !p.needsPlan(g, r.Task) || !hasDisk(p.s, r) || p.isPremature(g, r) {
			p.restored.stale = append(p.restored.stale, staleReservation{r.ID, backfill.KeyOf(r)})
			o.volatile = true // until it is dropped
		} else if g.PlannedAt(r.Task) == r {
			o.reserved++
			o.firstStart = min(o.firstStart, r.Start)
		}
	}
}

// isPremature reports whether a reservation is due although tasks before its closed stage must be planned again: it
// might keep the capacity from them, and thereby the stage closed. O(1) except for the first of a stage in a row.
func (p *roundPlan) isPremature(g *scheduler.Stage, r *scheduler.Reservation) bool {
	if r.Start > p.now || g.Open {
		return false
	}
	if w := &p.restored; w.closedStage != g {
		w.closedStage, w.unplannedBefore = g, slices.ContainsFunc(g.Spec.After, func(i int32) bool { return p.hasUnplanned(g.Job.Stages[i]) })
	}
	return p.restored.unplannedBefore
}

// hasUnplanned reports whether a task of a stage must be planned and has no reservation, for
// example after a loss or a suspension. O(tasks).
func (p *roundPlan) hasUnplanned(g *scheduler.Stage) bool {
	for t := g.NextPending(0); t >= 0; t = g.NextPending(t + 1) {
		if g.PlannedAt(t) == nil {
			return true
		}
	}
	if g.Suspended > 0 {
		for a := range p.s.Attempts().In(g) {
			if g.PlannedAt(a.ID.Index) == nil && suspendedAttempt(p.s, g, a.ID.Index) != nil {
				return true
			}
		}
	}
	return false
}

// hasReservations is len(j.Reservations()) > 0, from the first cache line of a job, which is always read.
func hasReservations(j *scheduler.Job) bool { return j.Guarantees > 0 || j.Unguaranteed() > 0 }

func hasDisk(s *scheduler.State, r *scheduler.Reservation) bool {
	return int(r.OnDisk) < len(s.Node(r.Node).Disks)
}

// reservationOf returns the reservation of the plan for a task, or nil.
func (p *roundPlan) reservationOf(k backfill.Key) *scheduler.Reservation {
	g := p.s.Stage(k.StageID())
	if g == nil {
		return nil
	}
	if r := g.PlannedAt(k.Task); r != nil && hasDisk(p.s, r) {
		return r
	}
	return nil
}

// Waiting work without any plan is read into the planner in parts: reading very much of it would
// make a decision long. The window is what a decision reads of it: one half for the first owners in
// order of submission, one half for those beyond, which take turns by time. So no owner is left out
// for ever behind others that fit nowhere, and the same State at the same time gives the same
// window.
const (
	windowTasks = 1 << 13
	// windowTurn is how long the turn of one part of those beyond lasts.
	windowTurn = misfitTurn
)

// countMovable adds the waiting tasks of a job, and reports whether the plan has something of the
// job: a reservation, or a suspended task, which has its place.
func (o *restoredOwner) countMovable(j *scheduler.Job) (inPlan bool) {
	if inPlan = hasReservations(j); inPlan || j.Phase != scheduler.JobActive {
		return inPlan
	}
	if j.Live > 0 && slices.ContainsFunc(j.Begun(), func(g *scheduler.Stage) bool { return g.Suspended > 0 }) {
		return true
	}
	o.movable = int32(min(int64(o.movable)+j.Pending, maxPlannedTasks))
	return false
}

func (p *roundPlan) isGuaranteed(o *restoredOwner) bool {
	if pr := p.s.Project(o.id); pr != nil {
		return pr.HasState(scheduler.GuaranteeState)
	}
	return o.first.HasState(scheduler.GuaranteeState)
}

// chooseWindow decides which owners are in the planner in this round: all that have something
// planned, and of the others those in the window. It removes the owners that left the window, and
// lists those that entered. O(1) if all are in the window, else O(owners). An owner belongs to the
// window by its first task; it has at most maxPlannedTasks.
func (p *roundPlan) chooseWindow() {
	w := &p.restored
	w.entered = w.entered[:0]
	p.nextTurn = 0
	size := cmp.Or(p.window, windowTasks)
	if w.movable <= size && w.leftOut == 0 {
		return
	}
	half, turn := max(1, w.movable), 0 // all are in the first half
	if w.movable > size {
		half = size / 2
		parts := max(1, (w.movable-1)/half)
		at := p.now / windowTurn
		turn = int(at % scheduler.Time(parts))
		p.nextTurn = (at + 1) * windowTurn
	}
	before := 0
	w.leftOut = 0
	for _, o := range w.ordered {
		// Part -1 is the first half of the window; the other parts take turns.
		part := before/half - 1
		out := o.movable > 0 && part >= 0 && part != turn
		before += int(o.movable)
		switch {
		case out && o.planned:
			p.planner.Forget(o.id)
			o.planned, o.incomplete, o.unplaced = false, false, false
		case !out && o.leftOut:
			w.entered = append(w.entered, o)
		}
		if o.leftOut = out; out {
			w.leftOut++
		}
	}
}

// isShortened reports whether tasks of a job or its project are unplanned for lack of reservations.
func (p *roundPlan) isShortened(j *scheduler.Job) bool {
	if !p.scarce {
		return false
	}
	o := p.restored.byID[ownerOf(j, p.projects)]
	return o != nil && o.truncated
}

func (p *roundPlan) isLeftOut(j *scheduler.Job) bool {
	if p.restored.leftOut == 0 {
		return false
	}
	o := p.restored.byID[ownerOf(j, p.projects)]
	return o != nil && o.leftOut
}
