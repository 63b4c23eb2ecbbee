package threedsf

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/locality"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// finderWorld is a cluster in several racks under load, with preemption reservations, and stages with input.
type finderWorld struct {
	*schedtest.World
	r      *rand.Rand
	p      *Policy
	stages []*scheduler.Stage
}

func newFinderWorld(t *testing.T, r *rand.Rand) *finderWorld {
	w := &finderWorld{World: schedtest.New(t).AddTenants("a"), r: r}
	for range 2 + r.IntN(10) {
		w.AddRack([]string{"/r1", "/r2", "/r3"}[r.IntN(3)], 1, schedtest.R(float64(1+r.IntN(4)), 8, 40))
	}
	for range 3 {
		w.stages = append(w.stages, w.submit(1+r.IntN(6)))
	}
	for range r.IntN(8) { // load
		g := w.State.Job(w.Submit("a", 1, schedtest.R(float64(1+r.IntN(2)), float64(1+r.IntN(4)), float64(r.IntN(30))))).Stages[0]
		if id := scheduler.NodeID(r.IntN(len(w.State.Nodes()))); w.State.Cluster().HasCapacity(g, id) {
			w.Place(g.Task(0), id)
		}
	}
	for i := range scheduler.ReservationID(r.IntN(5)) {
		g := w.stages[r.IntN(len(w.stages))]
		reserveFor(t, w.World, scheduler.Reservation{ID: i + 1, Kind: scheduler.ReservePreempt, Job: g.Job.Spec.ID, Task: -1, OnDisk: -1,
			Node: scheduler.NodeID(r.IntN(len(w.State.Nodes()))), Demand: schedtest.R(float64(1+r.IntN(2)), 1, 0), Start: w.Now, End: scheduler.Never})
	}
	if r.IntN(3) == 0 {
		// a node that takes nothing new
		if err := w.State.Events().SetDrain(scheduler.NodeID(r.IntN(len(w.State.Nodes()))), true); err != nil {
			t.Fatal(err)
		}
	}
	w.p = New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Locality: true, Preempt: deadline.None})
	w.p.begin(w.State, w.Now, 1000)
	w.p.beginPass()
	w.p.reservations.refresh()
	return w
}

// submit submits a stage whose tasks have up to three replicas; a node may hold only a part of one.
func (w *finderWorld) submit(tasks int) *scheduler.Stage {
	in := &scheduler.Inputs{Start: []int32{0}}
	for range tasks {
		nodes := w.r.Perm(len(w.State.Nodes()))[:min(1+w.r.IntN(3), len(w.State.Nodes()))]
		for _, id := range nodes {
			in.Nodes = append(in.Nodes, scheduler.NodeID(id))
			in.Local = append(in.Local, schedtest.MiB*int64(100+50*w.r.IntN(2)))
		}
		in.Bytes = append(in.Bytes, 200*schedtest.MiB)
		in.Start = append(in.Start, int32(len(in.Nodes)))
	}
	id := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(tasks), Inputs: in,
		Demand: schedtest.R(float64(1+w.r.IntN(2)), float64(1+w.r.IntN(3)), float64(w.r.IntN(20)))}})
	return w.State.Stage(scheduler.StageID{Job: id})
}

// isOpen computes from the rules whether a task of a stage may start on a node: it fits beside the reservations
// of other jobs.
func (w *finderWorld) isOpen(g *scheduler.Stage, id scheduler.NodeID) bool {
	n := w.State.Node(id)
	if _, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); !ok || !n.Schedulable() {
		return false
	}
	need := g.Spec.Demand
	for _, r := range w.State.Reservations().All() {
		if r.Node == id && r.Job != g.Job.Spec.ID {
			need = need.Add(r.Demand)
		}
	}
	for r := range need {
		if need[r] > max(n.Free[r], 0) && need != g.Spec.Demand {
			return false
		}
	}
	return true
}

// idlest returns the idlest of some nodes that are open, ties by their order.
func (w *finderWorld) idlest(g *scheduler.Stage, nodes []scheduler.NodeID, but scheduler.NodeID) scheduler.NodeID {
	best := scheduler.NoNode
	for _, id := range nodes {
		if id != but && w.isOpen(g, id) && (best == scheduler.NoNode || w.weight(id) > w.weight(best)) {
			best = id
		}
	}
	return best
}

// weight is 1 - max used/capacity (3DSF 6.1).
func (w *finderWorld) weight(id scheduler.NodeID) float64 {
	n, most := w.State.Node(id), 0.0
	for r, c := range n.Spec.Capacity {
		if c > 0 {
			most = max(most, float64(c-n.Free[r])/float64(c))
		}
	}
	return 1 - most
}

// localNodes returns the nodes that store most of a task's input.
func localNodes(g *scheduler.Stage, task int32) (out []scheduler.NodeID) {
	_, nodes, local := g.Input(task)
	for k, id := range nodes {
		if local[k] == slices.Max(local) {
			out = append(out, id)
		}
	}
	return out
}

func (w *finderWorld) allNodes() (out []scheduler.NodeID) {
	for id := range w.State.Nodes() {
		out = append(out, scheduler.NodeID(id))
	}
	return out
}

// inRacksOf returns the nodes in the racks of a task's input.
func (w *finderWorld) inRacksOf(g *scheduler.Stage, task int32) (out []scheduler.NodeID) {
	_, nodes, _ := g.Input(task)
	for _, id := range w.allNodes() {
		if slices.ContainsFunc(nodes, func(o scheduler.NodeID) bool { return w.State.Node(o).Rack == w.State.Node(id).Rack }) {
			out = append(out, id)
		}
	}
	return out
}

// Nodes are found by the rules of 3DSF section 6 in random racks: the idlest open node with most of the input, the idlest in a rack of
// the input, the idlest anywhere; and the next task with an open node at its input is the first one.
func TestNodesAreFoundByTheRules(t *testing.T) {
	seed := seed.New(t)
	var local, rack, remote, none int
	for round := range 600 {
		w := newFinderWorld(t, rand.New(rand.NewPCG(seed, uint64(round))))
		f := &w.p.finder
		for _, g := range w.stages {
			for task := range g.Spec.Tasks {
				but := scheduler.NodeID(w.r.IntN(len(w.State.Nodes())+1) - 1)
				near := w.idlest(g, localNodes(g, task), but)
				if got := f.idlestLocalNode(g, task, but); got != near {
					t.Fatalf("seed %d, round %d: the idlest node with the input of %s but %d is %d, want %d", seed, round, g.Task(task), but, got, near)
				}
				want := w.idlest(g, w.inRacksOf(g, task), but)
				if want == scheduler.NoNode {
					want = w.idlest(g, w.allNodes(), but)
					remote++
				} else {
					rack++
				}
				if got := f.remoteNodeFor(g, task, but); got != want {
					t.Fatalf("seed %d, round %d: the remote node for %s but %d is %d, want %d", seed, round, g.Task(task), but, got, want)
				}
			}
			want, on := int32(-1), scheduler.NoNode
			for task := range g.Spec.Tasks {
				if on = w.idlest(g, localNodes(g, task), scheduler.NoNode); on != scheduler.NoNode {
					want = task
					break
				}
			}
			near := localSearch{stage: g}
			switch task, node := f.findLocalTask(g, &near); {
			case node != on || (on != scheduler.NoNode && task != want) || near.exhausted != (on == scheduler.NoNode):
				t.Fatalf("seed %d, round %d: task %d of %s on %d is next (exhausted %v), want %d on %d", seed, round, task, g.ID(), node, near.exhausted, want, on)
			case on == scheduler.NoNode:
				none++
			default:
				local++
			}
			w.compareCounts(t, seed, round, g)
		}
		w.State.Journal().Rollback(w.p.cycle.mark)
	}
	if t.Logf("%d at input, %d in a rack of it, %d remote, %d times none", local, rack, remote, none); min(local, rack, remote, none) < 50 {
		t.Error("too few cases of a kind for a meaningful test")
	}
}

// compareCounts compares how many tasks of a stage fit with placing them one by one.
func (w *finderWorld) compareCounts(t *testing.T, seed uint64, round int, g *scheduler.Stage) {
	all, open := int32(0), int32(0)
	mark := w.State.Journal().Mark()
	for _, id := range w.allNodes() {
		isOpen := w.isOpen(g, id)
		for free, io := w.State.Node(id).Free, w.State.Node(id).Disks[0].FreeIO; w.State.Node(id).Schedulable(); {
			free, io = free.Sub(g.Spec.Demand), io-g.Spec.Demand[scheduler.IO]
			if slices.Min(free[:]) < 0 || io < 0 {
				break
			}
			if all++; isOpen {
				open++
			}
		}
	}
	w.State.Journal().Rollback(mark)
	if got := w.p.finder.freeSlots(g, 1000); got != all {
		t.Fatalf("seed %d, round %d: %d tasks of %s fit, want %d", seed, round, got, g.ID(), all)
	}
	if got := w.p.finder.freeSlots(g, 2); got != min(all, 2) {
		t.Fatalf("seed %d, round %d: %d tasks of %s fit, want %d", seed, round, got, g.ID(), min(all, 2))
	}
	if got := w.p.finder.countMovable(g); got != min(open, maxEvaluatedTasks) {
		t.Fatalf("seed %d, round %d: %d tasks of %s can move, want %d of at most %d", seed, round, got, g.ID(), open, maxEvaluatedTasks)
	}
}

// However the nodes change, the list of a rack's nodes is that of the State.
func TestRacksFollowTheState(t *testing.T) {
	w := schedtest.New(t).AddRack("/r1", 2, schedtest.R(1, 1, 1)).AddRack("/r2", 1, schedtest.R(1, 1, 1))
	var x racks
	on := func(id scheduler.NodeID) []scheduler.NodeID { return x.nodesIn(w.State, w.State.Node(id).Rack) }
	for range 2 {
		if a, b := on(0), on(2); !slices.Equal(a, []scheduler.NodeID{0, 1}) || !slices.Equal(b, []scheduler.NodeID{2}) {
			t.Errorf("the racks have %v and %v", a, b)
		}
	}
	w.AddRack("/r2", 1, schedtest.R(1, 1, 1)).AddRack("/r3", 1, schedtest.R(1, 1, 1))
	if a, b := on(3), on(4); !slices.Equal(a, []scheduler.NodeID{2, 3}) || !slices.Equal(b, []scheduler.NodeID{4}) {
		t.Errorf("the racks have %v and %v after two nodes came", a, b)
	}
	spec := w.State.Node(0).Spec
	spec.Path = "/r3"
	if err := w.State.Events().UpdateNode(spec); err != nil {
		t.Fatal(err)
	}
	if a, b := on(1), on(4); !slices.Equal(a, []scheduler.NodeID{1}) || !slices.Equal(b, []scheduler.NodeID{0, 4}) {
		t.Errorf("the racks have %v and %v after a node moved", a, b)
	}
	if got := x.nodesIn(w.State, 99); len(got) != 0 {
		t.Errorf("an unknown rack has %v", got)
	}
}

// maxAtInput returns the greatest number of tasks that can run at their input, by augmenting paths over tasks and slots.
func maxAtInput(tasks [][]scheduler.NodeID, slots []int) (n int) {
	on := make([][]int, len(slots))
	var place func(task int, seen []bool) bool
	place = func(task int, seen []bool) bool {
		for _, id := range tasks[task] {
			if seen[id] {
				continue
			}
			seen[id] = true
			if len(on[id]) < slots[id] {
				on[id] = append(on[id], task)
				return true
			}
			for k, other := range on[id] {
				if place(other, seen) {
					on[id][k] = task
					return true
				}
			}
		}
		return false
	}
	for task := range tasks {
		if place(task, make([]bool, len(slots))) {
			n++
		}
	}
	return n
}

// Of one stage, or of several of equal demand, a decision places tasks at their input: of one stage as
// many as a maximum matching, of several never more, and mostly as many. It delays the other tasks.
func TestAsManyTasksAtTheirInputAsAMatching(t *testing.T) {
	seed := seed.New(t)
	best, placed := [2]int{}, [2]int{}
	for round := range 400 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := schedtest.New(t).AddTenants("a", "b")
		var slots []int
		for range 2 + r.IntN(6) {
			slots = append(slots, 1+r.IntN(3))
			w.AddNodes(1, schedtest.R(float64(slots[len(slots)-1]), 64, 0))
		}
		several := round % 2
		var tasks [][]scheduler.NodeID
		for i := range 1 + several*(1+r.IntN(3)) {
			data := make([][]scheduler.NodeID, 1+r.IntN(12))
			for k := range data {
				for range 1 + r.IntN(2) {
					if id := scheduler.NodeID(min(r.IntN(len(slots)), r.IntN(len(slots)))); !slices.Contains(data[k], id) { // low ids are popular
						data[k] = append(data[k], id)
					}
				}
			}
			w.SubmitStages([]string{"a", "b"}[i%2], []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(data)),
				Demand: schedtest.R(1, 1, 0), Inputs: schedtest.Inputs(128*schedtest.MiB, data...)}})
			tasks = append(tasks, data...)
		}
		want := maxAtInput(tasks, slots)
		d := w.Cycle(New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Locality: true, Network: locality.Network{Bandwidth: 1},
			MaxLocalityWait: time.Hour, MaxLocalityYield: time.Hour, Preempt: deadline.None}))
		local := 0
		for i := range d.Actions {
			a := &d.Actions[i]
			if _, nodes, _ := w.State.Stage(a.Task.StageID()).Input(a.Task.Index); slices.Contains(nodes, a.Node) {
				local++
			}
		}
		best[several], placed[several] = best[several]+want, placed[several]+local
		if local > want || (several == 0 && local < want) {
			t.Fatalf("seed %d, round %d: %d tasks at their input, want %d", seed, round, local, want)
		}
	}
	t.Logf("one stage: %d of %d, several: %d of %d", placed[0], best[0], placed[1], best[1])
	if missed := best[1] - placed[1]; missed > best[1]/20 {
		t.Errorf("%d of %d tasks of several stages are not at their input", missed, best[1])
	}
}

// Of nodes that are equally idle, the first listed with the input is taken, and of remote ones the lowest.
func TestTiesOfNodes(t *testing.T) {
	w := schedtest.New(t).AddNodes(4, schedtest.R(4, 4, 4)).AddTenants("a")
	g := w.State.Stage(scheduler.StageID{Job: w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 1,
		Demand: schedtest.R(1, 1, 0), Inputs: schedtest.Inputs(schedtest.GiB, []scheduler.NodeID{3, 1, 2})}})})
	p := New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Locality: true, Preempt: deadline.None})
	p.begin(w.State, w.Now, 10)
	p.beginPass()
	if got := p.finder.idlestLocalNode(g, 0, scheduler.NoNode); got != 3 {
		t.Errorf("node %d with the input, want 3", got)
	}
	if got := p.finder.remoteNodeFor(g, 0, 0); got != 1 {
		t.Errorf("node %d in the rack, want 1", got)
	}
	if got := cmp.Compare(idleness(w.State.Node(0)), 1); got != 0 {
		t.Errorf("the weight of an idle node is not 1")
	}
}
