package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// A stage that has no room at its data because others of this decision took it may
// get it from them: one that has data elsewhere too goes there, and one that is
// away from its data anyway to any other node. It is one step of an augmenting
// path, where placing turn by turn would leave the matching short of the best.
// Which tasks of which stages are placed stays as turns have it, only their nodes
// do not.

// For an exchange at most exchangeTasks waiting tasks are looked at of either
// stage; and none is made with the last exchangeLeft actions of a cycle, so that a
// further pass can serve whoever fits into what it leaves free.
const (
	exchangeTasks = 48
	exchangeLeft  = 64
)

// placed is a task with data that this decision placed, far from it or not.
type placed struct {
	far    bool
	stage  *scheduler.Stage
	task   int32
	action int32 // its place among the actions
	next   int32 // another one on the same node, or -1
}

// exchanges is what is known of them in a decision.
type exchanges struct {
	first []int32 // of each node, in list, or -1
	list  []placed
	nodes []scheduler.NodeID        // where first is not -1
	none  map[*scheduler.Stage]bool // stages that found no exchange in this pass
	fixed map[*scheduler.Stage]bool // stages of which no waiting task has room at its data
}

// begin forgets the decision before.
func (x *exchanges) begin(nodes int) {
	for _, id := range x.nodes {
		x.first[id] = -1
	}
	for len(x.first) < nodes {
		x.first = append(x.first, -1)
	}
	x.list, x.nodes = x.list[:0], x.nodes[:0]
	if x.none == nil {
		x.none, x.fixed = map[*scheduler.Stage]bool{}, map[*scheduler.Stage]bool{}
	}
}

// add notes a task that was placed on a node by an action.
func (x *exchanges) add(g *scheduler.Stage, task int32, node scheduler.NodeID, action int, far bool) {
	if x.first[node] < 0 {
		x.nodes = append(x.nodes, node)
	}
	x.list = append(x.list, placed{far, g, task, int32(action), x.first[node]})
	x.first[node] = int32(len(x.list) - 1)
}

// gone follows an action that was taken out of the decision.
func (x *exchanges) gone(action int) {
	for i := range x.list {
		if x.list[i].action > int32(action) {
			x.list[i].action--
		}
	}
}

// exchange places a task of a stage at its data where another one of this decision
// can go elsewhere to its own, and tells whether it did.
func (p *Policy) exchange(g *scheduler.Stage) bool {
	x := &p.moved
	if p.left <= exchangeLeft || x.none[g] {
		return false
	}
	looked := 0
	for i := g.NextPending(0); i >= 0 && looked < exchangeTasks; i = g.NextPending(i + 1) {
		looked++
		_, nodes, _ := g.Input(i)
		for _, id := range nodes {
			if n := p.s.Node(id); n == nil || !n.Takes() || !atMost(g, i, id) {
				continue
			}
			for at := x.first[id]; at >= 0; at = x.list[at].next {
				if p.exchangeWith(g, i, id, at) {
					return true
				}
			}
		}
	}
	x.none[g] = true
	return false
}

// exchangeWith has one placed task leave a node for a task of a stage, if it has
// another place and its room is enough.
func (p *Policy) exchangeWith(g *scheduler.Stage, task int32, node scheduler.NodeID, at int32) bool {
	x := &p.moved
	other := x.list[at]
	h := other.stage
	if h == g || !g.Spec.Demand.Fits(p.s.Node(node).Free.Add(h.Spec.Demand)) {
		return false
	}
	otherTask, to := other.task, scheduler.NoNode
	if other.far {
		to = p.away(h, other.task, node)
	} else {
		otherTask, to = p.elsewhere(h, other.task, node)
	}
	if to == scheduler.NoNode {
		return false
	}
	mark := p.s.Mark()
	p.withdraw(other.action)
	if !p.fits(g, node) {
		p.s.Rollback(mark)
		return false
	}
	p.s.Keep(mark)
	disk, ok := p.s.Node(to).Fits(h.Spec.Demand, h.Spec.Disk)
	if !ok {
		panic("threedsf: an exchange does not fit")
	}
	act := p.s.Place(h, otherTask, to, disk)
	if err := p.s.Apply(&act, p.now); err != nil {
		panic("threedsf: an exchange is refused: " + err.Error())
	}
	p.actions[other.action] = act
	x.leave(node, at)
	x.add(h, otherTask, to, int(other.action), other.far && !atMost(h, otherTask, to))
	p.driesUp(to)
	p.placeAt(g, task, node)
	p.special = true
	return true
}

// atMost tells whether a node holds most of a task's input.
func atMost(g *scheduler.Stage, task int32, node scheduler.NodeID) bool {
	_, nodes, local := g.Input(task)
	most := int64(0)
	for _, b := range local {
		most = max(most, b)
	}
	k := slices.Index(nodes, node)
	return k >= 0 && (local == nil || local[k] == most)
}

// leave takes an entry off the list of its node.
func (x *exchanges) leave(node scheduler.NodeID, at int32) {
	for link := &x.first[node]; *link >= 0; link = &x.list[*link].next {
		if *link == at {
			*link = x.list[at].next
			return
		}
	}
}

// withdraw takes a placement of this decision back in the try.
func (p *Policy) withdraw(action int32) {
	if err := p.s.Withdraw(&p.actions[action]); err != nil {
		panic("threedsf: a placement cannot be taken back: " + err.Error())
	}
}

// away finds another node for a task that is away from its data, or NoNode.
func (p *Policy) away(h *scheduler.Stage, task int32, but scheduler.NodeID) scheduler.NodeID {
	if p.nextNode(h, 0) == scheduler.NoNode {
		return scheduler.NoNode
	}
	return p.moveTo(h, task, but)
}

// elsewhere finds a task of a stage, the placed one or one that waits, with room
// at its data on another node.
func (p *Policy) elsewhere(h *scheduler.Stage, task int32, but scheduler.NodeID) (int32, scheduler.NodeID) {
	if to := p.idlestNearBut(h, task, but); to != scheduler.NoNode {
		return task, to
	}
	if p.moved.fixed[h] {
		return 0, scheduler.NoNode
	}
	looked, near := 0, false
	for i := h.NextPending(0); i >= 0 && looked < exchangeTasks; i = h.NextPending(i + 1) {
		looked++
		to := p.idlestNear(h, i)
		if to == but {
			to, near = p.idlestNearBut(h, i, but), true
		}
		if to != scheduler.NoNode {
			return i, to
		}
	}
	p.moved.fixed[h] = !near // room only shrinks, but for what exchanges leave
	return 0, scheduler.NoNode
}
