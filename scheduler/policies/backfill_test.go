package policies

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// simulateRigid runs rigid one-task jobs of q cores through a policy on one node of
// 100 cores, cycle by cycle, and returns their starts.
func simulateRigid(t *testing.T, name string, params map[string]string, jobs []rigidJob) []scheduler.Time {
	t.Helper()
	p, err := New(name, params)
	if err != nil {
		t.Fatal(err)
	}
	w := schedtest.New(t).AddNodes(1, schedtest.R(100, 100, 100)).AddTenants("a")
	starts := make([]scheduler.Time, len(jobs))
	ends := map[scheduler.JobID]scheduler.Time{}
	next, wake := 0, scheduler.Never
	for next < len(jobs) || len(ends) > 0 || w.State.JobCount() > 0 {
		now := wake
		if next < len(jobs) {
			now = min(now, jobs[next].submit)
		}
		for _, e := range ends {
			now = min(now, e)
		}
		w.Now = now
		for ; next < len(jobs) && jobs[next].submit <= now; next++ {
			w.Submit("a", 1, scheduler.Resources{jobs[next].need * 1000, 1, 0}, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = jobs[next].bound })
		}
		for _, a := range w.Attempts() {
			if id := a.ID.Job; ends[id] != 0 && ends[id] <= now {
				w.End(a, scheduler.OutcomeSucceeded)
				if err := w.State.Events().EndJob(id); err != nil {
					t.Fatal(err)
				}
				delete(ends, id)
			}
		}
		d := w.Cycle(p)
		for i := range d.Actions {
			if a := &d.Actions[i]; a.Kind == scheduler.ActPlace {
				starts[a.Task.Job-1] = now
				ends[a.Task.Job] = now.Add(jobs[a.Task.Job-1].runTime)
			}
		}
		w.Start()
		if d = w.Cycle(p); !d.Empty() {
			t.Fatalf("%s decides more in a second cycle at %d: %s", name, now, d.String())
		}
		if wake = d.Wake; wake == 0 {
			wake = scheduler.Never
		}
	}
	return starts
}

// Strict two-tier backfilling with one job a project and one resource is
// conservative backfilling, and easy is EASY: on random traces the policies start
// every job when a simulation does that knows nothing but a list of reservations.
func TestBackfillingMatchesAPlainSimulation(t *testing.T) {
	first := seed.New(t)
	for i := range uint64(6) {
		seed := first + i
		r := rand.New(rand.NewPCG(seed, 26))
		var jobs []rigidJob
		at := scheduler.Time(time.Second)
		for range 120 {
			at = at.Add(time.Duration(1 + r.Int64N(int64(30*time.Second))))
			bound := time.Duration(1+r.IntN(600)) * time.Second
			jobs = append(jobs, rigidJob{submit: at, bound: bound, runTime: 1 + time.Duration(r.Int64N(int64(bound)-1)), need: 1 + int64(r.IntN(60))})
		}
		for name, c := range map[string]struct {
			easy   bool
			policy string
			params map[string]string
		}{
			"easy":                   {true, "easy", nil},
			"multifactor, age alone": {true, "multifactor", map[string]string{"fair_share_weight": "0", "deadline_weight": "0"}},
			"conservative":           {false, "conservative", nil},
			"two-tier, strict":       {false, "two_tier", map[string]string{"variant": "2tsb"}},
			"two-tier, no priority":  {false, "two_tier", map[string]string{"variant": "2tpb"}},
		} {
			want := startsUnder(c.easy, 100, jobs)
			if got := simulateRigid(t, c.policy, c.params, jobs); !slices.Equal(got, want) {
				t.Errorf("%s, seed %d: starts %v, want %v", name, seed, got, want)
			}
		}
	}
}

// Regression: two nodes alternated for ever, because a task suspended on a draining
// node was planned there, lost with the node and planned on the other.
func TestSuspendedTaskResumesOnDrainingNode(t *testing.T) {
	c := schedtest.NewChaos(t, 0x4d9a90428)
	maker := func() scheduler.Policy { return mustNew(t, "conservative", nil) }
	warm := maker()
	for range 20 {
		for range 1 + c.R.IntN(4) {
			c.Step()
		}
		if c.R.IntN(3) == 0 {
			for _, a := range c.Attempts() {
				if a.Phase != scheduler.AttemptRunning || c.State.StageOf(a).Job.IsAccepted() || c.R.IntN(4) > 0 {
					continue
				}
				act := scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: scheduler.LevelFrozen}
				if err := c.State.Apply(&act, c.Now); err != nil {
					t.Fatal(err)
				}
			}
		}
		limit := 10_000
		if c.R.IntN(4) == 0 {
			limit = 1 + c.R.IntN(3)
		}
		policytest.Round(t, c.State, warm, maker, c.Now, limit)
	}
}

// A job without a bound is planned by an estimate. A task past it stays, and is
// suspended only where its capacity is guaranteed to a job with a bound.
func TestWrongEstimateOverrunsOnlyWhenBlocking(t *testing.T) {
	for name, c := range map[string]struct {
		cores     float64       // of the node; each task takes 4
		bound     time.Duration // of the second job
		preempted bool
	}{
		"no job has a bound":               {4, 0, false},
		"capacity is guaranteed to others": {4, 10 * time.Second, true},
		"guarantees leave enough":          {8, 10 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			maker := func() scheduler.Policy { return mustNew(t, "conservative", nil) }
			p := maker()
			w := schedtest.New(t).AddNodes(1, schedtest.R(c.cores, 16, 100)).AddTenants("a")
			w.Submit("a", 1, schedtest.R(4, 1, 0), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 5 * time.Second })
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			w.Start()
			w.Submit("a", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = c.bound })
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			w.Start().Advance(6 * time.Second)
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			first := w.Attempts()[0]
			if preempted := first.Phase != scheduler.AttemptRunning; preempted != c.preempted {
				t.Fatalf("past its estimate the task is %v", first.Phase)
			}
			if c.preempted {
				return
			}
			w.End(first, scheduler.OutcomeSucceeded)
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			if all := w.Attempts(); len(all) != 1 || all[0].ID.Job != 2 {
				t.Errorf("after it ended, %v run", all)
			}
		})
	}
}

// A task past its bound that could only be killed continues, since it would begin again and be
// killed again, until its capacity is guaranteed to others.
func TestOverrunIsKilledOnlyWhenBlocking(t *testing.T) {
	for _, name := range []string{"conservative", "two_tier"} {
		maker := func() scheduler.Policy { return mustNew(t, name, nil) }
		p := maker()
		w := schedtest.New(t).AddTenants("a")
		spec := schedtest.NodeSpec(0, "/r1", schedtest.R(4, 16, 100))
		spec.Levels = scheduler.Levels(scheduler.LevelRunning)
		if err := w.State.Events().AddNode(spec); err != nil {
			t.Fatal(err)
		}
		withBound := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 5 * time.Second }
		w.Submit("a", 1, schedtest.R(4, 1, 0), withBound)
		for range 5 {
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			if all := w.Attempts(); len(all) != 1 || all[0].ID.Attempt != 1 || all[0].Phase > scheduler.AttemptRunning {
				t.Fatalf("%s: past its bound the task does not run on", name)
			}
			w.Start().Advance(6 * time.Second)
		}
		w.Submit("a", 1, schedtest.R(4, 1, 0), withBound)
		stopped := false
		for range 10 {
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			stopped = stopped || !slices.ContainsFunc(w.Attempts(), func(a *scheduler.Attempt) bool { return a.ID.Job == 1 && a.Phase <= scheduler.AttemptRunning })
			w.Advance(6 * time.Second)
		}
		if !stopped {
			t.Errorf("%s: the task past its bound keeps another from its guarantee", name)
		}
	}
}

// An accepted deadline without a bound is planned to stay for ever only if its
// capacity may be guaranteed to others. If no job has a bound, waiting tasks are
// planned behind it.
func TestAcceptedDeadlineWithoutBoundIsPlannedByEstimate(t *testing.T) {
	for _, bound := range []time.Duration{0, 10 * time.Second} {
		maker := func() scheduler.Policy { return mustNew(t, "conservative", nil) }
		p := maker()
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 16, 100)).AddTenants("a")
		w.Submit("a", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(time.Minute), true, 5*time.Second
		})
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		w.Start()
		w.Submit("a", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		planned := w.State.Reservations().All()
		if bound > 0 {
			if len(planned) != 0 {
				t.Errorf("with a bound it is planned behind a task that may stay for ever: %v", planned[0])
			}
			continue
		}
		if len(planned) != 1 || planned[0].Start != w.Now.Add(5*time.Second) {
			t.Errorf("without bounds it is planned as %v", planned)
		}
	}
}
