package scheduler_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// slowWhyNowhere examines every node by itself.
func slowWhyNowhere(s *scheduler.State, g *scheduler.Stage) (scheduler.Reason, int32) {
	var lack [4]int32
	schedulable := false
	for _, n := range s.Nodes() {
		if !n.Schedulable() {
			continue
		}
		schedulable = true
		if _, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); ok {
			continue
		}
		io, space := int64(0), int64(0)
		for i, d := range n.Disks { // below 0 where a suspended attempt had to run again
			if i == 0 {
				io, space = d.FreeIO, d.FreeSpace
				continue
			}
			io, space = max(io, d.FreeIO), max(space, d.FreeSpace)
		}
		lacksAny := false
		for r, lacks := range []bool{g.Spec.Demand[scheduler.CPU] > n.Free[scheduler.CPU], g.Spec.Demand[scheduler.Memory] > n.Free[scheduler.Memory],
			g.Spec.Demand[scheduler.IO] > io, g.Spec.Disk > space} {
			if lacks {
				lack[r]++
				lacksAny = true
			}
		}
		if !lacksAny { // but not on one disk
			lack[scheduler.IO]++
		}
	}
	if !schedulable {
		return scheduler.ReasonNoNode, 0
	}
	most := slices.Max(lack[:])
	return []scheduler.Reason{scheduler.ReasonNoCPU, scheduler.ReasonNoMemory, scheduler.ReasonNoIO, scheduler.ReasonNoDiskSpace}[slices.Index(lack[:], most)], most
}

func TestCapacityAndLackingMatchAScanOfAllNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		compare := func() {
			some := c.State.Queue().CapacityForAny()
			for j := range c.State.Jobs() {
				for _, g := range j.Stages {
					if !some && g.Startable() > 0 && c.State.Cluster().NextNode(g, 0) != scheduler.NoNode {
						t.Fatalf("CapacityForAny is false, but stage %s fits", g.ID())
					}
					why, nodes := c.State.Cluster().WhyNowhere(g)
					if want, wantNodes := slowWhyNowhere(c.State, g); why != want || nodes != wantNodes {
						t.Fatalf("stage %s: %v on %d nodes, want %v on %d", g.ID(), why, nodes, want, wantNodes)
					}
					for _, n := range c.State.Nodes() {
						if _, want := n.Fits(g.Spec.Demand, g.Spec.Disk); c.State.Cluster().HasCapacity(g, n.Spec.ID) != want {
							t.Fatalf("stage %s on node %d: HasCapacity %v, want %v", g.ID(), n.Spec.ID, !want, want)
						}
					}
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.Step()
			applyAll(t, c, c.Actions(c.R.IntN(3)))
			m := c.State.Journal().Mark()
			applyAll(t, c, c.Actions(c.R.IntN(5)))
			compare()
			c.State.Journal().Rollback(m)
			if c.R.IntN(3) > 0 { // otherwise several changes are compared at once
				compare()
			}
		}
	})
}
