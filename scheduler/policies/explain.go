package policies

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// noCapacity is why no node fits a demand, at the end of the cycle.
type noCapacity struct {
	reason      scheduler.Reason
	nodes       int32
	reservedFor scheduler.StageID // the stage that a fitting node is reserved for
}

// explain records why stages wait on the State as the cycle leaves it: each stage, or the next part of them.
// The other parts are requested at once: nothing else may happen.
func (p *placer) explain(reason func(*scheduler.Stage) scheduler.Waiting) {
	clear(p.noCapacityReasons)
	// At once: growing a long list by and by copies it several times.
	p.waitingReasons = slices.Grow(p.waitingReasons, min(p.s.Queue().Ready(), scheduler.MaxExplained))
	p.round.Next(p.s.Queue(), p.seenStamp, func(g *scheduler.Stage) { p.waitingReasons = append(p.waitingReasons, reason(g)) })
	if p.round.Unfinished {
		p.wake = p.now + 1
	}
}

func (p *placer) reason(g *scheduler.Stage) scheduler.Waiting {
	w := p.s.TenantTree().Waiting(g)
	if w.Reason != 0 {
		return w
	}
	key := p.s.Cluster().DemandClassOf(g)
	if p.actionsLeft <= 0 && !p.misfits.isKnown(key) {
		w.Reason = scheduler.ReasonCycleFull
		return w
	}
	p.explainNoCapacity(&w, g, key)
	return w
}

// explainNoCapacity sets why no node fits and on how many nodes, counted once per
// demand. If a reserved node would fit, it sets the stage that it is reserved
// for. Very many demands are not counted, and some were not examined in this cycle.
func (p *placer) explainNoCapacity(w *scheduler.Waiting, g *scheduler.Stage, key scheduler.DemandClass) {
	l, known := p.noCapacityReasons[key]
	if !known && len(p.noCapacityReasons) >= max(minExplained, maxExplainedNodes/max(1, len(p.s.Nodes()))) {
		l = noCapacity{reason: scheduler.ReasonNotExamined}
	} else if !known {
		l = p.lackingReason(g)
		if p.noCapacityReasons == nil {
			p.noCapacityReasons = map[scheduler.DemandClass]noCapacity{}
		}
		p.noCapacityReasons[key] = l
	}
	w.Reason, w.Nodes, w.Behind = l.reason, l.nodes, l.reservedFor
}

// lackingReason finds out why no node is left for a stage. O(nodes) once for a demand.
func (p *placer) lackingReason(g *scheduler.Stage) noCapacity {
	if p.s.Cluster().NextNode(g, 0) != scheduler.NoNode {
		for i, n := range p.reservedNodes {
			if p.s.Cluster().HasCapacity(g, n) {
				return noCapacity{reason: scheduler.ReasonShare, reservedFor: p.reservedFor[i]}
			}
		}
		return noCapacity{reason: scheduler.ReasonNotExamined}
	}
	why, nodes := p.s.Cluster().Lacking(g).Reason(p.s.Cluster().SchedulableNodes())
	return noCapacity{reason: why, nodes: nodes}
}
