package scheduler_test

import (
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// On a cluster of several blocks of nodes that fills and empties, both known and new demands get
// the node that a scan of all nodes finds.
func TestNextNodeOfManyDemandsMatchesAScan(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	const nodes, jobs, steps = 300, 400, 1500
	w := schedtest.New(t).AddNodes(nodes, schedtest.R(8, 8, 100)).AddTenants("a")
	var stages []*scheduler.Stage
	for range jobs {
		demand := schedtest.R(1+6*r.Float64(), 1+6*r.Float64(), 1+60*r.Float64())
		if r.IntN(4) == 0 {
			demand[r.IntN(3)] *= 2 // perhaps more than a node has
		}
		stages = append(stages, w.State.Job(w.Submit("a", 20, demand)).Stages[0])
	}
	scan := func(g *scheduler.Stage, from scheduler.NodeID) scheduler.NodeID {
		for _, n := range w.State.Nodes()[from:] {
			if _, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); ok {
				return n.Spec.ID
			}
		}
		return scheduler.NoNode
	}
	nowhere, checked := 0, 0
	for step := range steps {
		filling := step/300%2 == 0
		attempts := w.Attempts()
		if !filling && len(attempts) > 0 && r.IntN(3) > 0 {
			w.End(attempts[r.IntN(len(attempts))], scheduler.OutcomeSucceeded)
		} else if g := stages[r.IntN(jobs)]; g.Pending > 0 {
			if id := scan(g, scheduler.NodeID(r.IntN(nodes))); id != scheduler.NoNode {
				w.Place(g.Task(g.NextPending(0)), id)
			}
		}
		if r.IntN(50) == 0 {
			n := w.State.Nodes()[r.IntN(nodes)]
			if err := w.State.Events().SetDrain(n.Spec.ID, !n.Spec.Draining); err != nil {
				t.Fatal(err)
			}
		}
		for range r.IntN(4) {
			g, from := stages[r.IntN(jobs)], scheduler.NodeID(r.IntN(nodes))
			if r.IntN(2) == 0 {
				from = 0
			}
			want := scan(g, from)
			if got := w.State.Cluster().NextNode(g, from); got != want {
				t.Fatalf("step %d: a task of %v from node %d fits on %d, a scan finds %d", step, g.Spec.Demand, from, got, want)
			}
			if got, _ := w.State.Cluster().BestNode(g, nil); (got == scheduler.NoNode) != (scan(g, 0) == scheduler.NoNode) {
				t.Fatalf("step %d: the best node for %v is %d, a scan finds %d", step, g.Spec.Demand, got, scan(g, 0))
			}
			if checked++; want == scheduler.NoNode {
				nowhere++
			}
		}
	}
	if nowhere == 0 || nowhere == checked {
		t.Errorf("%d of %d demands fitted nowhere", nowhere, checked)
	}
}

// A new demand that fits nowhere on a full cluster leaves nothing in the index, also after the
// cluster had room for it.
func TestNewDemandsThatFitNowhereCostNoMemory(t *testing.T) {
	const nodes = 200
	w := schedtest.New(t).AddNodes(nodes, schedtest.R(8, 8, 100)).AddTenants("a")
	filling := w.State.Job(w.Submit("a", nodes, schedtest.R(7, 7, 10))).Stages[0]
	var stages []*scheduler.Stage
	for i := range 500 {
		stages = append(stages, w.State.Job(w.Submit("a", 1, schedtest.R(2+float64(i)/1000, 1, 1))).Stages[0])
	}
	if w.State.Cluster().NextNode(stages[0], 0) != 0 {
		t.Fatal("it does not fit on an empty cluster")
	}
	for i := range int32(nodes) {
		w.Place(filling.Task(i), scheduler.NodeID(i))
	}
	next := 1
	if n := testing.AllocsPerRun(len(stages)-2, func() {
		if w.State.Cluster().NextNode(stages[next], 0) != scheduler.NoNode {
			t.Error("it fits on a full cluster")
		}
		next++
	}); n != 0 {
		t.Errorf("%v allocations for each demand", n)
	}
}

// If half of the nodes have CPU left and the others memory, demands of both that exceed one that fits
// nowhere are known to fit nowhere, without an entry of their own. Ending tasks make room for them again.
func TestDemandsAboveOneThatFitsNowhereCostNoMemory(t *testing.T) {
	const nodes = 200
	w := schedtest.New(t).AddNodes(nodes, schedtest.R(8, 8, 100)).AddTenants("a")
	cpu := w.State.Job(w.Submit("a", nodes/2, schedtest.R(7, 1, 10))).Stages[0]
	memory := w.State.Job(w.Submit("a", nodes/2, schedtest.R(1, 7, 10))).Stages[0]
	var stages []*scheduler.Stage
	for i := range 500 {
		stages = append(stages, w.State.Job(w.Submit("a", 1, schedtest.R(2+float64(i%20)/100, 2+float64(i/20)/100, 1))).Stages[0])
	}
	for i := range int32(nodes / 2) {
		w.Place(cpu.Task(i), scheduler.NodeID(2*i))
		w.Place(memory.Task(i), scheduler.NodeID(2*i+1))
	}
	if w.State.Cluster().NextNode(stages[0], 0) != scheduler.NoNode {
		t.Fatal("it fits on a full cluster")
	}
	next := 1
	if n := testing.AllocsPerRun(len(stages)-2, func() {
		if w.State.Cluster().NextNode(stages[next], 0) != scheduler.NoNode {
			t.Error("it fits on a full cluster")
		}
		next++
	}); n != 0 {
		t.Errorf("%v allocations for each demand", n)
	}
	ended := w.Attempts()[nodes/2]
	w.End(ended, scheduler.OutcomeSucceeded)
	for _, g := range stages {
		if got := w.State.Cluster().NextNode(g, 0); got != ended.Node {
			t.Fatalf("%v fits on node %d, want %d", g.Spec.Demand, got, ended.Node)
		}
	}
}
