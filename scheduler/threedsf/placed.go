package threedsf

import (
	"github.com/drover-run/drover/scheduler"
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

// beginPass forgets who found no exchange.
func (x *exchangeIndex) beginPass() {
	clear(x.withoutExchange)
	clear(x.withoutAlternative)
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
