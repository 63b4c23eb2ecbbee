package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// commit makes the State's reservations and policy states those of the plan: first for owners with a guarantee,
// then one by one for requests. If the cycle's actions for requests run out, the request at hand is not accepted
// yet: its reservations stay and the next cycle continues. The same holds for a request that is planned in part.
// Moves to earlier times, which no guarantee needs, take at most an eighth of the cycle's actions.
func (b *plan) commit() {
	b.movesLeft = b.c.actionsLeft/8 + 1
	for _, o := range b.owners {
		if !o.requested {
			b.reserveOwner(o)
		}
	}
	for _, o := range b.owners {
		if o.refusal.Kind != 0 {
			b.c.recordState(o.refusal)
			b.unreserveOwner(o) // the rest is obsolete: obsoleteReservations drops it
		}
	}
	for _, o := range b.owners {
		switch {
		case !o.requested || (o.guarantee == (backfill.Guarantee{}) && !o.partial):
		case !b.reserveOwner(o) || o.partial:
			b.survey.deferred = true
		case o.joins:
			b.recordGuarantee(o, scheduler.GuaranteeState, 0, o.guarantee.Departure)
		case o.deadline > 0:
			b.recordGuarantee(o, scheduler.AcceptedState, int64(o.deadline), o.guarantee.Departure)
		default:
			b.recordGuarantee(o, scheduler.GuaranteeState, int64(o.jobs[len(o.jobs)-1].Spec.ID), o.guarantee.Departure)
			b.recordGuarantee(o, scheduler.LatestDepartureState, 0, o.guarantee.Latest)
		}
	}
}

// recordGuarantee records a policy state of an owner.
func (b *plan) recordGuarantee(o *owner, kind scheduler.PolicyStateKind, value int64, at scheduler.Time) {
	b.c.recordState(scheduler.PolicyState{PolicyStateKey: backfill.StateKey(kind, o.id), Value: value, At: at})
}

// reserveOwner makes the State's reservations of one owner those of the plan. It returns false if no actions are left.
func (b *plan) reserveOwner(o *owner) bool {
	all, violated := true, b.c.s.Reservations().IsViolated(o.jobs[0])
	b.planner.ScanOf(o.id, func(x *backfill.PlannedTask) {
		if all {
			all = b.reserveTask(o, x, violated)
		}
	})
	return all && (!o.requested || o.partial || b.setLatestOfDue(o))
}

// setLatestOfDue sets the latest start of an accepted owner's due reservations, which the planner
// does not know.
func (b *plan) setLatestOfDue(o *owner) bool {
	for _, j := range o.jobs {
		for _, old := range j.Reservations() {
			r := *old
			r.Latest = b.latestStart(o, &r)
			if !b.canBeServedNow(old) || r == *old || !b.c.s.Stage(r.StageID()).IsPending(r.Task) {
				continue
			}
			if !b.tryReserve(o, r) {
				return false
			}
		}
	}
	return true
}

// latestStart returns the latest start of an owner's reservation that keeps its guarantee. While
// there is no guarantee yet, the reservation may not be delayed unless a deadline leaves time.
func (b *plan) latestStart(o *owner, r *scheduler.Reservation) scheduler.Time {
	latest := o.guarantee.Latest
	if o.partial {
		latest = max(o.deadline, r.End)
	}
	return latest.Add(-r.End.Sub(r.Start))
}

// tryReserve is tryApply for a reservation. Requests may use only a part of the cycle's actions.
func (b *plan) tryReserve(o *owner, r scheduler.Reservation) bool {
	if o.requested {
		if b.requestsLeft <= 0 {
			return false
		}
		b.requestsLeft--
	}
	return b.tryApply(scheduler.Action{Kind: scheduler.ActReserve, Reservation: r})
}

// reserveTask makes the State's reservation of one task of an owner the one in the plan. It returns
// false if the cycle has no actions left for it.
func (b *plan) reserveTask(o *owner, x *backfill.PlannedTask, violated bool) bool {
	c := b.c
	var old *scheduler.Reservation
	if x.Ref != 0 {
		old = c.s.Reservations().Get(scheduler.ReservationID(x.Ref))
	}
	if !x.Moved && !violated && !o.requested && old != nil && old.Latest != 0 {
		return true // nothing changed
	}
	if x.Spot.Bin < 0 {
		if old == nil || (!o.requested && !violated) { // else the planner has not searched a place yet: the guarantee stays for the next cycle
			return true
		}
		return b.tryApply(scheduler.Unreserve(old.ID))
	}
	g := c.s.Stage(x.Key.StageID())
	if g.Spec.Demand.IsZero() && g.Spec.Disk == 0 {
		return true // it needs no capacity
	}
	r := x.Reservation(g)
	if r.Kind = scheduler.ReserveProject; r.Project == 0 {
		r.Kind = scheduler.ReserveDeadline
	}
	r.Latest = b.latestToReserve(o, &r, old, violated)
	if old == nil {
		if c.s.Reservations().Left() == 0 { // the task waits for a free reservation; it blocks none of the other tasks
			o.partial = o.partial || o.requested
			b.survey.replanLeft = b.survey.replanLeft || !o.requested
			return true
		}
		r.ID = c.s.Reservations().NextID()
		return b.tryReserve(o, r)
	}
	if r.ID = old.ID; r == *old {
		return true
	}
	if r.Start < old.Start && !c.isExpired(old) && c.canStayOn(old) {
		if b.movesLeft == 0 {
			return true // it can stay where it is until the next cycle
		}
		b.movesLeft--
	}
	if r.Latest == 0 && old.Latest != 0 {
		b.ensureViolationRecorded(o)
	}
	return b.tryReserve(o, r)
}

// latestToReserve returns the latest start of a reservation that replaces old. An accepted owner
// keeps old's latest start, but none after a violation of its guarantee.
func (b *plan) latestToReserve(o *owner, r, old *scheduler.Reservation, violated bool) scheduler.Time {
	latest := b.latestStart(o, r)
	if o.requested {
		return latest
	}
	if old != nil && old.Latest != 0 {
		latest = old.Latest
	}
	if r.Start > latest || violated {
		return 0
	}
	return latest
}

// ensureViolationRecorded records again in this decision that a guarantee is violated: Check
// requires it whenever a latest start is dropped.
func (b *plan) ensureViolationRecorded(o *owner) {
	c := b.c
	if backfill.RecordsViolation(c.states, o.id) {
		return
	}
	n, ok := backfill.ViolationOf(c.s, o.id)
	if !ok {
		n = backfill.ViolatedState(o.id, backfill.CauseLate, c.now)
	}
	c.recordState(n)
}

// unreserveOwner drops the reservations of a refused owner, as many as the cycle has actions for.
func (b *plan) unreserveOwner(o *owner) {
	for _, j := range o.jobs {
		for _, r := range slices.Clone(j.Reservations()) {
			if isPlanned(r) && !b.tryApply(scheduler.Unreserve(r.ID)) {
				return
			}
		}
	}
}

// tryApply applies an action if the cycle has one left.
func (b *plan) tryApply(a scheduler.Action) bool {
	if b.c.actionsLeft <= 0 {
		return false
	}
	b.c.apply(a)
	return true
}
