package match

import "slices"

// Solver is the workspace of Solve, reused by every call.
//
// The assignment is a flow of units (tasks): from a group along an edge to a place (a
// node, or a rack from which nodes draw), and out of the nodes. Places are numbered
// nodes first, then racks.
type Solver struct {
	nodes  []Node
	places int32 // nodes and racks

	table    []int32 // hash table of lookup
	groupOf  []int32 // of each task
	rank     []int32 // of each task in its group
	setStart []int32
	sets     []int32 // replicas of each group

	count     []int32 // units of each group
	left      []int32 // units of each group that are not placed
	committed []int32 // units of each group that the priority pass may no longer evict

	edgeStart []int32 // of each group
	edgePlace []int32
	edgeGroup []int32
	flow      []int32 // units on each edge

	placeStart []int32
	placeEdge  []int32 // edges that end at each place
	rackSlots  []int64
	rackOf     []int32
	rackStart  []int32
	rackNode   []int32

	load     []int32 // units on each node
	fromRack []int32 // units on each node that are drawn from its rack

	// State of the searches. A place or group is visited if its mark is at least stamp;
	// closed is above every stamp.
	placeSeen, groupSeen []uint32
	stamp                uint32
	placeVia             []int32 // an edge, or root, viaRack or viaOwner; see pullUnit and exchange
	groupVia             []int32
	rackFor              []int32 // the node on whose behalf a rack was reached
	next                 []int32 // of each place, the first edge whose group may have unplaced units
	queue                []int32

	// The division after the node-local pass, see divide.
	divided   bool
	openGroup []bool // reachable from unplaced units
	openNode  []bool

	heap []int32 // nodes with free slots, ordered by key
	key  []float64

	work, maxWork  int
	exhausted      bool // work exceeds maxWork
	leftTotal      int
	cursor         []int32
	assigned       []int32
	levels         []localityLevel
	result         Result
	nodeLocalBound int
}

const closed = ^uint32(0)

// Values of placeVia that are not edges.
const (
	root     = int32(-1)
	viaRack  = int32(-2) // a node reached from its rack
	viaOwner = int32(-3) // a rack reached from rackFor
)

// Solve returns the optimal assignment (see the package comment). Errors: errProblem.
// Cost: O(E log n) if the first tasks found are unplaced, as in nearly all pulls; at
// worst O(E) for each task placed; limited by maxWork. Nothing is allocated once the
// workspace has grown.
func (s *Solver) Solve(p *Problem) (*Result, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	s.prepare(p)
	s.pullAll(false)
	s.nodeLocalBound = p.tasks() - s.leftTotal
	if s.exhausted {
		s.nodeLocalBound = s.nodeLocalUpperBound()
	}
	if s.leftTotal > 0 {
		s.divide()
		if p.Hops == SameRack {
			s.pullAll(true)
		}
		if s.leftTotal > 0 && !s.exhausted {
			s.prioritise()
		}
	}
	s.assign(p)
	s.nodes = nil
	return &s.result, nil
}

func (s *Solver) prepare(p *Problem) {
	s.nodes = p.Nodes
	s.groupTasks(p)
	s.buildEdges(p)
	groups, nodes, places := len(s.count), len(p.Nodes), int(s.places)
	s.left, s.committed = sized(s.left, groups), sized(s.committed, groups)
	copy(s.left, s.count)
	s.flow = sized(s.flow, len(s.edgePlace))
	s.load, s.fromRack = sized(s.load, nodes), sized(s.fromRack, nodes)
	s.placeVia, s.rackFor = sized(s.placeVia, places), sized(s.rackFor, places)
	s.groupVia = sized(s.groupVia, groups)
	s.next = sized(s.next, places)
	copy(s.next, s.placeStart)
	s.openGroup, s.openNode = sized(s.openGroup, groups), sized(s.openNode, nodes)
	s.key = sized(s.key, nodes)
	s.divided, s.exhausted = false, false
	s.work, s.maxWork, s.leftTotal = 0, p.maxWork, p.tasks()
	if s.maxWork == 0 {
		s.maxWork = defaultWork
	}
	s.clearMarks()
}

// clearMarks clears the marks of all searches.
func (s *Solver) clearMarks() {
	s.placeSeen = sized(s.placeSeen, int(s.places))
	s.groupSeen = sized(s.groupSeen, len(s.count))
	s.stamp = 0
}

// edgeRange returns the range of the edges of a group.
func (s *Solver) edgeRange(g int32) (from, to int32) { return s.edgeStart[g], s.edgeStart[g+1] }

// edgesInto returns the edges that end at a place.
func (s *Solver) edgesInto(place int32) []int32 {
	return s.placeEdge[s.placeStart[place]:s.placeStart[place+1]]
}

func (s *Solver) isNode(place int32) bool { return int(place) < len(s.nodes) }

// divide marks what alternating paths reach from the unplaced units: König's division.
// In every node-local optimum the open nodes are full of local tasks of open groups,
// and the tasks of the other groups are all local on the other nodes.
func (s *Solver) divide() {
	s.divided = true
	s.queue = s.queue[:0]
	for g, left := range s.left {
		if left > 0 {
			s.openGroup[g] = true
			s.queue = append(s.queue, int32(g))
		}
	}
	for i := 0; i < len(s.queue); i++ {
		from, to := s.edgeRange(s.queue[i])
		for e := from; e < to; e++ {
			v := s.edgePlace[e]
			if !s.isNode(v) || s.openNode[v] {
				continue
			}
			s.openNode[v] = true
			for _, back := range s.edgesInto(v) {
				if h := s.edgeGroup[back]; s.flow[back] > 0 && !s.openGroup[h] {
					s.openGroup[h] = true
					s.queue = append(s.queue, h)
				}
			}
		}
	}
}

// canMove reports whether units may move along an edge without losing a node-local
// task.
func (s *Solver) canMove(e int32) bool {
	if !s.divided || s.openGroup[s.edgeGroup[e]] {
		return true
	}
	v := s.edgePlace[e]
	return s.isNode(v) && !s.openNode[v]
}

// assign distributes the places of each group to its tasks, best priority first,
// node-local places first.
func (s *Solver) assign(p *Problem) {
	tasks := p.tasks()
	s.assigned, s.levels = sized(s.assigned, tasks), sized(s.levels, tasks)
	r := &s.result
	*r = Result{Node: s.assigned, level: s.levels, work: s.work, optimal: !s.exhausted, nodeLocalBound: s.nodeLocalBound}
	for v := range s.nodes {
		for j := range s.load[v] {
			r.weight += s.nodes[v].weight(j)
		}
	}
	s.cursor = sized(s.cursor, len(s.count)+p.Racks) // next edge of a group, next node of a rack
	copy(s.cursor, s.edgeStart[:len(s.count)])
	rackCursor := s.cursor[len(s.count):]
	copy(rackCursor, s.rackStart)
	for t := range tasks {
		g := s.groupOf[t]
		if s.rank[t] >= s.count[g]-s.left[g] {
			s.assigned[t], s.levels[t] = None, unplaced
			continue
		}
		for s.flow[s.cursor[g]] == 0 {
			s.cursor[g]++
		}
		e := s.cursor[g]
		s.flow[e]--
		if place := s.edgePlace[e]; s.isNode(place) {
			s.assigned[t], s.levels[t] = place, nodeLocal
			r.nodeLocal++
		} else {
			s.assigned[t], s.levels[t] = s.takeDrawn(&rackCursor[place-int32(len(s.nodes))]), rackLocal
			r.rackLocal++
		}
	}
}

// takeDrawn removes one of the units that the nodes of a rack draw from it and returns
// its node.
func (s *Solver) takeDrawn(cursor *int32) int32 {
	for s.fromRack[s.rackNode[*cursor]] == 0 {
		*cursor++
	}
	v := s.rackNode[*cursor]
	s.fromRack[v]--
	return v
}

// nodeLocalUpperBound returns an upper bound of the node-local tasks: the smaller of
// the tasks with a node and the slots with a task.
func (s *Solver) nodeLocalUpperBound() int {
	var tasks, slots int64
	for g, n := range s.count {
		from, to := s.edgeRange(int32(g))
		if slices.ContainsFunc(s.edgePlace[from:to], s.isNode) {
			tasks += int64(n)
		}
	}
	for v := range s.nodes {
		var near int64
		for _, e := range s.edgesInto(int32(v)) {
			near += int64(s.count[s.edgeGroup[e]])
		}
		slots += min(near, int64(s.nodes[v].Slots))
	}
	return int(min(tasks, slots))
}
