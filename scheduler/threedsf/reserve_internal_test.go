package threedsf

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// boundedWorld is a full node or more, whose tasks have bounds or none, and a stage that fits nowhere.
type boundedWorld struct {
	*schedtest.World
	k    *reservedNodes
	next *scheduler.Stage
}

func newBoundedWorld(t *testing.T, r *rand.Rand) *boundedWorld {
	w := schedtest.New(t).AddTenants("a")
	for id := range scheduler.NodeID(1 + r.IntN(6)) {
		spec := schedtest.NodeSpec(id, "/r1", schedtest.R(float64(2+r.IntN(6)), 8, 0))
		spec.Disks = nil
		for range 1 + r.IntN(2) {
			spec.Disks = append(spec.Disks, scheduler.Disk{Name: "d", IO: 40 * schedtest.MiB, Space: int64(2+r.IntN(8)) * schedtest.GiB})
			spec.Capacity[scheduler.IO] += 40 * schedtest.MiB
		}
		if err := w.State.Events().AddNode(spec); err != nil {
			t.Fatal(err)
		}
	}
	demand := func() (scheduler.Resources, int64) {
		return schedtest.R(float64(1+r.IntN(3)), float64(1+r.IntN(3)), float64(r.IntN(30))), int64(r.IntN(3)) * schedtest.GiB
	}
	for range 10 + r.IntN(25) {
		id := w.Submit("a", 1, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			g.Demand, g.Disk = demand()
			if r.IntN(5) > 0 {
				j.Bound = time.Duration(1+r.IntN(30)) * time.Second
			}
		})
		g := w.State.Job(id).Stages[0]
		node := w.State.Cluster().NextNode(g, scheduler.NodeID(r.IntN(len(w.State.Nodes()))))
		if node == scheduler.NoNode {
			if err := w.State.Events().EndJob(id); err != nil {
				t.Fatal(err)
			}
			continue
		}
		disk, _ := w.State.Node(node).Fits(g.Spec.Demand, g.Spec.Disk)
		a := w.State.Attempts().PlaceAction(g, 0, node, disk)
		if err := w.State.Apply(&a, w.Now); err != nil {
			t.Fatal(err)
		}
		w.Advance(time.Duration(r.IntN(500)) * time.Millisecond)
	}
	w.Start()
	if a := w.Attempts(); len(a) > 0 && r.IntN(3) == 0 {
		suspend := scheduler.Action{Kind: scheduler.ActSuspend, Task: a[0].ID.TaskID, Attempt: a[0].ID.Attempt, Run: a[0].Run, Level: scheduler.LevelFrozen}
		if err := w.State.Apply(&suspend, w.Now); err != nil {
			t.Fatal(err)
		}
		if r.IntN(2) == 0 {
			if err := w.State.Events().AttemptSuspended(a[0].ID, a[0].Run, scheduler.LevelFrozen, scheduler.Footprint{Memory: a[0].Demand[scheduler.Memory]}, w.Now); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.Advance(time.Duration(r.IntN(20)) * time.Second)
	x := &boundedWorld{World: w}
	x.next = w.State.Job(w.Submit("a", int32(1+r.IntN(3)), schedtest.R(float64(2+r.IntN(5)), float64(2+r.IntN(6)), 0), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) {
		if r.IntN(2) == 0 {
			g.Demand[scheduler.IO], g.Disk = int64(r.IntN(40))*schedtest.MiB, int64(r.IntN(4))*schedtest.GiB
		}
	})).Stages[0]
	c := newTestCycle(w, Config{})
	w.State.Journal().Rollback(c.mark) // more jobs may come
	x.k = &reservedNodes{c: c}
	x.k.begin(len(w.State.Nodes()))
	return x
}

// freeAt tries each bound to find when a task of the stage fits on a node, if its tasks end exactly at their bounds.
func (w *boundedWorld) freeAt(id scheduler.NodeID) scheduler.Time {
	n := w.State.Node(id)
	if n.Releasing != (scheduler.Resources{}) {
		return scheduler.Never
	}
	soonest := scheduler.Never
	for at := range w.ends(id) {
		if at < soonest && w.fitsAt(id, at) {
			soonest = at
		}
	}
	return soonest
}

// ends lists the bounds of the tasks on a node.
func (w *boundedWorld) ends(id scheduler.NodeID) map[scheduler.Time]bool {
	out := map[scheduler.Time]bool{}
	for a := range w.State.Attempts().On(id) {
		if b := w.State.StageOf(a).Bound(); b > 0 && a.Level == scheduler.LevelRunning && a.Target == 0 {
			out[a.Placed.Add(b-a.Ran)] = true
		}
	}
	return out
}

// fitsAt reports whether a task of the stage fits on a node once all tasks with a bound of at or before have ended.
func (w *boundedWorld) fitsAt(id scheduler.NodeID, at scheduler.Time) bool {
	n, g := w.State.Node(id), &w.next.Spec
	cpu, memory := n.Free[scheduler.CPU], n.Free[scheduler.Memory]
	io, space := make([]int64, len(n.Disks)), make([]int64, len(n.Disks))
	for i, d := range n.Disks {
		io[i], space[i] = d.FreeIO, d.FreeSpace
	}
	for a := range w.State.Attempts().On(id) {
		if b := w.State.StageOf(a).Bound(); b > 0 && a.Level == scheduler.LevelRunning && a.Target == 0 && a.Placed.Add(b-a.Ran) <= at {
			cpu, memory = cpu+a.Occupied.Resources[scheduler.CPU], memory+a.Occupied.Resources[scheduler.Memory]
			if a.Disk >= 0 {
				io[a.Disk] += a.Occupied.Resources[scheduler.IO]
				space[a.Disk] += a.Occupied.Disk
			}
		}
	}
	for i := range io {
		if io[i] >= g.Demand[scheduler.IO] && space[i] >= g.Disk {
			return cpu >= g.Demand[scheduler.CPU] && memory >= g.Demand[scheduler.Memory]
		}
	}
	return false
}

// With bounds, nodes are reserved in the order in which they become free, which trying each bound confirms; ties go to that which lacks
// least.
func TestSoonestNodesAreReserved(t *testing.T) {
	seed := seed.New(t)
	known, unknown, several := 0, 0, 0
	for round := range 400 {
		w := newBoundedWorld(t, rand.New(rand.NewPCG(seed, uint64(round))))
		if w.State.Cluster().NextNode(w.next, 0) != scheduler.NoNode || w.k.findBoundedJob() == nil {
			continue
		}
		w.k.reserve(w.next)
		if len(w.k.nodes) > min(minReservedNodes, int(w.next.Startable())) {
			t.Fatalf("seed %d, round %d: %d nodes are reserved for %d tasks", seed, round, len(w.k.nodes), w.next.Startable())
		}
		last := scheduler.Time(0)
		for i, id := range w.k.nodes {
			at := w.freeAt(id)
			if got := w.k.freeAt[id]; got != at || at < last {
				t.Fatalf("seed %d, round %d: reserved node %d is free at %d, want %d, after %d", seed, round, id, got, at, last)
			}
			last = at
			if several += i; at < scheduler.Never {
				known++
			} else {
				unknown++
			}
		}
		for _, n := range w.State.Nodes() {
			id, fraction := n.Spec.ID, n.FreeFraction(w.next.Spec.Demand)
			if w.k.stageOn[id] != nil || fraction <= -1 || !couldRun(n, &w.next.Spec) || len(w.k.nodes) == 0 || len(w.k.nodes) < int(w.next.Startable()) {
				continue
			}
			worst := w.k.nodes[len(w.k.nodes)-1]
			if at := w.freeAt(id); at < last || (at == last && fraction > w.State.Node(worst).FreeFraction(w.next.Spec.Demand)) {
				t.Fatalf("seed %d, round %d: node %d, free at %d, is not reserved, but %d, free at %d, is", seed, round, id, at, worst, last)
			}
		}
	}
	if t.Logf("%d nodes with a known time, %d without, %d not the first", known, unknown, several); min(known, unknown, several) < 20 {
		t.Error("too few nodes of a kind for a meaningful test")
	}
}

// A task may start on a reserved node just if placing it does not move the time at which the node is free for the stage it is reserved
// for: found by placing it and trying each bound.
func TestBackfillDelaysNoReservingTask(t *testing.T) {
	seed := seed.New(t)
	may, not, ends := 0, 0, 0
	for round := range 500 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := newBoundedWorld(t, r)
		if w.State.Cluster().NextNode(w.next, 0) != scheduler.NoNode || w.k.findBoundedJob() == nil {
			continue
		}
		w.k.reserve(w.next)
		for range 6 {
			g := w.State.Job(w.Submit("a", 1, schedtest.R(float64(1+r.IntN(2))/2, 0.5, float64(r.IntN(20))), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				if g.Disk = int64(r.IntN(2)) * schedtest.GiB; r.IntN(3) > 0 {
					j.Bound = time.Duration(1+r.IntN(30)) * time.Second
				}
			})).Stages[0]
			for _, id := range w.k.nodes {
				at := w.k.freeAt[id]
				got, want, fits := w.mayStart(t, g, id)
				if got != want {
					t.Fatalf("seed %d, round %d: %s may start on node %d, reserved until %d: %v, want %v", seed, round, g.ID(), id, at, got, want)
				}
				switch b := g.Bound(); {
				case !fits:
				case !got:
					not++
				case b > 0 && w.Now.Add(b) <= at:
					ends++
				default:
					may++
				}
			}
		}
	}
	if t.Logf("%d tasks fit beside it, %d end before, %d may not start", may, ends, not); min(may, ends, not) < 20 {
		t.Error("too few tasks of a kind for a meaningful test")
	}
}

// mayStart returns whether a task of a stage may start on a reserved node, whether it should, and whether it fits there at all.
func (w *boundedWorld) mayStart(t *testing.T, g *scheduler.Stage, id scheduler.NodeID) (got, want, fits bool) {
	disk, fits := w.State.Node(id).Fits(g.Spec.Demand, g.Spec.Disk)
	if !fits {
		return false, false, false
	}
	got = w.k.leavesCapacity(w.State.Node(id), g, g.Spec.Demand, g.Spec.Disk, disk, nil)
	mark := w.State.Journal().Mark()
	defer w.State.Journal().Rollback(mark)
	a := w.State.Attempts().PlaceAction(g, 0, id, disk)
	if err := w.State.Apply(&a, w.Now); err != nil {
		t.Fatal(err)
	}
	at := w.k.freeAt[id]
	return got, at < scheduler.Never && w.fitsAt(id, at), true
}

// A pass reserves one node in sixteen, at least 4 and at most 64, and looks at no more than 1,024 stages.
func TestLimitsOfReservedNodes(t *testing.T) {
	for nodes, want := range map[int]int{1: 1, 3: 3, 20: 4, 64: 4, 80: 5, 96: 6, 1030: 64} {
		w := schedtest.New(t).AddNodes(nodes, schedtest.R(2, 2, 2)).AddTenants("a")
		for id := range w.State.Nodes() { // every node is full
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(2, 2, 2))}, scheduler.NodeID(id))
		}
		g := w.State.Job(w.Submit("a", 1000, schedtest.R(2, 1, 1))).Stages[0]
		k := &reservedNodes{c: newTestCycle(w, Config{ReserveNodes: true})}
		k.begin(nodes)
		k.reserve(g)
		if len(k.nodes) != want || k.isLimitReached() != (want >= minReservedNodes) {
			t.Errorf("of %d nodes %d are reserved (limit reached: %v), want %d", nodes, len(k.nodes), k.isLimitReached(), want)
		}
		if k.begin(nodes); len(k.nodes) != 0 || slices.ContainsFunc(k.stageOn, func(g *scheduler.Stage) bool { return g != nil }) || len(k.attempted) != 0 {
			t.Error("a new pass remembers reserved nodes")
		}
	}
	k := &reservedNodes{attempted: map[*scheduler.Stage]bool{}}
	for range maxAttempted {
		k.attempted[&scheduler.Stage{}] = true
	}
	if !k.isLimitReached() {
		t.Errorf("more than %d stages may reserve", maxAttempted)
	}
}

// The scan for nodes starts at a node that depends on the job, so that stages of different jobs do not all want
// the same node.
func TestScanStartsAtANodeOfTheJob(t *testing.T) {
	w := schedtest.New(t).AddNodes(300, schedtest.R(2, 2, 2)).AddTenants("a")
	c := newTestCycle(w, Config{ReserveNodes: true})
	w.State.Journal().Rollback(c.mark)
	k := &reservedNodes{c: c}
	k.begin(300)
	for _, id := range []scheduler.JobID{1, 100, 299, 300, 705} {
		w.Submit("a", 1, schedtest.R(2, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.ID = id })
		var got []scheduler.NodeID
		k.findCandidates(w.State.Job(id).Stages[0])
		for _, c := range k.candidates {
			got = append(got, c.id)
		}
		var want []scheduler.NodeID
		for i := range maxNodesScanned {
			want = append(want, scheduler.NodeID((int(id)+i)%300))
		}
		if !slices.Equal(got, want) {
			t.Errorf("job %d scans %d nodes from %d on, want %d from %d on", id, len(got), got[0], len(want), want[0])
		}
	}
}
