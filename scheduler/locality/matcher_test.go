package locality

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// maxLocal returns the greatest number of node-local tasks by augmenting paths over
// tasks and slots: the slow judge.
func maxLocal(tasks [][]scheduler.NodeID, slots []int) int {
	on := make([][]int, len(slots)) // tasks on each node
	var try func(t int, seen []bool) bool
	try = func(t int, seen []bool) bool {
		for _, n := range tasks[t] {
			if seen[n] {
				continue
			}
			seen[n] = true
			if len(on[n]) < slots[n] {
				on[n] = append(on[n], t)
				return true
			}
			for k, other := range on[n] {
				if try(other, seen) {
					on[n][k] = t
					return true
				}
			}
		}
		return false
	}
	n := 0
	for t := range tasks {
		if try(t, make([]bool, len(slots))) {
			n++
		}
	}
	return n
}

// On a cluster under load, with a stage whose tasks have three replicas each, the
// number of node-local assignments equals a maximum flow.
func TestAsManyNodeLocalAsAMaximumFlow(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, c := range []struct {
		what string
		load float64
		zipf bool
	}{{"load 0.8", 0.8, false}, {"load 0.95", 0.95, false}, {"load 0.95, popular blocks", 0.95, true}} {
		t.Run(c.what, func(t *testing.T) {
			for range 40 {
				checkMatch(t, r, c.load, c.zipf)
			}
		})
	}
}

func checkMatch(t *testing.T, r *rand.Rand, load float64, zipf bool) {
	const nodes, perNode = 40, 5
	w := schedtest.New(t).AddNodes(nodes, schedtest.R(perNode, 100, 1000)).AddTenants("a")
	pick := func() scheduler.NodeID { return scheduler.NodeID(r.IntN(nodes)) }
	if zipf {
		z := rand.NewZipf(r, 1.3, 2, nodes-1)
		pick = func() scheduler.NodeID { return scheduler.NodeID(z.Uint64()) }
	}
	slots := make([]int, nodes)
	free := 0
	busy := w.Submit("a", nodes*perNode, schedtest.R(1, 1, 1))
	next := int32(0)
	for n := range slots {
		slots[n] = perNode
		for range perNode {
			if r.Float64() < load-0.3 {
				w.Place(scheduler.TaskID{Job: busy, Index: next}, scheduler.NodeID(n))
				next++
				slots[n]--
			}
		}
		free += slots[n]
	}
	var on [][]scheduler.NodeID
	for range int(float64(free) * load) {
		on = append(on, []scheduler.NodeID{pick(), pick(), pick()})
	}
	job := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(on)), Demand: schedtest.R(1, 1, 1),
		Inputs: schedtest.Inputs(schedtest.MiB, on...)}})
	g := w.State.Job(job).Stages[0]
	var m Matcher
	got := m.Match(w.State, g, g.Pending)
	used := make([]int, nodes)
	seen := map[int32]bool{}
	for _, a := range got {
		if used[a.Node]++; used[a.Node] > slots[a.Node] || seen[a.Task] {
			t.Fatalf("node %d has %d slots; task %d", a.Node, slots[a.Node], a.Task)
		}
		seen[a.Task] = true
	}
	if want := maxLocal(on, slots); len(got) != want {
		t.Fatalf("%d node-local of %d, a maximum flow has %d", len(got), len(on), want)
	}
}

// A request for fewer tasks than wait assigns all of them at their data if that is
// possible.
func TestPartialRequestConsidersTheWholeStage(t *testing.T) {
	w := schedtest.New(t).AddNodes(3, schedtest.R(4, 100, 1000)).AddTenants("a")
	var on [][]scheduler.NodeID
	for range 3000 {
		on = append(on, []scheduler.NodeID{0})
	}
	on = append(on, []scheduler.NodeID{2}, []scheduler.NodeID{2})
	job := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(on)), Demand: schedtest.R(1, 1, 1),
		Inputs: schedtest.Inputs(schedtest.MiB, on...)}})
	var m Matcher
	got := fmt.Sprint(m.Match(w.State, w.State.Job(job).Stages[0], 6))
	if want := "[{0 0} {1 0} {2 0} {3 0} {3000 2} {3001 2}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Three tasks could start at their data, two may: the second has no node while the first has its, which only the third makes
// up for.
func TestPartialRequestGetsNoMore(t *testing.T) {
	w := schedtest.New(t).AddNodes(3, schedtest.R(1, 100, 1000)).AddTenants("a")
	job := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 3, Demand: schedtest.R(1, 1, 1),
		Inputs: schedtest.Inputs(schedtest.MiB, []scheduler.NodeID{0, 1}, []scheduler.NodeID{0}, []scheduler.NodeID{1, 2})}})
	for count, want := range map[int32]int{1: 1, 2: 2, 3: 3} {
		var m Matcher
		if got := m.Match(w.State, w.State.Job(job).Stages[0], count); len(got) != want {
			t.Errorf("of %d tasks: %v", count, got)
		}
	}
}

// A node with reservations takes one task at a time, if it may be used at all: each placement is checked against them. Others
// are not asked about.
func TestNodesWithReservationsHaveOneSlot(t *testing.T) {
	for mayUse, want := range map[bool][2]int{true: {1, 4}, false: {0, 4}} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(4, 100, 1000)).AddTenants("a")
		both := []scheduler.NodeID{0, 1}
		job := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 8, Demand: schedtest.R(1, 1, 1),
			Inputs: schedtest.Inputs(schedtest.MiB, both, both, both, both, both, both, both, both)}})
		reserve := scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: 1, Kind: scheduler.ReserveData, Job: job, Stage: 0, Task: -1,
			Node: 0, Start: w.Now, End: w.Now.Add(time.Minute)}}
		if err := w.State.Apply(&reserve, w.Now); err != nil {
			t.Fatal(err)
		}
		m := Matcher{MayUse: func(n *scheduler.Node, _ *scheduler.Stage) bool { return n.Spec.ID == 0 && mayUse }}
		var got [2]int
		for _, a := range m.Match(w.State, w.State.Job(job).Stages[0], 8) {
			got[a.Node]++
		}
		if got != want {
			t.Errorf("may use %v: %v tasks on the nodes, want %v", mayUse, got, want)
		}
	}
}

// How many tasks fit on a node: by CPU and memory, and on each disk by I/O and space. One with less than nothing left, as after
// it shrank, has no slots, and takes none from another disk.
func TestCountSlots(t *testing.T) {
	disk := func(io, space int64) scheduler.DiskUse {
		return scheduler.DiskUse{FreeIO: io * schedtest.MiB, FreeSpace: space * schedtest.GiB}
	}
	for what, c := range map[string]struct {
		free   scheduler.Resources
		disks  []scheduler.DiskUse
		demand scheduler.Resources
		space  int64 // GiB
		want   int32
	}{
		"by CPU":                  {schedtest.R(7, 100, 0), []scheduler.DiskUse{disk(9, 9)}, schedtest.R(2, 1, 0), 0, 3},
		"by memory":               {schedtest.R(7, 5, 0), []scheduler.DiskUse{disk(9, 9)}, schedtest.R(1, 2, 0), 0, 2},
		"by the limit":            {schedtest.R(70, 100, 0), []scheduler.DiskUse{disk(9, 9)}, schedtest.R(1, 1, 0), 0, 20},
		"by I/O of each disk":     {schedtest.R(20, 100, 0), []scheduler.DiskUse{disk(11, 9), disk(7, 9)}, schedtest.R(1, 1, 4), 0, 3},
		"by space of each disk":   {schedtest.R(20, 100, 0), []scheduler.DiskUse{disk(11, 11), disk(7, 7)}, schedtest.R(1, 1, 0), 4, 3},
		"by what is less of both": {schedtest.R(20, 100, 0), []scheduler.DiskUse{disk(8, 4), disk(4, 8)}, schedtest.R(1, 1, 4), 4, 2},
		"CPU is overcommitted":    {schedtest.R(-8, 100, 0), []scheduler.DiskUse{disk(9, 9)}, schedtest.R(1, 1, 0), 0, 0},
		"I/O is overcommitted":    {schedtest.R(8, 100, 0), []scheduler.DiskUse{disk(-8, 9), disk(8, 9)}, schedtest.R(1, 1, 4), 0, 2},
		"space is overcommitted":  {schedtest.R(8, 100, 0), []scheduler.DiskUse{disk(9, -8), disk(9, 8)}, schedtest.R(1, 1, 0), 4, 2},
		"no disk, none needed":    {schedtest.R(8, 100, 0), nil, schedtest.R(1, 1, 0), 0, 8},
		"no disk for I/O":         {schedtest.R(8, 100, 0), nil, schedtest.R(1, 1, 1), 0, 0},
		"no disk for space":       {schedtest.R(8, 100, 0), nil, schedtest.R(1, 1, 0), 1, 0},
	} {
		n := schedtest.New(t).AddNodes(1, schedtest.R(100, 100, 100)).State.Node(0)
		n.Free, n.Disks = c.free, c.disks
		if got := CountSlots(n, c.demand, c.space*schedtest.GiB, 20); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
		n.Spec.Draining = true
		if got := CountSlots(n, c.demand, c.space*schedtest.GiB, 20); got != 0 {
			t.Errorf("%s: %d slots of a node that is drained", what, got)
		}
	}
}

// 3DSF Alg. 4 where nodes hold parts of the input: two have 90 MiB, for which the network takes 1.8 s, the third one has 60.
func TestWaitOrMoveByParts(t *testing.T) {
	const ms = time.Millisecond
	for what, c := range map[string]struct {
		ends   [3]time.Duration // of what fills the nodes
		failed bool             // on node 0
		node   scheduler.NodeID // NoNode: it moves
	}{
		"the first of two that are released at once":   {[3]time.Duration{1100 * ms, 1100 * ms, 500 * ms}, false, 0},
		"the one that is released sooner":              {[3]time.Duration{1100 * ms, 1099 * ms, 500 * ms}, false, 1},
		"it failed on the first":                       {[3]time.Duration{1100 * ms, 1200 * ms, 500 * ms}, true, 1},
		"just before the data would be there":          {[3]time.Duration{9000 * ms, 1799 * ms, 500 * ms}, false, 1},
		"when the data would be there: it moves":       {[3]time.Duration{1800 * ms, 1800 * ms, 500 * ms}, false, scheduler.NoNode},
		"only the node with less is in time: it moves": {[3]time.Duration{9000 * ms, 9000 * ms, 500 * ms}, false, scheduler.NoNode},
	} {
		w := schedtest.New(t).AddNodes(3, schedtest.R(1, 100, 1000)).AddTenants("a")
		inputs := schedtest.Inputs(100*schedtest.MiB, []scheduler.NodeID{0, 1, 2})
		inputs.Local = []int64{90 * schedtest.MiB, 90 * schedtest.MiB, 60 * schedtest.MiB}
		g := w.State.Job(w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: schedtest.R(1, 1, 1), Inputs: inputs}})).Stages[0]
		if c.failed {
			w.Place(g.Task(0), 0)
			w.Start().End(w.Attempts()[0], scheduler.OutcomeFailedUser)
		}
		for n, end := range c.ends {
			id := w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = end })
			w.Place(scheduler.TaskID{Job: id}, scheduler.NodeID(n))
		}
		want := WaitDecision{Node: c.node, Release: scheduler.Never, Transfer: 1800 * ms}
		if c.node != scheduler.NoNode {
			want.Wait, want.Release = true, w.Now.Add(c.ends[c.node])
		}
		var e WaitEstimator
		e.Reset(w.State)
		if got := e.WaitOrMove(w.State, g, 0, &Network{Bandwidth: 50 * schedtest.MiB}, w.Now); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
}

// On a tie a task moves: one whose data takes no time to transfer does not wait for a node, even one that has capacity now.
func TestWaitOrMoveWithoutTransferTime(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 100, 1000)).AddTenants("a")
	g := w.State.Job(w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: schedtest.R(1, 1, 1),
		Inputs: schedtest.Inputs(schedtest.MiB, []scheduler.NodeID{0})}})).Stages[0]
	for bandwidth, want := range map[int64]bool{0: false, schedtest.MiB: true} {
		var e WaitEstimator
		e.Reset(w.State)
		if got := e.WaitOrMove(w.State, g, 0, &Network{Bandwidth: bandwidth}, w.Now); got.Wait != want {
			t.Errorf("with %d bytes a second: %+v", bandwidth, got)
		}
	}
}

// TestTransferTime checks 3DSF eq. 3.
func TestTransferTime(t *testing.T) {
	for what, c := range map[string]struct {
		net   Network
		bytes int64
		want  time.Duration
	}{
		"bandwidth":               {Network{Bandwidth: 50e6}, 100e6, 2 * time.Second},
		"nothing known":           {Network{}, 1 << 40, 0},
		"more than time can tell": {Network{Bandwidth: 1}, scheduler.MaxAmount, 1 << 62},
	} {
		if got := scheduler.TimeAtRate(c.bytes, c.net.Bandwidth); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// releaseTime is the first predicted end after which the demand fits behind the
// recorded waiters (3DSF eq. 8).
func TestReleaseTimeFollowsEarlierWaiters(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(3, 100, 1000)).AddTenants("a")
	for i, secs := range []int{30, 10, 20} {
		job := w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) {
			g.Estimate = time.Duration(secs) * time.Second
		})
		w.Place(scheduler.TaskID{Job: job}, 0)
		_ = i
	}
	one := w.State.Job(w.Submit("a", 5, schedtest.R(1, 1, 1))).Stages[0]
	two := w.State.Job(w.Submit("a", 1, schedtest.R(2, 1, 1))).Stages[0]
	four := w.State.Job(w.Submit("a", 1, schedtest.R(4, 1, 1))).Stages[0]
	var j WaitEstimator
	j.Reset(w.State)
	after := func(g *scheduler.Stage) time.Duration {
		at := j.releaseTime(w.State, g, 0, w.Now, scheduler.Never)
		if at == scheduler.Never {
			return -1
		}
		return at.Sub(w.Now)
	}
	if a, b, c := after(one), after(two), after(four); a != 10*time.Second || b != 20*time.Second || c != -1 {
		t.Errorf("release of 1, 2 and 4 cores: %v, %v, %v", a, b, c)
	}
	j.RecordWaiter(one, 0)
	j.RecordWaiter(one, 0)
	if got := after(one); got != 30*time.Second {
		t.Errorf("behind two: %v", got)
	}
	j.Reset(w.State)
	if got := after(one); got != 10*time.Second {
		t.Errorf("a new cycle: %v", got)
	}
}

// The predicted end of an attempt uses its own prediction, else its stage's, less its earlier run time.
func TestPredictedEnd(t *testing.T) {
	const s = time.Second
	for what, c := range map[string]struct {
		own, stage, ran, want time.Duration // want -1: unknown
	}{
		"its own":                 {30 * s, 90 * s, 0, 30 * s},
		"its stage's":             {0, 90 * s, 0, 90 * s},
		"it has run before":       {30 * s, 0, 20 * s, 10 * s},
		"it has run for longer":   {30 * s, 0, 40 * s, -10 * s},
		"its stage's, run before": {0, 90 * s, 20 * s, 70 * s},
		"nothing is known":        {0, 0, 20 * s, -1},
	} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(3, 100, 1000)).AddTenants("a")
		g := w.State.Job(w.Submit("a", 1, schedtest.R(1, 1, 1))).Stages[0]
		a := w.Place(scheduler.TaskID{Job: g.Job.Spec.ID}, 0)
		a.Estimate, a.Ran, g.Spec.Estimate = c.own, c.ran, c.stage
		if at, known := PredictedEnd(w.State, a); known != (c.want != -1) || known && at != w.Now.Add(c.want) {
			t.Errorf("%s: %v (%v), want %v", what, at.Sub(w.Now), known, c.want)
		}
	}
}

// A task that needs disk I/O is released when one disk has enough of it, whatever all disks have together (3DSF eq. 8 with
// disk I/O as third resource, of each disk).
func TestReleaseTimeByDisk(t *testing.T) {
	w := schedtest.New(t).AddTenants("a")
	n := schedtest.NodeSpec(0, "/r1", schedtest.R(9, 100, 200))
	n.Disks = []scheduler.Disk{{Name: "a", IO: 100 * schedtest.MiB, Space: schedtest.GiB}, {Name: "b", IO: 100 * schedtest.MiB, Space: schedtest.GiB}}
	if err := w.State.Events().AddNode(n); err != nil {
		t.Fatal(err)
	}
	for disk, secs := range []time.Duration{30, 20} { // 60 MiB/s of each disk
		g := w.State.Job(w.Submit("a", 1, schedtest.R(1, 1, 60), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = secs * time.Second })).Stages[0]
		a := w.State.Attempts().PlaceAction(g, 0, 0, int16(disk))
		if err := w.State.Apply(&a, w.Now); err != nil {
			t.Fatal(err)
		}
	}
	for io, want := range map[float64]time.Duration{0: 0, 40: 0, 41: 20 * time.Second, 80: 20 * time.Second, 100: 20 * time.Second} {
		var e WaitEstimator
		e.Reset(w.State)
		g := w.State.Job(w.Submit("a", 1, schedtest.R(1, 1, io))).Stages[0]
		if at := e.releaseTime(w.State, g, 0, w.Now, scheduler.Never); at.Sub(w.Now) != want {
			t.Errorf("%v MiB/s are released after %v, want %v", io, at.Sub(w.Now), want)
		}
	}
}

// 3DSF 6.2: the weight of a node is its idle part before each placement, so it falls as tasks are assigned. Of two nodes
// with the data of all tasks, the idler one gets tasks until it is as busy as the other.
func TestWeightsFallWithAssignedTasks(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(10, 100, 1000)).AddTenants("a")
	w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(3, 1, 1))}, 0)
	both := []scheduler.NodeID{0, 1}
	job := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 4, Demand: schedtest.R(2, 1, 1),
		Inputs: schedtest.Inputs(schedtest.MiB, both, both, both, both)}})
	for tasks, want := range map[int32][2]int{1: {0, 1}, 2: {0, 2}, 3: {1, 2}, 4: {1, 3}} { // idle 0.7, 0.5 and 1, 0.8, 0.6
		var m Matcher
		var got [2]int
		for _, a := range m.Match(w.State, w.State.Job(job).Stages[0], tasks) {
			got[a.Node]++
		}
		if got != want {
			t.Errorf("%d tasks: %v on the nodes, want %v", tasks, got, want)
		}
	}
}

// The cached ends of an estimator give the release times of a new estimator, whatever
// happened in between: events, rolled-back actions, other predictions.
func TestCachedReleaseTimesMatchAFreshEstimator(t *testing.T) {
	first := seed.New(t)
	for i := range uint64(30) {
		seed := first + i
		c := schedtest.NewChaos(t, seed)
		var old WaitEstimator
		compare := func(when string) {
			var fresh WaitEstimator
			old.Reset(c.State)
			fresh.Reset(c.State)
			for j := range c.State.Jobs() {
				for _, g := range j.Stages {
					for _, n := range c.State.Nodes() {
						limit := c.Now.Add(time.Duration(1+c.R.IntN(100)) * time.Second)
						got, want := old.releaseTime(c.State, g, n.Spec.ID, c.Now, limit), fresh.releaseTime(c.State, g, n.Spec.ID, c.Now, limit)
						if got != want {
							t.Fatalf("seed %d, %s: stage %s on node %d is released at %d, want %d", seed, when, g.ID(), n.Spec.ID, got, want)
						}
					}
				}
			}
		}
		for range 60 {
			c.Step()
			m := c.State.Journal().Mark()
			for _, a := range c.Actions(4) {
				_ = c.State.Apply(&a, c.Now) // a refused action changes nothing
			}
			compare("in a try")
			c.State.Journal().Rollback(m)
			compare("after it")
			for _, a := range c.Actions(2) {
				_ = c.State.Apply(&a, c.Now)
			}
			for j := range c.State.Jobs() {
				if len(j.Stages) > 0 && c.R.IntN(5) == 0 {
					if err := c.State.Events().SetEstimate(j.Stages[0].ID(), time.Duration(c.R.IntN(90))*time.Second); err != nil {
						t.Fatal(err)
					}
				}
			}
			compare("with other predictions")
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	w := schedtest.New(b)
	for range 25 {
		w.AddNodes(40, schedtest.R(10, 1000, 1000))
	}
	w.AddTenants("a")
	r := rand.New(rand.NewPCG(1, 1))
	var on [][]scheduler.NodeID
	for range 10_000 {
		on = append(on, []scheduler.NodeID{scheduler.NodeID(r.IntN(1000)), scheduler.NodeID(r.IntN(1000)), scheduler.NodeID(r.IntN(1000))})
	}
	job := w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 10_000, Demand: schedtest.R(1, 1, 1),
		Inputs: schedtest.Inputs(schedtest.MiB, on...)}})
	g := w.State.Job(job).Stages[0]
	var m Matcher
	b.ReportAllocs()
	for b.Loop() {
		m.Match(w.State, g, 10_000)
	}
}
