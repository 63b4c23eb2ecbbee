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
	*planning
	timeline  *scheduler.Timeline
	owners    []*owner                       // in order of submission
	ownerByID map[scheduler.ProjectID]*owner // nil until owner is called: to index very many takes long
	lost      []int32                        // nodes that are lost and have work
	late      []backfill.Key                 // tasks that did not start in time
	missing   []backfill.Key                 // tasks without a place: they failed or never had one

	movesLeft    int // moves to earlier times that this cycle may still commit
	requestsLeft int // actions of this cycle that may still serve requests
	tasksLeft    int // waiting tasks that may still get a guarantee
}

// owner is a project, or a single job, that has or requests a guarantee.
type owner struct {
	id        scheduler.ProjectID
	jobs      []*scheduler.Job // at least one, ordered by id
	requested bool
	joins     bool // requested, by a job that joins a project with a guarantee
	guarantee backfill.Guarantee
	refusal   scheduler.PolicyState // requested, and refused; else zero
	deadline  scheduler.Time        // 0 for a project; the project's latest departure for a job that joins
	accepted  scheduler.Time        // see cachedJob
	submitted scheduler.Time
	waiting   int                   // number of waiting tasks
	partial   bool                  // requested, and not all of its tasks have a place yet
	occupied  []backfill.Occupation // requested: the claims of its running tasks, see occupyForRequests
}

// stages yields the stages of all jobs of an owner.
func (o *owner) stages(yield func(*scheduler.Stage) bool) {
	for _, j := range o.jobs {
		for _, g := range j.Stages {
			if !yield(g) {
				return
			}
		}
	}
}

var (
	errUnknownEnd   = errors.New("completion time unknown")        // refuses a request without a computable end
	errTooManyTasks = errors.New("too many tasks for a guarantee") // refuses a request that would make the plan too large
)

// exceedsCaps reports whether one task of a job, or all its waiting tasks together, would exceed a cap: then its
// completion time is unknown.
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
	t := b.c.s.Tenant(j.Spec.Tenant)
	if _, ok := t.Spec.Caps.Task.Allows(task); !ok {
		return true
	}
	for ; t != nil; t = b.c.s.Tenant(t.Spec.Parent) {
		_, job := t.Spec.Caps.Job.Allows(j.Used.Add(all))
		_, total := t.Spec.Caps.Total.Allows(task)
		if !job || !total {
			return true
		}
	}
	return false
}

// repair plans again the tasks that were lost, no longer fit or did not start in time, and records
// the guarantees that this violates. What exceeds the budget is left to the next cycle.
func (b *plan) repair() {
	now := b.c.now
	b.planner.SetBudget(b.restoreSteps)
	b.recordViolations(b.planner.Replan(now, backfill.CauseLate, b.late...))
	b.recordViolations(b.planner.Replan(now, backfill.CauseFailed, b.missing...))
	if len(b.lost) > 0 {
		violated, _ := b.planner.LoseBins(now, b.lost, func(int32) bool { return false })
		b.recordViolations(violated)
	}
	cause := backfill.CauseNodeLost
	if slices.ContainsFunc(b.survey.late, func(x lateJob) bool { return x.cause == backfill.CauseOverrun }) {
		cause = backfill.CauseOverrun
	}
	b.recordViolations(b.planner.Repair(now, cause))
	if b.planner.StepsLeft() <= 0 { // the rest stays lost, late or without a place until the next cycle
		b.survey.deferred, b.survey.replanLeft = true, true
	}
	b.planner.SetBudget(math.MaxInt)
}

// collectLost collects the lost nodes with planned reservations. Other lost nodes, perhaps lost for
// good, are ignored.
func (b *plan) collectLost() {
	for _, n := range b.c.s.Nodes() {
		if !b.c.s.Cluster().Plannable(n) && slices.ContainsFunc(b.c.s.Reservations().On(n.Spec.ID), isPlanned) {
			b.lost = append(b.lost, int32(n.Spec.ID))
		}
	}
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
		if o := b.owner(x.Project); o != nil && !o.requested {
			b.survey.recordViolation(o.jobs[0], x.Cause)
		}
	}
}

// occupyForRequests takes the claims of running tasks of owners that request a guarantee, until their
// expected ends, beyond memory that stays anyway: these tasks give way now, but not once the guarantee
// is made. The claims may overlap reservations planned for others earlier, which are not planned again.
func (b *plan) occupyForRequests() {
	s := b.c.s
	for _, o := range b.owners {
		if !o.requested {
			continue
		}
		for g := range o.stages {
			for a := range s.Attempts().In(g) {
				if s.Node(a.Node).CanPreempt(g.Job) {
					b.occupyFor(o, a)
				}
			}
		}
	}
}

// occupyFor takes the claim of an attempt of an owner, see occupyForRequests.
func (b *plan) occupyFor(o *owner, a *scheduler.Attempt) {
	s, j, now := b.c.s, o.jobs[0], b.c.now
	c := b.c.assumptions.wholeClaim(s, a, true, now)
	if c.End <= now {
		return
	}
	need, disk := c.Occupied, min(a.Disk, int16(b.timeline.Nodes.Disks(int32(a.Node)))-1)
	need.Resources = need.Resources.Sub(memoryClaim(s, a).Occupied.Resources).Max(scheduler.Resources{})
	if disk < 0 {
		need.Resources[scheduler.IO], need.Disk = 0, 0
	}
	at := backfill.Spot{Bin: int32(a.Node), Disk: disk, At: now}
	o.occupied = append(o.occupied, b.planner.Occupy(at, c.End, scheduler.NodeNeed(need.Resources, need.Disk), b.account(j), b.timeline.CapsOf(j.Spec.Tenant)))
}

// planRequests plans the owners that request a guarantee in order of submission, as many as the
// cycle's actions, the budget and the State's free reservations allow. An owner that needs more
// than one cycle, or reservations that others have, gets its guarantee when its last task has a
// place. A refused owner gets the earliest departure that could be guaranteed.
func (b *plan) planRequests() {
	b.requestsLeft = b.c.actionsLeft/2 + 1
	actions, work, reservable := 0, b.planWork, b.c.s.Reservations().Left()
	if b.survey.replanLeft { // lost tasks first; the budget is for both
		work /= 4
	}
	for _, o := range b.owners {
		if !o.requested {
			continue
		}
		if actions >= b.requestsLeft || work <= 0 {
			b.survey.deferred = true
			continue
		}
		q, left, done, err := b.planOwner(o, min(b.requestsLeft, reservable)-actions, work)
		b.planned += work - left
		work = left
		if err == nil {
			o.guarantee, o.partial = q, !done
			actions += b.countUnreserved(o)
			continue
		}
		o.refusal = scheduler.PolicyState{PolicyStateKey: backfill.StateKey(scheduler.RefusedState, o.id), Value: int64(o.deadline)}
		if errors.Is(err, backfill.ErrTooLate) {
			o.refusal.At = q.Departure
		}
		b.takeOut(o)
	}
}

// takeOut removes a refused owner from the plan. Its tasks continue to give way.
func (b *plan) takeOut(o *owner) {
	for _, x := range o.occupied {
		b.planner.Vacate(x)
	}
	var tasks []backfill.Key
	b.planner.ScanOf(o.id, func(x *backfill.PlannedTask) { tasks = append(tasks, x.Key) })
	for _, k := range tasks {
		b.planner.End(k, b.c.now)
	}
}

// countUnreserved returns how many planned tasks of an owner lack their reservation in the State:
// an owner whose request did not fit into one cycle has its first ones.
func (b *plan) countUnreserved(o *owner) (n int) {
	b.planner.ScanOf(o.id, func(x *backfill.PlannedTask) {
		if x.Spot.Bin >= 0 && (!x.Kept || x.Spot != x.KeptAt) {
			n++
		}
	})
	return n
}

// planOwner plans at most most tasks of one owner, within a budget of work. It returns the rest of the budget, and done
// if all tasks have a place. A guarantee needs a known end: a project's jobs need bounds, a deadline job's stages need
// bounds or predictions. A job beyond a cap, or with a stage of more tasks than may run at once, has no known end.
func (b *plan) planOwner(o *owner, most, work int) (q backfill.Guarantee, left int, done bool, err error) {
	if o.waiting > b.tasksLeft {
		return q, work, false, errTooManyTasks
	}
	if b.hasUnknownEnd(o) {
		return q, work, false, errUnknownEnd
	}
	q, left, done, err = b.planner.CompleteSome(b.c.now.Add(leadOf(o.waiting)), o.id, most, work)
	if err != nil || !done {
		return q, left, false, err
	}
	b.tasksLeft -= o.waiting
	q, err = b.completeGuarantee(o, q)
	return q, left, err == nil, err
}

// leadOf returns how long after now the first of a request's tasks may be planned. If planning takes many cycles, the
// tasks would otherwise be due, and late, before the last of them has a place; they would also all be due at once.
func leadOf(tasks int) time.Duration { return time.Duration(tasks/tasksPerCycle) * cycleLead }

// tasksPerCycle is how many tasks of a request a cycle usually plans, and starts. cycleLead is the
// maximum duration of such a cycle.
const (
	tasksPerCycle = 400
	cycleLead     = 50 * time.Millisecond
)

// hasUnknownEnd reports whether the end of an owner cannot be computed. That is so while a task that
// started before its request was planned runs past its bound, which would violate the guarantee at once.
func (b *plan) hasUnknownEnd(o *owner) bool {
	for _, j := range o.jobs {
		if b.exceedsCaps(j) || b.jobs.overrunTime(j) <= b.c.now {
			return true
		}
	}
	for g := range o.stages {
		if g.Remaining() > 0 && (g.ExceedsParallel() || (g.Job.Spec.Project != 0 && g.Job.Spec.Bound <= 0) || b.taskDuration(g) <= 0) {
			return true
		}
	}
	return false
}

// completeGuarantee adds to an owner's guarantee what the planner does not know: its running and due tasks.
func (b *plan) completeGuarantee(o *owner, q backfill.Guarantee) (backfill.Guarantee, error) {
	for _, j := range o.jobs {
		for _, r := range j.Reservations() {
			if b.canBeServedNow(r) {
				q.Departure = max(q.Departure, r.End)
			}
		}
	}
	for g := range o.stages {
		for a := range b.c.s.Attempts().In(g) {
			q.Departure = max(q.Departure, b.expectedEnd(a))
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
// end; its task is then not planned again.
func (b *plan) canBeServedNow(r *scheduler.Reservation) bool {
	return isPlanned(r) && r.Start <= b.c.now && b.c.s.Node(r.Node).Schedulable() && b.c.canStayOn(r)
}

// expectedEnd is assumptions.expectedEnd for an attempt of a job that has a guarantee, or requests one.
func (b *plan) expectedEnd(a *scheduler.Attempt) scheduler.Time {
	at, _ := b.c.assumptions.expectedEnd(b.c.s, a, true, b.c.now)
	return at
}
