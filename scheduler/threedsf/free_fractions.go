package threedsf

import "github.com/drover-run/drover/scheduler"

// freeFractions keeps Node.FreeFraction of the tasks of the last few demands for all nodes: in a full cluster the
// same demands are compared with the same nodes in each cycle, and few nodes have changed since.
type freeFractions struct {
	state  *scheduler.State
	kept   [4]demandFractions
	oldest int // index in kept
}

// demandFractions keeps Node.FreeFraction of one demand and disk space.
type demandFractions struct {
	demand scheduler.Resources
	space  int64
	// generation is above 0 and increases when demand or space change: what was kept before is then void.
	generation uint64
	nodes      []nodeFraction
}

// nodeFraction is a FreeFraction that was computed at a Cluster.NodeVersion.
type nodeFraction struct {
	generation, version uint64
	free                float64
}

// of returns what is kept for the tasks of a stage. It is valid until the next call.
func (f *freeFractions) of(s *scheduler.State, g *scheduler.Stage) *demandFractions {
	if f.state != s {
		*f = freeFractions{state: s}
	}
	for i := range f.kept {
		if k := &f.kept[i]; k.demand == g.Spec.Demand && k.space == g.Spec.Disk && len(k.nodes) == len(s.Nodes()) {
			return k
		}
	}
	k := &f.kept[f.oldest]
	f.oldest = (f.oldest + 1) % len(f.kept)
	k.demand, k.space = g.Spec.Demand, g.Spec.Disk
	k.generation++
	if n := len(s.Nodes()); len(k.nodes) != n {
		k.nodes = make([]nodeFraction, n)
	}
	return k
}

// on returns Node.FreeFraction of the demand on a node, -1 if the node is not schedulable or not large enough.
func (k *demandFractions) on(c *scheduler.Cluster, nodes []*scheduler.Node, id scheduler.NodeID) float64 {
	n := &k.nodes[id]
	if v := c.NodeVersion(id); n.version != v || n.generation != k.generation {
		*n = nodeFraction{k.generation, v, -1}
		if nodes[id].Schedulable() && nodes[id].IsLargeEnough(k.demand, k.space) {
			n.free = nodes[id].FreeFraction(k.demand)
		}
	}
	return n.free
}
