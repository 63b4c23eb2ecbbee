package threedsf

import "github.com/drover-run/drover/scheduler"

// explain gives each stage that is left waiting its reason.
func (p *Policy) explain() {
	p.beginShrinking()
	for j, at := p.s.NextReady(0); j != nil; j, at = p.s.NextReady(at) {
		for _, g := range j.Stages {
			if g.Ready() {
				p.waiting = append(p.waiting, p.reason(g))
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
	if p.s.Capped() {
		var ok bool
		if w.Tenant, w.Cap, w.Resource, ok = p.s.UnderCaps(g); !ok {
			w.Reason = scheduler.ReasonCap
			return w
		}
	}
	if p.holdsOf(g) > 0 {
		if node, ok := p.roomComing(g); ok {
			w.Reason, w.Node = scheduler.ReasonSuspending, node
			return w
		}
	}
	if p.s.NextNode(g, 0) == scheduler.NoNode {
		w.Reason, w.Nodes = p.noRoom(g)
		return w
	}
	if d, waits := p.waits[g]; waits {
		w.Reason, w.Node, w.Until = scheduler.ReasonData, d.node, d.until
		return w
	}
	if p.left <= 0 {
		w.Reason = scheduler.ReasonTurn
		return w
	}
	if p.stoppedByMiss(g.Job) {
		w.Reason = scheduler.ReasonNotAdmitted
		return w
	}
	if p.stopped != nil {
		w.Reason, w.Behind = scheduler.ReasonHeadOfLine, p.stopped.ID()
		return w
	}
	if p.startsTooSoon(g.Job) {
		w.Reason, w.Until = scheduler.ReasonLater, p.plannedFor(g)
		return w
	}
	if p.guarded() && p.nextNode(g, 0) == scheduler.NoNode {
		if k := p.keptFrom(g); k != nil {
			w.Reason, w.Behind = scheduler.ReasonShare, k.ID()
			return w
		}
		if r := p.blocker(g); r != nil {
			w.Reason, w.Reservation, w.Until = scheduler.ReasonReservation, r.ID, r.End
			return w
		}
		// What its own job is promised keeps it off: it is planned, or will be.
		w.Reason, w.Until = scheduler.ReasonLater, p.plannedFor(g)
		return w
	}
	panic("threedsf: stage " + g.ID().String() + " waits without a reason")
}

// roomComing gives a node where room is being made for the stage.
func (p *Policy) roomComing(g *scheduler.Stage) (scheduler.NodeID, bool) {
	for _, r := range p.s.Holds() {
		if r.Kind != scheduler.HoldPreempt || r.Task >= 0 || r.End <= p.now || r.Job != g.Job.Spec.ID || r.Stage != g.Index {
			continue
		}
		n := p.s.Node(r.Node)
		if !n.Releasing.IsZero() && g.Spec.Demand.Fits(n.Free.Add(n.Releasing).Max(scheduler.Resources{})) {
			return r.Node, true
		}
	}
	return scheduler.NoNode, false
}

// noRoom counts why no node has room. The State counts once for each shape.
func (p *Policy) noRoom(g *scheduler.Stage) (scheduler.Reason, int32) {
	l := p.s.Lacking(g)
	if l.Nodes == 0 {
		return scheduler.ReasonNoNode, 0
	}
	r, nodes := l.Most()
	return scheduler.NoRoom(r), nodes
}
