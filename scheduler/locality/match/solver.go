package match

import (
	"cmp"

	"github.com/drover-run/drover/internal/heaps"
)

// Solver is the workspace of Solve, reused by every call.
//
// The assignment is a flow of units (tasks): from a group along an edge to a node.
type Solver struct {
	nodes []Node

	table    []int32 // hash table of lookup
	groupOf  []int32 // of each task
	rank     []int32 // of each task in its group
	setStart []int32
	sets     []int32 // replicas of each group

	count     []int32 // units of each group
	left      []int32 // units of each group that are not placed
	committed []int32 // units of each group that the priority pass may no longer evict

	edgeStart []int32 // of each group
	edgeNode  []int32
	edgeGroup []int32
	flow      []int32 // units on each edge

	nodeStart []int32
	nodeEdge  []int32 // edges that end at each node
	load      []int32 // units on each node

	// State of the searches. A node or group is visited if its mark is at least stamp; closed is
	// above every stamp.
	nodeSeen, groupSeen []uint32
	stamp               uint32
	nodeVia             []int32 // an edge, or root; see pullUnit and exchange
	groupVia            []int32
	next                []int32 // of each node, the first edge whose group may have unplaced units
	queue               []int32

	order heaps.Order[int32] // the greatest key first
	heap  []int32            // nodes with free slots
	key   []float64

	work, maxWork int
	exhausted     bool // work exceeds maxWork
	leftTotal     int
	cursor        []int32
	assigned      []int32
}

const (
	closed = ^uint32(0)
	root   = int32(-1) // in nodeVia and groupVia: where a search began
)

// Solve returns the node of each task, or None, in the optimal assignment (see the package
// comment). It belongs to the Solver and is valid until its next Solve. Cost: O(E log n) if the
// first tasks found are unplaced, as in nearly all pulls; at worst O(E) for each task placed;
// limited by maxWork. Nothing is allocated once the workspace has grown.
func (s *Solver) Solve(p *Problem) []int32 {
	s.prepare(p)
	s.pullAll()
	if s.leftTotal > 0 && !s.exhausted {
		s.prioritise()
	}
	s.assign(p)
	s.nodes = nil
	return s.assigned
}

func (s *Solver) prepare(p *Problem) {
	s.nodes = p.Nodes
	s.groupTasks(p)
	s.buildEdges(p)
	groups, nodes := len(s.count), len(p.Nodes)
	s.left, s.committed = sized(s.left, groups), sized(s.committed, groups)
	copy(s.left, s.count)
	s.flow = sized(s.flow, len(s.edgeNode))
	s.load, s.nodeVia = sized(s.load, nodes), sized(s.nodeVia, nodes)
	s.groupVia = sized(s.groupVia, groups)
	s.next = sized(s.next, nodes)
	copy(s.next, s.nodeStart)
	s.key = sized(s.key, nodes)
	s.exhausted = false
	s.work, s.maxWork, s.leftTotal = 0, cmp.Or(p.maxWork, defaultWork), p.tasks()
	if s.order.Less == nil {
		s.order.Less = func(a, b int32) bool { return s.key[a] > s.key[b] || (s.key[a] == s.key[b] && a < b) }
	}
	s.clearMarks()
}

func (s *Solver) clearMarks() {
	s.nodeSeen = sized(s.nodeSeen, len(s.nodes))
	s.groupSeen = sized(s.groupSeen, len(s.count))
	s.stamp = 0
}

func (s *Solver) edgeRange(g int32) (from, to int32) { return s.edgeStart[g], s.edgeStart[g+1] }

func (s *Solver) edgesInto(node int32) []int32 {
	return s.nodeEdge[s.nodeStart[node]:s.nodeStart[node+1]]
}

// assign distributes the nodes of each group to its tasks, best priority first.
func (s *Solver) assign(p *Problem) {
	s.assigned = sized(s.assigned, p.tasks())
	s.cursor = sized(s.cursor, len(s.count)) // next edge of a group
	copy(s.cursor, s.edgeStart)
	for t, g := range s.groupOf {
		if s.rank[t] >= s.count[g]-s.left[g] {
			s.assigned[t] = None
			continue
		}
		for s.flow[s.cursor[g]] == 0 {
			s.cursor[g]++
		}
		e := s.cursor[g]
		s.flow[e]--
		s.assigned[t] = s.edgeNode[e]
	}
}
