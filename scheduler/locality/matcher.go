package locality

import (
	"fmt"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality/match"
)

// Request is a stage that may place Count of its waiting tasks now.
type Request struct {
	Stage *scheduler.Stage
	Count int32
}

// Assignment puts a task of Requests[Request] on a node that holds its data.
type Assignment struct {
	Request int32
	Task    int32
	Node    scheduler.NodeID
}

// Among the waiting tasks of a stage that may not place all it has, candidates
// are looked for among the first scanTasks + scanEach for each one, and beyond
// them on the nodes with room; spareBase + spareEach for each are kept for
// which a first look finds no slot.
const (
	scanTasks = 1024
	scanEach  = 16
	spareBase = 64
	spareEach = 2
)

// Matcher is the workspace of Match.
type Matcher struct {
	// Open, if not nil, tells which nodes with room a stage may use.
	Open func(n *scheduler.Node, g *scheduler.Stage) bool

	walk    Walk
	solver  match.Solver
	problem match.Problem

	state  *scheduler.State
	local  []int32 // of each node of the State its index in the problem, if mark is now
	mark   []uint32
	now    uint32
	nodes  []scheduler.NodeID  // of the problem
	slots  []int32             // of these
	left   []int32             // of these, that a first look has not given away
	demand scheduler.Resources // that slots are counted by
	space  int64
	mixed  bool        // it stands for several shapes
	cand   []candidate // of the problem, in its order
	spare  []candidate
	edges  []scheduler.NodeID // of spare candidates
	placed []int32            // of each request
	out    []Assignment
}

type candidate struct {
	request, task int32
	from, to      int32 // edges, of spare candidates
}

// Match assigns waiting tasks of the requests to nodes that hold their data and
// have room: as many as possible, then with the greatest sum of idle weights,
// and of equal ones those of earlier requests.
//
// With requests of one demand and disk space it is the optimum over the
// candidates: all waiting tasks of a stage that may place all it has, else the
// first ones for which a look at what is free finds a slot, and some more. With
// several shapes, where the problem is NP-hard, a node counts as having as many
// slots as their mean fits into it, at least one: the caller places in the given
// order what still fits and asks again for the rest. The first assignment
// always fits. It gives none only if no waiting task of any request has room at
// its data. The result is valid until the next Match. Cost: O(tasks looked at x
// replicas) and that of match.Solver.
func (m *Matcher) Match(s *scheduler.State, requests []Request) []Assignment {
	m.begin(s)
	m.average(requests)
	for r := range requests {
		m.collect(s, requests, int32(r))
	}
	for _, c := range m.spare {
		m.add(c.request, c.task, m.edges[c.from:c.to])
	}
	if len(m.cand) == 0 {
		return nil
	}
	m.weigh(s)
	result, err := m.solver.Solve(&m.problem)
	if err != nil {
		panic(fmt.Sprintf("locality: the problem made from the State is refused: %v", err))
	}
	m.placed = append(m.placed[:0], make([]int32, len(requests))...)
	for i, c := range m.cand {
		if n := result.Node[i]; n != match.None && m.placed[c.request] < requests[c.request].Count {
			m.placed[c.request]++
			m.out = append(m.out, Assignment{c.request, c.task, m.nodes[n]})
		}
	}
	return m.out
}

func (m *Matcher) begin(s *scheduler.State) {
	m.state = s
	if n := len(s.Nodes()); len(m.mark) < n {
		m.local, m.mark = make([]int32, n), make([]uint32, n)
	}
	if m.now++; m.now == 0 {
		clear(m.mark)
		m.now = 1
	}
	m.nodes, m.slots, m.left, m.cand, m.spare, m.edges, m.out = m.nodes[:0], m.slots[:0], m.left[:0], m.cand[:0], m.spare[:0], m.edges[:0], m.out[:0]
	p := &m.problem
	p.Nodes, p.Offsets, p.Replicas = p.Nodes[:0], append(p.Offsets[:0], 0), p.Replicas[:0]
	p.Hops = match.NodeOnly
}

// collect finds the candidates of one request: count of them for which there
// is a slot at the first look, and some for which there is none.
func (m *Matcher) collect(s *scheduler.State, requests []Request, r int32) {
	g, count := requests[r].Stage, requests[r].Count
	limit, spare := scanTasks+scanEach*count, spareBase+spareEach*count
	if g.Pending <= count {
		limit, spare = g.Pending, g.Pending
	}
	found := int32(0)
	m.walk.Begin(s, g, 0, limit)
	for i := m.walk.Next(); i >= 0 && found < count; i = m.walk.Next() {
		if m.consider(s, requests, r, i, &spare) {
			found++
		}
	}
	if found == count {
		return
	}
	if i := g.SkipPending(0, limit); i >= 0 {
		m.sweep(s, requests, r, i, count-found, &spare)
	}
}

// sweep looks for candidates from task first on by the nodes with room.
func (m *Matcher) sweep(s *scheduler.State, requests []Request, r, first, count int32, spare *int32) {
	g := requests[r].Stage
	for id := s.NextNode(g, 0); id != scheduler.NoNode && count > 0; id = s.NextNode(g, id+1) {
		tasks := s.TasksOn(g, id)
		from, _ := slices.BinarySearch(tasks, first)
		for _, i := range tasks[from:] {
			if count == 0 || m.free(s, g, id) == 0 {
				break
			}
			if g.IsPending(i) && !m.swept(r, i) && m.consider(s, requests, r, i, spare) {
				count--
			}
		}
	}
}

// swept tells whether a task is a candidate already.
func (m *Matcher) swept(r, task int32) bool {
	same := func(c candidate) bool { return c.request == r && c.task == task }
	return slices.ContainsFunc(m.cand, same) || slices.ContainsFunc(m.spare, same)
}

// consider makes a task with room at its data a candidate, and tells whether
// the first look finds it a slot.
func (m *Matcher) consider(s *scheduler.State, requests []Request, r, task int32, spare *int32) bool {
	g := requests[r].Stage
	from := int32(len(m.edges))
	m.edges = Near(s, g, task, m.edges)
	to := int32(len(m.edges))
	best := int32(0)
	at := scheduler.NoNode
	for _, id := range m.edges[from:to] {
		if k := m.free(s, g, id); k > best {
			best, at = k, id
		}
	}
	switch {
	case at != scheduler.NoNode:
		m.left[m.local[at]]--
		m.add(r, task, m.edges[from:to])
		m.edges = m.edges[:from]
	case from < to && *spare > 0:
		*spare--
		m.spare = append(m.spare, candidate{r, task, from, to})
	default:
		m.edges = m.edges[:from]
	}
	return at != scheduler.NoNode
}

// free gives the slots of a node that the first look has not given away.
func (m *Matcher) free(s *scheduler.State, g *scheduler.Stage, id scheduler.NodeID) int32 {
	if m.mark[id] != m.now {
		m.mark[id] = m.now
		m.local[id] = int32(len(m.nodes))
		m.nodes = append(m.nodes, id)
		slots := m.open(s.Node(id), g)
		m.slots = append(m.slots, slots)
		m.left = append(m.left, slots)
	}
	return m.left[m.local[id]]
}

// open counts the slots of a node with room for a task of the stage: one at a
// time where some of its room is kept for others.
func (m *Matcher) open(n *scheduler.Node, g *scheduler.Stage) int32 {
	if m.Open != nil && len(m.state.ReservationsOn(n.Spec.ID)) > 0 {
		if !m.Open(n, g) {
			return 0
		}
		return 1
	}
	slots := Slots(n, m.demand, m.space, match.MaxTasks)
	if m.mixed {
		slots = max(slots, 1)
	}
	return slots
}

// Near appends the nodes that hold most of a task's input and have room for it
// now.
func Near(s *scheduler.State, g *scheduler.Stage, task int32, out []scheduler.NodeID) []scheduler.NodeID {
	_, nodes, local := g.Input(task)
	most := int64(0)
	for _, b := range local {
		most = max(most, b)
	}
	for k, id := range nodes {
		if local != nil && local[k] < most {
			continue
		}
		if s.HasRoom(g, id) {
			out = append(out, id)
		}
	}
	return out
}

// add puts a candidate with its nodes into the problem.
func (m *Matcher) add(r, task int32, near []scheduler.NodeID) {
	p := &m.problem
	for _, id := range near {
		p.Replicas = append(p.Replicas, m.local[id])
	}
	p.Offsets = append(p.Offsets, int32(len(p.Replicas)))
	m.cand = append(m.cand, candidate{request: r, task: task})
}

// average makes the one shape that stands for all requests.
func (m *Matcher) average(requests []Request) {
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
	if m.mixed = !one; one {
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

// weigh fills in the nodes: slots, what is used, what a task adds.
func (m *Matcher) weigh(s *scheduler.State) {
	p := &m.problem
	p.Racks = 1
	for i, id := range m.nodes {
		n := s.Node(id)
		node := match.Node{Slots: min(m.slots[i], int32(len(m.cand)))}
		for r, c := range n.Spec.Capacity {
			if c > 0 {
				node.Used[r] = 1 - float64(n.Free[r])/float64(c)
				node.Step[r] = float64(m.demand[r]) / float64(c)
			}
		}
		p.Nodes = append(p.Nodes, node)
	}
}

// Slots counts the tasks of a demand and disk space that fit on a node now, at
// most limit. O(disks).
func Slots(n *scheduler.Node, d scheduler.Resources, space int64, limit int32) int32 {
	if !n.Takes() {
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
