package match

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"

	"github.com/drover-run/drover/internal/seed"
)

// score is what the tests compare, most important part first. Weights in the tests are
// multiples of 1/1024, so sums are exact; placed has a bit for each task, the first
// task the highest.
type score struct {
	nodeLocal int
	weight    float64
	placed    uint64
}

func (a score) less(b score) bool {
	switch {
	case a.nodeLocal != b.nodeLocal:
		return a.nodeLocal < b.nodeLocal
	case a.weight != b.weight:
		return a.weight < b.weight
	}
	return a.placed < b.placed
}

// problemOf returns a Problem with the given lists of replicas.
func problemOf(nodes []Node, replicas ...[]int32) *Problem {
	p := &Problem{Nodes: nodes, Offsets: []int32{0}}
	for _, r := range replicas {
		p.Replicas = append(p.Replicas, r...)
		p.Offsets = append(p.Offsets, int32(len(p.Replicas)))
	}
	return p
}

// isLocal reports whether node v holds data of task t.
func isLocal(p *Problem, t int, v int32) bool {
	return slices.Contains(p.Replicas[p.Offsets[t]:p.Offsets[t+1]], v)
}

// bruteForce tries every assignment, task by task, and memoises the best continuation
// for each vector of loads.
func bruteForce(p *Problem) score {
	type state struct {
		task  int
		loads [8]int32
	}
	memo := map[state]score{}
	var best func(state) score
	best = func(at state) score {
		if at.task == p.tasks() {
			return score{}
		}
		if known, ok := memo[at]; ok {
			return known
		}
		skip := at
		skip.task++
		top := best(skip)
		for v := range p.Nodes {
			if !isLocal(p, at.task, int32(v)) || at.loads[v] == p.Nodes[v].Slots {
				continue
			}
			put := skip
			put.loads[v]++
			s := best(put)
			s.weight += p.Nodes[v].weight(at.loads[v])
			s.placed |= 1 << (63 - at.task)
			s.nodeLocal++
			if top.less(s) {
				top = s
			}
		}
		memo[at] = top
		return top
	}
	return best(state{})
}

// checkResult verifies that a result is a valid assignment and returns its score.
func checkResult(t testing.TB, p *Problem, result []int32) score {
	t.Helper()
	var s score
	loads := make([]int32, len(p.Nodes))
	for task, v := range result {
		if v == None {
			continue
		}
		if !isLocal(p, task, v) {
			t.Fatalf("task %d is on node %d, which does not hold its data", task, v)
		}
		s.weight += p.Nodes[v].weight(loads[v])
		if loads[v]++; loads[v] > p.Nodes[v].Slots {
			t.Fatalf("node %d has %d tasks in %d slots", v, loads[v], p.Nodes[v].Slots)
		}
		if task < 64 {
			s.placed |= 1 << (63 - task)
		}
		s.nodeLocal++
	}
	return s
}

func approxEqual(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 }

// randomNodes returns nodes whose weights are multiples of 1/1024.
func randomNodes(r *rand.Rand, nodes, maxSlots int) []Node {
	out := make([]Node, nodes)
	for i := range out {
		n := &out[i]
		n.Slots = int32(r.IntN(maxSlots + 1))
		for k := range n.Used {
			n.Used[k] = float64(r.IntN(6)) / 16
			n.Step[k] = float64(r.IntN(5)) / 64
		}
	}
	return out
}

func randomProblem(r *rand.Rand, tasks, nodes, maxSlots, maxReplicas int) *Problem {
	sets := make([][]int32, tasks)
	for i := range sets {
		if i > 0 && r.IntN(4) == 0 {
			sets[i] = sets[r.IntN(i)] // tasks of one block
			continue
		}
		for range r.IntN(maxReplicas + 1) {
			sets[i] = append(sets[i], int32(r.IntN(nodes)))
		}
	}
	return problemOf(randomNodes(r, nodes, maxSlots), sets...)
}

// TestEqualsBruteForce compares all parts of the order.
func TestEqualsBruteForce(t *testing.T) {
	cases := 30_000
	if testing.Short() {
		cases = 3000
	}
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	var s Solver
	for i := range cases {
		p := randomProblem(r, 1+r.IntN(8), 1+r.IntN(8), 1+r.IntN(3), 1+r.IntN(3))
		if i%2 == 0 { // many of these have unplaced tasks
			p = randomProblem(r, 6+r.IntN(3), 4+r.IntN(4), 1, 3)
		}
		got, want := checkResult(t, p, s.Solve(p)), bruteForce(p)
		if got != want || s.exhausted {
			t.Fatalf("case %d: got %+v, brute force %+v\n%+v", i, got, want, p)
		}
	}
}

// maxFlow returns the number of tasks that can be node-local: one augmenting path after
// another by depth-first search over tasks (Ford-Fulkerson).
func maxFlow(p *Problem) int {
	on := make([][]int, len(p.Nodes)) // tasks on each node
	var place func(t int, seen []bool) bool
	place = func(t int, seen []bool) bool {
		for _, v := range p.Replicas[p.Offsets[t]:p.Offsets[t+1]] {
			if seen[v] {
				continue
			}
			seen[v] = true
			if len(on[v]) < int(p.Nodes[v].Slots) {
				on[v] = append(on[v], t)
				return true
			}
			for i, u := range on[v] {
				if place(u, seen) {
					on[v][i] = t
					return true
				}
			}
		}
		return false
	}
	placed := 0
	for t := range p.tasks() {
		if place(t, make([]bool, len(p.Nodes))) {
			placed++
		}
	}
	return placed
}

// TestEqualsMaxFlow compares the node-local count with max-flow on larger random
// problems.
func TestEqualsMaxFlow(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 2))
	var s Solver
	for range 150 {
		p := randomProblem(r, 1+r.IntN(400), 1+r.IntN(60), 12, 3)
		got := checkResult(t, p, s.Solve(p))
		if want := maxFlow(p); got.nodeLocal != want {
			t.Fatalf("node-local %d, max-flow %d", got.nodeLocal, want)
		}
	}
}

// TestEqualsLinearProgram compares the first two parts of the score with the optimum
// of a linear program in which they are one sum.
func TestEqualsLinearProgram(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 3))
	var s Solver
	for i := range 60 {
		p := randomProblem(r, 8+r.IntN(10), 6+r.IntN(5), 3, 3)
		got := checkResult(t, p, s.Solve(p))
		value := 1e4*float64(got.nodeLocal) + got.weight
		want, err := linearProgram(p)
		if err != nil {
			t.Fatalf("case %d: %v", i, err)
		}
		if !approxEqual(value/1e3, want/1e3) {
			t.Fatalf("case %d: got %.6f, linear program %.6f", i, value, want)
		}
	}
}

// linearProgram maximises 1e4 x node-local + weight over fractional
// assignments; the matrix is totally unimodular, so the optimum is integral. Variables:
// an edge for each task and near node, a slot variable for each slot, and a slack for
// each task and slot.
func linearProgram(p *Problem) (float64, error) {
	type edge struct {
		task, node int
		worth      float64
	}
	var edges []edge
	for t := range p.tasks() {
		for v := range p.Nodes {
			if isLocal(p, t, int32(v)) {
				edges = append(edges, edge{t, v, 1e4})
			}
		}
	}
	var slots []edge
	for v := range p.Nodes {
		for j := range p.Nodes[v].Slots {
			slots = append(slots, edge{0, v, p.Nodes[v].weight(j)})
		}
	}
	if len(edges) == 0 || len(slots) == 0 {
		return 0, nil
	}
	var usedTasks []int // a task without an edge would make an empty row
	for _, e := range edges {
		if !slices.Contains(usedTasks, e.task) {
			usedTasks = append(usedTasks, e.task)
		}
	}
	// Rows: a task is placed at most once, a slot is used at most once (both with
	// a slack), and a node has as many tasks as used slots.
	rows := len(usedTasks) + len(slots) + len(p.Nodes)
	cols := len(edges) + len(slots) + len(usedTasks) + len(slots)
	a, b, c := mat.NewDense(rows, cols, nil), make([]float64, rows), make([]float64, cols)
	nodeRow := len(usedTasks) + len(slots)
	for i, e := range edges {
		a.Set(slices.Index(usedTasks, e.task), i, 1)
		a.Set(nodeRow+e.node, i, 1)
		c[i] = -e.worth
	}
	for i, s := range slots {
		col := len(edges) + i
		a.Set(len(usedTasks)+i, col, 1)
		a.Set(nodeRow+s.node, col, -1)
		c[col] = -s.worth
	}
	for r := range nodeRow {
		a.Set(r, len(edges)+len(slots)+r, 1)
		b[r] = 1
	}
	return simplex(c, a, b)
}

// simplex minimises over a x = b, without the unused variables and rows, which the
// library refuses.
func simplex(c []float64, a *mat.Dense, b []float64) (float64, error) {
	used := func(v mat.Vector) bool {
		for i := range v.Len() {
			if v.AtVec(i) != 0 {
				return true
			}
		}
		return false
	}
	rows, cols := a.Dims()
	var keepRow, keepCol []int
	for i := range rows {
		if used(a.RowView(i)) {
			keepRow = append(keepRow, i)
		}
	}
	for j := range cols {
		if used(a.ColView(j)) {
			keepCol = append(keepCol, j)
		}
	}
	small := mat.NewDense(len(keepRow), len(keepCol), nil)
	cost, right := make([]float64, len(keepCol)), make([]float64, len(keepRow))
	for k, i := range keepRow {
		right[k] = b[i]
		for l, j := range keepCol {
			cost[l] = c[j]
			small.Set(k, l, a.At(i, j))
		}
	}
	opt, _, err := lp.Simplex(cost, small, right, 1e-9, nil)
	if err != nil {
		return 0, fmt.Errorf("simplex: %w", err)
	}
	return -opt, nil
}
