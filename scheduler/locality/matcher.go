package locality

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality/match"
)

// Request is a stage that may place Count of its waiting tasks now.
type Request struct {
	Stage *scheduler.Stage
	Count int32
}

// Assignment puts a task of requests[Request] on a node that holds its data.
type Assignment struct {
	request int32
	Task    int32
	Node    scheduler.NodeID
}

// If a stage may not place all of its waiting tasks, candidates are taken from the
// first scanTasks + scanEach x count waiting tasks, and beyond those from the nodes
// with capacity. Of the tasks for which the first pass finds no slot, spareBase +
// spareEach x count stay candidates.
const (
	scanTasks = 1024
	scanEach  = 16
	spareBase = 64
	spareEach = 2
)

// maxSlots bounds the slots of a node: a task may need nothing.
const maxSlots = 1 << 24

// Matcher is the workspace of Match.
type Matcher struct {
	// MayUse, if not nil, reports whether a stage may use a node that has capacity for
	// it.
	MayUse func(n *scheduler.Node, g *scheduler.Stage) bool

	iterator TaskIterator
	solver   match.Solver
	problem  match.Problem

	state          *scheduler.State
	problemIndex   []int32 // by node of the State, its index in the problem if mark equals stamp
	mark           []uint32
	stamp          uint32
	nodes          []scheduler.NodeID  // nodes of the problem
	slots          []int32             // slots of each node of the problem
	unassigned     []int32             // slots that the first pass has not assigned
	demand         scheduler.Resources // demand that slots are counted by
	space          int64
	severalClasses bool        // demand and space are the mean of several equivalence classes
	candidates     []candidate // tasks of the problem, in its order
	spare          []candidate
	edges          []scheduler.NodeID // nodes of the spare candidates
	placed         []int32            // by request, the number of assigned tasks
	out            []Assignment
}

type candidate struct {
	request, task int32
	from, to      int32 // range in edges, of spare candidates
}

// Match assigns waiting tasks of the requests to nodes that hold their data and have
// capacity: as many tasks as possible, then with the greatest sum of idle weights, and
// among equal assignments those of earlier requests.
//
// If all requests have the same demand and disk space, the result is optimal over the
// candidates: all waiting tasks of a stage that may place all of them, else the first
// ones for which the first pass finds a slot, and some spares. With several equivalence
// classes the problem is NP-hard; then a node counts as having as many slots as their
// mean demand fits into it, and at least one, so the caller must place the assignments
// in order while they fit and call Match again for the rest. The first assignment
// always fits. The result is empty only if no waiting task of any request has capacity
// at its data. It is valid until the next Match. Cost: O(tasks considered x replicas)
// plus that of match.Solver.
func (m *Matcher) Match(s *scheduler.State, requests []Request) []Assignment {
	m.reset(s)
	m.averageDemand(requests)
	for r := range requests {
		m.collectCandidates(s, requests, int32(r))
	}
	for _, c := range m.spare {
		m.addToProblem(c.request, c.task, m.edges[c.from:c.to])
	}
	if len(m.candidates) == 0 {
		return nil
	}
	m.fillNodes(s)
	result := m.solver.Solve(&m.problem)
	m.placed = append(m.placed[:0], make([]int32, len(requests))...)
	for i, c := range m.candidates {
		if n := result[i]; n != match.None && m.placed[c.request] < requests[c.request].Count {
			m.placed[c.request]++
			m.out = append(m.out, Assignment{c.request, c.task, m.nodes[n]})
		}
	}
	return m.out
}

func (m *Matcher) reset(s *scheduler.State) {
	m.state = s
	if n := len(s.Nodes()); len(m.mark) < n {
		m.problemIndex, m.mark = make([]int32, n), make([]uint32, n)
	}
	if m.stamp++; m.stamp == 0 {
		clear(m.mark)
		m.stamp = 1
	}
	m.nodes, m.slots, m.unassigned, m.candidates, m.spare, m.edges, m.out = m.nodes[:0], m.slots[:0], m.unassigned[:0], m.candidates[:0], m.spare[:0], m.edges[:0], m.out[:0]
	p := &m.problem
	p.Nodes, p.Offsets, p.Replicas = p.Nodes[:0], append(p.Offsets[:0], 0), p.Replicas[:0]
}

// collectCandidates collects the candidates of one request: count tasks for which the
// first pass finds a slot, and some spares for which it does not.
func (m *Matcher) collectCandidates(s *scheduler.State, requests []Request, r int32) {
	g, count := requests[r].Stage, requests[r].Count
	limit, spare := scanTasks+scanEach*count, spareBase+spareEach*count
	if g.Pending <= count {
		limit, spare = g.Pending, g.Pending
	}
	found := int32(0)
	m.iterator.Reset(s, g, 0, limit)
	for i := m.iterator.Next(); i >= 0 && found < count; i = m.iterator.Next() {
		if m.addCandidate(s, requests, r, i, &spare) {
			found++
		}
	}
	if found == count {
		return
	}
	if i := g.SkipPending(0, limit); i >= 0 {
		m.collectByNode(s, requests, r, i, count-found, &spare)
	}
}

// collectByNode collects candidates from task first on, node by node, over the nodes
// with capacity.
func (m *Matcher) collectByNode(s *scheduler.State, requests []Request, r, first, count int32, spare *int32) {
	g := requests[r].Stage
	for id := s.Cluster().NextNode(g, 0); id != scheduler.NoNode && count > 0; id = s.Cluster().NextNode(g, id+1) {
		tasks := g.TasksOn(id)
		from, _ := slices.BinarySearch(tasks, first)
		for _, i := range tasks[from:] {
			if count == 0 || m.slotsLeft(s, g, id) == 0 {
				break
			}
			if g.IsPending(i) && !m.isCandidate(r, i) && m.addCandidate(s, requests, r, i, spare) {
				count--
			}
		}
	}
}

// isCandidate reports whether a task is already a candidate.
func (m *Matcher) isCandidate(r, task int32) bool {
	same := func(c candidate) bool { return c.request == r && c.task == task }
	return slices.ContainsFunc(m.candidates, same) || slices.ContainsFunc(m.spare, same)
}

// addCandidate makes a task with capacity at its data a candidate, and reports whether
// the first pass finds a slot for it.
func (m *Matcher) addCandidate(s *scheduler.State, requests []Request, r, task int32, spare *int32) bool {
	g := requests[r].Stage
	from := int32(len(m.edges))
	m.edges = LocalNodes(s, g, task, m.edges)
	to := int32(len(m.edges))
	best := int32(0)
	at := scheduler.NoNode
	for _, id := range m.edges[from:to] {
		if k := m.slotsLeft(s, g, id); k > best {
			best, at = k, id
		}
	}
	switch {
	case at != scheduler.NoNode:
		m.unassigned[m.problemIndex[at]]--
		m.addToProblem(r, task, m.edges[from:to])
		m.edges = m.edges[:from]
	case from < to && *spare > 0:
		*spare--
		m.spare = append(m.spare, candidate{r, task, from, to})
	default:
		m.edges = m.edges[:from]
	}
	return at != scheduler.NoNode
}

// slotsLeft returns the slots of a node that the first pass has not assigned. It adds
// the node to the problem if it is new.
func (m *Matcher) slotsLeft(s *scheduler.State, g *scheduler.Stage, id scheduler.NodeID) int32 {
	if m.mark[id] != m.stamp {
		m.mark[id] = m.stamp
		m.problemIndex[id] = int32(len(m.nodes))
		m.nodes = append(m.nodes, id)
		slots := m.countOpenSlots(s.Node(id), g)
		m.slots = append(m.slots, slots)
		m.unassigned = append(m.unassigned, slots)
	}
	return m.unassigned[m.problemIndex[id]]
}

// countOpenSlots returns the slots of a node for tasks of the stage. A node with
// reservations counts as one slot, because each placement must be checked against them.
func (m *Matcher) countOpenSlots(n *scheduler.Node, g *scheduler.Stage) int32 {
	if m.MayUse != nil && len(m.state.Reservations().On(n.Spec.ID)) > 0 {
		if !m.MayUse(n, g) {
			return 0
		}
		return 1
	}
	slots := CountSlots(n, m.demand, m.space, maxSlots)
	if m.severalClasses {
		slots = max(slots, 1)
	}
	return slots
}

// LocalNodes appends the nodes that hold most of a task's input, have capacity for
// it now, and on which it has not failed.
func LocalNodes(s *scheduler.State, g *scheduler.Stage, task int32, out []scheduler.NodeID) []scheduler.NodeID {
	_, nodes, local := g.Input(task)
	most, failed := int64(0), g.FailedOn(task)
	for _, b := range local {
		most = max(most, b)
	}
	for k, id := range nodes {
		if (local != nil && local[k] < most) || slices.Contains(failed, id) {
			continue
		}
		if s.Cluster().HasCapacity(g, id) {
			out = append(out, id)
		}
	}
	return out
}

// addToProblem adds a candidate with its nodes to the problem.
func (m *Matcher) addToProblem(r, task int32, near []scheduler.NodeID) {
	p := &m.problem
	for _, id := range near {
		p.Replicas = append(p.Replicas, m.problemIndex[id])
	}
	p.Offsets = append(p.Offsets, int32(len(p.Replicas)))
	m.candidates = append(m.candidates, candidate{request: r, task: task})
}

// averageDemand sets the demand and space by which slots are counted: that of the
// requests if they are equal, else their mean.
func (m *Matcher) averageDemand(requests []Request) {
	m.demand, m.space = scheduler.Resources{}, 0
	var sum [scheduler.NumResources]float64
	var space, n float64
	one := true
	for _, r := range requests {
		g := &r.Stage.Spec
		first := &requests[0].Stage.Spec
		one = one && g.Demand == first.Demand && g.Disk == first.Disk
		for k, d := range g.Demand {
			sum[k] += float64(r.Count) * float64(d)
		}
		space += float64(r.Count) * float64(g.Disk)
		n += float64(r.Count)
	}
	if m.severalClasses = !one; one {
		if len(requests) > 0 {
			m.demand, m.space = requests[0].Stage.Spec.Demand, requests[0].Stage.Spec.Disk
		}
		return
	}
	for k := range sum {
		m.demand[k] = int64(sum[k] / max(n, 1))
	}
	m.space = int64(space / max(n, 1))
}

// fillNodes fills in the nodes of the problem: slots, usage, and what one task adds.
func (m *Matcher) fillNodes(s *scheduler.State) {
	p := &m.problem
	for i, id := range m.nodes {
		n := s.Node(id)
		node := match.Node{Slots: min(m.slots[i], int32(len(m.candidates)))}
		for r, c := range n.Spec.Capacity {
			if c > 0 {
				node.Used[r] = 1 - float64(n.Free[r])/float64(c)
				node.Step[r] = float64(m.demand[r]) / float64(c)
			}
		}
		p.Nodes = append(p.Nodes, node)
	}
}

// CountSlots returns the number of tasks with a demand and disk space that fit on a
// node now, at most limit. O(disks).
func CountSlots(n *scheduler.Node, d scheduler.Resources, space int64, limit int32) int32 {
	if !n.Schedulable() {
		return 0
	}
	k := int64(limit)
	for _, r := range [...]scheduler.Resource{scheduler.CPU, scheduler.Memory} {
		if d[r] > 0 {
			k = min(k, max(n.Free[r], 0)/d[r])
		}
	}
	if len(n.Disks) == 0 {
		if d[scheduler.IO] > 0 || space > 0 {
			return 0
		}
		return int32(k)
	}
	onDisks := int64(0)
	for i := range n.Disks {
		j := k
		if d[scheduler.IO] > 0 {
			j = min(j, max(n.Disks[i].FreeIO, 0)/d[scheduler.IO])
		}
		if space > 0 {
			j = min(j, max(n.Disks[i].FreeSpace, 0)/space)
		}
		onDisks += j
	}
	return int32(min(k, onDisks))
}
