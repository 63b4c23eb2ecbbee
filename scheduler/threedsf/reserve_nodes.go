package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Config.ReserveNodes: if the next task fits nowhere, it reserves the node that lacks least, as in
// YARN's schedulers. Otherwise small tasks that keep arriving would pass a large task for ever.
// Each pass makes these reservations again, in the order of service.

// A pass reserves one node in sixteen, at least minReservedNodes and at most maxReservedNodes. For one task it
// scans maxNodesScanned nodes, from a start that depends on its job, and it scans for at most maxAttempted stages.
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
	freeAt    []scheduler.Time   // by reserved node: its expected time free, Never if unknown
	nodes     []scheduler.NodeID // the reserved nodes
	attempted map[*scheduler.Stage]bool

	state    *scheduler.State // of bounded
	workSeen uint64           // ChangeLog.Position of bounded
	bounded  *scheduler.Job   // see findBoundedJob

	freeFractions freeFractions

	candidates []nodeCandidate        // scratch
	departures []expectedDeparture    // scratch
	capacity   scheduler.FreeCapacity // scratch
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

// reserve reserves a node for each startable task of a stage, until isLimitReached.
func (k *reservedNodes) reserve(g *scheduler.Stage) {
	if k.attempted == nil {
		k.attempted = map[*scheduler.Stage]bool{}
	}
	k.attempted[g] = true
	k.findCandidates(g)
	for n := g.Startable(); n > 0 && !k.isLimitReached() && k.reserveBest(g); n-- {
	}
}

// reserveForOne reserves a node for one task of a stage, and reports whether it could. The stage
// may reserve nodes for its other tasks when it is next.
func (k *reservedNodes) reserveForOne(g *scheduler.Stage) bool {
	k.findCandidates(g)
	return k.reserveBest(g)
}

// findCandidates lists the nodes that a task of a stage could reserve: of maxNodesScanned those that
// are not reserved, are large enough when empty and are not avoided by its job. If some job has a
// bound, it computes when they become free: a task that starts behind a reservation does not delay it,
// so the next cycle reserves the same node. O(maxNodesScanned), then times the attempts on a node.
func (k *reservedNodes) findCandidates(g *scheduler.Stage) {
	bounded := k.findBoundedJob() != nil
	k.candidates = k.candidates[:0]
	nodes, cluster := k.c.s.Nodes(), k.c.s.Cluster()
	avoids := !cluster.AvoidanceOf(g).IsZero()
	free := k.freeFractions.of(k.c.s, g)
	at := scheduler.NodeID(uint64(g.Job.Spec.ID) % uint64(max(1, len(nodes))))
	for range min(len(nodes), maxNodesScanned) {
		id := at
		if at++; int(at) == len(nodes) {
			at = 0
		}
		if k.stageOn[id] != nil {
			continue
		}
		c := nodeCandidate{id: id, freeAt: scheduler.Never, nearness: free.on(cluster, nodes, id)}
		if c.nearness <= -1 || (avoids && cluster.Avoids(g, id)) {
			continue
		}
		if bounded {
			c.freeAt = k.capacityAt(nodes[id], g)
		}
		k.candidates = append(k.candidates, c)
	}
}

// reserveBest reserves the best candidate for a task of a stage, and reports whether there was one.
func (k *reservedNodes) reserveBest(g *scheduler.Stage) bool {
	best, ok := k.takeBest()
	if !ok {
		return false
	}
	k.stageOn[best.id], k.freeAt[best.id] = g, best.freeAt
	k.nodes = append(k.nodes, best.id)
	if k.isClosed(best.id) {
		k.c.nodeUsed(best.id)
	}
	return true
}

// takeBest takes the best candidate, false if none is left: the node that is free soonest; ties,
// also of unknown times, go to the node that lacks least, then to the first scanned. O(candidates).
func (k *reservedNodes) takeBest() (c nodeCandidate, ok bool) {
	best := 0
	for i := range k.candidates {
		if k.candidates[i].isBetterThan(&k.candidates[best]) {
			best = i
		}
	}
	if len(k.candidates) == 0 {
		return c, false
	}
	c = k.candidates[best]
	k.candidates = slices.Delete(k.candidates, best, best+1)
	return c, true
}

// isClosed reports whether nothing may start on a node because it is reserved until an unknown time.
func (k *reservedNodes) isClosed(id scheduler.NodeID) bool {
	return k.stageOn[id] != nil && k.freeAt[id] == scheduler.Never
}

// nextUnreservedNode returns a node that fits an equivalence class and is not closed, or NoNode.
func (k *reservedNodes) nextUnreservedNode(class scheduler.DemandClass) scheduler.NodeID {
	j := k.c.s.Job(class.Avoidance.Job())
	id := k.c.s.Cluster().NextNodeOfClass(j, &class, 0)
	for id != scheduler.NoNode && k.isClosed(id) {
		id = k.c.s.Cluster().NextNodeOfClass(j, &class, id+1)
	}
	return id
}

// reservingStage returns a stage with a reserved node that would fit a task of g, or nil.
func (k *reservedNodes) reservingStage(g *scheduler.Stage) *scheduler.Stage {
	for _, id := range k.nodes {
		if k.c.s.Cluster().HasCapacity(g, id) {
			return k.stageOn[id]
		}
	}
	return nil
}

// expectedDeparture is when an attempt on a node should end by its bound.
type expectedDeparture struct {
	end     scheduler.Time
	attempt *scheduler.Attempt
}

// nodeCandidate is a node that could be reserved.
type nodeCandidate struct {
	id       scheduler.NodeID
	freeAt   scheduler.Time // Never if unknown
	nearness float64
}

// isBetterThan reports whether a candidate comes before another that was scanned before it.
func (n *nodeCandidate) isBetterThan(other *nodeCandidate) bool {
	return n.freeAt < other.freeAt || n.freeAt == other.freeAt && n.nearness > other.nearness
}

// freeFractions caches Node.FreeFraction of all nodes for the last few demands: in a full cluster
// each cycle compares the same demands with the same nodes, of which few have changed.
type freeFractions struct {
	state  *scheduler.State
	kept   [4]demandFractions
	oldest int // index in kept
}

// demandFractions caches Node.FreeFraction of one demand and disk space.
type demandFractions struct {
	demand scheduler.Resources
	space  int64
	// generation is above 0 and increases when demand or space change, which makes older entries invalid.
	generation uint64
	nodes      []nodeFraction
}

// nodeFraction is a FreeFraction that was computed at a Cluster.NodeVersion.
type nodeFraction struct {
	generation, version uint64
	free                float64
}

// of returns the cached fractions for the tasks of a stage. The result is valid until the next call.
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

// Other tasks may start on a node reserved for a task (Config.ReserveNodes) if, by the bounds of what runs, they do
// not delay it: EASY backfilling (Lifka) on one node. Either their bound ends before the node is free for that
// task, or they fit beside it. A task without a bound must fit beside it; without any bounds nothing starts there.

// findBoundedJob returns a job that has a bound, nil if none has, and remembers it. O(1) while that
// job has it, else O(changes since the last call); O(jobs) after it ended.
func (k *reservedNodes) findBoundedJob() *scheduler.Job {
	s := k.c.s
	known := k.state == s
	if known && k.bounded != nil && s.Job(k.bounded.Spec.ID) == k.bounded && k.bounded.HasBounds() {
		return k.bounded
	}
	known = known && k.bounded == nil
	k.bounded = nil
	look := func(j *scheduler.Job) {
		if k.bounded == nil && j != nil && j.HasBounds() {
			k.bounded = j
		}
	}
	if !known || !s.ChangeLog().Since(k.workSeen, func(w scheduler.ChangedOwner) { look(s.Job(w.Job)) }) {
		for j := range s.Jobs() {
			look(j)
			if k.bounded != nil {
				break
			}
		}
	}
	k.state, k.workSeen = s, s.ChangeLog().Position()
	return k.bounded
}

// capacityAt returns when a node should fit a task of a stage by the bounds of its running tasks, or
// Never. A task past its bound counts as ended at its bound, so the result does not move with time.
func (k *reservedNodes) capacityAt(n *scheduler.Node, g *scheduler.Stage) scheduler.Time {
	k.departures = k.departures[:0]
	if !n.Releasing.IsZero() {
		return scheduler.Never
	}
	for a := range k.c.s.Attempts().On(n.Spec.ID) {
		if end := k.endByBound(n, a); end < scheduler.Never {
			k.departures = append(k.departures, expectedDeparture{end, a})
		}
	}
	slices.SortFunc(k.departures, func(x, y expectedDeparture) int {
		return cmp.Or(cmp.Compare(x.end, y.end), x.attempt.ID.Compare(y.attempt.ID))
	})
	k.capacity.Load(n)
	for _, e := range k.departures {
		k.release(e.attempt)
		if k.capacity.HasRoom(g.Spec.Demand, g.Spec.Disk) {
			return e.end
		}
	}
	return scheduler.Never
}

// endByBound returns when an attempt on a node should end by its bound, Never if unknown.
func (k *reservedNodes) endByBound(n *scheduler.Node, a *scheduler.Attempt) scheduler.Time {
	g := k.c.s.StageOf(a)
	if g.Bound() <= 0 || a.Node != n.Spec.ID || a.Level != scheduler.LevelRunning || a.Target != 0 {
		return scheduler.Never
	}
	return overrunsAt(a, g)
}

// leavesCapacity reports whether d more of a stage (with disk space on disk), for a task that starts or
// its attempt a that resumes, does not delay the task that a node is reserved for. O(attempts there).
func (k *reservedNodes) leavesCapacity(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16, a *scheduler.Attempt) bool {
	at := k.freeAt[n.Spec.ID]
	if at == scheduler.Never {
		return false
	}
	if b := boundLeft(g, a); b > 0 && k.c.now.Add(b) <= at {
		return true
	}
	k.capacity.Load(n)
	k.capacity.Release(d.Times(-1), -space, disk)
	for a := range k.c.s.Attempts().On(n.Spec.ID) {
		if k.endByBound(n, a) <= at {
			k.release(a)
		}
	}
	next := &k.stageOn[n.Spec.ID].Spec
	return k.capacity.HasRoom(next.Demand, next.Disk)
}

// release adds to capacity what an attempt occupies.
func (k *reservedNodes) release(a *scheduler.Attempt) {
	k.capacity.Release(a.Occupied.Resources, a.Occupied.Disk, a.Disk)
}
