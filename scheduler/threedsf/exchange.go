package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// A stage without a free node at its input, because tasks of this decision took
// them, may exchange with such a task: one with input elsewhere too goes there, one
// away from its input anyway goes to any other node. This is one step of an
// augmenting path; placing one task at a time would otherwise miss the best
// matching. Which tasks of which stages are placed stays as fair shares decided,
// only their nodes change.

// For an exchange at most maxExchangeTasks waiting tasks of either stage are
// examined. None is made with fewer than minExchangeActions actions left, so that a
// further pass can use the capacity that it frees.
const (
	maxExchangeTasks   = 48
	minExchangeActions = 64
)

// placedTask is a task with input that this decision placed; remote if away from it.
type placedTask struct {
	remote     bool
	stage      *scheduler.Stage
	task       int32
	action     int32 // index among the actions
	nextOnNode int32 // index of the next one on the same node, or -1
}

// exchangeIndex lists the tasks with input that a decision placed, by node.
type exchangeIndex struct {
	firstOnNode        []int32 // by node: index in tasks, or -1
	tasks              []placedTask
	nodes              []scheduler.NodeID        // with an entry in firstOnNode
	withoutExchange    map[*scheduler.Stage]bool // stages that found no exchange in this pass
	withoutAlternative map[*scheduler.Stage]bool // stages without any waiting task that has a free node at its input
}

// begin clears the index for a new decision.
func (x *exchangeIndex) begin(nodes int) {
	for _, id := range x.nodes {
		x.firstOnNode[id] = -1
	}
	for len(x.firstOnNode) < nodes {
		x.firstOnNode = append(x.firstOnNode, -1)
	}
	x.tasks, x.nodes = x.tasks[:0], x.nodes[:0]
	if x.withoutExchange == nil {
		x.withoutExchange, x.withoutAlternative = map[*scheduler.Stage]bool{}, map[*scheduler.Stage]bool{}
	}
}

// addTask adds a task that an action placed on a node.
func (x *exchangeIndex) addTask(g *scheduler.Stage, task int32, node scheduler.NodeID, action int, far bool) {
	if x.firstOnNode[node] < 0 {
		x.nodes = append(x.nodes, node)
	}
	x.tasks = append(x.tasks, placedTask{far, g, task, int32(action), x.firstOnNode[node]})
	x.firstOnNode[node] = int32(len(x.tasks) - 1)
}

// removeAction renumbers the actions after one that was removed from the decision.
func (x *exchangeIndex) removeAction(action int) {
	for i := range x.tasks {
		if x.tasks[i].action > int32(action) {
			x.tasks[i].action--
		}
	}
}

// tryExchange places a task of a stage at its input by moving a task of this
// decision to another node, and reports whether it did.
func (p *Policy) tryExchange(g *scheduler.Stage) bool {
	x := &p.exchanges
	if p.actionsLeft <= minExchangeActions || x.withoutExchange[g] {
		return false
	}
	looked := 0
	for i := g.NextPending(0); i >= 0 && looked < maxExchangeTasks; i = g.NextPending(i + 1) {
		looked++
		_, nodes, _ := g.Input(i)
		for _, id := range nodes {
			if n := p.s.Node(id); n == nil || !n.Schedulable() || !holdsMostInput(g, i, id) || slices.Contains(g.FailedOn(i), id) {
				continue
			}
			for at := x.firstOnNode[id]; at >= 0; at = x.tasks[at].nextOnNode {
				if p.tryExchangeWith(g, i, id, at) {
					return true
				}
			}
		}
	}
	x.withoutExchange[g] = true
	return false
}

// tryExchangeWith moves one placed task to another node for a task of a stage, if it
// has an alternative and frees enough capacity.
func (p *Policy) tryExchangeWith(g *scheduler.Stage, task int32, node scheduler.NodeID, at int32) bool {
	x := &p.exchanges
	other := x.tasks[at]
	h := other.stage
	if h == g || !g.Spec.Demand.Fits(p.s.Node(node).Free.Add(h.Spec.Demand)) {
		return false
	}
	otherTask, to := other.task, scheduler.NoNode
	if other.remote {
		to = p.findRemoteAlternative(h, other.task, node)
	} else {
		otherTask, to = p.findLocalAlternative(h, other.task, node)
	}
	if to == scheduler.NoNode {
		return false
	}
	mark := p.s.Journal().Mark()
	p.withdrawPlacement(other.action)
	if !p.canPlaceOn(g, node) {
		p.s.Journal().Rollback(mark)
		return false
	}
	p.s.Journal().Keep(mark)
	disk, ok := p.s.Node(to).Fits(h.Spec.Demand, h.Spec.Disk)
	if !ok {
		panic("threedsf: an exchanged task does not fit")
	}
	act := p.s.Attempts().PlaceAction(h, otherTask, to, disk)
	if err := p.s.Apply(&act, p.now); err != nil {
		panic("threedsf: State refused an exchange: " + err.Error())
	}
	p.actions[other.action] = act
	x.unlink(node, at)
	x.addTask(h, otherTask, to, int(other.action), other.remote && !holdsMostInput(h, otherTask, to))
	p.refreshHeadsAfter(to)
	p.placeLocalTask(g, task, node)
	p.nonPlacement = true
	return true
}

// holdsMostInput reports whether a node stores as much of a task's input as any.
func holdsMostInput(g *scheduler.Stage, task int32, node scheduler.NodeID) bool {
	_, nodes, local := g.Input(task)
	most := int64(0)
	for _, b := range local {
		most = max(most, b)
	}
	k := slices.Index(nodes, node)
	return k >= 0 && (local == nil || local[k] == most)
}

// unlink removes an entry from the list of its node.
func (x *exchangeIndex) unlink(node scheduler.NodeID, at int32) {
	for link := &x.firstOnNode[node]; *link >= 0; link = &x.tasks[*link].nextOnNode {
		if *link == at {
			*link = x.tasks[at].nextOnNode
			return
		}
	}
}

// withdrawPlacement undoes a placement of this decision in the State.
func (p *Policy) withdrawPlacement(action int32) {
	if err := p.s.Journal().Withdraw(&p.actions[action]); err != nil {
		panic("threedsf: State refused to withdraw a placement: " + err.Error())
	}
}

// findRemoteAlternative returns another node for a task away from its input, or
// NoNode.
func (p *Policy) findRemoteAlternative(h *scheduler.Stage, task int32, except scheduler.NodeID) scheduler.NodeID {
	if p.nextOpenNode(h, 0) == scheduler.NoNode {
		return scheduler.NoNode
	}
	return p.remoteNodeFor(h, task, except)
}

// findLocalAlternative returns a task of a stage, the placed one or a waiting one,
// with a free node at its input other than one.
func (p *Policy) findLocalAlternative(h *scheduler.Stage, task int32, except scheduler.NodeID) (int32, scheduler.NodeID) {
	if to := p.idlestLocalNodeExcept(h, task, except); to != scheduler.NoNode {
		return task, to
	}
	if p.exchanges.withoutAlternative[h] {
		return 0, scheduler.NoNode
	}
	looked, near := 0, false
	for i := h.NextPending(0); i >= 0 && looked < maxExchangeTasks; i = h.NextPending(i + 1) {
		looked++
		to := p.idlestLocalNode(h, i)
		if to == except {
			to, near = p.idlestLocalNodeExcept(h, i, except), true
		}
		if to != scheduler.NoNode {
			return i, to
		}
	}
	p.exchanges.withoutAlternative[h] = !near // capacity only shrinks, but for what exchanges free
	return 0, scheduler.NoNode
}
