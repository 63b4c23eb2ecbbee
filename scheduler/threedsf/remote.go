package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// maxIdlestCompared is how many nodes are compared for a task that goes to another
// rack.
const maxIdlestCompared = 256

// racks lists the nodes of each rack, built on first use in a cycle.
type racks struct {
	valid bool
	nodes [][]scheduler.NodeID
}

func (r *racks) nodesIn(s *scheduler.State, rack int32) []scheduler.NodeID {
	if !r.valid {
		r.valid = true
		for i := range r.nodes {
			r.nodes[i] = r.nodes[i][:0]
		}
		for _, n := range s.Nodes() {
			for int(n.Rack) >= len(r.nodes) {
				r.nodes = append(r.nodes, nil)
			}
			r.nodes[n.Rack] = append(r.nodes[n.Rack], n.Spec.ID)
		}
	}
	if int(rack) >= len(r.nodes) {
		return nil
	}
	return r.nodes[rack]
}

// remoteNodeFor returns the node for a task that does not wait for its input: the
// idlest open one in a rack of its input (Alg. 4 line 8), else the idlest of the
// first open ones anywhere; ties go to the lowest id. A node is left out; those on
// which the task failed are taken if no other is open.
func (p *Policy) remoteNodeFor(g *scheduler.Stage, task int32, except scheduler.NodeID) scheduler.NodeID {
	if failed := g.FailedOn(task); len(failed) > 0 {
		if best := p.remoteNodeExcept(g, task, append(slices.Clone(failed), except)); best != scheduler.NoNode {
			return best
		}
	}
	return p.remoteNodeExcept(g, task, []scheduler.NodeID{except})
}

func (p *Policy) remoteNodeExcept(g *scheduler.Stage, task int32, excluded []scheduler.NodeID) scheduler.NodeID {
	best, most := scheduler.NoNode, 0.0
	_, nodes, _ := g.Input(task)
	for k, id := range nodes {
		n := p.s.Node(id)
		if n == nil || slices.ContainsFunc(nodes[:k], func(o scheduler.NodeID) bool {
			m := p.s.Node(o)
			return m != nil && m.Rack == n.Rack
		}) {
			continue
		}
		for _, near := range p.racks.nodesIn(p.s, n.Rack) {
			m := p.s.Node(near)
			if !p.s.Cluster().HasCapacity(g, near) || slices.Contains(excluded, near) || !p.isOpenTo(m, g) {
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
	for id, k := p.nextOpenNode(g, 0), 0; id != scheduler.NoNode && k < maxIdlestCompared; id, k = p.nextOpenNode(g, id+1), k+1 {
		if idle := idleness(p.s.Node(id)); !slices.Contains(excluded, id) && (best == scheduler.NoNode || idle > most) {
			best, most = id, idle
		}
	}
	return best
}

// idleness returns the weight of a node: 1 - the largest share in use (3DSF 6.1).
func idleness(n *scheduler.Node) float64 {
	return 1 - n.Used().DominantShare(n.Spec.Capacity)
}
