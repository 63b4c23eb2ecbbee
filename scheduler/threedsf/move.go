package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// idlest is how many nodes with room are compared for a task that moves to
// another rack.
const idlest = 256

// racks lists the nodes of each rack; it is made where needed, once a cycle.
type racks struct {
	known bool
	nodes [][]scheduler.NodeID
}

func (r *racks) of(s *scheduler.State, rack int32) []scheduler.NodeID {
	if !r.known {
		r.known = true
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

// moveTo gives the node for a task that does not wait for its data: the idlest
// with room in a rack of its data (Alg. 4 line 8), else the idlest of the first
// ones with room anywhere; ties to the lowest id. One node is left out.
func (p *Policy) moveTo(g *scheduler.Stage, task int32, but scheduler.NodeID) scheduler.NodeID {
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
		for _, near := range p.racks.of(p.s, n.Rack) {
			m := p.s.Node(near)
			if _, ok := m.Fits(g.Spec.Demand, g.Spec.Disk); !ok || near == but || !p.openFor(m, g) {
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
	for id, k := p.nextNode(g, 0), 0; id != scheduler.NoNode && k < idlest; id, k = p.nextNode(g, id+1), k+1 {
		if idle := idleness(p.s.Node(id)); id != but && (best == scheduler.NoNode || idle > most) {
			best, most = id, idle
		}
	}
	return best
}

// idleness is the weight of a node: 1 - the greatest share in use (3DSF 6.1).
func idleness(n *scheduler.Node) float64 {
	return 1 - n.Used().DominantShare(n.Spec.Capacity)
}
