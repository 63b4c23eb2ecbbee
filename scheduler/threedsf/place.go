package threedsf

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// placer places tasks of one stage: at its input, on a remote node, or anywhere.
type placer struct {
	c         *cycle
	open      *openNodes
	finder    *nodeFinder
	waits     *inputWaits
	exchanger *exchanger

	matcher locality.Matcher
}

// placeLocal places as many tasks of a stage as turns returns on nodes with their input: one on the
// idlest node, several by matching. It reports whether it placed any.
func (p *placer) placeLocal(g *scheduler.Stage, near *localSearch, turns func() int32) bool {
	if near.exhausted {
		return false
	}
	task, node := p.finder.findLocalTask(g, near)
	if node == scheduler.NoNode {
		return false
	}
	n := turns()
	if n > 1 {
		n = min(n, max(1, p.finder.freeSlots(g, n)))
	}
	if n == 1 {
		p.exchanger.placeTask(g, task, node, false)
		return true
	}
	before := p.c.actionsLeft
	for _, a := range p.matcher.Match(p.c.s, g, n) {
		if p.open.canPlaceOn(g, a.Node) { // matched tasks may compete for capacity that is reserved for others
			p.exchanger.placeTask(g, a.Task, a.Node, false)
		}
	}
	near.exhausted = int32(before-p.c.actionsLeft) < n
	return p.c.actionsLeft < before
}

// waitOrMove evaluates the waiting tasks of a stage until one is placed by exchange or on a remote node,
// and reports whether one was. It evaluates no more tasks than could be placed: if those wait, all wait.
func (p *placer) waitOrMove(g *scheduler.Stage, near *localSearch, lane bool) bool {
	if near.evaluated == 0 {
		near.slotsLeft = p.finder.countMovable(g)
	}
	for i := g.NextPending(near.evaluated); i >= 0 && near.slotsLeft > 0; i = g.NextPending(i + 1) {
		near.evaluated = i + 1
		near.slotsLeft--
		if p.waits.tryWaitForData(g, i, lane) {
			continue
		}
		if p.exchanger.tryExchange(g) {
			near.evaluated = i // it stays waiting, to be evaluated again
			near.slotsLeft++
			return true
		}
		node := p.finder.remoteNodeFor(g, i, scheduler.NoNode)
		if node == scheduler.NoNode {
			panic("threedsf: stage " + g.ID().String() + " fits somewhere, but no node was found")
		}
		p.exchanger.placeTask(g, i, node, true)
		return true
	}
	if p.waits.setWhole(g) {
		return false
	}
	near.evaluated = 0 // all were placed: capacity is left
	return p.waitOrMove(g, near, lane)
}

// placeAnywhere places the next task of a stage: at its input if a node there is free, else on the
// fullest node that fits. The caller must have checked that a node fits.
func (p *placer) placeAnywhere(g *scheduler.Stage) {
	task := g.NextPending(0)
	node := scheduler.NoNode
	if p.c.cfg.Locality && g.Spec.Inputs != nil {
		node = p.finder.idlestLocalNode(g, task, scheduler.NoNode)
	}
	if node == scheduler.NoNode {
		node, _ = p.open.bestOpenNode(g)
	}
	p.c.place(g, task, node)
}

// isPlaceable reports whether a task of the stage can be placed now.
func (p *placer) isPlaceable(g *scheduler.Stage) bool {
	return g.Startable() > 0 && !p.waits.waitsWhole(g) && p.c.allows(g) &&
		(p.c.cfg.StopAtFirstMisfit || p.open.nextOpenNode(g, 0) != scheduler.NoNode)
}
