package scheduler

import "slices"

// Cluster is the nodes of a State, with an index of their free capacity now.
type Cluster struct {
	nodes       []*Node
	nodeName    map[string]NodeID
	racks       map[string]int32
	total       Resources // capacity of the nodes that are up
	schedulable int32     // number of schedulable nodes
	changeCount uint64
	avoiding    int // jobs that avoid nodes
	windows     windows
	fit         fitIndex
}

// Total returns the capacity of all nodes that are up, draining ones included.
func (c *Cluster) Total() Resources { return c.total }

// SchedulableNodes returns the number of schedulable nodes.
func (c *Cluster) SchedulableNodes() int { return int(c.schedulable) }

// ChangeCount returns the number of times that nodes were added, lost, drained or updated. It never decreases. O(1).
func (c *Cluster) ChangeCount() uint64 { return c.changeCount }

// Dist returns the number of switches between two nodes (3DSF 6.1): 0 on one node, 1 in one
// rack, 3 with one more level between them, and so on.
func (c *Cluster) Dist(a, b NodeID) int {
	if a == b {
		return 0
	}
	m, n := c.nodes[a], c.nodes[b]
	if m.Rack == n.Rack {
		return 1
	}
	common := 0
	for common < len(m.path) && common < len(n.path) && m.path[common] == n.path[common] {
		common++
	}
	return len(m.path) - common + len(n.path) - common + 1
}

// occupants returns the slots of the attempts that occupy something on a node: the attempts on it
// in order of placement, then those that migrate away from it.
func (c *Cluster) occupants(id NodeID) []int32 {
	return append(slices.Clone(c.nodes[id].attempts), c.nodes[id].moving...)
}

// countNode adds a node to the sums over all nodes (sign 1) or removes it (sign -1).
func (c *Cluster) countNode(n *Node, sign int64) {
	if !n.Spec.Down {
		c.total = c.total.Add(n.Spec.Capacity.Times(sign))
	}
	if n.Schedulable() {
		c.schedulable += int32(sign)
	}
}
