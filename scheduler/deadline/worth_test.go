package deadline

import (
	"fmt"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// newPreemptor completes p: all jobs are victims, and all nodes open.
func newPreemptor(p Preemptor) Preemptor {
	if p.IsProtected == nil {
		p.IsProtected = func(*scheduler.Job) bool { return false }
	}
	p.MayStart = func(*scheduler.Node, *scheduler.Stage) bool { return true }
	p.Reserved = func(*scheduler.Node) (scheduler.Resources, int64) { return scheduler.Resources{}, 0 }
	return p
}

// newWorld has nodes on which freezing takes no time, swapping out 8 s per GiB and in 4
// s, a checkpoint 16 s per GiB each way.
func newWorld(t *testing.T, capacities ...scheduler.Resources) *schedtest.World {
	w := schedtest.New(t).AddTenants("t")
	for i, c := range capacities {
		n := schedtest.NodeSpec(scheduler.NodeID(i), "/r1", c)
		n.Speeds = scheduler.SuspendSpeed{SwapPerS: schedtest.GiB / 8, SwapBackPerS: schedtest.GiB / 4, CheckpointPerS: schedtest.GiB / 16, RestorePerS: schedtest.GiB / 16}
		if err := w.State.Events().AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// startTask starts a task of a new job on a node, with the given predicted run time, 0
// for none.
func startTask(w *schedtest.World, node scheduler.NodeID, d scheduler.Resources, runTime time.Duration) scheduler.JobID {
	id := w.Submit("t", 1, d, func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = runTime })
	w.Place(scheduler.TaskID{Job: id}, node)
	w.Start()
	return id
}

func waitingStage(w *schedtest.World, d scheduler.Resources) *scheduler.Stage {
	return w.State.Job(w.Submit("t", 1, d)).Stages[0]
}

func describePlan(p *PreemptionPlan) string {
	s := fmt.Sprintf("node %d:", p.Node)
	for _, v := range p.Victims {
		how := v.Level.String()
		if v.Kill {
			how = "killed"
		}
		s += fmt.Sprintf(" %d %s", v.Attempt.ID.Job, how)
	}
	return s
}

func TestVictimActions(t *testing.T) {
	const s = time.Second
	for what, c := range map[string]struct {
		mode        Mode
		nodes       []scheduler.Resources
		run         func(w *schedtest.World)
		need        scheduler.Resources
		want        string
		takes, cost time.Duration
	}{
		"only CPU is lacking: the newest is frozen": {Suspend, []scheduler.Resources{schedtest.R(2, 8, 10)}, func(w *schedtest.World) {
			startTask(w, 0, schedtest.R(1, 2, 1), 0)
			w.Advance(s)
			startTask(w, 0, schedtest.R(1, 2, 1), 0)
		}, schedtest.R(1, 2, 1), "node 0: 2 frozen", 0, 0},
		"memory is lacking for one of two: the second is frozen": {Suspend, []scheduler.Resources{schedtest.R(2, 5, 10)}, func(w *schedtest.World) {
			startTask(w, 0, schedtest.R(1, 2, 1), 0)
			w.Advance(s)
			startTask(w, 0, schedtest.R(1, 2, 1), 0)
		}, schedtest.R(2, 3, 1), "node 0: 2 swapped 1 frozen", 16 * s, 24 * s},
		"another node has the memory: nothing is moved": {Suspend, []scheduler.Resources{schedtest.R(2, 4, 10), schedtest.R(2, 8, 10)}, func(w *schedtest.World) {
			startTask(w, 0, schedtest.R(2, 4, 1), 0)
			startTask(w, 1, schedtest.R(1, 2, 1), 0)
			startTask(w, 1, schedtest.R(1, 2, 1), 0)
		}, schedtest.R(2, 3, 1), "node 1: 3 frozen 2 frozen", 0, 0},
		"more memory than swap holds: it is checkpointed": {Suspend, []scheduler.Resources{schedtest.R(2, 100, 10)}, func(w *schedtest.World) {
			startTask(w, 0, schedtest.R(2, 80, 1), 0)
		}, schedtest.R(1, 50, 1), "node 0: 1 checkpointed", 1280 * s, 2560 * s},
		"it has run for less than its memory takes: it is killed": {Cheapest, []scheduler.Resources{schedtest.R(2, 4, 10)}, func(w *schedtest.World) {
			startTask(w, 0, schedtest.R(2, 4, 1), 0)
			w.Advance(47 * s)
		}, schedtest.R(1, 1, 1), "node 0: 1 killed", 0, 47 * s},
		"it has run for longer: it is swapped": {Cheapest, []scheduler.Resources{schedtest.R(2, 4, 10)}, func(w *schedtest.World) {
			startTask(w, 0, schedtest.R(2, 4, 1), 0)
			w.Advance(49 * s)
		}, schedtest.R(1, 1, 1), "node 0: 1 swapped", 32 * s, 48 * s},
		"freezing is enough: nothing is killed": {Cheapest, []scheduler.Resources{schedtest.R(2, 4, 10)}, func(w *schedtest.World) {
			startTask(w, 0, schedtest.R(2, 1, 1), 0)
		}, schedtest.R(1, 1, 1), "node 0: 1 frozen", 0, 0},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, c.nodes...)
			c.run(w)
			g := waitingStage(w, c.need)
			p := newPreemptor(Preemptor{Mode: c.mode})
			plan, ok := p.FindVictims(w.State, g, w.Now)
			if got := describePlan(&plan); !ok || got != c.want || plan.timeToFree != c.takes || plan.cost != c.cost {
				t.Errorf("%q (%v) takes %v and costs %v, want %q, %v, %v", got, ok, plan.timeToFree, plan.cost, c.want, c.takes, c.cost)
			}
			p = newPreemptor(Preemptor{Mode: c.mode})
			if on, ok := p.FindVictimsOn(w.State, g, plan.Node, w.Now); !ok || describePlan(&on) != c.want || on.cost != c.cost {
				t.Errorf("on the node alone: %q (%v) costs %v", describePlan(&on), ok, on.cost)
			}
		})
	}
}

// A task that is due has victims give up their memory for the next one. Where swap is
// full they are frozen, unless the task itself lacks their memory.
func TestDueTaskFreezesWhereSwapIsFull(t *testing.T) {
	w := newWorld(t, schedtest.R(2, 100, 10))
	n := w.State.Node(0)
	n.Spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen, scheduler.LevelSwapped)
	startTask(w, 0, schedtest.R(2, 80, 1), 0)
	p := newPreemptor(Preemptor{Mode: Suspend, Escalate: true, ForDueReservation: true})
	plan, ok := p.FindVictimsOn(w.State, waitingStage(w, schedtest.R(1, 10, 1)), 0, w.Now)
	if got := describePlan(&plan); !ok || got != "node 0: 1 frozen" || plan.cost != 0 {
		t.Errorf("%q (%v) costs %v", got, ok, plan.cost)
	}
	if plan, ok := p.FindVictimsOn(w.State, waitingStage(w, schedtest.R(1, 50, 1)), 0, w.Now); ok {
		t.Errorf("memory is lacking: %q", describePlan(&plan))
	}
	n.Spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelSwapped)
	if plan, ok := p.FindVictimsOn(w.State, waitingStage(w, schedtest.R(1, 10, 1)), 0, w.Now); ok {
		t.Errorf("the node cannot freeze: %q", describePlan(&plan))
	}
}

// A node of 4 GiB is full of memory, with a task of 2 GiB that moves out in 16 s and
// others that end by themselves.
func TestIsWorthwhile(t *testing.T) {
	const s = time.Second
	for what, c := range map[string]struct {
		ends   []time.Duration // of tasks of 1 GiB with almost no CPU
		latest time.Duration
		worth  bool
		until  time.Duration
	}{
		"waiting is in time":                         {[]time.Duration{20 * s, 30 * s}, 30 * s, false, 30 * s},
		"waiting is too late, moving in time":        {[]time.Duration{20 * s, 30 * s}, 29 * s, true, 0},
		"both are too late, moving comes sooner":     {[]time.Duration{20 * s, 30 * s}, 10 * s, true, 0},
		"both are too late, waiting comes sooner":    {[]time.Duration{10 * s, 14 * s}, 10 * s, false, 14 * s},
		"too late already, and no end is predicted":  {[]time.Duration{0, 0}, -s, true, 0},
		"in time by moving, and no end is predicted": {[]time.Duration{0, 0}, 16 * s, true, 0},
		"the predicted ends free too little":         {[]time.Duration{20 * s, 0}, 19 * s, true, 0},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, schedtest.R(2, 4, 10))
			for _, e := range c.ends {
				startTask(w, 0, schedtest.R(0.1, 1, 1), e)
			}
			startTask(w, 0, schedtest.R(1.8, 2, 1), 0)
			g := waitingStage(w, schedtest.R(1, 2, 1))
			p := newPreemptor(Preemptor{Mode: Suspend})
			plan, ok := p.FindVictims(w.State, g, w.Now)
			if !ok || plan.timeToFree != 16*s {
				t.Fatalf("%s takes %v", describePlan(&plan), plan.timeToFree)
			}
			worth, until := p.IsWorthwhile(w.State, g, &plan, w.Now.Add(c.latest), w.Now)
			if worth != c.worth || (!worth && until.Sub(w.Now) != c.until) {
				t.Errorf("%v until %v, want %v until %v", worth, until.Sub(w.Now), c.worth, c.until)
			}
			p.MayStart = func(*scheduler.Node, *scheduler.Stage) bool { return false }
			if worth, _ := p.IsWorthwhile(w.State, g, &plan, w.Now.Add(c.latest), w.Now); !worth {
				t.Error("it waits for a node on which it may not start")
			}
		})
	}
}

// Of two nodes on which freezing suffices that with fewer victims is taken, though the other one's are newer.
func TestFewerVictimsBeforeNewerOnes(t *testing.T) {
	w := newWorld(t, schedtest.R(2, 8, 10), schedtest.R(2, 8, 10))
	startTask(w, 1, schedtest.R(2, 2, 1), 0)
	w.Advance(time.Second)
	startTask(w, 0, schedtest.R(1, 2, 1), 0)
	startTask(w, 0, schedtest.R(1, 2, 1), 0)
	p := newPreemptor(Preemptor{Mode: Suspend})
	plan, ok := p.FindVictims(w.State, waitingStage(w, schedtest.R(2, 2, 1)), w.Now)
	if got := describePlan(&plan); !ok || got != "node 1: 1 frozen" {
		t.Errorf("%q, %v", got, ok)
	}
}

// A task that was suspended for MaxSuspended before is no victim, or the last one for a reservation that is due. How long
// after the beginning of time one was placed does not matter.
func TestMaxSuspendedProtects(t *testing.T) {
	const s, limit = time.Second, time.Minute
	for what, c := range map[string]struct {
		suspended time.Duration // of the newer of two tasks; negative: never
		limit     time.Duration
		want      string // also for a reservation that is due
	}{
		"for less":      {limit - 1, limit, "node 0: 2 frozen"},
		"for just that": {limit, limit, "node 0: 1 frozen"},
		"without limit": {2 * limit, 0, "node 0: 2 frozen"},
		"never":         {-1, limit, "node 0: 2 frozen"},
	} {
		w := newWorld(t, schedtest.R(2, 8, 10))
		w.Advance(2 * limit)
		startTask(w, 0, schedtest.R(1, 2, 1), 0)
		w.Advance(s)
		startTask(w, 0, schedtest.R(1, 2, 1), 0)
		if c.suspended >= 0 {
			a := w.Attempts()[1]
			apply := func(act scheduler.Action) {
				if err := w.State.Apply(&act, w.Now); err != nil {
					t.Fatal(err)
				}
			}
			suspend := a.Act(scheduler.ActSuspend)
			suspend.Level = scheduler.LevelFrozen
			apply(suspend)
			if err := w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelFrozen, scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}, w.Now); err != nil {
				t.Fatal(err)
			}
			w.Advance(c.suspended)
			apply(a.Act(scheduler.ActResume))
			if err := w.State.Events().AttemptResumed(a.ID, a.Run, w.Now); err != nil {
				t.Fatal(err)
			}
		}
		one, both := waitingStage(w, schedtest.R(1, 1, 1)), waitingStage(w, schedtest.R(2, 1, 1))
		for _, due := range []bool{false, true} {
			p := newPreemptor(Preemptor{Mode: Suspend, MaxSuspended: c.limit, ForDueReservation: due})
			plan, ok := p.FindVictims(w.State, one, w.Now)
			if got := describePlan(&plan); !ok || got != c.want {
				t.Errorf("%s, due %v: %q (%v), want %q", what, due, got, ok, c.want)
			}
			protected := c.want != "node 0: 2 frozen" && !due
			if plan, ok := p.FindVictims(w.State, both, w.Now); ok == protected || len(plan.Victims) != map[bool]int{false: 2, true: 0}[protected] {
				t.Errorf("%s, due %v: both %v, victims %q", what, due, ok, describePlan(&plan))
			}
		}
	}
}

// The search begins at a node that depends on the job and goes round all nodes: the only victim is found wherever it runs.
// With very many nodes it ends after enoughFirstGroup of them.
func TestSearchOfManyNodes(t *testing.T) {
	full := func(n int) *schedtest.World {
		capacities := make([]scheduler.Resources, n)
		for i := range capacities {
			capacities[i] = schedtest.R(1, 4, 10)
		}
		return newWorld(t, capacities...)
	}
	const nodes = enoughFirstGroup + 10
	for _, only := range []scheduler.NodeID{0, nodes / 2, nodes - 1} {
		w := full(nodes)
		busy := map[scheduler.JobID]bool{}
		for i := range scheduler.NodeID(nodes) {
			if id := startTask(w, i, schedtest.R(1, 1, 1), 0); i != only {
				busy[id] = true
			}
		}
		p := newPreemptor(Preemptor{Mode: Suspend, IsProtected: func(j *scheduler.Job) bool { return busy[j.Spec.ID] }})
		for range 5 {
			if plan, ok := p.FindVictims(w.State, waitingStage(w, schedtest.R(1, 1, 1)), w.Now); !ok || plan.Node != only {
				t.Errorf("the only victim is on node %d: %q, %v", only, describePlan(&plan), ok)
			}
		}
	}
	w := full(4 * enoughFirstGroup)
	for i := range w.State.Nodes() { // the best victim is the newest, on the last node that is looked at
		startTask(w, scheduler.NodeID(i), schedtest.R(1, 1, 1), 0)
		w.Advance(time.Second)
	}
	found := map[scheduler.NodeID]bool{}
	for range 20 {
		p := newPreemptor(Preemptor{Mode: Suspend})
		plan, _ := p.FindVictims(w.State, waitingStage(w, schedtest.R(1, 1, 1)), w.Now)
		found[plan.Node] = true
	}
	if len(found) < 5 {
		t.Errorf("20 jobs preempt on %d nodes alone", len(found))
	}
}

// A task waits for the next end only where a disk then has its I/O and its space (PDSonQueue Alg. 5 line 20, on nodes).
func TestCanWaitNeedsADisk(t *testing.T) {
	for what, c := range map[string]struct {
		io, space int64
		want      bool
	}{
		"its disk has both":           {6, 100, true},
		"what the other disk has":     {9, 900, true},
		"no disk has so much I/O":     {11, 100, false},
		"no disk has so much space":   {6, 1100, false},
		"both, but on no single disk": {9, 1000, false},
	} {
		w := schedtest.New(t).AddTenants("t")
		n := schedtest.NodeSpec(0, "/r1", schedtest.R(2, 8, 18))
		n.Disks = []scheduler.Disk{{Name: "a", IO: 8 * schedtest.MiB, Space: 1000 * schedtest.GiB}, {Name: "b", IO: 10 * schedtest.MiB, Space: 900 * schedtest.GiB}}
		if err := w.State.Events().AddNode(n); err != nil {
			t.Fatal(err)
		}
		startTask(w, 0, schedtest.R(2, 1, 2), 10*time.Second)
		g := w.State.Job(w.Submit("t", 1, schedtest.R(1, 1, float64(c.io)), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) {
			g.Disk = c.space * schedtest.GiB
		})).Stages[0]
		p := newPreemptor(Preemptor{Mode: Suspend})
		if got, until := p.CanWait(w.State, g, w.Now.Add(10*time.Second), w.Now); got != c.want || got && until != w.Now.Add(10*time.Second) {
			t.Errorf("%s: %v until %d, want %v", what, got, until, c.want)
		}
	}
}
