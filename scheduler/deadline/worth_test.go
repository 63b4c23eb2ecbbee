package deadline

import (
	"fmt"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// worth is machines on which freezing takes no time, swapping 8 s a GiB and 4 s
// back, a checkpoint 16 s a GiB and 16 s back.
func worth(t *testing.T, capacities ...scheduler.Resources) *schedtest.World {
	w := schedtest.New(t).AddTenants("t")
	for i, c := range capacities {
		n := schedtest.NodeSpec(scheduler.NodeID(i), "/r1", c)
		n.Speeds = scheduler.SuspendSpeed{SwapPerS: schedtest.GiB / 8, SwapBackPerS: schedtest.GiB / 4, CheckpointPerS: schedtest.GiB / 16, RestorePerS: schedtest.GiB / 16}
		if err := w.State.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// runs starts a task of a job of its own on a node; it is predicted to take so
// long (0: nobody knows).
func runs(w *schedtest.World, node scheduler.NodeID, d scheduler.Resources, takes time.Duration) scheduler.JobID {
	id := w.Submit("t", 1, d, func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = takes })
	w.Place(scheduler.TaskID{Job: id}, node)
	w.Start()
	return id
}

func asks(w *schedtest.World, d scheduler.Resources) *scheduler.Stage {
	return w.State.Job(w.Submit("t", 1, d)).Stages[0]
}

func ways(p *Plan) string {
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

func TestHowRoomIsMade(t *testing.T) {
	const s = time.Second
	for what, c := range map[string]struct {
		mode        Mode
		machines    []scheduler.Resources
		run         func(w *schedtest.World)
		need        scheduler.Resources
		want        string
		takes, cost time.Duration
	}{
		"only CPU lacks: the newest is frozen": {Suspend, []scheduler.Resources{schedtest.R(2, 8, 10)}, func(w *schedtest.World) {
			runs(w, 0, schedtest.R(1, 2, 1), 0)
			w.Pass(s)
			runs(w, 0, schedtest.R(1, 2, 1), 0)
		}, schedtest.R(1, 2, 1), "node 0: 2 frozen", 0, 0},
		"memory lacks for one of two: the second is frozen": {Suspend, []scheduler.Resources{schedtest.R(2, 5, 10)}, func(w *schedtest.World) {
			runs(w, 0, schedtest.R(1, 2, 1), 0)
			w.Pass(s)
			runs(w, 0, schedtest.R(1, 2, 1), 0)
		}, schedtest.R(2, 3, 1), "node 0: 2 swapped 1 frozen", 16 * s, 24 * s},
		"another machine has the memory: nothing is moved": {Suspend, []scheduler.Resources{schedtest.R(2, 4, 10), schedtest.R(2, 8, 10)}, func(w *schedtest.World) {
			runs(w, 0, schedtest.R(2, 4, 1), 0)
			runs(w, 1, schedtest.R(1, 2, 1), 0)
			runs(w, 1, schedtest.R(1, 2, 1), 0)
		}, schedtest.R(2, 3, 1), "node 1: 3 frozen 2 frozen", 0, 0},
		"more memory than swap holds: it is checkpointed": {Suspend, []scheduler.Resources{schedtest.R(2, 100, 10)}, func(w *schedtest.World) {
			runs(w, 0, schedtest.R(2, 80, 1), 0)
		}, schedtest.R(1, 50, 1), "node 0: 1 checkpointed", 1280 * s, 2560 * s},
		"it has run for less than its memory takes: it is killed": {Cheapest, []scheduler.Resources{schedtest.R(2, 4, 10)}, func(w *schedtest.World) {
			runs(w, 0, schedtest.R(2, 4, 1), 0)
			w.Pass(47 * s)
		}, schedtest.R(1, 1, 1), "node 0: 1 killed", 0, 47 * s},
		"it has run for longer: it is swapped": {Cheapest, []scheduler.Resources{schedtest.R(2, 4, 10)}, func(w *schedtest.World) {
			runs(w, 0, schedtest.R(2, 4, 1), 0)
			w.Pass(49 * s)
		}, schedtest.R(1, 1, 1), "node 0: 1 swapped", 32 * s, 48 * s},
		"freezing is enough: nothing is killed": {Cheapest, []scheduler.Resources{schedtest.R(2, 4, 10)}, func(w *schedtest.World) {
			runs(w, 0, schedtest.R(2, 1, 1), 0)
		}, schedtest.R(1, 1, 1), "node 0: 1 frozen", 0, 0},
	} {
		t.Run(what, func(t *testing.T) {
			w := worth(t, c.machines...)
			c.run(w)
			p := Preemptor{Mode: c.mode}
			plan, ok := p.Plan(w.State, asks(w, c.need), w.Now)
			if got := ways(&plan); !ok || got != c.want || plan.Takes != c.takes || plan.Cost != c.cost {
				t.Errorf("%q (%v) takes %v and costs %v, want %q, %v, %v", got, ok, plan.Takes, plan.Cost, c.want, c.takes, c.cost)
			}
		})
	}
}

// A machine of 4 GiB is full of memory with a task of 2 GiB that moves out in 16 s
// and others that end by themselves.
func TestWorth(t *testing.T) {
	const s = time.Second
	for what, c := range map[string]struct {
		ends   []time.Duration // of tasks of 1 GiB and no CPU to speak of
		latest time.Duration
		worth  bool
		until  time.Duration
	}{
		"waiting is in time":                            {[]time.Duration{20 * s, 30 * s}, 30 * s, false, 30 * s},
		"waiting is too late, moving in time":           {[]time.Duration{20 * s, 30 * s}, 29 * s, true, 0},
		"both are too late, moving comes sooner":        {[]time.Duration{20 * s, 30 * s}, 10 * s, true, 0},
		"both are too late, waiting comes sooner":       {[]time.Duration{10 * s, 14 * s}, 10 * s, false, 14 * s},
		"too late already, and nobody knows what ends":  {[]time.Duration{0, 0}, -s, true, 0},
		"in time by moving, and nobody knows what ends": {[]time.Duration{0, 0}, 16 * s, true, 0},
		"what is known to end is not enough":            {[]time.Duration{20 * s, 0}, 19 * s, true, 0},
	} {
		t.Run(what, func(t *testing.T) {
			w := worth(t, schedtest.R(2, 4, 10))
			for _, e := range c.ends {
				runs(w, 0, schedtest.R(0.1, 1, 1), e)
			}
			runs(w, 0, schedtest.R(1.8, 2, 1), 0)
			g := asks(w, schedtest.R(1, 2, 1))
			p := Preemptor{Mode: Suspend}
			plan, ok := p.Plan(w.State, g, w.Now)
			if !ok || plan.Takes != 16*s {
				t.Fatalf("%s takes %v", ways(&plan), plan.Takes)
			}
			worth, until := p.Worth(w.State, g, &plan, w.Now.Add(c.latest), w.Now)
			if worth != c.worth || (!worth && until.Sub(w.Now) != c.until) {
				t.Errorf("%v until %v, want %v until %v", worth, until.Sub(w.Now), c.worth, c.until)
			}
		})
	}
}
