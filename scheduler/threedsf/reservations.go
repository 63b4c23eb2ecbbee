package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// preemptReservations are the reservations of capacity that preemption frees. The State holds them;
// this has their list at the beginning of a pass, and their number.
type preemptReservations struct {
	c      *cycle
	placed *exchangeIndex
	list   []*scheduler.Reservation
	total  int
}

// refresh lists all preemption reservations, including those whose end has passed.
func (x *preemptReservations) refresh() {
	x.list = x.list[:0]
	for _, r := range x.c.s.Reservations().Unguaranteed() {
		if r.Kind == scheduler.ReservePreempt {
			x.list = append(x.list, r)
		}
	}
	x.total = len(x.list)
}

// areLeft reports whether the State accepts one more reservation.
func (x *preemptReservations) areLeft() bool { return x.c.s.Reservations().Left() > 0 }

// reserve reserves capacity on a node until end for a task of the stage, -1 for any. The caller must check areLeft first.
func (x *preemptReservations) reserve(g *scheduler.Stage, task int32, node scheduler.NodeID, d scheduler.Resources, space int64, end scheduler.Time) {
	x.c.apply(scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: x.c.s.Reservations().NextID(), Kind: scheduler.ReservePreempt,
		Job: g.Job.Spec.ID, Stage: g.Index, Task: task, Node: node, Demand: d, Disk: space, Start: x.c.now, End: end}})
	x.total++
}

// drop ends a preemption reservation. One made by this decision is withdrawn from it.
func (x *preemptReservations) drop(r *scheduler.Reservation) {
	x.total--
	if action := x.c.withdrawReservation(r.ID); action >= 0 {
		x.placed.removeAction(action)
		return
	}
	x.c.apply(scheduler.Unreserve(r.ID))
}

// suspendedAttempt returns the suspended attempt at a task of a stage on a node, NoNode for any; nil for none.
func suspendedAttempt(s *scheduler.State, g *scheduler.Stage, task int32, node scheduler.NodeID) *scheduler.Attempt {
	for a := range s.Attempts().Of(g, task) {
		if a.Phase == scheduler.AttemptSuspended && (node == scheduler.NoNode || a.Node == node) {
			return a
		}
	}
	return nil
}

// suspendedAttemptOf returns the suspended attempt that a reservation is for, or nil if there is none any more.
func (x *preemptReservations) suspendedAttemptOf(r *scheduler.Reservation) *scheduler.Attempt {
	g := x.c.s.Stage(r.StageID())
	if g == nil || r.Task < 0 || r.Kind != scheduler.ReservePreempt {
		return nil
	}
	return suspendedAttempt(x.c.s, g, r.Task, r.Node)
}

// hasOlder reports whether the node of a has a reservation for a task that was suspended before a.
func (x *preemptReservations) hasOlder(a *scheduler.Attempt) bool {
	for _, r := range x.c.s.Reservations().On(a.Node) {
		if b := x.suspendedAttemptOf(r); b != nil && b.ResumeOrder().Compare(a.ResumeOrder()) < 0 {
			return true
		}
	}
	return false
}

// pickTaskFor returns the waiting task of a stage to place on a node: one with input there, if any.
func pickTaskFor(g *scheduler.Stage, node scheduler.NodeID) int32 {
	for _, i := range g.TasksOn(node) {
		if g.IsPending(i) {
			return i
		}
	}
	return g.NextPending(0)
}

// isForNewTask reports whether a reservation holds capacity freed by preemption for any new task of a stage.
func isForNewTask(r *scheduler.Reservation, g *scheduler.Stage) bool {
	return r.Kind == scheduler.ReservePreempt && r.Task < 0 && r.Job == g.Job.Spec.ID && r.Stage == g.Index
}

// countIn returns how many of some reservations are preemption reservations for new tasks of a stage.
func countIn(list []*scheduler.Reservation, g *scheduler.Stage) (n int32) {
	for _, r := range list {
		if isForNewTask(r, g) {
			n++
		}
	}
	return n
}

// count returns the number of preemption reservations for new tasks of a stage.
func (x *preemptReservations) count(g *scheduler.Stage) int32 {
	if x.total == 0 || g.Job.Unguaranteed() == 0 {
		return 0
	}
	return countIn(g.Job.Reservations(), g)
}

// countOn is count for one node.
func (x *preemptReservations) countOn(g *scheduler.Stage, node scheduler.NodeID) int32 {
	return countIn(x.c.s.Reservations().On(node), g)
}

// isFor reports whether capacity is reserved for a suspended attempt.
func (x *preemptReservations) isFor(a *scheduler.Attempt) bool {
	return slices.ContainsFunc(x.c.s.Reservations().On(a.Node), func(r *scheduler.Reservation) bool {
		return r.Kind == scheduler.ReservePreempt && r.Job == a.ID.Job && r.Stage == a.ID.Stage && r.Task == a.ID.Index
	})
}

// obsoleteReservations drops planned reservations for which no task waits any more.
type obsoleteReservations struct {
	c    *cycle
	jobs *jobCache
	ids  []scheduler.ReservationID // scratch
}

// dropMany is drop for many. It leaves two thirds of the cycle's actions to others.
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

// drop drops at most limit planned reservations for which no task waits any more: their task runs or is
// done, or their job left its lane. So a task that starts before its reservation releases it for others.
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

// isObsolete reports whether no task waits for a planned reservation. A suspended attempt resumes in its own.
func (o *obsoleteReservations) isObsolete(r *scheduler.Reservation) bool {
	g := o.c.s.Stage(r.StageID())
	return g == nil || (!g.IsPending(r.Task) && suspendedAttempt(o.c.s, g, r.Task, scheduler.NoNode) == nil) || g.Job.Phase != scheduler.JobActive ||
		(g.Job.Spec.Project == 0 && g.Job.IsInfeasible()) || o.c.wasRefused(g.Job)
}
