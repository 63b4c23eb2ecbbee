package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// nodeFinder finds open nodes by the place of tasks' input. It remembers only scratch space and the racks.
type nodeFinder struct {
	v    *view
	open *openNodes

	nearNodes []scheduler.NodeID // scratch
	racks     racks
}

// localSearch is the progress of searching a stage for tasks with a free node at their input: tasks before task have
// none and, after maxScannedTasks, no task has one on nodes before node. It stays valid while capacity only shrinks.
type localSearch struct {
	stage     *scheduler.Stage
	task      int32
	scanned   int32
	node      scheduler.NodeID
	exhausted bool  // no task has a free node at its input
	evaluated int32 // tasks before it were evaluated by tryWaitForData
	slotsLeft int32 // tasks still to be evaluated
}

// Limits of searches.
const (
	maxScannedTasks   = 512 // waiting tasks of a stage scanned one by one; after them, only tasks on nodes with free capacity
	maxEvaluatedTasks = 8   // tasks of a stage that are evaluated; the rest follow their result
	maxIdlestCompared = 256 // nodes compared for a task that goes to another rack
)

// countSlots returns how many tasks of a stage fit on the nodes that next finds, at most limit.
func (f *nodeFinder) countSlots(g *scheduler.Stage, limit int32, next func(*scheduler.Stage, scheduler.NodeID) scheduler.NodeID) (n int32) {
	for id := next(g, 0); id != scheduler.NoNode && n < limit; id = next(g, id+1) {
		n += locality.CountSlots(f.v.s.Node(id), g.Spec.Demand, g.Spec.Disk, limit-n)
	}
	return n
}

// freeSlots returns how many tasks of a stage fit on all nodes together, at most limit. It bounds the request to the
// matcher, which would otherwise collect thousands of waiting tasks for one free slot.
func (f *nodeFinder) freeSlots(g *scheduler.Stage, limit int32) int32 {
	return f.countSlots(g, limit, f.v.s.Cluster().NextNode)
}

// countMovable returns the number of tasks of a stage that fit on open nodes, at most maxEvaluatedTasks.
func (f *nodeFinder) countMovable(g *scheduler.Stage) int32 {
	return f.countSlots(g, maxEvaluatedTasks, f.open.nextOpenNode)
}

// findLocalTask returns the next waiting task of a stage with a free node at its input, and the idlest such
// node among those that store most of the input; ties go to the first listed. All calls in a pass cost
// O(waiting tasks x replicas), bounded by maxScannedTasks plus the tasks on nodes with free capacity.
func (f *nodeFinder) findLocalTask(g *scheduler.Stage, near *localSearch) (int32, scheduler.NodeID) {
	if most := maxScannedTasks - near.scanned; most > 0 {
		for i := range locality.NearTasks(f.v.s, g, near.task, most) {
			if node := f.idlestLocalNode(g, i, scheduler.NoNode); node != scheduler.NoNode {
				near.scanned += g.PendingIn(near.task, i)
				near.task = i
				return i, node
			}
		}
		last := g.SkipPending(near.task, most-1)
		if last < 0 {
			near.exhausted = true
			return 0, scheduler.NoNode
		}
		near.task, near.scanned = last+1, maxScannedTasks
	}
	if g.NextPending(near.task) < 0 {
		near.exhausted = true
		return 0, scheduler.NoNode
	}
	for id := f.v.s.Cluster().NextNode(g, near.node); id != scheduler.NoNode; id = f.v.s.Cluster().NextNode(g, id+1) {
		near.node = id
		tasks := g.TasksOn(id)
		from, _ := slices.BinarySearch(tasks, near.task)
		for _, i := range tasks[from:] {
			if !g.IsPending(i) {
				continue
			}
			if node := f.idlestLocalNode(g, i, scheduler.NoNode); node != scheduler.NoNode {
				return i, node
			}
		}
	}
	near.exhausted = true
	return 0, scheduler.NoNode
}

// idlestLocalNode returns the idlest open node with free capacity, except one, among the nodes that
// store most of a task's input, or NoNode.
func (f *nodeFinder) idlestLocalNode(g *scheduler.Stage, task int32, except scheduler.NodeID) scheduler.NodeID {
	f.nearNodes = locality.LocalNodes(f.v.s, g, task, f.nearNodes[:0])
	best, mostIdle := scheduler.NoNode, 0.0
	for _, id := range f.nearNodes {
		n := f.v.s.Node(id)
		if id == except || !f.open.isOpenTo(n, g) {
			continue
		}
		if idle := idleness(n); best == scheduler.NoNode || idle > mostIdle {
			best, mostIdle = id, idle
		}
	}
	return best
}

// racks lists the nodes of each rack, built on first use after the nodes of the State changed.
type racks struct {
	state       *scheduler.State
	nodeChanges uint64 // Cluster.ChangeCount when nodes was built
	nodes       [][]scheduler.NodeID
}

func (r *racks) nodesIn(s *scheduler.State, rack int32) []scheduler.NodeID {
	if changes := s.Cluster().ChangeCount(); r.state != s || r.nodeChanges != changes {
		r.state, r.nodeChanges = s, changes
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

// idleness returns the weight of a node: 1 - the largest share in use (3DSF 6.1).
func idleness(n *scheduler.Node) float64 {
	return 1 - n.Used().DominantShare(n.Spec.Capacity)
}

// remoteNodeFor returns the node for a task that does not wait for its input: the idlest open one in a
// rack of its input (Alg. 4 line 8), else the idlest of the first open ones anywhere; ties go to the
// lowest id. It never returns except, and a node on which the task failed only if no other is open.
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
	compare := func(n *scheduler.Node) {
		if id, idle := n.Spec.ID, idleness(n); best == scheduler.NoNode || idle > most || (idle == most && id < best) {
			best, most = id, idle
		}
	}
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
			if !slices.Contains(excluded, near) && f.open.canPlaceOn(g, near) {
				compare(f.v.s.Node(near))
			}
		}
	}
	if best != scheduler.NoNode {
		return best
	}
	for id, k := f.open.nextOpenNode(g, 0), 0; id != scheduler.NoNode && k < maxIdlestCompared; id, k = f.open.nextOpenNode(g, id+1), k+1 {
		if !slices.Contains(excluded, id) {
			compare(f.v.s.Node(id))
		}
	}
	return best
}
