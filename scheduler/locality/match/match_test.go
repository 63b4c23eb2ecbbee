package match

import (
	"fmt"
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
	p := &Problem{Offsets: []int32{0}}
	for v := range nodes {
		n := Node{Slots: slots(v)}
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
			got := checkResult(t, p, s.Solve(p))
			if want := maxFlow(p); got.nodeLocal != want {
				t.Errorf("node-local %d, max-flow %d", got.nodeLocal, want)
			}
			t.Logf("node-local %.2f%% of %d tasks", 100*float64(got.nodeLocal)/float64(tasks), tasks)
		})
	}
}

// TestProperties draws problems with rapid, which shrinks what fails.
func TestProperties(t *testing.T) {
	var warm Solver
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		p := randomProblem(r, rapid.IntRange(0, 40).Draw(t, "tasks"), rapid.IntRange(1, 12).Draw(t, "nodes"), 4, 3)
		var cold Solver
		a, b := slices.Clone(warm.Solve(p)), cold.Solve(p)
		if !slices.Equal(a, b) {
			t.Fatalf("a used and a fresh solver differ: %v, %v", a, b)
		}
		// One more task at the end never displaces an earlier one.
		more := *p
		more.Replicas = append(slices.Clone(p.Replicas), int32(r.IntN(len(p.Nodes))))
		more.Offsets = append(slices.Clone(p.Offsets), int32(len(more.Replicas)))
		c := cold.Solve(&more)
		for i := range a {
			if a[i] != None && c[i] == None {
				t.Fatalf("a task of least priority displaced task %d", i)
			}
		}
	})
}

// TestExamples checks small cases worked out by hand.
func TestExamples(t *testing.T) {
	node := func(slots int32, used float64) Node {
		return Node{Slots: slots, Used: [resources]float64{used}, Step: [resources]float64{0.25}}
	}
	for _, c := range []struct {
		name string
		p    *Problem
		want []int32
	}{
		{"3DSF 6.5: the second task goes to the idler of two nodes with its data",
			problemOf([]Node{node(4, 0), node(4, 0)}, []int32{0, 1}, []int32{0, 1}), []int32{0, 1}},
		{"a task with one replica gets it, the other moves over",
			problemOf([]Node{node(1, 0), node(1, 0.5)}, []int32{0, 1}, []int32{0}), []int32{1, 0}},
		{"data counts more than idle weight",
			problemOf([]Node{node(1, 0.9), node(9, 0)}, []int32{0}), []int32{0}},
		{"the first of two in need of one slot",
			problemOf([]Node{node(1, 0)}, []int32{0}, []int32{0}), []int32{0, None}},
		{"no replica, no place", problemOf([]Node{node(5, 0)}, nil), []int32{None}},
		{"no node", problemOf(nil, nil), []int32{None}},
		{"no task", &Problem{Nodes: []Node{node(5, 0)}}, nil},
		{"the same replica twice", problemOf([]Node{node(2, 0)}, []int32{0, 0}), []int32{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Solver
			got := s.Solve(c.p)
			checkResult(t, c.p, got)
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestOutOfWork checks that with almost no work allowed the result is valid and
// maximal.
func TestOutOfWork(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 6))
	var s Solver
	unproved := 0
	for range 300 {
		p := randomProblem(r, 60, 12, 5, 3)
		p.maxWork = 1 + r.IntN(200)
		got, best := checkResult(t, p, s.Solve(p)), maxFlow(p)
		if got.nodeLocal > best || !s.exhausted && got.nodeLocal != best || 2*got.nodeLocal < best {
			t.Fatalf("node-local %d, out of work %v, max-flow %d", got.nodeLocal, s.exhausted, best)
		}
		if s.exhausted {
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
	s.Solve(p)
	if n := testing.AllocsPerRun(5, func() { s.Solve(p) }); n != 0 {
		t.Errorf("%g allocations", n)
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
			res := s.Solve(p)
			b.ReportAllocs()
			for b.Loop() {
				res = s.Solve(p)
			}
			if s.exhausted {
				b.Fatal("out of work")
			}
			b.ReportMetric(100*float64(checkResult(b, p, res).nodeLocal)/float64(c.tasks), "%node-local")
			b.ReportMetric(float64(s.work)/float64(c.tasks), "edges/task")
		})
	}
}

func ExampleSolver_Solve() {
	var s Solver
	fmt.Println(s.Solve(&Problem{
		Nodes:    []Node{{Slots: 1}, {Slots: 1}},
		Offsets:  []int32{0, 2, 3}, // task 0 on nodes 0 and 1, task 1 on node 0
		Replicas: []int32{0, 1, 0},
	}))
	// Output: [1 0]
}
