package policies

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// acceptedWorld has projects, regular jobs and jobs that ask for a guarantee of their
// deadline. Tasks with a bound end within it, others exactly as predicted; a run time
// depends on nothing but the task.
type acceptedWorld struct {
	*schedtest.World
	useFullBound bool // tasks of projects run for their whole bound
	seed         uint64
	r            *rand.Rand
	policy       scheduler.Policy
	projects     scheduler.ProjectID
	ended        map[scheduler.JobID]scheduler.Time
	accepted     map[scheduler.JobID]bool // by the policy
	violations   int
}

func newAcceptedWorld(t testing.TB, seed uint64) *acceptedWorld {
	w := schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 100)).AddTenants("a")
	return &acceptedWorld{World: w, seed: seed, r: rand.New(rand.NewPCG(seed, 5)), policy: mustNew(t, "3dsf", nil), ended: map[scheduler.JobID]scheduler.Time{}, accepted: map[scheduler.JobID]bool{}}
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
		if w.projects%2 == 0 { // its deadline is accepted by its quote
			j.Deadline, j.AcceptedByQuote = j.Submitted.Add(5*j.Bound), true
		}
	})
}

func (w *acceptedWorld) submitRegular() {
	w.Submit("a", int32(1+w.r.IntN(6)), w.demand(), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) {
		g.Estimate = time.Duration(5+w.r.IntN(60)) * time.Second
	})
}

// submitGuaranteed submits a job of two to four stages that requests a guarantee of its deadline.
// Its tasks' bounds are twice their predictions.
func (w *acceptedWorld) submitGuaranteed() scheduler.JobID {
	within := 5 * time.Second
	var stages []scheduler.StageSpec
	for i := range int32(2 + w.r.IntN(3)) {
		run := time.Duration(2+w.r.IntN(10)) * time.Second
		g := scheduler.StageSpec{Name: fmt.Sprint("stage", i), Kind: scheduler.KindGroup, Tasks: int32(1 + w.r.IntN(4)), Demand: w.demand(), Estimate: run, Bound: 2 * run}
		if i > 0 {
			g.After = []int32{w.r.Int32N(i)}
		}
		stages = append(stages, g)
		within += time.Duration((1 + 2*w.r.Float64()) * float64(g.Bound))
	}
	return w.SubmitStages("a", stages, func(j *scheduler.JobSpec) { j.Deadline = j.Submitted.Add(within) })
}

// advanceSecond runs a cycle and advances the clock by a second.
func (w *acceptedWorld) advanceSecond() {
	d, err := scheduler.Cycle(w.State, w.policy, w.Now, 1000, scheduler.AcceptAll)
	if err != nil {
		w.Fatalf("seed %d: %v", w.seed, err)
	}
	for i := range d.PolicyStates {
		switch n := &d.PolicyStates[i]; n.Kind {
		case scheduler.ViolatedState:
			w.violations++
		case scheduler.AcceptedState:
			w.accepted[n.Job] = true
		}
	}
	w.Advance(time.Second)
	for _, a := range w.Attempts() {
		w.advanceAttempt(a)
	}
	for j := range w.State.Jobs() {
		if schedtest.Complete(j) && j.Live == 0 {
			w.ended[j.Spec.ID] = w.Now
			if err := w.State.Events().EndJob(j.Spec.ID); err != nil {
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
	g := w.State.StageOf(a)
	j := g.Job
	if j.Spec.Bound == 0 && g.Spec.Bound == 0 {
		return a.Estimate - time.Second
	}
	r := rand.New(rand.NewPCG(w.seed, uint64(a.ID.Job)<<20|uint64(a.ID.Stage)<<16|uint64(a.ID.Index)))
	if g.Spec.Bound > 0 {
		return time.Duration(r.Float64() * float64(g.Spec.Bound-time.Second))
	}
	if w.useFullBound {
		return j.Spec.Bound - time.Second
	}
	return time.Duration((0.5 + 0.5*r.Float64()) * float64(j.Spec.Bound-time.Second))
}

// simulate runs regular jobs and projects, then jobs that ask for a guarantee of their
// deadline, then projects again, until all have ended. It returns the deadlines.
func (w *acceptedWorld) simulate(count int) map[scheduler.JobID]scheduler.Time {
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
		id := w.submitGuaranteed()
		deadlines[id] = w.State.Job(id).Spec.Deadline
	}
	w.advanceSecond()
	for range 120 {
		if w.r.IntN(5) == 0 {
			w.submitProject()
		}
		w.advanceSecond()
	}
	for n := 0; n < 300 && w.State.JobCount() > 0; n++ {
		w.advanceSecond()
	}
	return deadlines
}

// A deadline that the policy guarantees is met, whatever else is submitted later, and whether
// projects run to their bounds: nothing exceeds its bound here. It holds for jobs without a
// runtime_bound, by the bounds of their stages.
func TestGuaranteedDeadlinesHold(t *testing.T) {
	first, worlds := seed.New(t), soakRounds(100)
	if os.Getenv("DROVER_SOAK") != "" {
		worlds = 2000
	}
	asked, accepted := 0, 0
	for i := range worlds {
		w := newAcceptedWorld(t, first+uint64(i))
		w.useFullBound = i%2 == 0
		deadlines := w.simulate(1 + i%4)
		for id, by := range deadlines {
			asked++
			if !w.accepted[id] {
				continue
			}
			accepted++
			if at, done := w.ended[id]; !done || at > by {
				t.Errorf("seed %d: job %d ended at %d (%v); deadline %d", w.seed, id, at, done, by)
			}
		}
		if w.violations > 0 {
			t.Errorf("seed %d: %d guarantees violated", w.seed, w.violations)
		}
	}
	t.Logf("of %d deadlines %d were guaranteed", asked, accepted)
	if accepted < worlds/4 {
		t.Errorf("only %d of %d deadlines were guaranteed", accepted, asked)
	}
}

// A deadline that is accepted without a guarantee reserves nothing. A guarantee made later is
// for as early as if its tasks were regular ones, takes their place on a node that can
// suspend, and they go on after it.
func TestGuaranteePreemptsAcceptedDeadline(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	maker := func() scheduler.Policy { return mustNew(t, "3dsf", map[string]string{"margin": "0s"}) }
	p, all := maker(), schedtest.R(4, 8, 50)
	first := w.Submit("a", 1, all, func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote, g.Estimate = j.Submitted.Add(time.Hour), true, 50*time.Second
	})
	policytest.Round(t, w.State, p, maker, w.Now, 100)
	if w.Start(); w.State.Job(first).Live != 1 {
		t.Fatal("the accepted job does not run on a free node")
	}
	later := w.Submit("a", 1, all, func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, g.Estimate, g.Bound = j.Submitted.Add(30*time.Second), 10*time.Second, 20*time.Second
	})
	policytest.Round(t, w.State, p, maker, w.Now, 100)
	if n, ok := w.State.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.AcceptedState, Job: later}); !ok || n.At != w.Now.Add(20*time.Second) {
		t.Fatalf("guaranteed %v, for %v", ok, n.At.Sub(w.Now))
	}
	var victim *scheduler.Attempt
	for a := range w.State.Attempts().In(w.State.Job(first).Stages[0]) {
		victim = a
	}
	if victim.Phase != scheduler.AttemptSuspending {
		t.Fatalf("the task of the job without a guarantee is %v", victim.Phase)
	}
	has := scheduler.Footprint{Memory: victim.Demand[scheduler.Memory], Swap: victim.Demand[scheduler.Memory]}
	if err := w.State.Events().AttemptSuspended(victim.ID, victim.Run, victim.Target, has, w.Now); err != nil {
		t.Fatal(err)
	}
	policytest.Round(t, w.State, p, maker, w.Now, 100)
	if w.State.Job(later).Live != 1 {
		t.Error("the guaranteed job does not run")
	}
	w.Start().Advance(10 * time.Second)
	for a := range w.State.Attempts().In(w.State.Job(later).Stages[0]) {
		w.End(a, scheduler.OutcomeSucceeded)
	}
	policytest.Round(t, w.State, p, maker, w.Now, 100)
	if victim.Phase != scheduler.AttemptResuming {
		t.Errorf("after it the task is %v", victim.Phase)
	}
}

// The slack of a project ends at the deadline of its job: a later project may delay it up to then, and no further. Its
// deadline is in the lane, like those of other jobs with a quote.
func TestLaterProjectKeepsTheDeadlineInAProject(t *testing.T) {
	maker := func() scheduler.Policy { return mustNew(t, "3dsf", map[string]string{"margin": "0s", "sf": "1"}) }
	for name, x := range map[string]struct{ deadline, wantLatest time.Duration }{
		"no deadline":                         {0, 200 * time.Second},
		"a deadline before the slack ends":    {150 * time.Second, 150 * time.Second},
		"a deadline after the slack ends":     {300 * time.Second, 200 * time.Second},
		"a deadline that cannot be kept":      {80 * time.Second, 200 * time.Second},
		"a deadline at the planned departure": {100 * time.Second, 100 * time.Second},
	} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
		p, all := maker(), schedtest.R(4, 8, 50)
		submit := func(id scheduler.ProjectID, tasks int32, bound, deadline time.Duration) scheduler.JobID {
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: id, Name: fmt.Sprint("p", id), Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
				t.Fatal(err)
			}
			return w.Submit("a", tasks, all, func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				if j.Project, j.Bound, g.Estimate = id, bound, bound; deadline > 0 {
					j.Deadline, j.AcceptedByQuote = j.Submitted.Add(deadline), true
				}
			})
		}
		began := w.Now
		job := submit(1, 2, 50*time.Second, x.deadline)
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		g := backfill.GuaranteeOf(w.State, 1)
		if g.Departure != began.Add(100*time.Second) || g.Latest != began.Add(x.wantLatest) {
			t.Errorf("%s: departs at %v, at the latest %v, want 1m40s and %v", name, g.Departure.Sub(began), g.Latest.Sub(began), x.wantLatest)
		}
		submit(2, 1, 45*time.Second, 0)
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		for _, r := range w.State.Job(job).Reservations() {
			if end := r.End.Sub(began); end > x.wantLatest || r.Latest.Sub(began) > x.wantLatest {
				t.Errorf("%s: a task of the project ends at %v, and at the latest starts at %v, want by %v", name, end, r.Latest.Sub(began), x.wantLatest)
			}
		}
	}
}
