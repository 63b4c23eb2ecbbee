package threedsf

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// partialDecision is an unfinished decision: some tasks ran before it, others were
// placed by it, at their input as long as any task of their stage has a free node
// there.
type partialDecision struct {
	*schedtest.World
	p      *Policy
	stages []*scheduler.Stage
}

func newPartialDecision(t *testing.T, r *rand.Rand) *partialDecision {
	w := schedtest.New(t).AddTenants("a", "b", "c")
	nodes := 3 + r.IntN(4)
	for range nodes {
		w.AddRack([]string{"/r1", "/r2"}[r.IntN(2)], 1, schedtest.R(float64(1+r.IntN(3)), 4, 40))
	}
	h := &partialDecision{World: w}
	for i := range 2 + r.IntN(4) {
		data := make([][]scheduler.NodeID, 1+r.IntN(5))
		for k := range data {
			for range 1 + r.IntN(2) {
				if id := scheduler.NodeID(min(r.IntN(nodes), r.IntN(nodes))); !slices.Contains(data[k], id) { // low ids are popular
					data[k] = append(data[k], id)
				}
			}
		}
		id := w.SubmitStages([]string{"a", "b", "c"}[i%3], []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(data)),
			Demand: schedtest.R(float64(1+r.IntN(3)/2), float64(1+r.IntN(2)), float64(r.IntN(16))), Disk: schedtest.GiB * int64(r.IntN(400)),
			Inputs: schedtest.Inputs(128*schedtest.MiB, data...)}})
		h.stages = append(h.stages, w.State.Stage(scheduler.StageID{Job: id}))
	}
	h.p = New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Locality: true, MaxLocalityWait: time.Second, MaxLocalityYield: time.Second, Preempt: deadline.None})
	h.p.omitReasons = true
	h.placeSome(r, r.IntN(3), func(g *scheduler.Stage, task int32, on scheduler.NodeID, _ bool) {
		w.Place(g.Task(task), on)
	})
	h.p.begin(w.State, w.Now, 1000)
	h.placeSome(r, 8, func(g *scheduler.Stage, task int32, on scheduler.NodeID, far bool) {
		if h.p.cycle.place(g, task, on); !far {
			h.p.placed.addTask(g, task, on, len(h.p.cycle.actions)-1, false)
			return
		}
		h.p.placed.addTask(g, task, on, len(h.p.cycle.actions)-1, true)
	})
	return h
}

// placeSome places tasks of random stages.
func (h *partialDecision) placeSome(r *rand.Rand, turns int, place func(g *scheduler.Stage, task int32, on scheduler.NodeID, far bool)) {
	for range turns {
		g := h.stages[r.IntN(len(h.stages))]
		if g.Pending == 0 {
			continue
		}
		if near := h.localSpots(g); len(near) > 0 {
			k := near[r.IntN(len(near))]
			place(g, k.task, k.node, false)
			continue
		}
		for _, id := range r.Perm(len(h.State.Nodes())) {
			if h.fitsExcept(g, scheduler.NodeID(id), scheduler.NoNode) {
				place(g, g.NextPending(0), scheduler.NodeID(id), true)
				break
			}
		}
	}
}

type localSpot struct {
	task int32
	node scheduler.NodeID
}

// localSpots returns the free nodes at the input of waiting tasks of a stage.
func (h *partialDecision) localSpots(g *scheduler.Stage) []localSpot {
	var out []localSpot
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		_, nodes, _ := g.Input(i)
		for _, id := range nodes {
			if h.fitsExcept(g, id, scheduler.NoNode) {
				out = append(out, localSpot{i, id})
			}
		}
	}
	return out
}

// fitsExcept computes independently whether a task of a stage fits on a node other
// than but.
func (h *partialDecision) fitsExcept(g *scheduler.Stage, id, except scheduler.NodeID) bool {
	return id != except && h.fitsAfterLeaving(g, id, &scheduler.Stage{})
}

// fitsAfterLeaving reports whether a task of a stage fits on a node once a task of
// another stage leaves it.
func (h *partialDecision) fitsAfterLeaving(g *scheduler.Stage, id scheduler.NodeID, leaving *scheduler.Stage) bool {
	n := h.State.Node(id)
	d, back := g.Spec.Demand, leaving.Spec.Demand
	for r := range d {
		if d[r] > n.Free[r]+back[r] {
			return false
		}
	}
	k := n.Disks[0] // there is only one
	return d[scheduler.IO] <= k.FreeIO+back[scheduler.IO] && g.Spec.Disk <= k.FreeSpace+leaving.Spec.Disk
}

// exchangeCandidates finds by exhaustive search the actions whose task a stage could
// exchange with.
func (h *partialDecision) exchangeCandidates(g *scheduler.Stage) []int32 {
	var out []int32
	for action := range h.p.cycle.actions {
		a := &h.p.cycle.actions[action]
		other := h.State.Stage(a.Task.StageID())
		if other == g || !h.hasTaskThatFits(g, a.Node, other) || !h.hasAlternative(other, a) {
			continue
		}
		out = append(out, int32(action))
	}
	return out
}

// hasTaskThatFits reports whether a waiting task of a stage has its input on a node
// and fits there once a task of another stage leaves.
func (h *partialDecision) hasTaskThatFits(g *scheduler.Stage, id scheduler.NodeID, other *scheduler.Stage) bool {
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		if _, nodes, _ := g.Input(i); slices.Contains(nodes, id) {
			return h.fitsAfterLeaving(g, id, other)
		}
	}
	return false
}

// hasAlternative reports whether a placed task, or for a local one a waiting task of
// its stage, has another node that is as good.
func (h *partialDecision) hasAlternative(g *scheduler.Stage, a *scheduler.Action) bool {
	_, data, _ := g.Input(a.Task.Index)
	if !slices.Contains(data, a.Node) {
		return slices.ContainsFunc(h.State.Nodes(), func(n *scheduler.Node) bool { return h.fitsExcept(g, n.Spec.ID, a.Node) })
	}
	if slices.ContainsFunc(data, func(id scheduler.NodeID) bool { return h.fitsExcept(g, id, a.Node) }) {
		return true
	}
	return slices.ContainsFunc(h.localSpots(g), func(k localSpot) bool { return k.node != a.Node })
}

// countLocal counts the decision's placements at their input, and all of each stage.
func (h *partialDecision) countLocal() (local int, of map[*scheduler.Stage]int) {
	of = map[*scheduler.Stage]int{}
	for i := range h.p.cycle.actions {
		a := &h.p.cycle.actions[i]
		g := h.State.Stage(a.Task.StageID())
		of[g]++
		if _, nodes, _ := g.Input(a.Task.Index); slices.Contains(nodes, a.Node) {
			local++
		}
	}
	return local, of
}

// An exchange is made wherever exhaustive search finds one, and puts one more task
// at its input without changing how many tasks of the other stages are placed. Two
// caches may miss an exchange after another one freed capacity for a smaller task;
// the test counts how often.
func TestExchangeIsFoundWhenOneExists(t *testing.T) {
	seed := seed.New(t)
	made, none, missed := 0, 0, 0
	for round := range 1000 {
		h := newPartialDecision(t, rand.New(rand.NewPCG(seed, uint64(round))))
		for _, g := range slices.Concat(h.stages, h.stages) {
			for g.Pending > 0 && len(h.localSpots(g)) == 0 {
				want := h.exchangeCandidates(g)
				asked := h.p.waits.of(g).withoutExchange || slices.ContainsFunc(want, func(action int32) bool {
					return h.p.waits.of(h.State.Stage(h.p.cycle.actions[action].Task.StageID())).withoutAlternative
				})
				local, of := h.countLocal()
				got := h.p.exchanger.tryExchange(g)
				if !got && asked {
					missed += min(len(want), 1)
					break
				}
				if got != (len(want) > 0) {
					t.Fatalf("seed %d, round %d: tryExchange for stage %s = %v; possible with actions %v", seed, round, g.ID(), got, want)
				}
				if !got {
					none++
					break
				}
				made++
				of[g]++
				if now, nowOf := h.countLocal(); now <= local || !maps.Equal(of, nowOf) {
					t.Fatalf("seed %d, round %d: %d local tasks after %d before; per stage %v, want %v", seed, round, now, local, nowOf, of)
				}
			}
		}
		d := h.p.cycle.decision(h.Now)
		h.State.Journal().Rollback(h.p.cycle.mark)
		if v := scheduler.Check(h.State, &d, h.Now); len(v) > 0 {
			t.Fatalf("seed %d, round %d: %v", seed, round, v)
		}
	}
	t.Logf("%d exchanges made, %d times none possible, %d missed", made, none, missed)
	if made < 50 || none < 100 || missed > made/10 {
		t.Errorf("too few cases of a kind for a meaningful test")
	}
}
