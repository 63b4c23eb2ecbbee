package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// newSpeculationWorld returns a world with a stage of four tasks of which three are
// done after 10 s.
func newSpeculationWorld(t *testing.T, nodes int) (*schedtest.World, scheduler.JobID) {
	w := schedtest.New(t).AddNodes(nodes, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 4, schedtest.R(1, 1, 1))
	for i := range int32(4) {
		w.Place(scheduler.TaskID{Job: id, Index: i}, 0)
	}
	w.Start().Advance(10 * time.Second)
	for _, a := range w.Attempts()[:3] {
		w.End(a, scheduler.OutcomeSucceeded)
	}
	return w, id
}

// A task gets a second attempt once it has run twice as long as its stage's done
// tasks, not earlier, on another node, and only one.
func TestSlowTaskGetsSecondAttempt(t *testing.T) {
	w, id := newSpeculationWorld(t, 2)
	newPolicy := func() scheduler.Policy { return mustNew(t, "fifo", map[string]string{"speculate": "2"}) }
	p := newPolicy()
	if d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100); len(d.Actions) != 0 || d.Wake != w.Now.Add(10*time.Second) {
		t.Fatalf("at the mean: %s, wake %v", d.String(), d.Wake)
	}
	w.Advance(10 * time.Second)
	d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	if len(d.Actions) != 1 || !d.Actions[0].Speculative || d.Actions[0].Node != 1 || d.Actions[0].Attempt != 2 || d.Actions[0].Task.Index != 3 {
		t.Fatalf("at twice the mean: %s", d.String())
	}
	w.Start().Advance(time.Hour)
	if d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100); len(d.Actions) != 0 {
		t.Errorf("a third attempt: %s", d.String())
	}
	for _, a := range w.Attempts() {
		if a.Speculative {
			w.End(a, scheduler.OutcomeSucceeded)
		}
	}
	if g := w.State.Stage(scheduler.StageID{Job: id}); g.Done != 4 {
		t.Errorf("%d tasks done after the second attempt won", g.Done)
	}
}

// A task of which both attempts were suspended goes on, under every policy: nothing else may wait for it.
func TestOneOfTwoSuspendedAttemptsResumes(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			w, id := newSpeculationWorld(t, 2)
			task := scheduler.TaskID{Job: id, Index: 3}
			g := w.State.Stage(task.StageID())
			second := w.State.Attempts().PlaceAction(g, task.Index, 1, 0)
			second.Attempt, second.Speculative = 2, true
			apply := func(act scheduler.Action) {
				t.Helper()
				if err := w.State.Apply(&act, w.Now); err != nil {
					t.Fatal(err)
				}
			}
			apply(second)
			w.Start().Advance(time.Second)
			both := w.Attempts()
			for _, a := range both {
				act := a.Act(scheduler.ActSuspend)
				act.Level = scheduler.LevelCheckpointed
				apply(act)
				if err := w.State.Events().AttemptSuspended(a.ID, a.Run, act.Level, scheduler.Footprint{Image: schedtest.GiB}, w.Now); err != nil {
					t.Fatal(err)
				}
			}
			if len(both) != 2 {
				t.Fatalf("%d attempts are live, want two of one task", len(both))
			}
			newPolicy := func() scheduler.Policy { return mustNew(t, info.Name, map[string]string{"speculate": "1.5"}) }
			p := newPolicy()
			for range 3 {
				d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
				for _, act := range d.Actions {
					if act.Kind == scheduler.ActResume || act.Kind == scheduler.ActMigrate {
						return
					}
				}
				w.Advance(max(time.Second, d.Wake.Sub(w.Now)))
			}
			t.Error("no attempt is resumed")
		})
	}
}

func TestNoSecondAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		nodes  int
		params map[string]string
		change func(*schedtest.World, scheduler.JobID)
	}{
		"no other node":        {1, map[string]string{"speculate": "2"}, nil},
		"speculation disabled": {2, nil, nil},
		"capacity reserved": {2, map[string]string{"speculate": "2"}, func(w *schedtest.World, id scheduler.JobID) {
			r := scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: 1, Kind: scheduler.ReserveHead, Job: id, Stage: -1, Task: -1, Node: 1,
				Demand: schedtest.R(1, 1, 1), Start: w.Now.Add(time.Hour), End: w.Now.Add(2 * time.Hour)}}
			if err := w.State.Apply(&r, w.Now); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, id := newSpeculationWorld(t, c.nodes)
			w.Advance(time.Hour)
			if c.change != nil {
				c.change(w, id)
			}
			if d := mustNew(t, "fifo", c.params).Decide(w.State, w.Now, 100); len(d.Actions) != 0 {
				t.Error(d.String())
			}
		})
	}
}

// When output that a running stage reads is lost, the stage is closed until the
// output exists again; a second attempt could not read it and is not started.
func TestNoSecondAttemptInReclosedStage(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(8, 16, 100)).AddTenants("a")
	id := w.SubmitStages("a", []scheduler.StageSpec{
		{Name: "first", Kind: scheduler.KindMap, Tasks: 1, Demand: schedtest.R(1, 1, 1)},
		{Name: "second", Kind: scheduler.KindReduce, Tasks: 4, Demand: schedtest.R(1, 1, 1), After: []int32{0}}})
	first := scheduler.TaskID{Job: id}
	w.Place(first, 0)
	w.Start().Advance(time.Second).End(w.Attempts()[0], scheduler.OutcomeSucceeded)
	for i := range int32(4) {
		w.Place(scheduler.TaskID{Job: id, Stage: 1, Index: i}, 0)
	}
	w.Start().Advance(10 * time.Second)
	for _, a := range w.Attempts()[:3] {
		w.End(a, scheduler.OutcomeSucceeded)
	}
	if err := w.State.Events().OutputLost(first); err != nil {
		t.Fatal(err)
	}
	w.Advance(time.Hour)
	newPolicy := func() scheduler.Policy { return mustNew(t, "fifo", map[string]string{"speculate": "2"}) }
	d := policytest.Round(t, w.State, newPolicy(), newPolicy, w.Now, 100)
	if len(d.Actions) != 1 || d.Actions[0].Task != first || d.Actions[0].Speculative {
		t.Errorf("%s: want the task whose output was lost to start, and nothing else", d.String())
	}
}

func TestSpeculatingPoliciesConform(t *testing.T) {
	for _, name := range []string{"fifo", "fair", "las_mq", "conservative", "3dsf"} {
		t.Run(name, func(t *testing.T) {
			policytest.Run(t, func() scheduler.Policy { return mustNew(t, name, map[string]string{"speculate": "1.1"}) })
		})
	}
}
