package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// remoteNodeFor returns the node for a task that does not wait for its input: the
// idlest open one in a rack of its input (Alg. 4 line 8), else the idlest of the
// first open ones anywhere; ties go to the lowest id. A node is left out; those on
// which the task failed are taken if no other is open.
func (f *nodeFinder) remoteNodeFor(g *scheduler.Stage, task int32, except scheduler.NodeID) scheduler.NodeID {
	if failed := g.FailedOn(task); len(failed) > 0 {
		if best := f.remoteNodeExcept(g, task, append(slices.Clone(failed), except)); best != scheduler.NoNode {
			return best
		}
	}
	return f.remoteNodeExcept(g, task, []scheduler.NodeID{except})
}

func (f *nodeFinder) remoteNodeExcept(g *scheduler.Stage, task int32, excluded []scheduler.NodeID) scheduler.NodeID {
	best, most := scheduler.NoNode, 0.0
	_, nodes, _ := g.Input(task)
	for k, id := range nodes {
		n := f.v.s.Node(id)
		if n == nil || slices.ContainsFunc(nodes[:k], func(o scheduler.NodeID) bool {
			m := f.v.s.Node(o)
			return m != nil && m.Rack == n.Rack
		}) {
			continue
		}
		for _, near := range f.racks.nodesIn(f.v.s, n.Rack) {
			if !f.v.s.Cluster().HasCapacity(g, near) || slices.Contains(excluded, near) {
				continue
			}
			m := f.v.s.Node(near)
			if !f.open.isOpenTo(m, g) {
				continue
			}
			if idle := idleness(m); best == scheduler.NoNode || idle > most || (idle == most && near < best) {
				best, most = near, idle
			}
		}
	}
	if best != scheduler.NoNode {
		return best
	}
	for id, k := f.open.nextOpenNode(g, 0), 0; id != scheduler.NoNode && k < maxIdlestCompared; id, k = f.open.nextOpenNode(g, id+1), k+1 {
		if idle := idleness(f.v.s.Node(id)); !slices.Contains(excluded, id) && (best == scheduler.NoNode || idle > most) {
			best, most = id, idle
		}
	}
	return best
}
