package policies

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// acceptedWorld has projects, regular jobs and jobs whose deadline was accepted at
// submission. Tasks of projects end within their bound, others exactly as predicted;
// a run time depends on nothing but the task.
type acceptedWorld struct {
	*schedtest.World
	useFullBound bool // tasks of projects run for their whole bound
	seed         uint64
	r            *rand.Rand
	policy       scheduler.Policy
	projects     scheduler.ProjectID
	ended        map[scheduler.JobID]scheduler.Time
	violations   int
}

func newAcceptedWorld(t testing.TB, seed uint64) *acceptedWorld {
	w := schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 100)).AddTenants("a")
	return &acceptedWorld{World: w, seed: seed, r: rand.New(rand.NewPCG(seed, 5)), policy: mustNew(t, "3dsf", nil), ended: map[scheduler.JobID]scheduler.Time{}}
}

func (w *acceptedWorld) demand() scheduler.Resources {
	return schedtest.R(float64(1+w.r.IntN(4)), float64(1+w.r.IntN(6)), float64(1+w.r.IntN(30)))
}

// submitProject submits a project of one job.
func (w *acceptedWorld) submitProject() {
	w.projects++
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: w.projects, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		w.Fatalf("%v", err)
	}
	w.Submit("a", int32(1+w.r.IntN(6)), w.demand(), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Project, j.Bound = w.projects, time.Duration(5+w.r.IntN(60))*time.Second
	})
}

func (w *acceptedWorld) submitRegular() {
	w.Submit("a", int32(1+w.r.IntN(6)), w.demand(), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) {
		g.Estimate = time.Duration(5+w.r.IntN(60)) * time.Second
	})
}

// submitDeadline submits a job of one or two stages with an accepted deadline.
func (w *acceptedWorld) submitDeadline() scheduler.JobID {
	run := time.Duration(4+w.r.IntN(20)) * time.Second
	stages := []scheduler.StageSpec{{Name: "first", Kind: scheduler.KindGroup, Tasks: int32(1 + w.r.IntN(5)), Demand: w.demand(), Estimate: run}}
	if w.r.IntN(2) == 0 {
		stages = append(stages, scheduler.StageSpec{Name: "then", Kind: scheduler.KindGroup, After: []int32{0}, Tasks: int32(1 + w.r.IntN(3)), Demand: w.demand(),
			Estimate: run})
	}
	within := run*time.Duration(len(stages)+1+w.r.IntN(8)) + 5*time.Second
	return w.SubmitStages("a", stages, func(j *scheduler.JobSpec) { j.Deadline, j.Accepted = j.Submitted.Add(within), true })
}

// advanceSecond runs a cycle and advances the clock by a second.
func (w *acceptedWorld) advanceSecond() {
	d, err := scheduler.Cycle(w.State, w.policy, w.Now, 1000, scheduler.AcceptAll)
	if err != nil {
		w.Fatalf("seed %d: %v", w.seed, err)
	}
	for i := range d.PolicyStates {
		if d.PolicyStates[i].Kind == scheduler.ViolatedState {
			w.violations++
		}
	}
	w.Advance(time.Second)
	for _, a := range w.Attempts() {
		w.advanceAttempt(a)
	}
	for j := range w.State.Jobs() {
		if j.Complete() && j.Live == 0 {
			w.ended[j.Spec.ID] = w.Now
			if err := w.State.Events().EndJob(j.Spec.ID, scheduler.JobSucceeded, w.Now); err != nil {
				w.Fatalf("%v", err)
			}
		}
	}
	for id := range w.projects {
		if p := w.State.Project(id + 1); p != nil && len(p.Jobs) == 0 {
			if err := w.State.Events().DropProject(id + 1); err != nil {
				w.Fatalf("%v", err)
			}
		}
	}
}

func (w *acceptedWorld) advanceAttempt(a *scheduler.Attempt) {
	var err error
	switch a.Phase {
	case scheduler.AttemptStarting:
		err = w.State.Events().AttemptStarted(a.ID, a.Run, w.Now)
	case scheduler.AttemptSuspending:
		has := scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}
		if a.Target == scheduler.LevelSwapped {
			has.Swap = has.Memory
		}
		err = w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, has, w.Now)
	case scheduler.AttemptResuming:
		err = w.State.Events().AttemptResumed(a.ID, a.Run, w.Now)
	case scheduler.AttemptKilling:
		err = w.State.Events().AttemptEnded(a.ID, a.Run, scheduler.OutcomeKilled, w.Now)
	}
	if err != nil {
		w.Fatalf("%v", err)
	}
	if a.Phase == scheduler.AttemptRunning && a.RanFor(w.Now) >= w.runTime(a) {
		w.End(a, scheduler.OutcomeSucceeded)
	}
}

// runTime returns how long a task runs: as predicted less the second it takes to
// start, or at least half of its bound.
func (w *acceptedWorld) runTime(a *scheduler.Attempt) time.Duration {
	j := w.State.StageOf(a).Job
	if j.Spec.Bound == 0 {
		return a.Estimate - time.Second
	}
	r := rand.New(rand.NewPCG(w.seed, uint64(a.ID.Job)<<20|uint64(a.ID.Index)))
	if w.useFullBound {
		return j.Spec.Bound - time.Second
	}
	return time.Duration((0.5 + 0.5*r.Float64()) * float64(j.Spec.Bound-time.Second))
}

// simulateAccepted simulates a world: regular jobs and projects, then jobs with an
// accepted deadline, then, if others, projects. It returns the deadline of each
// accepted job.
func simulateAccepted(t testing.TB, seed uint64, whole, others bool, count int) (*acceptedWorld, map[scheduler.JobID]scheduler.Time) {
	w := newAcceptedWorld(t, seed)
	w.useFullBound = whole
	for range 5 + w.r.IntN(30) {
		switch w.r.IntN(8) {
		case 0:
			w.submitProject()
		case 1:
			w.submitRegular()
		}
		w.advanceSecond()
	}
	deadlines := map[scheduler.JobID]scheduler.Time{}
	for range count {
		id := w.submitDeadline()
		deadlines[id] = w.State.Job(id).Spec.Deadline
	}
	w.advanceSecond()
	for range 120 {
		if come := w.r.IntN(5) == 0; come && others {
			w.submitProject()
		}
		w.advanceSecond()
	}
	for n := 0; n < 300 && w.State.JobCount() > 0; n++ {
		w.advanceSecond()
	}
	return w, deadlines
}

// An accepted deadline is durable: one that is met without later work is also met
// when projects with bounds arrive, and no guarantee is violated for it. Without
// shadow reservations, 27 of 31 and 67 of 72 were missed with seed 1; with them
// about 5 and 9 of a hundred are. The seed differs in each run, so the limits leave
// room for chance.
func TestAcceptedDeadlinesAreDurable(t *testing.T) {
	first := seed.New(t)
	worlds := soakRounds(60)
	if os.Getenv("DROVER_SOAK") != "" {
		worlds = 1000
	}
	for what, c := range map[string]struct {
		whole bool
		count int
		most  float64 // largest part that may be missed
	}{
		"one job, projects run to their bounds": {true, 1, 0.3},
		"two jobs, projects end early":          {false, 2, 0.3},
	} {
		alone, missed := 0, 0
		for i := range worlds {
			seed := first + uint64(i)
			a, deadlines := simulateAccepted(t, seed, c.whole, false, c.count)
			b, _ := simulateAccepted(t, seed, c.whole, true, c.count)
			for id, by := range deadlines {
				if at, done := a.ended[id]; !done || at > by {
					continue
				}
				alone++
				if at, done := b.ended[id]; !done || at > by {
					missed++
					t.Logf("%s: seed %d: job %d ended at %d; deadline %d, alone at %d", what, seed, id, at, by, a.ended[id])
				}
			}
			if b.violations > a.violations {
				t.Errorf("%s: seed %d: %d guarantees violated, %d without later projects", what, seed, b.violations, a.violations)
			}
		}
		t.Logf("%s: %d deadlines met alone, %d of them missed", what, alone, missed)
		if alone >= 20 && float64(missed) > c.most*float64(alone) {
			t.Errorf("%s: %d of %d deadlines missed", what, missed, alone)
		}
	}
}

// A node is busy for 10 s, and a job of 10 s with a deadline accepted for 30 s
// waits. A later guarantee for the whole node begins behind that job or is refused,
// and does not keep it off the node although it has no bound.
func TestLaterGuaranteeRespectsAcceptedDeadline(t *testing.T) {
	for what, c := range map[string]struct {
		guarantees string
		deadline   time.Duration // of the later job, 0 for a project
		departs    time.Duration
		refused    bool
	}{
		"a project":                            {"true", 0, 90 * time.Second, false},
		"a deadline feasible behind the job":   {"true", 90 * time.Second, 90 * time.Second, false},
		"a deadline infeasible behind the job": {"true", 80 * time.Second, 90 * time.Second, true},
		"no guarantees":                        {"false", 0, 0, false},
	} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
		maker := func() scheduler.Policy {
			return mustNew(t, "3dsf", map[string]string{"margin": "0s", "guarantees": c.guarantees})
		}
		p, all := maker(), schedtest.R(4, 8, 50)
		busy := w.Submit("a", 1, all, func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			j.Bound, g.Estimate = 10*time.Second, 10*time.Second
		})
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		w.Start()
		first := w.Submit("a", 1, all, func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			j.Deadline, j.Accepted, g.Estimate = j.Submitted.Add(30*time.Second), true, 10*time.Second
		})
		key := scheduler.PolicyStateKey{Kind: scheduler.GuaranteeState, Project: 1}
		if c.deadline == 0 {
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
				t.Fatal(err)
			}
		}
		later := w.Submit("a", 1, all, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
			if j.Bound = time.Minute; c.deadline == 0 {
				j.Project = 1
			} else {
				j.Deadline = j.Submitted.Add(c.deadline)
			}
		})
		if c.deadline > 0 {
			key = scheduler.PolicyStateKey{Kind: scheduler.AcceptedState, Job: later}
		}
		if c.refused {
			key.Kind = scheduler.RefusedState
		}
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		if n, ok := w.State.PolicyState(key); ok != (c.departs > 0) || (ok && n.At != w.Now.Add(c.departs)) {
			t.Errorf("%s: guaranteed %v, for %v, want %v", what, ok, n.At.Sub(w.Now), c.departs)
		}
		w.Advance(10 * time.Second)
		for a := range w.State.Attempts().In(w.State.Job(busy).Stages[0]) {
			w.End(a, scheduler.OutcomeSucceeded)
		}
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		if w.State.Job(first).Live != 1 {
			t.Errorf("%s: the accepted job does not run although capacity is free", what)
		}
	}
}

// What runs beside the first stage of an accepted job (due by 25 s, 10 s in total)
// ends early. A guaranteed task that would end before the accepted job must start
// uses the capacity before its reservation; a longer one waits.
func TestEarlyStartRespectsAcceptedDeadline(t *testing.T) {
	for bound, early := range map[time.Duration]bool{5 * time.Second: true, 20 * time.Second: false} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
		maker := func() scheduler.Policy {
			return mustNew(t, "3dsf", map[string]string{"margin": "0s", "compress_every": "1h"})
		}
		p := maker()
		end := func(j scheduler.JobID, stage int) {
			for a := range w.State.Attempts().In(w.State.Job(j).Stages[stage]) {
				w.End(a, scheduler.OutcomeSucceeded)
			}
		}
		project := func(id scheduler.ProjectID, bound time.Duration) scheduler.JobID {
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: id, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
				t.Fatal(err)
			}
			return w.Submit("a", 1, schedtest.R(3, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = id, bound })
		}
		busy := project(1, 10*time.Second)
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		deadline := w.SubmitStages("a", []scheduler.StageSpec{
			{Name: "first", Kind: scheduler.KindGroup, Tasks: 1, Demand: schedtest.R(1, 1, 1), Estimate: 5 * time.Second},
			{Name: "then", Kind: scheduler.KindGroup, After: []int32{0}, Tasks: 1, Demand: schedtest.R(4, 4, 1), Estimate: 5 * time.Second},
		}, func(j *scheduler.JobSpec) { j.Deadline, j.Accepted = j.Submitted.Add(25*time.Second), true })
		later := project(2, bound)
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		w.Start().Advance(4 * time.Second)
		end(busy, 0)
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		if got := w.State.Job(later).Live == 1; got != early {
			t.Errorf("bound %v: started early %v", bound, got)
		}
		if early {
			continue
		}
		w.Start().Advance(time.Second)
		end(deadline, 0)
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		if w.State.Job(deadline).Live != 1 {
			t.Errorf("bound %v: the accepted job does not run when its second stage is ready", bound)
		}
	}
}
