package threedsf

import "github.com/drover-run/drover/scheduler"

// freeFractions keeps Node.FreeFraction of the last few demands for all nodes: in a full cluster the
// same demands are compared with the same nodes in each cycle, and few nodes have changed since.
type freeFractions struct {
	state  *scheduler.State
	kept   [4]demandFractions
	oldest int // index in kept
}

// demandFractions keeps Node.FreeFraction of one demand.
type demandFractions struct {
	demand scheduler.Resources
	// generation is above 0 and increases when demand changes: what was kept before is then void.
	generation uint64
	nodes      []nodeFraction
}

// nodeFraction is a FreeFraction that was computed at a Cluster.NodeVersion.
type nodeFraction struct {
	generation, version uint64
	free                float64
}

// of returns what is kept for a demand. It is valid until the next call.
func (f *freeFractions) of(s *scheduler.State, demand scheduler.Resources) *demandFractions {
	if f.state != s {
		*f = freeFractions{state: s}
	}
	for i := range f.kept {
		if k := &f.kept[i]; k.demand == demand && len(k.nodes) == len(s.Nodes()) {
			return k
		}
	}
	k := &f.kept[f.oldest]
	f.oldest = (f.oldest + 1) % len(f.kept)
	k.demand = demand
	k.generation++
	if n := len(s.Nodes()); len(k.nodes) != n {
		k.nodes = make([]nodeFraction, n)
	}
	return k
}

// on returns Node.FreeFraction of the demand on a node, -1 if the node is not schedulable.
func (k *demandFractions) on(c *scheduler.Cluster, nodes []*scheduler.Node, id scheduler.NodeID) float64 {
	n := &k.nodes[id]
	if v := c.NodeVersion(id); n.version != v || n.generation != k.generation {
		*n = nodeFraction{k.generation, v, -1}
		if nodes[id].Schedulable() {
			n.free = nodes[id].FreeFraction(k.demand)
		}
	}
	return n.free
}
