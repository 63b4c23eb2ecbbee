package match

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/seed"
)

// clusterProblem is the workload of the benchmarks and the load properties: racks of 40
// machines, three replicas each as HDFS places them (one anywhere, two in another
// rack), equal tasks.
func clusterProblem(r *rand.Rand, nodes, tasks int, slots func(v int) int32, popular bool) *Problem {
	p := &Problem{Racks: (nodes + 39) / 40, Hops: SameRack, Offsets: []int32{0}}
	for v := range nodes {
		n := Node{rack: int32(v / 40), Slots: slots(v)}
		n.Used[0] = float64(r.IntN(8)) / 64
		n.Step = [resources]float64{1.0 / 16, 1.0 / 32, 1.0 / 32}
		p.Nodes = append(p.Nodes, n)
	}
	block := func() []int32 {
		first, second := r.IntN(nodes), r.IntN(nodes)
		rack := second / 40 * 40
		third := rack + r.IntN(min(40, nodes-rack))
		return []int32{int32(first), int32(second), int32(third)}
	}
	blocks := make([][]int32, tasks)
	for i := range blocks {
		blocks[i] = block()
	}
	zipf := rand.NewZipf(r, 1.1, 1, uint64(tasks-1))
	for i := range tasks {
		b := blocks[i]
		if popular {
			b = blocks[zipf.Uint64()]
		}
		p.Replicas = append(p.Replicas, b...)
		p.Offsets = append(p.Offsets, int32(len(p.Replicas)))
	}
	return p
}

// TestLoads compares the node-local count with max-flow at several loads, and logs both
// beside a greedy assignment.
func TestLoads(t *testing.T) {
	const nodes = 200
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 4))
	var s Solver
	for _, c := range []struct {
		name    string
		load    float64
		popular bool
	}{{"load 0.8", 0.8, false}, {"load 0.95", 0.95, false}, {"load 1", 1, false}, {"overload 1.5", 1.5, false}, {"load 0.95, Zipf-popular blocks", 0.95, true}} {
		t.Run(c.name, func(t *testing.T) {
			tasks := int(c.load * nodes * 10)
			p := clusterProblem(r, nodes, tasks, func(int) int32 { return 10 }, c.popular)
			res := solve(t, &s, p)
			checkResult(t, p, res)
			if want := maxFlow(p); res.nodeLocal != want {
				t.Errorf("node-local %d, max-flow %d", res.nodeLocal, want)
			}
			t.Logf("node-local %.2f%%, rack-local %.2f%%, of %d tasks", 100*float64(res.nodeLocal)/float64(tasks), 100*float64(res.rackLocal)/float64(tasks), tasks)
		})
	}
}

// TestProperties draws problems with rapid, which shrinks what fails.
func TestProperties(t *testing.T) {
	var warm Solver
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		p := randomProblem(r, rapid.IntRange(0, 40).Draw(t, "tasks"), rapid.IntRange(1, 12).Draw(t, "nodes"), 3, 4, 3)
		var cold Solver
		a, err := warm.Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		b, err := cold.Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(a.Node, b.Node) || a.weight != b.weight {
			t.Fatalf("a used and a fresh solver differ: %v, %v", a.Node, b.Node)
		}
		// One more task at the end never displaces an earlier one.
		more := *p
		more.Replicas = append(slices.Clone(p.Replicas), int32(r.IntN(len(p.Nodes))))
		if len(p.Offsets) == 0 {
			more.Offsets = []int32{0}
		}
		more.Offsets = append(slices.Clone(more.Offsets), int32(len(more.Replicas)))
		if p.Hops == NodeOnly {
			c, err := cold.Solve(&more)
			if err != nil {
				t.Fatal(err)
			}
			for i := range a.Node {
				if a.Node[i] != None && c.Node[i] == None {
					t.Fatalf("a task of least priority displaced task %d", i)
				}
			}
		}
	})
}

// TestExamples checks small cases worked out by hand.
func TestExamples(t *testing.T) {
	node := func(rack, slots int32, used float64) Node {
		return Node{rack: rack, Slots: slots, Used: [resources]float64{used}, Step: [resources]float64{0.25}}
	}
	for _, c := range []struct {
		name string
		p    *Problem
		want []int32
	}{
		{"3DSF 6.5: the second task goes to the idler of two nodes with its data",
			problemOf([]Node{node(0, 4, 0), node(0, 4, 0)}, 1, NodeOnly, []int32{0, 1}, []int32{0, 1}), []int32{0, 1}},
		{"a task with one replica gets it, the other moves over",
			problemOf([]Node{node(0, 1, 0), node(0, 1, 0.5)}, 1, NodeOnly, []int32{0, 1}, []int32{0}), []int32{1, 0}},
		{"node-local counts more than idle weight",
			problemOf([]Node{node(0, 1, 0.9), node(0, 9, 0)}, 1, SameRack, []int32{0}), []int32{0}},
		{"node-local counts more than two that are rack-local",
			problemOf([]Node{node(0, 1, 0), node(0, 0, 0), node(1, 1, 0), node(1, 0, 0)}, 2, SameRack, []int32{0, 3}, []int32{1}), []int32{0, None}},
		{"the first of two in need of one slot",
			problemOf([]Node{node(0, 1, 0)}, 1, NodeOnly, []int32{0}, []int32{0}), []int32{0, None}},
		{"a rack-local place on the idlest node of the rack",
			problemOf([]Node{node(0, 0, 1), node(0, 1, 0.5), node(0, 1, 0.2), node(1, 5, 0)}, 2, SameRack, []int32{0}), []int32{2}},
		{"no replica, no place", problemOf([]Node{node(0, 5, 0)}, 1, SameRack, nil), []int32{None}},
		{"no node", problemOf(nil, 0, SameRack, nil), []int32{None}},
		{"no task", &Problem{Nodes: []Node{node(0, 5, 0)}, Racks: 1, Hops: SameRack}, nil},
		{"the same replica twice", problemOf([]Node{node(0, 2, 0)}, 1, SameRack, []int32{0, 0}), []int32{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Solver
			res := solve(t, &s, c.p)
			checkResult(t, c.p, res)
			if !slices.Equal(res.Node, c.want) {
				t.Errorf("got %v, want %v", res.Node, c.want)
			}
		})
	}
}

func TestBadProblems(t *testing.T) {
	good := func() *Problem {
		return problemOf([]Node{{Slots: 1}, {Slots: 1}}, 1, SameRack, []int32{0, 1}, []int32{1})
	}
	for name, spoil := range map[string]func(*Problem){
		"replica on a node that is not there": func(p *Problem) { p.Replicas[1] = 2 },
		"negative replica":                    func(p *Problem) { p.Replicas[1] = -1 },
		"offsets that fall":                   func(p *Problem) { p.Offsets[1] = 9 },
		"offsets that start late":             func(p *Problem) { p.Offsets[0] = 1 },
		"offsets that end early":              func(p *Problem) { p.Offsets[2] = 2 },
		"negative offset":                     func(p *Problem) { p.Offsets[1] = -1 },
		"no offsets but replicas":             func(p *Problem) { p.Offsets = nil },
		"negative slots":                      func(p *Problem) { p.Nodes[0].Slots = -1 },
		"a rack that is not there":            func(p *Problem) { p.Nodes[0].rack = 1 },
		"negative racks":                      func(p *Problem) { p.Racks = -1 },
		"use that is not a number":            func(p *Problem) { p.Nodes[1].Used[2] = math.NaN() },
		"a task that frees capacity":          func(p *Problem) { p.Nodes[1].Step[0] = -1 },
		"no limit of hops":                    func(p *Problem) { p.Hops = 0 },
		"negative work":                       func(p *Problem) { p.maxWork = -1 },
	} {
		p := good()
		spoil(p)
		var s Solver
		if _, err := s.Solve(p); !errors.Is(err, errProblem) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOutOfWork checks that with almost no work allowed the result is valid and
// maximal, and reports that it is not proved optimal.
func TestOutOfWork(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 6))
	var s Solver
	unproved := 0
	for range 300 {
		p := randomProblem(r, 60, 12, 3, 5, 3)
		p.maxWork = 1 + r.IntN(200)
		res := solve(t, &s, p)
		checkResult(t, p, res)
		best := maxFlow(p)
		if res.nodeLocal > best || res.nodeLocalBound < best || res.optimal && res.nodeLocal != best || 2*res.nodeLocal < best {
			t.Fatalf("node-local %d, bound %d, optimal %v, max-flow %d", res.nodeLocal, res.nodeLocalBound, res.optimal, best)
		}
		if !res.optimal {
			unproved++
		}
	}
	if unproved == 0 {
		t.Error("no case ran out of work")
	}
}

func TestNoAllocation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 7))
	p := clusterProblem(r, 100, 1200, func(int) int32 { return 10 }, false)
	var s Solver
	solve(t, &s, p)
	if n := testing.AllocsPerRun(5, func() { solve(t, &s, p) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		NodeOnly.String(): "node", SameRack.String(): "rack", Hops(9).String(): "hops(9)",
		unplaced.String(): "unplaced", nodeLocal.String(): "node-local", rackLocal.String(): "rack-local", localityLevel(9).String(): "level(9)",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func BenchmarkSolve(b *testing.B) {
	for _, c := range []struct {
		name         string
		nodes, tasks int
		load         float64
		popular      bool
	}{
		{"tasks=10000/nodes=1000/load=0.80", 1000, 10_000, 0.8, false},
		{"tasks=10000/nodes=1000/load=0.95", 1000, 10_000, 0.95, false},
		{"tasks=10000/nodes=1000/load=1.00", 1000, 10_000, 1, false},
		{"tasks=10000/nodes=1000/load=2.00", 1000, 10_000, 2, false},
		{"tasks=10000/nodes=1000/load=10.0", 1000, 10_000, 10, false},
		{"tasks=10000/nodes=1000/load=0.95/zipf", 1000, 10_000, 0.95, true},
		{"tasks=1000/nodes=1000/load=0.95", 1000, 1000, 0.95, false},
		{"tasks=1000/nodes=10000/load=0.95", 10_000, 1000, 0.95, false},
		{"tasks=100000/nodes=10000/load=0.95", 10_000, 100_000, 0.95, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 8))
			mean := float64(c.tasks) / c.load / float64(c.nodes)
			slots := func(v int) int32 { return int32(float64(v+1)*mean) - int32(float64(v)*mean) }
			p := clusterProblem(r, c.nodes, c.tasks, slots, c.popular)
			var s Solver
			res := solve(b, &s, p)
			b.ReportAllocs()
			for b.Loop() {
				res = solve(b, &s, p)
			}
			if !res.optimal {
				b.Fatal("not optimal")
			}
			b.ReportMetric(100*float64(res.nodeLocal)/float64(c.tasks), "%node-local")
			b.ReportMetric(float64(res.work)/float64(c.tasks), "edges/task")
		})
	}
}

func ExampleSolver_Solve() {
	var s Solver
	res, err := s.Solve(&Problem{
		Nodes:    []Node{{Slots: 1}, {Slots: 1}},
		Racks:    1,
		Offsets:  []int32{0, 2, 3}, // task 0 on nodes 0 and 1, task 1 on node 0
		Replicas: []int32{0, 1, 0},
		Hops:     NodeOnly,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(res.Node, res.nodeLocal)
	// Output: [1 0] 2
}
