package threedsf

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// plan is the plan of one decision, read from the State (readPlan) when something has to
// be planned. Its planner tries reservations in the State's timeline until Close. The
// timeline contains
//
//   - what runs under a guarantee or cannot be preempted, until its bound;
//   - due reservations whose task has not started, unchanged;
//   - the waiting tasks with a guarantee, which the planner may move.
type plan struct {
	p        *planning
	timeline *scheduler.Timeline
	profile  *backfill.Profile // a bin for each node
	accounts *backfill.Profile // a bin for each tenant
	planner  *backfill.Planner
	owners   []*owner // in order of submission
	// ownerByID is nil until owner is called: to index very many takes long.
	ownerByID map[scheduler.ProjectID]*owner
	lost      []int32        // nodes that are lost and have work
	late      []backfill.Key // did not start in time
	missing   []backfill.Key // have no place: they failed or never had one
	movesLeft int            // moves to earlier times that this cycle may still commit
	// requestsLeft is how many actions of this cycle may still serve requests.
	requestsLeft int
	// tasksLeft is how many more waiting tasks may get a guarantee.
	tasksLeft int
	deferred  bool // work was left to the next cycle
	// replanLeft reports that some of it is to plan again what was lost.
	replanLeft bool
	*planScratch
}

// exceedsCaps reports whether one task of a job, or all its waiting tasks together,
// would exceed a cap: then its completion time is unknown.
func (b *plan) exceedsCaps(j *scheduler.Job) bool {
	var all, task scheduler.Resources
	for _, g := range j.Stages {
		d, ok := g.Spec.Demand.TimesChecked(int64(g.Pending))
		if !ok {
			return true
		}
		all = all.Add(d)
		task = task.Max(g.Spec.Demand)
	}
	t := b.p.c.s.Tenant(j.Spec.Tenant)
	if _, ok := t.Spec.Caps.Task.Allows(task); !ok {
		return true
	}
	for n := 0; t != nil && n <= scheduler.MaxTenantDepth; n++ {
		_, job := t.Spec.Caps.Job.Allows(j.Used.Add(all))
		_, total := t.Spec.Caps.Total.Allows(task)
		if !job || !total {
			return true
		}
		t = b.p.c.s.Tenant(t.Spec.Parent)
	}
	return false
}

// repair plans again what was lost, what no longer fits and what could not start in
// time, and records whose guarantee that violates. What the budget does not suffice for is left to the next cycle.
func (b *plan) repair() {
	now := b.p.c.now
	b.planner.SetBudget(b.p.restoreSteps)
	b.recordViolations(b.planner.Replan(now, backfill.CauseLate, b.late...))
	b.recordViolations(b.planner.Replan(now, backfill.CauseFailed, b.missing...))
	if len(b.lost) > 0 {
		violated, _ := b.planner.LoseBins(now, b.lost, func(int32) bool { return false })
		b.recordViolations(violated)
	}
	cause := backfill.CauseNodeLost
	for _, n := range b.p.survey.violations {
		if n.Slot == int32(backfill.CauseOverrun) {
			cause = backfill.CauseOverrun
		}
	}
	b.recordViolations(b.planner.Repair(now, cause))
	if b.planner.StepsLeft() <= 0 { // what is left stays lost, late or without a place until the next cycle
		b.deferred, b.replanLeft = true, true
	}
	b.planner.SetBudget(math.MaxInt)
}

// collectLost collects the nodes that are lost and on which something is planned. Others that are gone, for good maybe,
// count for nothing.
func (b *plan) collectLost() {
	for _, n := range b.p.c.s.Nodes() {
		if !b.p.c.s.Cluster().Plannable(n) && b.hasPlannedOn(n.Spec.ID) {
			b.lost = append(b.lost, int32(n.Spec.ID))
		}
	}
}

// hasPlannedOn reports whether anything is planned on a node.
func (b *plan) hasPlannedOn(n scheduler.NodeID) bool {
	return slices.ContainsFunc(b.p.c.s.Reservations().On(n), isPlanned)
}

// owner returns an owner, nil for an unknown one.
func (b *plan) owner(id scheduler.ProjectID) *owner {
	if b.ownerByID == nil {
		b.ownerByID = make(map[scheduler.ProjectID]*owner, len(b.owners))
		for _, o := range b.owners {
			b.ownerByID[o.id] = o
		}
	}
	return b.ownerByID[id]
}

// recordViolations records each guarantee that no longer holds, once.
func (b *plan) recordViolations(list []backfill.Violation) {
	for _, x := range list {
		o := b.owner(x.Project)
		if o == nil || o.requested || b.p.c.s.Reservations().IsViolated(o.jobs[0]) {
			continue
		}
		n := len(b.p.survey.violations)
		b.p.survey.recordOwnerViolation(x.Project, x.Cause)
		for _, k := range b.p.survey.violations[n:] {
			b.p.c.recordState(k)
		}
	}
}

// occupyForRequests takes what tasks of the owners that request a guarantee occupy until their expected ends, beyond the
// memory that stays anyway: they give way now, and no longer once the guarantee is made. A part of what is planned for others
// before may lie there; it is not planned again.
func (b *plan) occupyForRequests() {
	s := b.p.c.s
	for _, o := range b.owners {
		if !o.requested {
			continue
		}
		for _, j := range o.jobs {
			for _, g := range j.Stages {
				for a := range s.Attempts().In(g) {
					if s.Node(a.Node).CanPreempt(j) {
						b.occupyFor(o, a)
					}
				}
			}
		}
	}
}

// occupyFor takes what an attempt of an owner occupies, see occupyForRequests.
func (b *plan) occupyFor(o *owner, a *scheduler.Attempt) {
	s, j, now := b.p.c.s, o.jobs[0], b.p.c.now
	c := b.p.c.assumptions.wholeClaim(s, a, true, now)
	if c.End <= now {
		return
	}
	need, disk := c.Occupied, min(a.Disk, int16(b.profile.Disks(int32(a.Node)))-1)
	need.Resources = need.Resources.Sub(memoryClaim(s, a).Occupied.Resources).Max(scheduler.Resources{})
	if disk < 0 {
		need.Resources[scheduler.IO], need.Disk = 0, 0
	}
	at := backfill.Spot{Bin: int32(a.Node), Disk: disk, At: now}
	o.occupied = append(o.occupied, b.planner.Occupy(at, c.End, scheduler.NodeNeed(need.Resources, need.Disk), int32(s.Reservations().GuaranteeTenant(j))+1, b.timeline.CapsOf(j.Spec.Tenant)))
}

// planRequests plans the owners that request a guarantee in order of submission, as
// many as the cycle has actions and the budget for, and the State takes reservations of. One that needs more than one
// cycle, or reservations that others have, has no guarantee until its last task has a place. It returns the states that refuse a
// request, with the earliest departure that could be guaranteed.
func (b *plan) planRequests() []scheduler.PolicyState {
	var refused []scheduler.PolicyState
	b.requestsLeft = b.p.c.actionsLeft/2 + 1
	actions, work, reservable := 0, b.p.planWork, b.p.c.s.Reservations().Left()
	if b.replanLeft { // first what was lost; the budget is for both
		work /= 4
	}
	for _, o := range b.owners {
		if !o.requested {
			continue
		}
		if actions >= b.requestsLeft || work <= 0 {
			b.deferred = true
			continue
		}
		q, left, done, err := b.planOwner(o, min(b.requestsLeft, reservable)-actions, work)
		b.p.steps.planned += work - left
		work = left
		if err == nil {
			o.guarantee, o.partial = q, !done
			actions += b.countUnreserved(o)
			continue
		}
		n := scheduler.PolicyState{PolicyStateKey: backfill.StateKey(scheduler.RefusedState, o.id), Value: int64(o.deadline)}
		if errors.Is(err, backfill.ErrTooLate) {
			n.At = q.Departure
		}
		refused = append(refused, n)
		for _, x := range o.occupied { // its tasks go on giving way
			b.planner.Vacate(x)
		}
		var tasks []backfill.Key
		b.planner.ScanOf(o.id, func(x *backfill.PlannedTask) { tasks = append(tasks, x.Key) })
		for _, k := range tasks {
			b.planner.End(k, b.p.c.now)
		}
	}
	return refused
}

// countUnreserved returns how many planned tasks of an owner the State has no such
// reservation for: an owner whose request did not fit into a cycle has its first
// ones.
func (b *plan) countUnreserved(o *owner) (n int) {
	b.planner.ScanOf(o.id, func(x *backfill.PlannedTask) {
		if x.Spot.Bin >= 0 && (!x.Kept || x.Spot != x.KeptAt) {
			n++
		}
	})
	return n
}

// planOwner plans one owner, most of its tasks at most, within a budget of work. It returns
// what is left of it, and done if all tasks have a place. A guarantee needs a known end: a project's jobs need
// bounds, a deadline job's stages need bounds or predictions. A job beyond a cap, or
// with a stage of more tasks than may run at once, has none.
func (b *plan) planOwner(o *owner, most, work int) (q backfill.Guarantee, left int, done bool, err error) {
	if o.waiting > b.tasksLeft {
		return q, work, false, errTooManyTasks
	}
	if b.hasUnknownEnd(o) {
		return q, work, false, errUnknownEnd
	}
	q, left, done, err = b.planner.CompleteSome(b.p.c.now.Add(b.leadOf(o)), o.id, most, work)
	if err != nil || !done {
		return q, left, false, err
	}
	b.tasksLeft -= o.waiting
	q, err = b.completeGuarantee(o, q)
	return q, left, err == nil, err
}

// leadOf returns how long after now the first task of a request is planned at the
// earliest. The tasks of one that needs many cycles would else be due, and late, before
// the last of them has a place; they would also all be due at once.
func (b *plan) leadOf(o *owner) time.Duration {
	return time.Duration(o.waiting/tasksPerCycle) * cycleLead
}

// tasksPerCycle is how many tasks of a request a cycle usually plans, and starts.
// cycleLead is how long such a cycle takes at most.
const (
	tasksPerCycle = 400
	cycleLead     = 50 * time.Millisecond
)

// hasUnknownEnd reports whether the end of an owner cannot be computed. It cannot while a task that started before its
// request was planned runs past its bound: that would violate the guarantee at once.
func (b *plan) hasUnknownEnd(o *owner) bool {
	for _, j := range o.jobs {
		if b.exceedsCaps(j) || b.p.jobs.overrunTime(j) <= b.p.c.now {
			return true
		}
		for _, g := range j.Stages {
			if g.Remaining() == 0 {
				continue
			}
			if g.ExceedsParallel() || (j.Spec.Project != 0 && j.Spec.Bound <= 0) || b.p.taskDuration(g) <= 0 {
				return true
			}
		}
	}
	return false
}

// completeGuarantee adds what the planner does not know of an owner to its guarantee: what
// runs already, and what is due.
func (b *plan) completeGuarantee(o *owner, q backfill.Guarantee) (backfill.Guarantee, error) {
	for _, j := range o.jobs {
		for _, r := range j.Reservations() {
			if b.canBeServedNow(r) {
				q.Departure = max(q.Departure, r.End)
			}
		}
		for _, g := range j.Stages {
			for a := range b.p.c.s.Attempts().In(g) {
				q.Departure = max(q.Departure, b.expectedEnd(a))
			}
		}
	}
	if o.deadline > 0 && q.Departure > o.deadline {
		return q, backfill.ErrTooLate
	}
	if q.Departure == math.MinInt64 || q.Departure == scheduler.Never {
		return q, errUnknownEnd
	}
	q.Latest = max(q.Latest, q.Departure)
	return q, nil
}

// canBeServedNow reports whether a planned reservation is due on a node that can serve it to its
// end: its task is not planned again.
func (b *plan) canBeServedNow(r *scheduler.Reservation) bool {
	return isPlanned(r) && r.Start <= b.p.c.now && b.p.c.s.Node(r.Node).Schedulable() && b.p.c.canStayOn(r)
}

// expectedEnd is assumptions.expectedEnd for an attempt of a job that has a guarantee, or requests one.
func (b *plan) expectedEnd(a *scheduler.Attempt) scheduler.Time {
	at, _ := b.p.c.assumptions.expectedEnd(b.p.c.s, a, true, b.p.c.now)
	return at
}
