package policies

import (
	"errors"
	"math/bits"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// resumeOverCapacity resumes suspended tasks on nodes whose free capacity is negative in something
// that these tasks do not need more of: frozen tasks on a node that shrank below their memory. A
// plan has no place on such a node, and such a task alone may keep it so for ever. If anything is
// reserved on the node, it has places again at some time. O(suspended tasks), O(1) if none is.
func (f *reservingPolicy) resumeOverCapacity(s *scheduler.State) {
	for a := range s.Attempts().Resumable() {
		n := s.Node(a.Node)
		if isOverCapacity(n) && len(s.Reservations().On(a.Node)) == 0 && s.Attempts().CanResume(a) && suspendedAttempt(s, s.StageOf(a), a.ID.Index) == a &&
			!f.tryApply(a.Act(scheduler.ActResume)) {
			return
		}
	}
}

// isOverCapacity reports whether something free on a node or one of its disks is negative.
func isOverCapacity(n *scheduler.Node) bool {
	return n.Free[scheduler.CPU] < 0 || n.Free[scheduler.Memory] < 0 ||
		slices.ContainsFunc(n.Disks, func(d scheduler.DiskUse) bool { return d.FreeIO < 0 || d.FreeSpace < 0 })
}

// stopOverruns suspends attempts past their bound, or kills them if their memory cannot leave the
// node. It spares jobs with an accepted deadline. It also spares, unless their capacity is
// guaranteed to others, attempts past a mere estimate and attempts that it would have to kill: the
// estimate was wrong, and letting a short task end costs less than suspending it; a killed attempt
// begins again, and may never end.
func (f *reservingPolicy) stopOverruns(s *scheduler.State, now scheduler.Time) {
	if !f.plan.timeline.HasOverrun() {
		return
	}
	var stop []*scheduler.Attempt
	for _, n := range s.Nodes() {
		if len(stop) > f.placer.actionsLeft {
			break // the rest is left to the next decision
		}
		if !f.plan.hasBounds && !slices.ContainsFunc(s.Reservations().On(n.Spec.ID), isGuarantee) {
			continue // all of them are past a mere estimate
		}
		for a := range s.Attempts().On(n.Spec.ID) {
			if f.mustStop(s, a, now) {
				stop = append(stop, a)
			}
		}
	}
	for _, a := range stop {
		act := a.Act(scheduler.ActKill)
		if l := levelOutOfMemory(s, a); l != 0 {
			act.Kind, act.Level = scheduler.ActSuspend, l
		}
		f.tryApply(act)
	}
}

// levelOutOfMemory returns the level at which an attempt can be suspended out of memory, 0 for none.
func levelOutOfMemory(s *scheduler.State, a *scheduler.Attempt) scheduler.Level {
	for _, l := range [...]scheduler.Level{scheduler.LevelCheckpointed, scheduler.LevelSwapped} {
		if s.Node(a.Node).CanReach(a, l) {
			return l
		}
	}
	return 0
}

// mustStop reports whether an attempt runs, is past its bound and must not continue.
func (f *reservingPolicy) mustStop(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) bool {
	j := s.StageOf(a).Job
	if a.Phase > scheduler.AttemptRunning || f.plan.assumedEnd(s, a, now) >= now || j.Spec.AcceptedByQuote {
		return false
	}
	return (j.Spec.Bound > 0 && levelOutOfMemory(s, a) != 0) || f.blocksGuarantee(s, a, now)
}

// blocksGuarantee reports whether an attempt past its estimate may block a
// guarantee: its node is over capacity before the attempt's expected end, and
// capacity there is guaranteed to others until then. O(reservations on the node).
func (f *reservingPolicy) blocksGuarantee(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) bool {
	end := f.plan.expectedEnd(s, a, now)
	guaranteed := slices.ContainsFunc(s.Reservations().On(a.Node), func(r *scheduler.Reservation) bool {
		return isGuarantee(r) && r.Start < end && r.End > now
	})
	return guaranteed && f.plan.timeline.Nodes.FirstOverCapacity(int32(a.Node), now, end) < scheduler.Never
}

func isGuarantee(r *scheduler.Reservation) bool { return r.Kind == scheduler.ReserveProject }

// repair replans the work on unschedulable nodes, the work that no longer fits, and the work that
// could not start in time.
func (f *reservingPolicy) repair(s *scheduler.State, now scheduler.Time) {
	nodes := s.Nodes()
	var lost []int32
	if schedulable := s.Cluster().SchedulableNodes(); schedulable > 0 && schedulable < len(nodes) {
		for b := range int32(len(nodes)) {
			if !s.Cluster().Plannable(nodes[b]) && f.plan.planner.HasWork(b) {
				lost = append(lost, b)
			}
		}
	}
	f.plan.planner.SpareLast(nodes, f.spare) // LoseBins uses the spare nodes that the lost ones need
	if len(lost) > 0 {
		violated, done := f.plan.planner.LoseBins(now, lost, func(b int32) bool { return !nodes[b].Spec.Down })
		f.recordViolations(violated, now)
		f.plan.unfinished = f.plan.unfinished || !done
	}
	cause := backfill.CauseNodeLost
	if f.plan.timeline.HasOverrun() {
		cause = backfill.CauseOverrun
	}
	f.recordViolations(f.plan.planner.Repair(now, cause), now)
	f.recordViolations(f.plan.planner.Replan(now, backfill.CauseLate), now)
}

// recordViolations records each guarantee that no longer holds, once, with its
// cause.
func (f *reservingPolicy) recordViolations(violations []backfill.Violation, now scheduler.Time) {
	for _, b := range violations {
		if _, before := backfill.ViolationOf(f.placer.s, b.Project); !before && !backfill.RecordsViolation(f.placer.states, b.Project) {
			f.placer.states = append(f.placer.states, backfill.ViolatedState(b.Project, b.Cause, now))
		}
	}
}

// planNew plans work without a place and guarantees departures. A dependent task follows its
// predecessor when that is planned later and leaves capacity for others, so planning is repeated
// until nothing moves, a few times at most.
func (f *reservingPolicy) planNew(s *scheduler.State, now scheduler.Time) {
	const rounds = 4
	f.plan.planner.HasChanged()
	owners := f.plan.newOwners
	if f.plan.displaced {
		owners = f.plan.ownersToComplete()
	}
	// The repair leaves a part of the budget for work without a place.
	f.plan.planner.SetBudget(max(f.plan.planner.StepsLeft(), planSteps/10))
	finished := true
	for range rounds {
		finished = f.plan.completePlans(owners)
		violations := f.plan.planner.Replan(now, backfill.CauseFailed)
		for i := range violations {
			violations[i].Cause = f.replanCause(s, violations[i].Project, now)
		}
		f.recordViolations(violations, now)
		if !f.plan.planner.HasChanged() || (!finished && f.plan.planner.StepsLeft() <= 0) {
			break
		}
	}
	f.plan.unfinished = f.plan.unfinished || !finished || f.plan.restored.leftOut > 0
	f.wakeAt(f.plan.nextTurn, now)
	for _, o := range f.plan.newOwners {
		if o.guaranteed || o.unplaced || o.truncated || !f.canGuarantee(o.id) {
			continue
		}
		if _, q, ok := f.plan.planner.Departure(o.id); ok && q != (backfill.Guarantee{}) {
			running := f.runsUntil(s, o.id, now)
			if running == scheduler.Never {
				continue // part of it is suspended: nothing can be guaranteed
			}
			q.Departure = max(q.Departure, running)
			q.Latest = max(q.Latest, q.Departure)
			f.placer.states = append(f.placer.states, q.States(o.id)...)
		}
	}
}

// ownersToComplete returns the owners with work to plan, and all planned owners if previously
// planned work lost its place. O(tasks).
func (p *roundPlan) ownersToComplete() (owners []*restoredOwner) {
	missing := 0
	for _, o := range p.newOwners {
		missing += p.planner.NumUnplacedOf(o.id)
	}
	if missing == p.planner.NumUnplaced() {
		owners = p.newOwners
	} else {
		for _, o := range p.restored.ordered {
			if o.planned {
				owners = append(owners, o)
			}
		}
	}
	for _, o := range owners {
		o.unplaced = p.planner.NumUnplacedOf(o.id) > 0
	}
	return owners
}

// completePlans finds places for the unplaced work of the given owners: first of those with a
// guarantee, whose tasks failed or were lost, then of the others, which must not take places from
// the former. It returns false if some are not planned in full.
func (p *roundPlan) completePlans(owners []*restoredOwner) (finished bool) {
	finished = p.completeGuaranteed(owners)
	if !finished {
		turn := p.now / windowTurn
		p.nextTurn = (turn + 1) * windowTurn
		if turn%newWorkTurns == 0 {
			p.planner.SetBudget(max(p.planner.StepsLeft(), planSteps/10))
		}
	}
	if p.unfinished {
		return false
	}
	return p.completeNew(owners) && finished
}

// newWorkTurns is the number of turns of which one is for new work even while owners with a
// guarantee use up the budget: they may do so for long if much of their work fits nowhere.
const newWorkTurns = 8

// completeGuaranteed finds places for the unplaced work of owners with a guarantee: half of the
// budget in order, half by turns, so that none waits for ever behind others that fit nowhere.
func (p *roundPlan) completeGuaranteed(owners []*restoredOwner) (finished bool) {
	p.toRestore = p.toRestore[:0]
	for _, o := range owners {
		if o.guaranteed {
			p.toRestore = append(p.toRestore, o)
		}
	}
	finished = true
	half := p.planner.StepsLeft() / 2
	p.planner.SetBudget(p.planner.StepsLeft() - half)
	rest := p.toRestore
	for len(rest) > 0 && p.planner.StepsLeft() > 0 {
		finished = p.completeOwner(rest[0]) && finished
		rest = rest[1:]
	}
	p.planner.SetBudget(p.planner.StepsLeft() + half)
	// Multiples of the golden ratio visit all parts of a list soon, whatever its length.
	const golden = 0x9e3779b97f4a7c15
	first, _ := bits.Mul64(uint64(p.now/windowTurn)*golden, uint64(len(rest)))
	for i := range rest {
		o := rest[(i+int(first))%len(rest)]
		if o.unplaced && p.planner.StepsLeft() <= 0 {
			finished = false
		} else {
			finished = p.completeOwner(o) && finished
		}
	}
	return finished
}

// completeOwner finds places for the unplaced work of an owner within the budget, and returns false
// if the budget is spent before all of it was tried.
func (p *roundPlan) completeOwner(o *restoredOwner) (finished bool) {
	_, err := p.planner.CompletePlan(p.now, o.id)
	o.unplaced = err != nil
	return !errors.Is(err, backfill.ErrUnfinished) && (err == nil || p.planner.CompleteWhatFits(p.now, o.id))
}

// completeNew finds places for the unplaced work of owners without a guarantee. If the budget may
// not suffice, each gets an equal part of it, so that a large project does not keep small ones
// waiting. Once the budget is spent it costs O(1) for each owner with a task to place.
func (p *roundPlan) completeNew(owners []*restoredOwner) (finished bool) {
	finished = true
	waiting, left := 0, p.planner.StepsLeft()
	if p.planner.NumUnplaced()*stepsPerTask > left/4 {
		for _, o := range owners {
			if o.unplaced && !o.guaranteed {
				waiting++
			}
		}
	}
	for _, o := range owners {
		if o.guaranteed {
			continue
		}
		if o.unplaced && left <= 0 {
			finished = false
			continue
		}
		part := left
		if left > 0 && waiting > 1 && o.unplaced {
			part = max(left/waiting, stepsPerTask)
			waiting--
		}
		p.planner.SetBudget(part)
		finished = p.completeOwner(o) && finished
		left -= part - p.planner.StepsLeft()
	}
	p.planner.SetBudget(left)
	return finished
}

// canGuarantee reports whether a departure can be guaranteed: every job of the
// project was submitted in full, has a bound, and has no stage with more tasks left
// than may run at once.
func (f *reservingPolicy) canGuarantee(id scheduler.ProjectID) bool {
	return !slices.ContainsFunc(f.plan.jobsOf(id), func(j *scheduler.Job) bool {
		return j.Spec.Bound <= 0 || slices.ContainsFunc(j.Stages, (*scheduler.Stage).ExceedsParallel)
	})
}

// runsUntil returns when all running tasks of a project should have ended: 0 if none runs,
// scheduler.Never if unknown. O(running tasks of the project).
func (f *reservingPolicy) runsUntil(s *scheduler.State, id scheduler.ProjectID, now scheduler.Time) scheduler.Time {
	until := scheduler.Time(0)
	for _, j := range f.plan.jobsOf(id) {
		for _, g := range j.Stages {
			for a := range s.Attempts().In(g) {
				until = max(until, f.plan.expectedEnd(s, a, now))
			}
		}
	}
	return until
}

// replanCause returns why work of a project is planned again: one of its own tasks ran past its
// bound, is suspended otherwise (isSuspensionCause), or failed. O(attempts of the project).
func (f *reservingPolicy) replanCause(s *scheduler.State, id scheduler.ProjectID, now scheduler.Time) backfill.Cause {
	cause := backfill.CauseFailed
	for _, j := range f.plan.jobsOf(id) {
		for _, g := range j.Stages {
			for a := range s.Attempts().In(g) {
				if a.RanFor(now) > taskBound(g, f.plan.defaultBound) {
					return backfill.CauseOverrun
				}
				if isSuspensionCause(g, a) {
					cause = backfill.CauseSuspended
				}
			}
		}
	}
	return cause
}

// isSuspensionCause reports whether an attempt of a stage may be why its project is late: it is suspended, and without
// a place in the plan so far. A reduce that gave way to a map whose output was lost is no cause: the map is.
func isSuspensionCause(g *scheduler.Stage, a *scheduler.Attempt) bool {
	return a.Level.Suspended() && (a.Parked || (!g.WaitsForInput() && g.PlannedAt(a.ID.Index) == nil))
}

// dueTask is a task that is planned to start now.
type dueTask struct {
	backfill.PlannedTask
	kept bool // an action is reserved for its start
}

// actionsPerTask is how many actions commit takes for a task at most: its reservation moves, it
// starts, and the reservation is dropped.
const actionsPerTask = 3

// commit makes the State's reservations those of the plan and starts due tasks.
//
// All due tasks' reservations are dropped before any of the tasks starts, which needs actions for all of them.
// If the decision may lack these, each task starts in its reservation instead, with an action reserved for it
// if that is a guarantee. So the decision is valid wherever its actions end, and the next one continues.
func (f *reservingPolicy) commit(s *scheduler.State, now scheduler.Time) {
	f.dropUnplanned(s, now)
	f.dueTasks = f.dueTasks[:0]
	f.mayExhaust = f.placer.actionsLeft < actionsPerTask*f.plan.planner.Len()
	f.plan.planner.Scan(func(x *backfill.PlannedTask) {
		if x.Spot.Bin < 0 {
			f.plan.needsAnotherRound = true
			if x.Moved && x.Ref != 0 {
				f.unreserve(x.Key)
			}
			return
		}
		if f.wakeAt(x.Spot.At, now); x.Spot.At > now {
			if x.Moved {
				f.reserve(s, x, f.plan.reservationOf(x.Key))
			}
			return
		}
		f.takeDue(s, x)
	})
	for i := range f.dueTasks {
		f.startTask(s, &f.dueTasks[i])
	}
	f.recordDropped(s, now)
}

// takeDue prepares the start of a due task.
func (f *reservingPolicy) takeDue(s *scheduler.State, x *backfill.PlannedTask) {
	g, old := s.Stage(x.Key.StageID()), f.plan.reservationOf(x.Key)
	stays, waits := f.plan.stays(s, g.Job, scheduler.NodeID(x.Spot.Bin)), isBlocked(s, g) || !f.canStart(s, g, x)
	due := dueTask{*x, f.mayExhaust && !waits && (stays || (old != nil && old.Kind.IsGuarantee()))}
	switch {
	case due.kept && f.isReservedNow(x):
	case due.kept || stays || waits:
		if !f.reserve(s, x, old) { // Check requires it before the task may overtake guarantees
			return
		}
	case !f.mayExhaust:
		f.unreserve(x.Key)
	}
	if due.kept = due.kept && f.isReservedNow(x); due.kept {
		if f.placer.actionsLeft <= f.keptForStarts {
			f.actionsExhausted = true
			return
		}
		f.keptForStarts++
	}
	f.dueTasks = append(f.dueTasks, due)
}

// isReservedNow reports whether a guarantee reserves capacity for a due task now at its planned
// place: then no other guarantee is in the way of its start.
func (f *reservingPolicy) isReservedNow(x *backfill.PlannedTask) bool {
	r := f.plan.reservationOf(x.Key)
	return r != nil && r.Kind.IsGuarantee() && r.Node == scheduler.NodeID(x.Spot.Bin) && r.Start <= f.placer.now && r.End > f.placer.now
}

func (f *reservingPolicy) dropUnplanned(s *scheduler.State, now scheduler.Time) {
	p := &f.plan
	var missing []backfill.Key
	p.eachUnplanned(func(r *scheduler.Reservation) { missing = append(missing, backfill.KeyOf(r)) })
	for _, k := range missing {
		f.unreserve(k)
		// A task that was lost or stopped may leave its stage with more tasks than may run at once;
		// the stages behind it then cannot be planned.
		f.violateGuarantee(s, s.Job(k.Job), now)
	}
}

// recordDropped records violations of guarantees whose stale reservation was dropped: its task
// waits or is parked, and has no other reservation now. Check requires this. O(stale reservations).
func (f *reservingPolicy) recordDropped(s *scheduler.State, now scheduler.Time) {
	for i := range f.plan.restored.stale {
		k := &f.plan.restored.stale[i].task
		g := s.Stage(k.StageID())
		if g == nil || g.Job.Phase != scheduler.JobActive || k.Task >= g.Spec.Tasks || g.PlannedAt(k.Task) != nil {
			continue
		}
		if g.IsPending(k.Task) || isSuspended(s, g, k.Task) {
			f.violateGuarantee(s, g.Job, now)
		}
	}
}

// violateGuarantee records that the guarantee of a job's owner is violated, if it has one.
func (f *reservingPolicy) violateGuarantee(s *scheduler.State, j *scheduler.Job, now scheduler.Time) {
	id := ownerOf(j, f.plan.projects)
	if _, guaranteed := s.PolicyState(backfill.StateKey(scheduler.GuaranteeState, id)); guaranteed {
		f.recordViolations([]backfill.Violation{{Project: id, Cause: f.replanCause(s, id, now)}}, now)
	}
}

func (f *reservingPolicy) unreserve(k backfill.Key) {
	if r := f.plan.reservationOf(k); r != nil {
		f.tryApply(scheduler.Unreserve(r.ID))
	}
}

// reserve makes the State's reservation of one task the one in the plan. It returns false if the
// cycle has no action left for it, or the State accepts no more reservations.
func (f *reservingPolicy) reserve(s *scheduler.State, x *backfill.PlannedTask, old *scheduler.Reservation) bool {
	g := s.Stage(x.Key.StageID())
	r := x.Reservation(g)
	r.Kind = f.plan.reserveKind(g.Job, r.Node)
	if a := suspendedAttempt(s, g, x.Key.Task); a != nil {
		r.Demand, r.Disk = a.Demand.Sub(a.Occupied.Resources).Max(scheduler.Resources{}), max(0, a.DiskSpace-a.Occupied.Disk)
	}
	if old != nil {
		if r.ID = old.ID; r == *old {
			return true
		}
	} else if s.Reservations().Left() == 0 { // more than keptReservations were needed
		f.compressed.timeline = nil // others were planned around this reservation
		return false
	} else {
		r.ID = f.plan.nextID
		f.plan.nextID++
	}
	return f.tryApply(scheduler.Action{Kind: scheduler.ActReserve, Reservation: r})
}

// startTask starts a due task unless something other than capacity stops it. If obsolete
// reservations are left, it starts only in its own.
func (f *reservingPolicy) startTask(s *scheduler.State, due *dueTask) {
	x := &due.PlannedTask
	g := s.Stage(x.Key.StageID())
	started := false
	if due.kept {
		f.keptForStarts--
	}
	if !f.canStart(s, g, x) || (f.outdated && !f.isReservedNow(x)) {
	} else if a := suspendedAttempt(s, g, x.Key.Task); a != nil {
		started = f.tryApply(a.Act(scheduler.ActResume))
	} else {
		started = f.tryApply(s.Attempts().PlaceAction(g, x.Key.Task, scheduler.NodeID(x.Spot.Bin), x.Spot.Disk))
	}
	if started {
		f.unreserve(x.Key)
	} else if f.plan.reservationOf(x.Key) == nil && (due.kept || !f.actionsExhausted) { // it stays due until it is no longer blocked
		f.reserve(s, x, nil)
	}
}

// canStart reports whether a due task can start at its planned place.
func (f *reservingPolicy) canStart(s *scheduler.State, g *scheduler.Stage, x *backfill.PlannedTask) bool {
	if a := suspendedAttempt(s, g, x.Key.Task); a != nil {
		return s.Attempts().CanResume(a)
	}
	return g.Ready() && !isBlocked(s, g) && fitsOnDisk(s.Node(scheduler.NodeID(x.Spot.Bin)), x.Spot.Disk, g)
}

// fitsOnDisk reports whether a task fits on a node and its given disk now.
func fitsOnDisk(n *scheduler.Node, disk int16, g *scheduler.Stage) bool {
	d := g.Spec.Demand
	if !n.Schedulable() || d[scheduler.CPU] > n.Free[scheduler.CPU] || d[scheduler.Memory] > n.Free[scheduler.Memory] {
		return false
	}
	return disk < 0 || (d[scheduler.IO] <= n.Disks[disk].FreeIO && g.Spec.Disk <= n.Disks[disk].FreeSpace)
}

func (f *reservingPolicy) reason(g *scheduler.Stage) scheduler.Waiting {
	s := f.placer.s
	due, next := f.reserved(g)
	if f.actionsExhausted || f.placer.actionsLeft <= 0 || (f.continues && next == 0) {
		return scheduler.Waiting{Stage: g.ID(), Tasks: g.Pending, Reason: scheduler.ReasonCycleFull}
	}
	w := s.TenantTree().Waiting(g)
	switch {
	case w.Reason != 0:
	case next > 0:
		w.Reason, w.Until = scheduler.ReasonLater, next
	case f.plan.isLeftOut(g.Job):
		w.Reason = scheduler.ReasonNotExamined
	case s.Cluster().NextNode(g, 0) == scheduler.NoNode:
		f.placer.explainNoCapacity(&w, g, s.Cluster().DemandClassOf(g))
	case due != nil:
		w.Reason, w.Node, w.Reservation = scheduler.ReasonDue, due.Node, due.ID
	case f.plan.isShortened(g.Job):
		w.Reason = scheduler.ReasonNotExamined
	default:
		w.Reason, w.Until = scheduler.ReasonLater, scheduler.Never
	}
	return w
}

// reserved returns the reservation of a stage's first waiting task that is due and could not start,
// nil for none, and when the next reservation is due, 0 for none. O(reservations of the job).
func (f *reservingPolicy) reserved(g *scheduler.Stage) (due *scheduler.Reservation, next scheduler.Time) {
	for _, r := range g.Job.Reservations() {
		switch {
		case r.Stage != g.Index || !r.IsPlanOfTask() || g.PlannedAt(r.Task) != r:
		case r.Start <= f.placer.now && g.IsPending(r.Task) && (due == nil || r.Task < due.Task):
			due = r
		case r.Start > f.placer.now && (next == 0 || r.Start < next):
			next = r.Start
		}
	}
	return due, next
}
