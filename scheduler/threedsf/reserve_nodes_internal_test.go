package threedsf

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A stage reserves nodes in the order of a sorted list of what they lack, after any events and rolled-back tries.
func TestReservedNodesLackLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		c := newTestCycle(w.World, Config{})
		w.State.Journal().Rollback(c.mark)
		k := &reservedNodes{c: c}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			w.Step()
			mark := w.State.Journal().Mark()
			applyPossible(w)
			compareNearest(t, w, k)
			w.State.Journal().Rollback(mark)
			compareNearest(t, w, k)
			applyPossible(w)
		}
	})
}

// applyPossible applies those of some random actions that can be applied.
func applyPossible(w *schedtest.Chaos) {
	for _, a := range w.Actions(3) {
		_ = w.State.Apply(&a, w.Now)
	}
}

// compareNearest compares the order in which a stage reserves nodes with a sorted list.
func compareNearest(t *rapid.T, w *schedtest.Chaos, k *reservedNodes) {
	nodes := w.State.Nodes()
	k.begin(len(nodes))
	k.stageOn[w.R.IntN(len(nodes))] = &scheduler.Stage{}
	for j := range w.State.Jobs() {
		g := j.Stages[w.R.IntN(len(j.Stages))]
		type candidate struct {
			id     scheduler.NodeID
			freeAt scheduler.Time
			free   float64
		}
		var want []candidate
		for i := range nodes {
			n := nodes[(int(j.Spec.ID)+i)%len(nodes)]
			if free := n.FreeFraction(g.Spec.Demand); n.Schedulable() && k.stageOn[n.Spec.ID] == nil && free > -1 && couldRun(n, &g.Spec) && !w.State.Cluster().Avoids(g, n.Spec.ID) {
				c := candidate{n.Spec.ID, scheduler.Never, free}
				if k.findBoundedJob() != nil {
					c.freeAt = k.capacityAt(n, g)
				}
				want = append(want, c)
			}
		}
		slices.SortStableFunc(want, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.freeAt, b.freeAt), cmp.Compare(b.free, a.free)) })
		k.findCandidates(g)
		for i, c := range want {
			if got, _ := k.takeBest(); got.id != c.id {
				t.Fatalf("stage %s reserves %d as its node %d, want %d of %v", g.ID(), got.id, i, c.id, want)
			}
		}
		if got, ok := k.takeBest(); ok {
			t.Fatalf("stage %s reserves %d, which is none of %v", g.ID(), got.id, want)
		}
	}
	clear(k.stageOn)
}

// Tasks of equal demands that need different disk space are kept apart.
func TestNodesLackDiskSpace(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	stage := func(space int64) *scheduler.Stage {
		return w.State.Job(w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Disk = space })).Stages[0]
	}
	small, large := stage(schedtest.GiB), stage(2048*schedtest.GiB)
	var f freeFractions
	for _, x := range []struct {
		g    *scheduler.Stage
		want float64
	}{{small, 1}, {large, -1}, {small, 1}} {
		if got := f.of(w.State, x.g).on(w.State.Cluster(), w.State.Nodes(), 0); got != x.want {
			t.Errorf("%d bytes: %v is free, want %v", x.g.Spec.Disk, got, x.want)
		}
	}
}

// couldRun reports whether an empty node could run a task of a stage.
func couldRun(n *scheduler.Node, g *scheduler.StageSpec) bool {
	onDisk := len(n.Spec.Disks) == 0 && g.Demand[scheduler.IO] == 0 && g.Disk == 0
	for _, d := range n.Spec.Disks {
		onDisk = onDisk || d.IO >= g.Demand[scheduler.IO] && d.Space >= g.Disk
	}
	return onDisk && n.Spec.Capacity[scheduler.CPU] >= g.Demand[scheduler.CPU] && n.Spec.Capacity[scheduler.Memory] >= g.Demand[scheduler.Memory]
}
