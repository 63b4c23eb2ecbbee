package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// If tasks of this decision took the nodes at a stage's input, the stage may exchange with such a task:
// one that also has input elsewhere moves there, one that is remote anyway moves to any other node.
// This is one step of an augmenting path; placing one task at a time would otherwise miss the best
// matching. The tasks placed per stage, which fair shares decided, stay; only their nodes change.

// An exchange examines at most maxExchangeTasks waiting tasks of either stage. With fewer than
// minExchangeActions actions left none is made, so that a further pass can use the capacity that it frees.
const (
	maxExchangeTasks   = 48
	minExchangeActions = 64
)

// exchanger places tasks with input, and exchanges the nodes of those that this decision placed.
type exchanger struct {
	c      *cycle
	open   *openNodes
	finder *nodeFinder
	waits  *inputWaits
	placed *exchangeIndex
}

// tryExchange places a task of a stage at its input by moving a task of this decision to another node, and reports
// whether it did.
func (e *exchanger) tryExchange(g *scheduler.Stage) bool {
	x := e.placed
	if e.c.actionsLeft <= minExchangeActions || e.waits.of(g).withoutExchange {
		return false
	}
	looked := 0
	for i := g.NextPending(0); i >= 0 && looked < maxExchangeTasks; i = g.NextPending(i + 1) {
		looked++
		_, nodes, _ := g.Input(i)
		for _, id := range nodes {
			if n := e.c.s.Node(id); n == nil || !n.Schedulable() || !holdsMostInput(g, i, id) || slices.Contains(g.FailedOn(i), id) {
				continue
			}
			for at := x.firstOnNode[id]; at >= 0; at = x.tasks[at].nextOnNode {
				if e.tryExchangeWith(g, i, id, at) {
					return true
				}
			}
		}
	}
	e.waits.edit(g).withoutExchange = true
	return false
}

// tryExchangeWith moves one placed task to another node for a task of a stage, if the placed one
// has an alternative and frees enough capacity.
func (e *exchanger) tryExchangeWith(g *scheduler.Stage, task int32, node scheduler.NodeID, at int32) bool {
	x := e.placed
	other := x.tasks[at]
	h := other.stage
	if h == g || !g.Spec.Demand.Fits(e.c.s.Node(node).Free.Add(h.Spec.Demand)) {
		return false
	}
	otherTask, to := other.task, scheduler.NoNode
	if !other.remote {
		otherTask, to = e.findLocalAlternative(h, other.task, node)
	} else if e.open.nextOpenNode(h, 0) != scheduler.NoNode {
		to = e.finder.remoteNodeFor(h, other.task, node)
	}
	if to == scheduler.NoNode {
		return false
	}
	mark := e.c.s.Journal().Mark()
	e.c.withdrawPlacement(other.action)
	if !e.open.canPlaceOn(g, node) {
		e.c.s.Journal().Rollback(mark)
		return false
	}
	e.c.s.Journal().Keep(mark)
	disk, ok := e.c.s.Node(to).Fits(h.Spec.Demand, h.Spec.Disk)
	if !ok {
		panic("threedsf: an exchanged task does not fit")
	}
	act := e.c.s.Attempts().PlaceAction(h, otherTask, to, disk)
	e.c.replacePlacement(other.action, act)
	x.unlink(node, at)
	x.addTask(h, otherTask, to, int(other.action), other.remote && !holdsMostInput(h, otherTask, to))
	e.c.nodeUsed(to)
	e.placeTask(g, task, node, false)
	return true
}

// holdsMostInput reports whether no node stores more of a task's input than this one.
func holdsMostInput(g *scheduler.Stage, task int32, node scheduler.NodeID) bool {
	_, nodes, local := g.Input(task)
	k := slices.Index(nodes, node)
	return k >= 0 && (local == nil || local[k] == slices.Max(local))
}

// findLocalAlternative returns a task of a stage, the placed or a waiting one, with another free node at its input.
func (e *exchanger) findLocalAlternative(h *scheduler.Stage, task int32, except scheduler.NodeID) (int32, scheduler.NodeID) {
	if to := e.finder.idlestLocalNode(h, task, except); to != scheduler.NoNode {
		return task, to
	}
	if e.waits.of(h).withoutAlternative {
		return 0, scheduler.NoNode
	}
	looked, near := 0, false
	for i := h.NextPending(0); i >= 0 && looked < maxExchangeTasks; i = h.NextPending(i + 1) {
		looked++
		to := e.finder.idlestLocalNode(h, i, scheduler.NoNode)
		if to == except {
			to, near = e.finder.idlestLocalNode(h, i, except), true
		}
		if to != scheduler.NoNode {
			return i, to
		}
	}
	e.waits.edit(h).withoutAlternative = !near // capacity only shrinks, except where exchanges free it
	return 0, scheduler.NoNode
}

// placeTask places a task, remote or at its input, which restarts the wait clock of its stage.
func (e *exchanger) placeTask(g *scheduler.Stage, task int32, node scheduler.NodeID, remote bool) {
	e.c.place(g, task, node)
	e.placed.addTask(g, task, node, len(e.c.actions)-1, remote)
	if !remote {
		e.waits.recordLocal(g)
	}
}

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
	firstOnNode []int32 // by node: index in tasks, or -1
	tasks       []placedTask
	nodes       []scheduler.NodeID // with an entry in firstOnNode
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

// unlink removes an entry from the list of its node.
func (x *exchangeIndex) unlink(node scheduler.NodeID, at int32) {
	for link := &x.firstOnNode[node]; *link >= 0; link = &x.tasks[*link].nextOnNode {
		if *link == at {
			*link = x.tasks[at].nextOnNode
			return
		}
	}
}
