package threedsf

import "github.com/drover-run/drover/scheduler"

// maxExamined bounds how many nodes are compared with demands to explain why stages wait,
// all together, where nothing is known from earlier cycles. At least minExamined different
// demands are.
const (
	maxExamined = 1 << 19
	minExamined = 64
)

// explain records a reason for each stage that is left waiting.
func (p *Policy) explain() {
	p.beginShrinkOnly()
	clear(p.examined)
	p.maxExamined = max(minExamined, maxExamined/max(1, len(p.s.Nodes())))
	for j, at := p.s.Queue().Next(0); j != nil; j, at = p.s.Queue().Next(at) {
		for _, g := range j.Stages {
			if g.Ready() {
				p.waitingReasons = append(p.waitingReasons, p.reason(g))
			}
		}
	}
}

func (p *Policy) reason(g *scheduler.Stage) scheduler.Waiting {
	w := scheduler.Waiting{Stage: g.ID(), Tasks: g.Pending}
	if g.Startable() == 0 {
		w.Reason = scheduler.ReasonMaxParallel
		return w
	}
	if p.s.TenantTree().HasCaps() {
		var ok bool
		if w.Tenant, w.Cap, w.Resource, ok = p.s.TenantTree().UnderCaps(g); !ok {
			w.Reason = scheduler.ReasonCap
			return w
		}
	}
	if p.countPreemptReservations(g) > 0 {
		if node, ok := p.releasingNode(g); ok {
			w.Reason, w.Node = scheduler.ReasonSuspending, node
			return w
		}
	}
	if !p.mayExamine(g) {
		w.Reason = scheduler.ReasonNotExamined
		return w
	}
	if p.s.Cluster().NextNode(g, 0) == scheduler.NoNode {
		w.Reason, w.Nodes = p.noCapacityReason(g)
		return w
	}
	if wait, waits := p.dataWaits[g]; waits {
		w.Reason, w.Node, w.Until = scheduler.ReasonData, wait.node, wait.until
		return w
	}
	if p.isBeingPlanned(g.Job) {
		w.Reason = scheduler.ReasonPlanning
		return w
	}
	if p.actionsLeft <= 0 {
		w.Reason = scheduler.ReasonCycleFull
		return w
	}
	if p.isStoppedByMiss(g.Job) {
		w.Reason = scheduler.ReasonNotAdmitted
		return w
	}
	if p.firstMisfit != nil {
		w.Reason, w.Behind = scheduler.ReasonHeadOfLine, p.firstMisfit.ID()
		return w
	}
	if p.hasReservations() && p.nextOpenNode(g, 0) == scheduler.NoNode {
		if k := p.reservingStage(g); k != nil {
			w.Reason, w.Behind = scheduler.ReasonShare, k.ID()
			return w
		}
		if r := p.blockingReservation(g); r != nil {
			w.Reason, w.Reservation, w.Until = scheduler.ReasonReservation, r.ID, r.End
			return w
		}
		// Only guarantees of its own job exclude it: its tasks are planned, or will
		// be.
		w.Reason, w.Until = scheduler.ReasonLater, p.nextPlannedStart(g)
		return w
	}
	panic("threedsf: stage " + g.ID().String() + " waits for no known reason")
}

// mayExamine reports whether the nodes may be compared with the demand of a stage, and
// counts the demands.
func (p *Policy) mayExamine(g *scheduler.Stage) bool {
	key := p.demandClass(g)
	if _, known := p.examined[key]; known {
		return true
	}
	if len(p.examined) >= p.maxExamined {
		return false
	}
	p.examined[key] = struct{}{}
	return true
}

// isBeingPlanned reports whether a job or its project requests a guarantee and this
// decision left a part of the planning to the next one.
func (p *Policy) isBeingPlanned(j *scheduler.Job) bool {
	if p.survey.plan == nil || !p.survey.plan.deferred {
		return false
	}
	i, ok := p.jobCache.index[j.Spec.ID]
	return ok && p.jobCache.jobs[i].status == statusRequested
}

// releasingNode returns a node where capacity is being freed for the stage.
func (p *Policy) releasingNode(g *scheduler.Stage) (scheduler.NodeID, bool) {
	for _, r := range p.s.Reservations().Unguaranteed() {
		if r.Kind != scheduler.ReservePreempt || r.Task >= 0 || r.End <= p.now || r.Job != g.Job.Spec.ID || r.Stage != g.Index {
			continue
		}
		n := p.s.Node(r.Node)
		if !n.Releasing.IsZero() && g.Spec.Demand.Fits(n.Free.Add(n.Releasing).Max(scheduler.Resources{})) {
			return r.Node, true
		}
	}
	return scheduler.NoNode, false
}

// noCapacityReason returns the most frequent reason why no node fits, and on how
// many nodes. The State counts once per equivalence class.
func (p *Policy) noCapacityReason(g *scheduler.Stage) (scheduler.Reason, int32) {
	l := p.s.Cluster().Lacking(g)
	switch {
	case l.Nodes == 0 && p.s.Cluster().SchedulableNodes() > 0:
		return scheduler.ReasonMaintenance, 0
	case l.Nodes == 0:
		return scheduler.ReasonNoNode, 0
	}
	r, nodes := l.Most()
	return scheduler.NoCapacityReason(r), nodes
}
