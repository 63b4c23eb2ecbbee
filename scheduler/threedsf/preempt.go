package threedsf

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
)

// preemption frees capacity by preempting tasks, and reserves it for the task that needs it.
type preemption struct {
	c            *cycle
	reservations *preemptReservations
	preemptor    deadline.Preemptor
}

// init sets what the preemptor must know of the policy.
func (p *preemption) init(open *openNodes) {
	p.preemptor = deadline.Preemptor{
		Mode:         p.c.cfg.Preempt,
		MaxSuspended: p.c.cfg.MaxSuspended,
		Reserved:     func(n *scheduler.Node) (scheduler.Resources, int64) { return open.reservedForOthers(n, 0) },
		IsProtected:  p.isProtected,
		MayStart:     open.leavesGuarantees,
	}
}

// isProtected reports whether a job must not be preempted. A job whose deadline is accepted without
// a guarantee, or whose guarantee is violated, gives way to a guarantee that is due.
func (p *preemption) isProtected(j *scheduler.Job) bool {
	return p.c.hasProjectGuarantee(j) || (p.c.inLane(j) && (!p.preemptor.ForDueReservation || (j.IsDeadlineGuaranteed() && !p.c.s.Reservations().IsViolated(j))))
}

// victimsForDue finds victims on a node for a task whose reservation there is due.
func (p *preemption) victimsForDue(g *scheduler.Stage, node scheduler.NodeID) (deadline.PreemptionPlan, bool) {
	p.preemptor.Escalate = true // memory too: the next task due here will need it
	p.preemptor.ForDueReservation = true
	defer func() { p.preemptor.Escalate, p.preemptor.ForDueReservation = false, false }()
	return p.preemptor.FindVictimsOn(p.c.s, g, node, p.c.now)
}

// capVictimsForDue finds victims for a task that is due on a node but that its tenants' caps stop.
func (p *preemption) capVictimsForDue(g *scheduler.Stage, node scheduler.NodeID) ([]deadline.Victim, bool) {
	p.preemptor.ForDueReservation = true
	defer func() { p.preemptor.ForDueReservation = false }()
	awaited := func(id scheduler.TenantID) scheduler.Resources { return awaitedBelow(p.c.s, p.c.capWaits, id) }
	return p.preemptor.FindCapVictims(p.c.s, g, node, awaited, p.c.now)
}

// apply preempts the plan's victims and reserves the capacity for a task of the stage until end. It returns false
// if the cycle's actions do not suffice, and the next cycle continues. Without a free reservation it preempts none.
func (p *preemption) apply(g *scheduler.Stage, plan deadline.PreemptionPlan, end scheduler.Time) bool {
	if len(plan.Victims) == 0 && !plan.AwaitsStart && p.c.s.Node(plan.Node).Releasing.IsZero() {
		return false // the task fits already: something other than capacity stops it
	}
	if !p.reservations.areLeft() {
		return false
	}
	p.preempt(plan.Victims)
	if p.c.actionsLeft == 0 {
		return false
	}
	p.reservations.reserve(g, -1, plan.Node, g.Spec.Demand, g.Spec.Disk, end)
	return true
}

// preempt preempts victims, as many as the cycle has actions for.
func (p *preemption) preempt(victims []deadline.Victim) {
	for _, v := range victims {
		if p.c.actionsLeft == 0 {
			return
		}
		act := v.Attempt.Act(scheduler.ActKill)
		if !v.Kill {
			act.Kind, act.Level = scheduler.ActSuspend, v.Level
		}
		p.c.apply(act)
	}
}
