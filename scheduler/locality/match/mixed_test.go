package match

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

func mixedProblem(r *rand.Rand, tasks, nodes, racks, shapes int, room int64) *MixedProblem {
	p := &MixedProblem{Racks: racks, Hops: SameRack, Rounds: 1, Offsets: []int32{0}}
	for range shapes {
		p.Shapes = append(p.Shapes, Vector{1 + r.Int64N(4), 1 + r.Int64N(4), r.Int64N(3), 0})
	}
	for v := range nodes {
		free := Vector{r.Int64N(room + 1), r.Int64N(room + 1), r.Int64N(room + 1), 1 << 40}
		p.Nodes = append(p.Nodes, MixedNode{Rack: int32(v * racks / nodes), Free: free, Capacity: Vector{room, room, room, 1 << 40}})
	}
	for range tasks {
		p.Shape = append(p.Shape, int32(r.IntN(shapes)))
		for range 1 + r.IntN(3) {
			p.Replicas = append(p.Replicas, int32(r.IntN(nodes)))
		}
		p.Offsets = append(p.Offsets, int32(len(p.Replicas)))
	}
	return p
}

func (p *MixedProblem) plain() *Problem {
	q := &Problem{Offsets: p.Offsets, Replicas: p.Replicas, Hops: p.Hops, Racks: p.Racks}
	for _, n := range p.Nodes {
		q.Nodes = append(q.Nodes, Node{Rack: n.Rack})
	}
	return q
}

// mixedBest is the greatest number of node-local tasks, by trying everything.
func mixedBest(p *MixedProblem, t int, free []Vector) int {
	if t == len(p.Shape) {
		return 0
	}
	best := mixedBest(p, t+1, free)
	d := p.Shapes[p.Shape[t]]
	for _, v := range p.Replicas[p.Offsets[t]:p.Offsets[t+1]] {
		if slots(&free[v], &d) == 0 {
			continue
		}
		for r := range d {
			free[v][r] -= d[r]
		}
		best = max(best, 1+mixedBest(p, t+1, free))
		for r := range d {
			free[v][r] += d[r]
		}
	}
	return best
}

func checkedMixed(t testing.TB, p *MixedProblem, res *MixedResult) {
	t.Helper()
	plain := p.plain()
	free := make([]Vector, len(p.Nodes))
	for v := range free {
		free[v] = p.Nodes[v].Free
	}
	var local, rack int
	for i, v := range res.Node {
		if v == None {
			continue
		}
		for r, d := range p.Shapes[p.Shape[i]] {
			if free[v][r] -= d; free[v][r] < 0 {
				t.Fatalf("node %d is over its room", v)
			}
		}
		if level := levelOf(plain, i, v); level != res.Level[i] {
			t.Fatalf("task %d on node %d is %v, reported %v", i, v, level, res.Level[i])
		}
		if res.Level[i] == NodeLocal {
			local++
		} else {
			rack++
		}
	}
	if local != res.NodeLocal || rack != res.RackLocal || local > res.NodeLocalBound {
		t.Fatalf("reported %d and %d under bound %d, counted %d and %d", res.NodeLocal, res.RackLocal, res.NodeLocalBound, local, rack)
	}
}

// TestMixedAgainstBruteForce: valid, never over the optimum, which is never
// over the bound; and how near on average.
func TestMixedAgainstBruteForce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 9))
	var m MixedSolver
	var got, best, bound int
	for range 1500 {
		p := mixedProblem(r, 1+r.IntN(8), 1+r.IntN(4), 1, 1+r.IntN(3), 6)
		res, err := m.SolveMixed(p)
		if err != nil {
			t.Fatal(err)
		}
		checkedMixed(t, p, res)
		free := make([]Vector, len(p.Nodes))
		for v := range free {
			free[v] = p.Nodes[v].Free
		}
		want := mixedBest(p, 0, free)
		if res.NodeLocal > want || want > res.NodeLocalBound {
			t.Fatalf("got %d, optimum %d, bound %d", res.NodeLocal, want, res.NodeLocalBound)
		}
		if len(p.Shapes) == 1 && res.NodeLocal != want {
			t.Fatalf("one shape: got %d, optimum %d", res.NodeLocal, want)
		}
		got, best, bound = got+res.NodeLocal, best+want, bound+res.NodeLocalBound
	}
	t.Logf("of the optimum %.2f%%, bound over optimum %.2f%%", 100*float64(got)/float64(best), 100*float64(bound)/float64(best))
	if float64(got) < 0.99*float64(best) {
		t.Errorf("%d of %d node-local tasks", got, best)
	}
}

// TestMixedRounds: with a round for each task the first tasks win.
func TestMixedRounds(t *testing.T) {
	p := &MixedProblem{
		Nodes:  []MixedNode{{Free: Vector{4, 4, 4, 4}, Capacity: Vector{4, 4, 4, 4}}},
		Racks:  1,
		Shapes: []Vector{{4, 1, 1, 1}, {1, 1, 1, 1}},
		Shape:  []int32{0, 1, 1}, Offsets: []int32{0, 1, 2, 3}, Replicas: []int32{0, 0, 0},
		Hops: NodeOnly,
	}
	var m MixedSolver
	for rounds, want := range map[int]string{1: "[-1 0 0] smallest first", 3: "[0 -1 -1] by priority"} {
		p.Rounds = rounds
		res, err := m.SolveMixed(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(res.Node, " ", res.Order); got != want {
			t.Errorf("%d rounds: got %s, want %s", rounds, got, want)
		}
		if res.NodeLocalBound != 2 && res.NodeLocalBound != 3 {
			t.Errorf("bound %d", res.NodeLocalBound)
		}
	}
}

func TestBadMixedProblems(t *testing.T) {
	for name, spoil := range map[string]func(*MixedProblem){
		"a shape that takes nothing":   func(p *MixedProblem) { p.Shapes[0] = Vector{} },
		"a negative demand":            func(p *MixedProblem) { p.Shapes[0][1] = -1 },
		"a shape that is not there":    func(p *MixedProblem) { p.Shape[0] = 5 },
		"negative room":                func(p *MixedProblem) { p.Nodes[0].Free[3] = -1 },
		"more free than there is":      func(p *MixedProblem) { p.Nodes[0].Capacity[0] = 0; p.Nodes[0].Free[0] = 1 },
		"a rack that is not there":     func(p *MixedProblem) { p.Nodes[0].Rack = 7 },
		"no rounds":                    func(p *MixedProblem) { p.Rounds = 0 },
		"too many rounds":              func(p *MixedProblem) { p.Rounds = MaxRounds + 1 },
		"a task without offsets":       func(p *MixedProblem) { p.Shape = append(p.Shape, 0) },
		"a replica that is not there":  func(p *MixedProblem) { p.Replicas[0] = 99 },
		"offsets that fall":            func(p *MixedProblem) { p.Offsets[1] = 99 },
		"no limit of hops":             func(p *MixedProblem) { p.Hops = 3 },
		"more pairs than fit a memory": func(p *MixedProblem) { p.Shapes = make([]Vector, MaxShapes+1) },
	} {
		p := mixedProblem(rand.New(rand.NewPCG(1, 1)), 4, 3, 1, 2, 6)
		spoil(p)
		var m MixedSolver
		if _, err := m.SolveMixed(p); !errors.Is(err, ErrProblem) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkSolveMixed(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 10))
	p := mixedProblem(r, 10_000, 1000, 25, 20, 40)
	var m MixedSolver
	res, err := m.SolveMixed(p)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if res, err = m.SolveMixed(p); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(100*res.Gap(), "%gap")
	b.ReportMetric(float64(res.NodeLocal), "node-local")
}
