package threedsf

import "github.com/drover-run/drover/scheduler"

// Config.ReserveNodes: the next task, if it fits nowhere, reserves the node that
// lacks least, as in YARN's schedulers. Otherwise a large task would be passed over
// for ever while small ones arrive. Reservations are not remembered: each pass makes
// them anew, in the order of service.

// A pass reserves one node in sixteen, at least minReservedNodes and at most
// maxReservedNodes. For one task it scans maxNodesScanned nodes, starting at one
// that depends on its job; it does so for maxAttempted stages.
const (
	minReservedNodes = 4
	maxReservedNodes = 64
	maxNodesScanned  = 256
	maxAttempted     = 1024
)

// reservedNodes are the nodes reserved in a pass.
type reservedNodes struct {
	c         *cycle
	stageOn   []*scheduler.Stage // by node, nil for none
	freeAt    []scheduler.Time   // by reserved node: when it should be free, Never if unknown
	nodes     []scheduler.NodeID // the reserved nodes
	attempted map[*scheduler.Stage]bool

	state    *scheduler.State // of bounded
	workSeen uint64           // State.ChangePosition of bounded
	bounded  *scheduler.Job   // see findBoundedJob

	candidates  []nodeCandidate     // scratch
	departures  []expectedDeparture // scratch
	diskScratch []scheduler.DiskUse
}

// begin clears the reservations of the last pass.
func (k *reservedNodes) begin(nodes int) {
	for _, id := range k.nodes {
		k.stageOn[id] = nil
	}
	for len(k.stageOn) < nodes {
		k.stageOn, k.freeAt = append(k.stageOn, nil), append(k.freeAt, scheduler.Never)
	}
	k.nodes = k.nodes[:0]
	clear(k.attempted)
}

// isLimitReached reports whether no further node is reserved in this pass.
func (k *reservedNodes) isLimitReached() bool {
	return len(k.attempted) >= maxAttempted || len(k.nodes) >= min(max(len(k.c.s.Nodes())/16, minReservedNodes), maxReservedNodes)
}

// reserve reserves a node for each startable task of a stage, while nodes may
// be reserved.
func (k *reservedNodes) reserve(g *scheduler.Stage) {
	if k.attempted == nil {
		k.attempted = map[*scheduler.Stage]bool{}
	}
	k.attempted[g] = true
	if k.findBoundedJob() != nil {
		k.reserveSoonestNodes(g)
		return
	}
	k.findByNearness(g)
	for n := g.Startable(); n > 0 && !k.isLimitReached(); n-- {
		id := k.takeNearest()
		if id == scheduler.NoNode {
			return
		}
		k.reserveOne(id, g, scheduler.Never)
	}
}

// reserveForOne reserves a node for one task of a stage, and reports whether there is one. The
// stage may reserve nodes for others of its tasks when it is next.
func (k *reservedNodes) reserveForOne(g *scheduler.Stage) bool {
	if k.findBoundedJob() != nil {
		k.findCandidates(g)
		if len(k.candidates) == 0 {
			return false
		}
		k.reserveOne(k.candidates[0].id, g, k.candidates[0].freeAt)
		return true
	}
	k.findByNearness(g)
	id := k.takeNearest()
	if id != scheduler.NoNode {
		k.reserveOne(id, g, scheduler.Never)
	}
	return id != scheduler.NoNode
}

// reserveOne reserves a node that should fit a task of the stage at a given time.
func (k *reservedNodes) reserveOne(id scheduler.NodeID, g *scheduler.Stage, at scheduler.Time) {
	k.stageOn[id], k.freeAt[id] = g, at
	k.nodes = append(k.nodes, id)
	if k.isClosed(id) {
		k.c.nodeUsed(id)
	}
}

// isClosed reports whether nothing may start on a node because it is reserved until
// an unknown time.
func (k *reservedNodes) isClosed(id scheduler.NodeID) bool {
	return k.stageOn[id] != nil && k.freeAt[id] == scheduler.Never
}

// nextUnreservedNode returns a node that fits an equivalence class and is not
// closed, or NoNode.
func (k *reservedNodes) nextUnreservedNode(sh equivalenceClass) scheduler.NodeID {
	id := k.nextFit(&sh, 0)
	for id != scheduler.NoNode && k.isClosed(id) {
		id = k.nextFit(&sh, id+1)
	}
	return id
}

// findByNearness lists the nodes that a task of a stage could reserve, in the order of the scan.
// O(maxNodesScanned).
func (k *reservedNodes) findByNearness(g *scheduler.Stage) {
	k.candidates = k.candidates[:0]
	k.scan(g, func(n *scheduler.Node, near float64) {
		k.candidates = append(k.candidates, nodeCandidate{n.Spec.ID, scheduler.Never, near})
	})
}

// scan yields the unreserved nodes, of maxNodesScanned, that could hold a task of a stage when empty and
// that its job does not avoid, each with how much of the scarcest resource is free.
func (k *reservedNodes) scan(g *scheduler.Stage, yield func(n *scheduler.Node, near float64)) {
	nodes := k.c.s.Nodes()
	at := int(uint64(g.Job.Spec.ID) % uint64(max(1, len(nodes))))
	for range min(len(nodes), maxNodesScanned) {
		n := nodes[at]
		if at++; at == len(nodes) {
			at = 0
		}
		if !n.Schedulable() || k.stageOn[n.Spec.ID] != nil || k.c.s.Cluster().Avoids(g, n.Spec.ID) {
			continue
		}
		if near := n.FreeFraction(g.Spec.Demand); near > taken {
			yield(n, near)
		}
	}
}

// taken is the nearness of a candidate that was taken.
const taken = -1.0

// takeNearest takes the candidate that lacks least of the scarcest resource of a task and returns it,
// NoNode if none is left; ties go to the first. O(candidates).
func (k *reservedNodes) takeNearest() scheduler.NodeID {
	best, most := -1, taken
	for i := range k.candidates {
		if near := k.candidates[i].nearness; near > most {
			best, most = i, near
		}
	}
	if best < 0 {
		return scheduler.NoNode
	}
	k.candidates[best].nearness = taken
	return k.candidates[best].id
}

// reservingStage returns a stage with a reserved node that would fit a task of g, or
// nil.
func (k *reservedNodes) reservingStage(g *scheduler.Stage) *scheduler.Stage {
	for _, id := range k.nodes {
		if k.c.s.Cluster().HasCapacity(g, id) {
			return k.stageOn[id]
		}
	}
	return nil
}

// nextFit is State.NextNode for a class.
func (k *reservedNodes) nextFit(c *equivalenceClass, from scheduler.NodeID) scheduler.NodeID {
	return k.c.s.Cluster().NextNodeAvoiding(k.c.s.Job(c.avoider), c.avoidance, c.demand, c.disk, from)
}

// expectedDeparture is when an attempt on a node should have ended by its bound.
type expectedDeparture struct {
	end     scheduler.Time
	attempt *scheduler.Attempt
}

// nodeCandidate is a node that could be reserved.
type nodeCandidate struct {
	id       scheduler.NodeID
	freeAt   scheduler.Time
	nearness float64
}
