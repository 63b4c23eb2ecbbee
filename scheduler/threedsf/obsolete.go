package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// obsoleteReservations drops planned reservations that nothing waits for any more.
type obsoleteReservations struct {
	c    *cycle
	jobs *jobCache
	ids  []scheduler.ReservationID // scratch
}

// drop drops planned reservations that nothing waits for any more: their task runs or is
// done, or their job left its lane. A task that started before its reservation so releases
// it for others.
func (o *obsoleteReservations) drop() { o.dropUpTo(o.c.actionsLeft) }

// dropMany is drop if there are many. It leaves two thirds of the cycle's
// actions to others.
func (o *obsoleteReservations) dropMany() {
	n := int32(0)
	for i := range o.jobs.jobs {
		if x := &o.jobs.jobs[i]; x.overReserved {
			n += x.reservedInVain
		}
	}
	if n >= manyObsolete {
		o.dropUpTo(o.c.actionsLeft / 3)
	}
}

func (o *obsoleteReservations) dropUpTo(limit int) {
	if limit <= 0 || len(o.c.s.Reservations().All()) == 0 || !o.jobs.hasOverReserved() {
		return
	}
	o.ids = o.ids[:0]
	for i := range o.jobs.jobs {
		if !o.jobs.jobs[i].overReserved {
			continue
		}
		for _, r := range o.jobs.jobs[i].job.Reservations() {
			if isPlanned(r) && o.isObsolete(r) {
				o.ids = append(o.ids, r.ID)
			}
		}
	}
	slices.Sort(o.ids)
	for _, id := range o.ids[:min(limit, len(o.ids))] {
		o.c.apply(scheduler.Unreserve(id))
	}
}

// isObsolete reports whether nothing waits for a planned reservation any more.
func (o *obsoleteReservations) isObsolete(r *scheduler.Reservation) bool {
	g := o.c.s.Stage(r.StageID())
	return g == nil || (!g.IsPending(r.Task) && !o.isSuspended(g, r.Task)) || g.Job.Phase != scheduler.JobActive ||
		(g.Job.Spec.Project == 0 && g.Job.IsInfeasible()) || o.c.wasRefused(g.Job)
}

// isSuspended reports whether an attempt at a task is suspended: it resumes in the
// task's reservation.
func (o *obsoleteReservations) isSuspended(g *scheduler.Stage, task int32) bool {
	for a := range o.c.s.Attempts().Of(g, task) {
		if a.Phase == scheduler.AttemptSuspended {
			return true
		}
	}
	return false
}
