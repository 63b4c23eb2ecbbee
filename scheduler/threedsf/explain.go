package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// lack is why no node has room for one shape, at the end of the cycle.
type lack struct {
	demand scheduler.Resources
	disk   int64
	reason scheduler.Reason
	nodes  int32
}

// explain gives each stage that is left waiting its reason.
func (p *Policy) explain() {
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
	if p.left <= 0 {
		w.Reason = scheduler.ReasonTurn
		return w
	}
	var ok bool
	if w.Tenant, w.Cap, w.Resource, ok = p.s.UnderCaps(g); !ok {
		w.Reason = scheduler.ReasonCap
		return w
	}
	if p.s.NextNode(g, 0) == scheduler.NoNode {
		w.Reason, w.Nodes = p.noRoom(g)
		return w
	}
	if d, waits := p.waits[g]; waits {
		w.Reason, w.Node, w.Until = scheduler.ReasonData, d.node, d.until
		return w
	}
	if p.stopped != nil {
		w.Reason, w.Behind = scheduler.ReasonHeadOfLine, p.stopped.ID()
		return w
	}
	panic("threedsf: stage " + g.ID().String() + " waits without a reason")
}

// noRoom counts why no node has room, once for each shape.
func (p *Policy) noRoom(g *scheduler.Stage) (scheduler.Reason, int32) {
	for i := range p.lacks {
		if l := &p.lacks[i]; l.demand == g.Spec.Demand && l.disk == g.Spec.Disk {
			return l.reason, l.nodes
		}
	}
	l := p.s.Lacking(g)
	reason, nodes := scheduler.ReasonNoNode, int32(0)
	if l.Nodes > 0 {
		var r scheduler.Resource
		r, nodes = l.Most()
		reason = scheduler.NoRoom(r)
	}
	p.lacks = append(p.lacks, lack{g.Spec.Demand, g.Spec.Disk, reason, nodes})
	return reason, nodes
}

func sortNotes(notes []scheduler.Note) {
	slices.SortFunc(notes, func(a, b scheduler.Note) int { return a.NoteKey.Compare(b.NoteKey) })
}
