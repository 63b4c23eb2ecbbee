package locality

import (
	"iter"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality/match"
)

// Assignment puts a task of a stage on a node that holds its data.
type Assignment struct {
	Task int32
	Node scheduler.NodeID
}

// If a stage may not place all of its waiting tasks, candidates are taken from the first scanTasks
// + scanEach x count waiting tasks, and after them from the nodes with capacity. Of the tasks for
// which the first pass finds no slot, spareBase + spareEach x count remain candidates.
const (
	scanTasks = 1024
	scanEach  = 16
	spareBase = 64
	spareEach = 2
)

const maxSlots = 1 << 24 // bounds the slots of a node, since a task may need nothing

// Matcher is the workspace of Match.
type Matcher struct {
	// MayUse, if not nil, reports whether a stage may use a node that has capacity for it.
	MayUse func(n *scheduler.Node, g *scheduler.Stage) bool

	solver  match.Solver
	problem match.Problem

	state        *scheduler.State
	stage        *scheduler.Stage
	problemIndex []int32 // by node of the State: its index in the problem if mark equals stamp
	mark         []uint32
	stamp        uint32
	nodes        []scheduler.NodeID // nodes of the problem
	slots        []int32            // slots of each node of the problem
	unassigned   []int32            // slots not assigned by the first pass
	candidates   []int32            // tasks of the problem, in its order
	spare        []spareCandidate
	edges        []scheduler.NodeID // nodes of the spare candidates
	out          []Assignment
}

type spareCandidate struct {
	task     int32
	from, to int32 // range in edges
}

// Match assigns at most count waiting tasks of a stage to nodes that hold their data and have
// capacity: as many tasks as possible, then with the greatest sum of idle weights.
//
// The result is optimal over the candidates: all waiting tasks if all may be placed, else the first
// ones for which the first pass finds a slot, and some spares. It is empty only if no waiting task
// has capacity at its data. It is valid until the next Match. Cost: O(tasks considered x replicas)
// plus that of match.Solver.
func (m *Matcher) Match(s *scheduler.State, g *scheduler.Stage, count int32) []Assignment {
	m.reset(s, g)
	m.collectCandidates(count)
	for _, c := range m.spare {
		m.addToProblem(c.task, m.edges[c.from:c.to])
	}
	if len(m.candidates) == 0 {
		return nil
	}
	for i, id := range m.nodes {
		n := m.state.Node(id)
		node := match.Node{Slots: min(m.slots[i], int32(len(m.candidates)))}
		for r, c := range n.Spec.Capacity {
			if c > 0 {
				node.Used[r] = 1 - float64(n.Free[r])/float64(c)
				node.Step[r] = float64(g.Spec.Demand[r]) / float64(c)
			}
		}
		m.problem.Nodes = append(m.problem.Nodes, node)
	}
	result := m.solver.Solve(&m.problem)
	for i, task := range m.candidates {
		if n := result[i]; n != match.None && len(m.out) < int(count) {
			m.out = append(m.out, Assignment{task, m.nodes[n]})
		}
	}
	return m.out
}

func (m *Matcher) reset(s *scheduler.State, g *scheduler.Stage) {
	m.state, m.stage = s, g
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

// collectCandidates collects count tasks for which the first pass finds a slot, and some spares for
// which it finds none.
func (m *Matcher) collectCandidates(count int32) {
	g := m.stage
	limit, spare := scanTasks+scanEach*count, spareBase+spareEach*count
	if g.Pending <= count {
		limit, spare = g.Pending, g.Pending
	}
	found := int32(0)
	for i := range NearTasks(m.state, g, 0, limit) {
		if found == count {
			return
		}
		if m.addCandidate(i, &spare) {
			found++
		}
	}
	if i := g.SkipPending(0, limit); i >= 0 {
		m.collectByNode(i, count-found, &spare)
	}
}

// collectByNode collects candidates from task first on, node by node, over the nodes with capacity.
func (m *Matcher) collectByNode(first, count int32, spare *int32) {
	g, cluster := m.stage, m.state.Cluster()
	for id := cluster.NextNode(g, 0); id != scheduler.NoNode && count > 0; id = cluster.NextNode(g, id+1) {
		tasks := g.TasksOn(id)
		from, _ := slices.BinarySearch(tasks, first)
		for _, i := range tasks[from:] {
			if count == 0 || m.slotsLeft(id) == 0 {
				break
			}
			if g.IsPending(i) && !m.isCandidate(i) && m.addCandidate(i, spare) {
				count--
			}
		}
	}
}

func (m *Matcher) isCandidate(task int32) bool {
	return slices.Contains(m.candidates, task) || slices.ContainsFunc(m.spare, func(c spareCandidate) bool { return c.task == task })
}

// addCandidate makes a task with capacity at its data a candidate. It reports whether the first pass found a slot for it.
func (m *Matcher) addCandidate(task int32, spare *int32) bool {
	from := int32(len(m.edges))
	m.edges = LocalNodes(m.state, m.stage, task, m.edges)
	to := int32(len(m.edges))
	best, at := int32(0), scheduler.NoNode
	for _, id := range m.edges[from:to] {
		if k := m.slotsLeft(id); k > best {
			best, at = k, id
		}
	}
	switch {
	case at != scheduler.NoNode:
		m.unassigned[m.problemIndex[at]]--
		m.addToProblem(task, m.edges[from:to])
		m.edges = m.edges[:from]
	case from < to && *spare > 0:
		*spare--
		m.spare = append(m.spare, spareCandidate{task, from, to})
	default:
		m.edges = m.edges[:from]
	}
	return at != scheduler.NoNode
}

// slotsLeft returns the slots of a node not assigned by the first pass, and adds a new node to the problem.
func (m *Matcher) slotsLeft(id scheduler.NodeID) int32 {
	if m.mark[id] != m.stamp {
		m.mark[id] = m.stamp
		m.problemIndex[id] = int32(len(m.nodes))
		m.nodes = append(m.nodes, id)
		slots := m.countOpenSlots(m.state.Node(id))
		m.slots = append(m.slots, slots)
		m.unassigned = append(m.unassigned, slots)
	}
	return m.unassigned[m.problemIndex[id]]
}

// countOpenSlots returns the slots of a node for tasks of the stage. A node with reservations
// counts as one slot, since each placement must be checked against them.
func (m *Matcher) countOpenSlots(n *scheduler.Node) int32 {
	if m.MayUse != nil && len(m.state.Reservations().On(n.Spec.ID)) > 0 {
		if !m.MayUse(n, m.stage) {
			return 0
		}
		return 1
	}
	return CountSlots(n, m.stage.Spec.Demand, m.stage.Spec.Disk, maxSlots)
}

// NearTasks yields, in order, those of the first most waiting tasks at or after from that have
// input on a node with capacity for them. The State must not change during an iteration.
func NearTasks(s *scheduler.State, g *scheduler.Stage, from, most int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		stop := g.SkipPending(from, most)
		if stop < 0 {
			stop = g.Spec.Tasks
		}
		next := func(from int32) int32 { return s.Queue().NextPendingNear(g, from, stop) }
		for i := next(from); i >= 0 && yield(i); i = next(i + 1) {
		}
	}
}

// LocalNodes appends the nodes that hold most of a task's input, have capacity for it now, and on which it has not failed.
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

func (m *Matcher) addToProblem(task int32, near []scheduler.NodeID) {
	p := &m.problem
	for _, id := range near {
		p.Replicas = append(p.Replicas, m.problemIndex[id])
	}
	p.Offsets = append(p.Offsets, int32(len(p.Replicas)))
	m.candidates = append(m.candidates, task)
}

// CountSlots returns the number of tasks with a demand and disk space that fit on a node now, at
// most limit. O(disks).
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
