package match

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Dims is the number of parts of a demand that must fit: the Resources of the
// weight, then disk space.
const Dims = Resources + 1

// Vector is a demand or a free amount: CPU millicores, memory bytes, disk I/O
// bytes/s, disk space bytes.
type Vector [Dims]int64

// MixedNode is one machine for tasks of different shapes.
type MixedNode struct {
	Rack     int32
	Free     Vector // what is free now
	Capacity Vector // what it has; only the parts of the weight are looked at
}

// Bounds of a MixedProblem.
const (
	MaxShapes = 4096
	MaxRounds = 64
	maxTable  = 1 << 26 // nodes x shapes
)

// MixedProblem is what SolveMixed takes; it is only read.
type MixedProblem struct {
	Nodes  []MixedNode
	Racks  int
	Shapes []Vector // demands, no part negative, not all zero

	Shape    []int32 // of each task, best priority first
	Offsets  []int32 // as in Problem
	Replicas []int32
	Hops     Hops

	// Rounds splits the tasks by priority: those of an earlier round are placed
	// before any of a later one. 1 gives most local tasks, more keep closer to
	// the order of priorities. 1 to MaxRounds.
	Rounds  int
	MaxWork int // of each Solve within, as in Problem
}

// Order is the order of shapes within a round.
type Order int

const (
	ByPriority   Order = iota + 1 // the shape of the first task first
	LargestFirst                  // the shape that fewest nodes' room holds first
	SmallestFirst
)

// String is the name of the order.
func (o Order) String() string {
	switch o {
	case ByPriority:
		return "by priority"
	case LargestFirst:
		return "largest first"
	case SmallestFirst:
		return "smallest first"
	default:
		return fmt.Sprintf("order(%d)", int(o))
	}
}

// MixedResult is what SolveMixed gives; its slices belong to the MixedSolver
// until its next call.
type MixedResult struct {
	Node  []int32
	Level []Level

	NodeLocal, RackLocal int
	NodeLocalBound       int   // no assignment has more node-local tasks
	Order                Order // the order of shapes that gave the most
}

// Gap is the share of the bound that may be missing: 0 is proved optimal.
func (r *MixedResult) Gap() float64 {
	if r.NodeLocalBound == 0 {
		return 0
	}
	return 1 - float64(r.NodeLocal)/float64(r.NodeLocalBound)
}

// MixedSolver is the workspace of SolveMixed, reused from call to call.
type MixedSolver struct {
	solver   Solver
	sub      Problem
	tasks    []int32 // of the shape and round at hand
	free     []Vector
	fits     []int64 // nodes' room for each shape, for the order
	order    []int32 // shapes
	near     []int32 // tasks of each shape next to each node, nodes x shapes
	share    []float64
	best, at MixedResult
}

// SolveMixed assigns tasks of different shapes: round by round and shape by
// shape, each shape by the optimal Solve on what is free, in three orders of
// shapes of which the best is kept (most node-local, then rack-local, then the
// earlier Order); in a round all shapes place their node-local tasks before any
// places a rack-local one. The whole problem is NP-hard (3DSF section 6.1): two shapes
// on one node are a knapsack. NodeLocalBound relaxes each node to a number of
// tasks and solves that exactly, and all nodes to one knapsack.
//
// Errors: ErrProblem. Cost: 6 x rounds x shapes times O(nodes) plus the
// searches of Solve, plus O(nodes x shapes).
func (m *MixedSolver) SolveMixed(p *MixedProblem) (*MixedResult, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	bound, err := m.bound(p)
	if err != nil {
		return nil, err
	}
	for o := ByPriority; o <= SmallestFirst; o++ {
		if err := m.attempt(p, o); err != nil {
			return nil, err
		}
		if o == ByPriority || m.at.NodeLocal > m.best.NodeLocal ||
			m.at.NodeLocal == m.best.NodeLocal && m.at.RackLocal > m.best.RackLocal {
			m.best, m.at = m.at, m.best
		}
		if m.best.NodeLocal == bound && m.best.NodeLocal+m.best.RackLocal == len(p.Shape) {
			break // nothing is left to gain
		}
	}
	m.best.NodeLocalBound = bound
	return &m.best, nil
}

func (p *MixedProblem) check() error {
	switch {
	case len(p.Shapes) > MaxShapes || len(p.Nodes) > MaxNodes || len(p.Shapes)*len(p.Nodes) > maxTable:
		return fmt.Errorf("%w: %d shapes on %d nodes, at most %d shapes and %d pairs", ErrProblem, len(p.Shapes), len(p.Nodes), MaxShapes, maxTable)
	case p.Rounds < 1 || p.Rounds > MaxRounds:
		return fmt.Errorf("%w: %d rounds, want 1 to %d", ErrProblem, p.Rounds, MaxRounds)
	case max(0, len(p.Offsets)-1) != len(p.Shape):
		return fmt.Errorf("%w: %d tasks by offsets, %d by shapes", ErrProblem, max(0, len(p.Offsets)-1), len(p.Shape))
	case p.Hops != NodeOnly && p.Hops != SameRack || p.Racks < 0 || p.Racks > MaxNodes || p.MaxWork < 0:
		return fmt.Errorf("%w: hops %v, %d racks, MaxWork %d", ErrProblem, p.Hops, p.Racks, p.MaxWork)
	}
	for i, d := range p.Shapes {
		if slices.Min(d[:]) < 0 || slices.Max(d[:]) == 0 {
			return fmt.Errorf("%w: shape %d demands %v", ErrProblem, i, d)
		}
	}
	for i, s := range p.Shape {
		if s < 0 || int(s) >= len(p.Shapes) {
			return fmt.Errorf("%w: task %d has shape %d of %d", ErrProblem, i, s, len(p.Shapes))
		}
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if slices.Min(n.Free[:]) < 0 || n.Rack < 0 || int(n.Rack) >= p.Racks {
			return fmt.Errorf("%w: node %d in rack %d of %d has %v free", ErrProblem, i, n.Rack, p.Racks, n.Free)
		}
		for r := range Resources {
			if n.Capacity[r] < n.Free[r] {
				return fmt.Errorf("%w: node %d has %v free of %v", ErrProblem, i, n.Free, n.Capacity)
			}
		}
	}
	if len(p.Replicas) > MaxEdges || len(p.Shape) > MaxTasks {
		return fmt.Errorf("%w: %d tasks with %d replicas, at most %d with %d", ErrProblem, len(p.Shape), len(p.Replicas), MaxTasks, MaxEdges)
	}
	return checkTasks(p.Offsets, p.Replicas, len(p.Nodes))
}

// slots is how many tasks of demand d fit into free.
func slots(free, d *Vector) int32 {
	n := int64(math.MaxInt32)
	for r := range d {
		if d[r] > 0 {
			n = min(n, free[r]/d[r])
		}
	}
	return int32(n)
}

// attempt assigns all tasks with one order of shapes.
func (m *MixedSolver) attempt(p *MixedProblem, o Order) error {
	tasks := len(p.Shape)
	r := &m.at
	*r = MixedResult{Node: sized(r.Node, tasks), Level: sized(r.Level, tasks), Order: o}
	for t := range r.Node {
		r.Node[t], r.Level[t] = None, Unplaced
	}
	m.free = sized(m.free, len(p.Nodes))
	for v := range p.Nodes {
		m.free[v] = p.Nodes[v].Free
	}
	for k := range p.Rounds {
		from, to := k*tasks/p.Rounds, (k+1)*tasks/p.Rounds
		m.sortShapes(p, o, from, to)
		if len(m.order) == 1 { // both levels at once, exactly
			if err := m.place(p, m.order[0], from, to, p.Hops); err != nil {
				return err
			}
			continue
		}
		for hops := NodeOnly; hops <= p.Hops; hops++ { // no shape's rack-local task takes the room of another's local one
			for _, shape := range m.order {
				if err := m.place(p, shape, from, to, hops); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// sortShapes lists the shapes of the tasks from..to in the order asked for.
func (m *MixedSolver) sortShapes(p *MixedProblem, o Order, from, to int) {
	m.order = m.order[:0]
	m.fits = sized(m.fits, len(p.Shapes)) // 0 = not seen yet
	for _, s := range p.Shape[from:to] {
		if m.fits[s] == 0 {
			m.fits[s] = 1
			m.order = append(m.order, s)
		}
	}
	if o == ByPriority {
		return
	}
	for _, s := range m.order {
		for v := range m.free {
			m.fits[s] += int64(slots(&m.free[v], &p.Shapes[s]))
		}
	}
	sign := 1
	if o == SmallestFirst {
		sign = -1
	}
	slices.SortFunc(m.order, func(a, b int32) int {
		return cmp.Or(sign*cmp.Compare(m.fits[a], m.fits[b]), cmp.Compare(a, b))
	})
}

// place solves what is unplaced of one shape of one round on what is free, and
// takes it.
func (m *MixedSolver) place(p *MixedProblem, shape int32, from, to int, hops Hops) error {
	d := &p.Shapes[shape]
	sub := &m.sub
	sub.Nodes = sized(sub.Nodes, len(p.Nodes))
	for v := range p.Nodes {
		n := &sub.Nodes[v]
		n.Rack, n.Slots = p.Nodes[v].Rack, slots(&m.free[v], d)
		for r := range Resources {
			if c := float64(p.Nodes[v].Capacity[r]); c > 0 {
				n.Used[r], n.Step[r] = 1-float64(m.free[v][r])/c, min(float64(d[r])/c, 1e8)
			}
		}
	}
	m.tasks = m.tasks[:0]
	sub.Offsets, sub.Replicas = append(sub.Offsets[:0], 0), sub.Replicas[:0]
	for t := from; t < to; t++ {
		if p.Shape[t] == shape && m.at.Node[t] == None {
			m.tasks = append(m.tasks, int32(t))
			sub.Replicas = append(sub.Replicas, p.Replicas[p.Offsets[t]:p.Offsets[t+1]]...)
			sub.Offsets = append(sub.Offsets, int32(len(sub.Replicas)))
		}
	}
	sub.Racks, sub.Hops, sub.MaxWork = p.Racks, hops, p.MaxWork
	res, err := m.solver.Solve(sub)
	if err != nil {
		return fmt.Errorf("shape %d: %w", shape, err)
	}
	for i, v := range res.Node {
		if v == None {
			continue
		}
		for r := range d {
			m.free[v][r] -= d[r]
		}
		m.at.Node[m.tasks[i]], m.at.Level[m.tasks[i]] = v, res.Level[i]
	}
	m.at.NodeLocal += res.NodeLocal
	m.at.RackLocal += res.RackLocal
	return nil
}

// bound is the greatest number of node-local tasks when a node is only held to
// a number of tasks: for each part of the vector, as many of the tasks next to
// it as fit when the smallest go first, and the least of these numbers.
func (m *MixedSolver) bound(p *MixedProblem) (int, error) {
	shapes := len(p.Shapes)
	m.near = sized(m.near, len(p.Nodes)*shapes)
	sub := &m.sub
	sub.Offsets, sub.Replicas = append(sub.Offsets[:0], 0), sub.Replicas[:0]
	for t, s := range p.Shape {
		from := len(sub.Replicas)
		sub.Replicas = appendSet(sub.Replicas, p.Replicas[p.Offsets[t]:p.Offsets[t+1]])
		kept := sub.Replicas[:from]
		for _, v := range sub.Replicas[from:] {
			if slots(&p.Nodes[v].Free, &p.Shapes[s]) > 0 {
				kept = append(kept, v)
				m.near[int(v)*shapes+int(s)]++
			}
		}
		sub.Replicas = kept
		sub.Offsets = append(sub.Offsets, int32(len(kept)))
	}
	sub.Nodes = sized(sub.Nodes, len(p.Nodes))
	for v := range p.Nodes {
		sub.Nodes[v] = Node{Rack: p.Nodes[v].Rack, Slots: math.MaxInt32}
	}
	for r := range Dims {
		m.order = m.order[:0]
		for s := range shapes {
			m.order = append(m.order, int32(s))
		}
		slices.SortFunc(m.order, func(a, b int32) int {
			return cmp.Or(cmp.Compare(p.Shapes[a][r], p.Shapes[b][r]), cmp.Compare(a, b))
		})
		for v := range p.Nodes {
			n := &sub.Nodes[v]
			n.Slots = min(n.Slots, m.atMost(p, v, r))
		}
	}
	sub.Racks, sub.Hops, sub.MaxWork = p.Racks, NodeOnly, p.MaxWork
	res, err := m.solver.Solve(sub)
	if err != nil {
		return 0, fmt.Errorf("bound: %w", err)
	}
	return min(res.NodeLocalBound, m.knapsackBound(p)), nil
}

// knapsackBound holds all nodes to their room together: for each set of parts,
// the demands, each as a share of the whole room and summed over the set, fill
// it up smallest first. It counts the tasks with a place next to their data
// (those that sub has left).
func (m *MixedSolver) knapsackBound(p *MixedProblem) int {
	var room [Dims]float64
	for v := range p.Nodes {
		for r, f := range p.Nodes[v].Free {
			room[r] += float64(f)
		}
	}
	m.fits = sized(m.fits, len(p.Shapes))
	for t, s := range p.Shape {
		if m.sub.Offsets[t+1] > m.sub.Offsets[t] {
			m.fits[s]++
		}
	}
	m.share = sized(m.share, len(p.Shapes))
	best := len(p.Shape)
	for set := 1; set < 1<<Dims; set++ {
		parts := 0.0
		clear(m.share)
		for r := range Dims {
			if set&(1<<r) == 0 || room[r] == 0 {
				continue
			}
			parts++
			for s := range p.Shapes {
				m.share[s] += float64(p.Shapes[s][r]) / room[r]
			}
		}
		best = min(best, m.fill(parts))
	}
	return best
}

// fill counts how many tasks fit into room, smallest share first; a part in a
// million above, so that rounding never takes a task away.
func (m *MixedSolver) fill(room float64) int {
	m.order = m.order[:0]
	for s := range m.share {
		m.order = append(m.order, int32(s))
	}
	slices.SortFunc(m.order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(m.share[a], m.share[b]), cmp.Compare(a, b))
	})
	room *= 1 + 1e-6
	count := 0
	for _, s := range m.order {
		n := float64(m.fits[s])
		if m.share[s] > 0 {
			n = min(n, math.Floor(room/m.share[s]))
		}
		room -= n * m.share[s]
		count += int(n)
	}
	return count
}

// atMost is how many of the tasks next to node v fit by part r alone, smallest
// first (m.order has the shapes in that order).
func (m *MixedSolver) atMost(p *MixedProblem, v, r int) int32 {
	free, count := p.Nodes[v].Free[r], int64(0)
	for _, s := range m.order {
		n, d := int64(m.near[v*len(p.Shapes)+int(s)]), p.Shapes[s][r]
		if d > 0 {
			n = min(n, free/d)
			free -= n * d
		}
		count += n
	}
	return int32(count)
}
