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
	stageOn   []*scheduler.Stage // by node, nil for none
	freeAt    []scheduler.Time   // by reserved node: when it should be free, Never if unknown
	nodes     []scheduler.NodeID // the reserved nodes
	attempted map[*scheduler.Stage]bool

	state     *scheduler.State // of hasBounds
	workSeen  uint64           // State.ChangePosition of hasBounds
	hasBounds bool

	candidates []nodeCandidate     // scratch
	departures []expectedDeparture // scratch
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

// shouldReserveNode reports whether a stage is to be served although it fits
// nowhere: once a pass, while nodes may be reserved.
func (p *Policy) shouldReserveNode(g *scheduler.Stage) bool {
	if !p.cfg.ReserveNodes || p.isNodeLimitReached() || g.Startable() == 0 || p.reserved.attempted[g] || p.s.Cluster().NextNode(g, 0) != scheduler.NoNode {
		return false
	}
	if w, waits := p.dataWaits[g]; waits && w.allWaiting {
		return false
	}
	if p.guaranteeCount > 0 && p.isFullyPlanned(g) {
		return false
	}
	_, _, _, ok := p.s.TenantTree().UnderCaps(g)
	return ok
}

// isFullyPlanned reports whether each waiting task of a stage has a guarantee
// reservation, so that it needs no node.
func (p *Policy) isFullyPlanned(g *scheduler.Stage) bool {
	n := int32(0)
	for _, r := range g.Job.Reservations() {
		if r.Stage == g.Index && isPlanned(r) && r.End > p.now && g.IsPending(r.Task) {
			n++
		}
	}
	return n >= g.Pending
}

// isNodeLimitReached reports whether no further node is reserved in this pass.
func (p *Policy) isNodeLimitReached() bool {
	return len(p.reserved.attempted) >= maxAttempted || len(p.reserved.nodes) >= min(max(len(p.s.Nodes())/16, minReservedNodes), maxReservedNodes)
}

// reserveNodes reserves a node for each startable task of a stage, while nodes may
// be reserved.
func (p *Policy) reserveNodes(g *scheduler.Stage) {
	if p.reserved.attempted == nil {
		p.reserved.attempted = map[*scheduler.Stage]bool{}
	}
	p.reserved.attempted[g] = true
	if p.hasBoundedJob() {
		p.reserveSoonestNodes(g)
		return
	}
	for n := g.Startable(); n > 0 && !p.isNodeLimitReached(); n-- {
		id := p.nearestNode(g)
		if id == scheduler.NoNode {
			return
		}
		p.reserveNode(id, g, scheduler.Never)
	}
}

// reserveNode reserves a node that should fit a task of the stage at a given time.
func (p *Policy) reserveNode(id scheduler.NodeID, g *scheduler.Stage, at scheduler.Time) {
	k := &p.reserved
	k.stageOn[id], k.freeAt[id] = g, at
	k.nodes = append(k.nodes, id)
	if k.isClosed(id) {
		p.refreshHeadsAfter(id)
	}
}

// isClosed reports whether nothing may start on a node because it is reserved until
// an unknown time.
func (k *reservedNodes) isClosed(id scheduler.NodeID) bool {
	return k.stageOn[id] != nil && k.freeAt[id] == scheduler.Never
}

// nextUnreservedNode returns a node that fits an equivalence class and is not
// closed, or NoNode.
func (p *Policy) nextUnreservedNode(sh equivalenceClass) scheduler.NodeID {
	id := p.nextFit(&sh, 0)
	for id != scheduler.NoNode && p.reserved.isClosed(id) {
		id = p.nextFit(&sh, id+1)
	}
	return id
}

// nearestNode returns the unreserved node that lacks least of the scarcest resource
// of a task, among the scanned ones that could hold it when empty; ties go to the
// first. O(maxNodesScanned).
func (p *Policy) nearestNode(g *scheduler.Stage) scheduler.NodeID {
	nodes := p.s.Nodes()
	best, most := scheduler.NoNode, -1.0
	from := int(uint64(g.Job.Spec.ID) % uint64(max(1, len(nodes))))
	for i := range min(len(nodes), maxNodesScanned) {
		n := nodes[(from+i)%len(nodes)]
		if !n.Schedulable() || p.reserved.stageOn[n.Spec.ID] != nil || p.s.Cluster().Avoids(g, n.Spec.ID) {
			continue
		}
		if near := n.FreeFraction(g.Spec.Demand); near > most {
			best, most = n.Spec.ID, near
		}
	}
	return best
}

// reservingStage returns a stage with a reserved node that would fit a task of g, or
// nil.
func (p *Policy) reservingStage(g *scheduler.Stage) *scheduler.Stage {
	for _, id := range p.reserved.nodes {
		if p.s.Cluster().HasCapacity(g, id) {
			return p.reserved.stageOn[id]
		}
	}
	return nil
}
