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
		o.drop(o.c.actionsLeft / 3)
	}
}

// drop drops planned reservations that nothing waits for any more, limit at most: their task runs or is
// done, or their job left its lane. A task that started before its reservation so releases
// it for others.
func (o *obsoleteReservations) drop(limit int) {
	if limit <= 0 || len(o.c.s.Reservations().All()) == 0 {
		return
	}
	o.jobs.sync()
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

// isObsolete reports whether nothing waits for a planned reservation any more. A suspended attempt resumes in it.
func (o *obsoleteReservations) isObsolete(r *scheduler.Reservation) bool {
	g := o.c.s.Stage(r.StageID())
	return g == nil || (!g.IsPending(r.Task) && suspendedAttempt(o.c.s, g, r.Task, scheduler.NoNode) == nil) || g.Job.Phase != scheduler.JobActive ||
		(g.Job.Spec.Project == 0 && g.Job.IsInfeasible()) || o.c.wasRefused(g.Job)
}
