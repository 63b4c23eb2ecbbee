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
	workSeen uint64           // ChangeLog.Position of bounded
	bounded  *scheduler.Job   // see findBoundedJob

	freeFractions freeFractions

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
func (k *reservedNodes) nextUnreservedNode(sh scheduler.DemandClass) scheduler.NodeID {
	id := k.nextFit(&sh, 0)
	for id != scheduler.NoNode && k.isClosed(id) {
		id = k.nextFit(&sh, id+1)
	}
	return id
}

// findByNearness makes the candidates a heap of the nodes that a task of a stage could reserve, that
// which lacks least of the task's scarcest resource first, ties by the order of the scan.
// O(maxNodesScanned).
func (k *reservedNodes) findByNearness(g *scheduler.Stage) {
	k.candidates = k.candidates[:0]
	k.scan(g, func(n *scheduler.Node, near float64) {
		k.candidates = append(k.candidates, nodeCandidate{id: n.Spec.ID, scanned: int32(len(k.candidates)), freeAt: scheduler.Never, nearness: near})
	})
	for i := len(k.candidates)/2 - 1; i >= 0; i-- {
		k.siftDown(i)
	}
}

// scan yields the unreserved nodes, of maxNodesScanned, that could hold a task of a stage when empty and
// that its job does not avoid, each with how much of the scarcest resource is free.
func (k *reservedNodes) scan(g *scheduler.Stage, yield func(n *scheduler.Node, near float64)) {
	nodes, cluster := k.c.s.Nodes(), k.c.s.Cluster()
	avoids := !cluster.AvoidanceOf(g).IsZero()
	free := k.freeFractions.of(k.c.s, g.Spec.Demand)
	at := scheduler.NodeID(uint64(g.Job.Spec.ID) % uint64(max(1, len(nodes))))
	for range min(len(nodes), maxNodesScanned) {
		id := at
		if at++; int(at) == len(nodes) {
			at = 0
		}
		if k.stageOn[id] != nil {
			continue
		}
		if near := free.on(cluster, nodes, id); near > -1 && !(avoids && cluster.Avoids(g, id)) {
			yield(nodes[id], near)
		}
	}
}

// takeNearest takes the first of the heap of candidates and returns it, NoNode if none is left.
// O(log candidates).
func (k *reservedNodes) takeNearest() scheduler.NodeID {
	last := len(k.candidates) - 1
	if last < 0 {
		return scheduler.NoNode
	}
	nearest := k.candidates[0].id
	k.candidates[0] = k.candidates[last]
	k.candidates = k.candidates[:last]
	k.siftDown(0)
	return nearest
}

// siftDown moves candidate i of the heap below those that come before it.
func (k *reservedNodes) siftDown(i int) {
	heap := k.candidates
	for {
		first := 2*i + 1
		if first >= len(heap) {
			return
		}
		if right := first + 1; right < len(heap) && heap[right].isNearerThan(&heap[first]) {
			first = right
		}
		if !heap[first].isNearerThan(&heap[i]) {
			return
		}
		heap[i], heap[first] = heap[first], heap[i]
		i = first
	}
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

// nextFit is Cluster.NextNode for a class.
func (k *reservedNodes) nextFit(c *scheduler.DemandClass, from scheduler.NodeID) scheduler.NodeID {
	return k.c.s.Cluster().NextNodeOfClass(k.c.s.Job(c.Avoidance.Job()), c, from)
}

// expectedDeparture is when an attempt on a node should have ended by its bound.
type expectedDeparture struct {
	end     scheduler.Time
	attempt *scheduler.Attempt
}

// nodeCandidate is a node that could be reserved.
type nodeCandidate struct {
	id       scheduler.NodeID
	scanned  int32 // its place in the scan, of findByNearness alone
	freeAt   scheduler.Time
	nearness float64
}

// isNearerThan reports whether a candidate comes before another.
func (n *nodeCandidate) isNearerThan(other *nodeCandidate) bool {
	return n.nearness > other.nearness || n.nearness == other.nearness && n.scanned < other.scanned
}
