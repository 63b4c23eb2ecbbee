package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// commit makes the State's reservations and policy states those of the plan: first
// for owners with a guarantee, then one by one for requests. If the cycle runs out
// of the actions that it has for requests, the request at hand is not accepted yet; its
// reservations stay and the next cycle continues. So it does with a request that is planned
// in part. Moves to earlier times, which no guarantee needs, take an
// eighth of the cycle's actions at most.
func (b *plan) commit(refused []scheduler.PolicyState) {
	b.movesLeft = b.p.actionsLeft/8 + 1
	for _, o := range b.owners {
		if !o.requested {
			b.reserveOwner(o)
		}
	}
	for _, n := range refused {
		b.p.recordState(n)
		b.unreserveOwner(b.ownerOfState(n)) // the rest is obsolete: dropObsolete drops it
	}
	for _, o := range b.owners {
		switch {
		case !o.requested || (o.guarantee == (backfill.Guarantee{}) && !o.partial):
			continue
		case !b.reserveOwner(o) || o.partial:
			b.deferred = true
			continue
		}
		if o.deadline > 0 {
			b.p.recordState(scheduler.PolicyState{PolicyStateKey: stateKey(scheduler.AcceptedState, o.id), Value: int64(o.deadline), At: o.guarantee.Departure})
			continue
		}
		b.p.recordState(scheduler.PolicyState{PolicyStateKey: stateKey(scheduler.GuaranteeState, o.id), At: o.guarantee.Departure})
		b.p.recordState(scheduler.PolicyState{PolicyStateKey: stateKey(scheduler.LatestDepartureState, o.id), At: o.guarantee.Latest})
	}
}

// ownerOfState returns the owner that a policy state is about.
func (b *plan) ownerOfState(n scheduler.PolicyState) *owner {
	for _, o := range b.owners {
		if k := stateKey(n.Kind, o.id); k == n.PolicyStateKey {
			return o
		}
	}
	panic("threedsf: a policy state of an unknown owner")
}

// reserveOwner makes the State's reservations of one owner those of the plan. It
// returns false if the cycle has no actions left.
func (b *plan) reserveOwner(o *owner) bool {
	all, violated := true, isViolated(b.p.s, o.jobs[0])
	b.planner.ScanOf(o.id, func(x *backfill.PlannedTask) {
		if all {
			all = b.reserveTask(o, x, violated)
		}
	})
	return all && (!o.requested || o.partial || b.setLatestOfDue(o))
}

// setLatestOfDue sets the latest start of the reservations of an accepted owner that are
// due already, which the planner does not know.
func (b *plan) setLatestOfDue(o *owner) bool {
	for _, j := range o.jobs {
		for _, old := range j.Reservations() {
			r := *old
			if r.Latest = b.latestStart(o, &r); !b.isDue(old) || r == *old || !b.p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage}).IsPending(r.Task) {
				continue
			}
			if !b.tryReserve(o, r) {
				return false
			}
		}
	}
	return true
}

// latestStart returns the latest start of a reservation of an owner that keeps its
// guarantee. While there is none yet, the reservation may not be delayed unless a deadline
// leaves time.
func (b *plan) latestStart(o *owner, r *scheduler.Reservation) scheduler.Time {
	latest := o.guarantee.Latest
	if o.partial {
		latest = max(o.deadline, r.End)
	}
	return latest.Add(-r.End.Sub(r.Start))
}

// tryReserve is tryApply for a reservation. Requests use a part of the cycle only.
func (b *plan) tryReserve(o *owner, r scheduler.Reservation) bool {
	if o.requested {
		if b.requestsLeft <= 0 {
			return false
		}
		b.requestsLeft--
	}
	return b.tryApply(scheduler.Action{Kind: scheduler.ActReserve, Reservation: r})
}

func (b *plan) reserveTask(o *owner, x *backfill.PlannedTask, violated bool) bool {
	p := b.p
	var old *scheduler.Reservation
	if x.Ref != 0 {
		old = p.s.Reservations().Get(scheduler.ReservationID(x.Ref))
	}
	if !x.Moved && !violated && !o.requested && old != nil && old.Latest != 0 {
		return true // nothing changed
	}
	if x.Spot.Bin < 0 {
		return old == nil || b.tryApply(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: old.ID}})
	}
	g := p.s.Stage(scheduler.StageID{Job: x.Key.Job, Stage: x.Key.Stage})
	if g.Spec.Demand.IsZero() && g.Spec.Disk == 0 {
		return true // it needs no capacity
	}
	r := scheduler.Reservation{Kind: scheduler.ReserveProject, Job: x.Key.Job, Stage: x.Key.Stage, Task: x.Key.Task, Project: g.Job.Spec.Project,
		Node: scheduler.NodeID(x.Spot.Bin), Demand: g.Spec.Demand, Disk: g.Spec.Disk, OnDisk: x.Spot.Disk, Start: x.Spot.At, End: x.End}
	r.Latest = b.latestStart(o, &r)
	if r.Project == 0 {
		r.Kind = scheduler.ReserveDeadline
	}
	if old != nil && old.Latest != 0 && !o.requested {
		r.Latest = old.Latest
	}
	if !o.requested && (r.Start > r.Latest || violated) {
		r.Latest = 0
	}
	if old != nil && r.Start < old.Start && !p.isExpired(old) && p.canStayOn(old) {
		if b.movesLeft == 0 {
			return true // it can stay where it is until the next cycle
		}
		b.movesLeft--
	}
	if old == nil {
		r.ID = p.nextReservationID()
		return b.tryReserve(o, r)
	}
	if r.ID = old.ID; r == *old {
		return true
	}
	if r.Latest == 0 && old.Latest != 0 {
		b.ensureViolationRecorded(o)
	}
	return b.tryReserve(o, r)
}

// ensureViolationRecorded records again in this decision that a guarantee is
// violated: Check asks for it whenever a latest start is given up.
func (b *plan) ensureViolationRecorded(o *owner) {
	p := b.p
	key := stateKey(scheduler.ViolatedState, o.id)
	for i := range p.states {
		if n := &p.states[i]; n.Kind == key.Kind && n.Job == key.Job && n.Project == key.Project {
			return
		}
	}
	for key.Slot = int32(backfill.CauseOverrun); key.Slot <= int32(backfill.CauseLate); key.Slot++ {
		if n, ok := p.s.PolicyState(key); ok {
			p.recordState(n)
			return
		}
	}
	key.Slot = int32(backfill.CauseLate)
	p.recordState(scheduler.PolicyState{PolicyStateKey: key, At: p.now})
}

// unreserveOwner drops the reservations of a refused owner, as many as the cycle has
// actions for.
func (b *plan) unreserveOwner(o *owner) {
	for _, j := range o.jobs {
		for _, r := range slices.Clone(j.Reservations()) {
			if isPlanned(r) && !b.tryApply(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: r.ID}}) {
				return
			}
		}
	}
}

// tryApply applies an action if the cycle has one left.
func (b *plan) tryApply(a scheduler.Action) bool {
	if b.p.actionsLeft <= 0 {
		return false
	}
	b.p.apply(a)
	return true
}

// nextReservationID returns the id for a new reservation.
func (p *Policy) nextReservationID() scheduler.ReservationID {
	if all := p.s.Reservations().All(); len(all) > 0 {
		return all[len(all)-1].ID + 1
	}
	return 1
}

// dropObsolete drops planned reservations that nothing waits for any more: their
// task runs or is done, or their job left its lane. A task that started before its
// reservation so releases it for others.
func (p *Policy) dropObsolete() { p.dropObsoleteUpTo(p.actionsLeft) }

// manyObsolete is from how many planned reservations without a waiting task they are
// dropped before the plan is read: each of them costs it more than the others do.
const manyObsolete = 256

// dropManyObsolete is dropObsolete if there are many. It leaves two thirds of the cycle's
// actions to others.
func (p *Policy) dropManyObsolete() {
	n := int32(0)
	for i := range p.jobCache.jobs {
		if x := &p.jobCache.jobs[i]; x.overReserved {
			n += x.reservedInVain
		}
	}
	if n >= manyObsolete {
		p.dropObsoleteUpTo(p.actionsLeft / 3)
	}
}

func (p *Policy) dropObsoleteUpTo(limit int) {
	if limit <= 0 || len(p.s.Reservations().All()) == 0 || !p.hasOverReserved() {
		return
	}
	p.obsolete = p.obsolete[:0]
	for i := range p.jobCache.jobs {
		if !p.jobCache.jobs[i].overReserved {
			continue
		}
		for _, r := range p.s.Job(p.jobCache.jobs[i].id).Reservations() {
			if isPlanned(r) && p.isObsolete(r) {
				p.obsolete = append(p.obsolete, r.ID)
			}
		}
	}
	slices.Sort(p.obsolete)
	for _, id := range p.obsolete[:min(limit, len(p.obsolete))] {
		p.survey.dropped = true
		p.apply(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: id}})
	}
}

// isObsolete reports whether nothing waits for a planned reservation any more.
func (p *Policy) isObsolete(r *scheduler.Reservation) bool {
	g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
	return g == nil || (!g.IsPending(r.Task) && !p.isSuspended(g, r.Task)) || g.Job.Phase != scheduler.JobActive ||
		(g.Job.Spec.Project == 0 && p.isInfeasible(g.Job)) || p.wasRefused(g.Job)
}

// wasRefused reports whether a job or its project requested a guarantee, was refused, and
// has none from elsewhere.
func (p *Policy) wasRefused(j *scheduler.Job) bool {
	if pr := p.s.Project(j.Spec.Project); pr != nil {
		return pr.HasState(scheduler.RefusedState) && !pr.HasState(scheduler.GuaranteeState) && pr.Spec.GuaranteedDeparture == 0
	}
	return p.isRefused(j) && !j.IsAccepted()
}

// isSuspended reports whether an attempt at a task is suspended: it resumes in the
// task's reservation.
func (p *Policy) isSuspended(g *scheduler.Stage, task int32) bool {
	for a := range p.s.Attempts().Of(g, task) {
		if a.Phase == scheduler.AttemptSuspended {
			return true
		}
	}
	return false
}

// hasOverReserved reports whether a job may have more reserved than waits.
func (p *Policy) hasOverReserved() bool {
	p.syncJobCache()
	return slices.ContainsFunc(p.jobCache.jobs, func(x cachedJob) bool { return x.overReserved })
}

// isGuaranteed reports whether a job's project has a guaranteed departure that still
// holds. Such a job is not preempted.
func (p *Policy) isGuaranteed(j *scheduler.Job) bool {
	pr := p.s.Project(j.Spec.Project)
	return pr != nil && !pr.HasState(scheduler.ViolatedState) && (pr.HasState(scheduler.GuaranteeState) || pr.Spec.GuaranteedDeparture != 0)
}

// isProtected reports whether a job is not preempted. One whose deadline is accepted without a
// guarantee gives way to a guarantee that is due.
func (p *Policy) isProtected(j *scheduler.Job) bool {
	return p.isGuaranteed(j) || (p.inLane(j) && (j.IsGuaranteed() || !p.preemptor.ForDueReservation))
}
