package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
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

// suspend suspends a running attempt to a level, as something other than the policy may.
func suspend(w *schedtest.World, a *scheduler.Attempt, level scheduler.Level) {
	w.Helper()
	act := a.Act(scheduler.ActSuspend)
	act.Level = level
	if err := w.State.Apply(&act, w.Now); err != nil {
		w.Fatalf("%v", err)
	}
	if err := w.State.Events().AttemptSuspended(a.ID, a.Run, level, scheduler.Footprint{Image: schedtest.GiB}, w.Now); err != nil {
		w.Fatalf("%v", err)
	}
}

// A task whose attempts were both suspended resumes, under every policy: nothing else may wait for it.
func TestOneOfTwoSuspendedAttemptsResumes(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			w, id := newSpeculationWorld(t, 2)
			task := scheduler.TaskID{Job: id, Index: 3}
			g := w.State.Stage(task.StageID())
			second := w.State.Attempts().PlaceAction(g, task.Index, 1, 0)
			second.Attempt, second.Speculative = 2, true
			if err := w.State.Apply(&second, w.Now); err != nil {
				t.Fatal(err)
			}
			w.Start().Advance(time.Second)
			both := w.Attempts()
			for _, a := range both {
				suspend(w, a, scheduler.LevelCheckpointed)
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

// A task of a guaranteed project continues although another attempt at it stays suspended: its
// reservation is then no longer needed, and Check lets it be dropped.
func TestOneOfTwoSuspendedAttemptsServesItsGuarantee(t *testing.T) {
	w, job, round := newGuaranteedTask(t, 2)
	second := w.State.Attempts().PlaceAction(w.State.Stage(scheduler.StageID{Job: job}), 0, 1, 0)
	second.Attempt, second.Speculative = 2, true
	if err := w.State.Apply(&second, w.Now); err != nil {
		t.Fatal(err)
	}
	w.Start().Advance(time.Second)
	both := w.Attempts()
	if len(both) != 2 {
		t.Fatalf("%d attempts are live, want two of one task", len(both))
	}
	for _, a := range both {
		suspend(w, a, scheduler.LevelCheckpointed)
	}
	other := w.Submit("a", 1, wholeNode, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 3 * time.Second })
	running := w.Place(scheduler.TaskID{Job: other}, 0)
	w.Start()
	round()
	if v, violated := backfill.ViolationOf(w.State, 1); violated || len(w.State.Job(job).Reservations()) != 1 {
		t.Fatalf("the violation is %+v, reserved are %v; want one, and a guarantee that holds: this test proves nothing", v, w.State.Job(job).Reservations())
	}
	w.Advance(3*time.Second).End(running, scheduler.OutcomeSucceeded)
	d := round() // it fails if Check refuses the decision
	if first := w.State.Attempt(scheduler.AttemptID{TaskID: scheduler.TaskID{Job: job}, Attempt: 1}); first.Phase != scheduler.AttemptResuming {
		t.Errorf("the first attempt is %v: %s", first.Phase, d.String())
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
