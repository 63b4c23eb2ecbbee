package threedsf_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/threedsf"
)

func localityPolicy() scheduler.Policy { return policyWithYield(time.Second) }

// policyWithYield delays stages without a free node at their input for up to d.
func policyWithYield(d time.Duration) scheduler.Policy {
	return threedsf.New(threedsf.Config{Name: "3dsf", Level: drf.Largest, Resources: 3, PriorityOrder: true, Locality: true, MaxLocalityWait: time.Second,
		MaxLocalityYield: d, Preempt: deadline.None})
}

// countLocal counts a decision's placements at their input and those with any input.
func countLocal(s *scheduler.State, d *scheduler.Decision) (local, all int) {
	for i := range d.Actions {
		a := &d.Actions[i]
		if a.Kind != scheduler.ActPlace {
			continue
		}
		if _, nodes, _ := s.Stage(a.Task.StageID()).Input(a.Task.Index); len(nodes) > 0 {
			all++
			if slices.Contains(nodes, a.Node) {
				local++
			}
		}
	}
	return local, all
}

func TestExchangeMovesTaskToItsOtherReplica(t *testing.T) {
	on := func(nodes ...scheduler.NodeID) []scheduler.NodeID { return nodes }
	one := schedtest.R(1, 1, 1)
	for name, c := range map[string]struct {
		first, second [][]scheduler.NodeID // input of the tasks of two stages
		full          []int                // nodes without free capacity
		want, all     int
	}{
		"to its other replica":                   {[][]scheduler.NodeID{on(0, 1)}, [][]scheduler.NodeID{on(0)}, nil, 2, 2},
		"to another task of its stage":           {[][]scheduler.NodeID{on(0), on(1)}, [][]scheduler.NodeID{on(0)}, []int{3}, 2, 3},
		"neither task has an alternative":        {[][]scheduler.NodeID{on(0)}, [][]scheduler.NodeID{on(0)}, nil, 1, 2},
		"its other replica is on a full node":    {[][]scheduler.NodeID{on(0, 1)}, [][]scheduler.NodeID{on(0)}, []int{1}, 1, 2},
		"second stage has no input on its nodes": {[][]scheduler.NodeID{on(0, 1)}, [][]scheduler.NodeID{on(2)}, []int{2}, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(4, one).AddTenants("a", "b")
			for _, n := range c.full {
				w.Place(scheduler.TaskID{Job: w.Submit("a", 1, one)}, scheduler.NodeID(n))
			}
			submit := func(tenant string, data [][]scheduler.NodeID) {
				w.SubmitStages(tenant, []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(data)), Demand: one,
					Inputs: schedtest.Inputs(128*schedtest.MiB, data...)}})
			}
			submit("a", c.first)
			submit("b", c.second)
			d := policytest.Round(t, w.State, localityPolicy(), localityPolicy, w.Now, 1000)
			if got, all := countLocal(w.State, &d); got != c.want || all != c.all {
				t.Errorf("%d of %d tasks at their input, want %d of %d", got, all, c.want, c.all)
			}
		})
	}
}

// Node 3, with the input of the first stage, is full. Its task goes to node 0, then
// leaves it for the second stage's task, whose input is there.
func TestRemoteTaskMovesToMakeRoomForLocalTask(t *testing.T) {
	one := schedtest.R(1, 1, 1)
	w := schedtest.New(t).AddNodes(4, one).AddTenants("a", "b")
	w.Place(scheduler.TaskID{Job: w.Submit("b", 1, one)}, 3)
	for i, node := range []scheduler.NodeID{3, 0} {
		w.SubmitStages([]string{"a", "b"}[i], []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: one,
			Inputs: schedtest.Inputs(128*schedtest.MiB, []scheduler.NodeID{node})}})
	}
	make := func() scheduler.Policy { return policyWithYield(0) }
	d := policytest.Round(t, w.State, make(), make, w.Now, 1000)
	if got, all := countLocal(w.State, &d); got != 1 || all != 2 {
		t.Errorf("%d of %d tasks at their input, want 1 of 2", got, all)
	}
}

// Decisions with exchanges in random full clusters pass all checks.
func TestExchangesSatisfyCheck(t *testing.T) {
	seed := seed.New(t)
	for round := range 60 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := schedtest.New(t).AddNodes(12, schedtest.R(4, 8, 100)).AddTenants("a", "b", "c")
		for i := range 14 {
			data := make([][]scheduler.NodeID, 1+r.IntN(8))
			for k := range data {
				data[k] = []scheduler.NodeID{scheduler.NodeID(r.IntN(12)), scheduler.NodeID(r.IntN(12))}
				if data[k][0] == data[k][1] {
					data[k] = data[k][:1]
				}
			}
			w.SubmitStages([]string{"a", "b", "c"}[i%3], []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(data)),
				Demand: schedtest.R(float64(1+r.IntN(2)), float64(1+r.IntN(3)), float64(r.IntN(20))), Inputs: schedtest.Inputs(128*schedtest.MiB, data...)}})
		}
		p := localityPolicy()
		for range 6 {
			policytest.Round(t, w.State, p, localityPolicy, w.Now, 1000)
			w.Start()
			w.Advance(time.Duration(r.IntN(900)) * time.Millisecond)
			for _, a := range w.Attempts() {
				if r.IntN(3) == 0 {
					w.End(a, scheduler.OutcomeSucceeded)
				}
			}
		}
	}
}
