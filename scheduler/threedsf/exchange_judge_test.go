package threedsf

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// half is a decision in the making: some tasks ran before it, some are placed by
// it, each at its data as long as any of its stage has room there.
type half struct {
	*schedtest.World
	p      *Policy
	stages []*scheduler.Stage
}

func newHalf(t *testing.T, r *rand.Rand) *half {
	w := schedtest.New(t).AddTenants("a", "b", "c")
	nodes := 3 + r.IntN(4)
	for range nodes {
		w.AddRack([]string{"/r1", "/r2"}[r.IntN(2)], 1, schedtest.R(float64(1+r.IntN(3)), 4, 40))
	}
	h := &half{World: w}
	for i := range 2 + r.IntN(4) {
		data := make([][]scheduler.NodeID, 1+r.IntN(5))
		for k := range data {
			for range 1 + r.IntN(2) {
				if id := scheduler.NodeID(min(r.IntN(nodes), r.IntN(nodes))); !slices.Contains(data[k], id) { // the low ones are popular
					data[k] = append(data[k], id)
				}
			}
		}
		id := w.SubmitStages([]string{"a", "b", "c"}[i%3], []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(data)),
			Demand: schedtest.R(float64(1+r.IntN(3)/2), float64(1+r.IntN(2)), float64(r.IntN(16))), Disk: schedtest.GiB * int64(r.IntN(400)),
			Inputs: schedtest.Inputs(128*schedtest.MiB, data...)}})
		h.stages = append(h.stages, w.State.Stage(scheduler.StageID{Job: id}))
	}
	h.p = New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Locality: true, MaxWait: time.Second, MaxYield: time.Second, Preempt: deadline.None})
	h.p.quiet = true
	h.placeSome(r, r.IntN(3), func(g *scheduler.Stage, task int32, on scheduler.NodeID, _ bool) {
		w.Place(g.Task(task), on)
	})
	h.p.begin(w.State, w.Now, 1000)
	h.placeSome(r, 8, func(g *scheduler.Stage, task int32, on scheduler.NodeID, far bool) {
		if h.p.place(g, task, on); !far {
			h.p.moved.add(g, task, on, len(h.p.actions)-1, false)
			return
		}
		h.p.moved.add(g, task, on, len(h.p.actions)-1, true)
	})
	return h
}

// placeSome has turns come at random.
func (h *half) placeSome(r *rand.Rand, turns int, place func(g *scheduler.Stage, task int32, on scheduler.NodeID, far bool)) {
	for range turns {
		g := h.stages[r.IntN(len(h.stages))]
		if g.Pending == 0 {
			continue
		}
		if near := h.nearby(g); len(near) > 0 {
			k := near[r.IntN(len(near))]
			place(g, k.task, k.node, false)
			continue
		}
		for _, id := range r.Perm(len(h.State.Nodes())) {
			if h.room(g, scheduler.NodeID(id), scheduler.NoNode) {
				place(g, g.NextPending(0), scheduler.NodeID(id), true)
				break
			}
		}
	}
}

type spot struct {
	task int32
	node scheduler.NodeID
}

// nearby lists where waiting tasks of a stage have room at their data.
func (h *half) nearby(g *scheduler.Stage) []spot {
	var out []spot
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		_, nodes, _ := g.Input(i)
		for _, id := range nodes {
			if h.room(g, id, scheduler.NoNode) {
				out = append(out, spot{i, id})
			}
		}
	}
	return out
}

// room tells by itself whether a task of a stage fits on a node other than one.
func (h *half) room(g *scheduler.Stage, id, but scheduler.NodeID) bool {
	return id != but && h.fitsWith(g, id, &scheduler.Stage{})
}

// fitsWith tells whether a task of a stage fits on a node when one of another stage
// leaves it.
func (h *half) fitsWith(g *scheduler.Stage, id scheduler.NodeID, leaves *scheduler.Stage) bool {
	n := h.State.Node(id)
	d, back := g.Spec.Demand, leaves.Spec.Demand
	for r := range d {
		if d[r] > n.Free[r]+back[r] {
			return false
		}
	}
	k := n.Disks[0] // the only one
	return d[scheduler.IO] <= k.FreeIO+back[scheduler.IO] && g.Spec.Disk <= k.FreeSpace+leaves.Spec.Disk
}

// steps lists by trying everything whom a stage can get room at its data from: the
// actions of tasks that have another place.
func (h *half) steps(g *scheduler.Stage) []int32 {
	var out []int32
	for action := range h.p.actions {
		a := &h.p.actions[action]
		other := h.State.Stage(a.Task.StageID())
		if other == g || !h.freed(g, a.Node, other) || !h.hasAnother(other, a) {
			continue
		}
		out = append(out, int32(action))
	}
	return out
}

// freed tells whether a waiting task of a stage has its data on a node and room
// there when one of another stage leaves.
func (h *half) freed(g *scheduler.Stage, id scheduler.NodeID, other *scheduler.Stage) bool {
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		if _, nodes, _ := g.Input(i); slices.Contains(nodes, id) {
			return h.fitsWith(g, id, other)
		}
	}
	return false
}

// hasAnother tells whether a placed task, or if it is at its data one of its stage
// that waits, has another place as good.
func (h *half) hasAnother(g *scheduler.Stage, a *scheduler.Action) bool {
	_, data, _ := g.Input(a.Task.Index)
	if !slices.Contains(data, a.Node) {
		return slices.ContainsFunc(h.State.Nodes(), func(n *scheduler.Node) bool { return h.room(g, n.Spec.ID, a.Node) })
	}
	if slices.ContainsFunc(data, func(id scheduler.NodeID) bool { return h.room(g, id, a.Node) }) {
		return true
	}
	return slices.ContainsFunc(h.nearby(g), func(k spot) bool { return k.node != a.Node })
}

// atData counts the placements of the decision at their data, and those of each
// stage.
func (h *half) atData() (local int, of map[*scheduler.Stage]int) {
	of = map[*scheduler.Stage]int{}
	for i := range h.p.actions {
		a := &h.p.actions[i]
		g := h.State.Stage(a.Task.StageID())
		of[g]++
		if _, nodes, _ := g.Input(a.Task.Index); slices.Contains(nodes, a.Node) {
			local++
		}
	}
	return local, of
}

// An exchange is made wherever one is possible, as trying everything finds, and
// each brings one task more to its data; of the other stages as many are placed as
// before. In a pass a stage that found none is not asked again, nor one looked at
// again for tasks that could go elsewhere, though an exchange for a smaller task
// leaves room: how often that misses one is counted.
func TestAnExchangeIsFoundWhereThereIsOne(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	made, none, missed := 0, 0, 0
	for round := range 1000 {
		h := newHalf(t, rand.New(rand.NewPCG(seed, uint64(round))))
		for _, g := range slices.Concat(h.stages, h.stages) {
			for g.Pending > 0 && len(h.nearby(g)) == 0 {
				want := h.steps(g)
				asked := h.p.moved.none[g] || slices.ContainsFunc(want, func(action int32) bool {
					return h.p.moved.fixed[h.State.Stage(h.p.actions[action].Task.StageID())]
				})
				local, of := h.atData()
				got := h.p.exchange(g)
				if !got && asked {
					missed += min(len(want), 1)
					break
				}
				if got != (len(want) > 0) {
					t.Fatalf("seed %d, round %d: stage %s got room at its data: %v; it can have it from actions %v", seed, round, g.ID(), got, want)
				}
				if !got {
					none++
					break
				}
				made++
				of[g]++
				if now, nowOf := h.atData(); now <= local || !maps.Equal(of, nowOf) {
					t.Fatalf("seed %d, round %d: %d at their data after %d; of stages %v, want %v", seed, round, now, local, nowOf, of)
				}
			}
		}
		d := h.p.decision(h.Now)
		h.State.Rollback(h.p.mark)
		if v := scheduler.Check(h.State, &d, h.Now); len(v) > 0 {
			t.Fatalf("seed %d, round %d: %v", seed, round, v)
		}
	}
	t.Logf("%d made, %d times there was none, %d times there was one later", made, none, missed)
	if made < 50 || none < 100 || missed > made/10 {
		t.Errorf("that is not what these worlds show")
	}
}
