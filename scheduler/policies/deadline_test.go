package policies

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// preemptionWorld is a small cluster whose attempts take their predicted time plus
// or minus a half, and whose nodes act on requests one second later.
type preemptionWorld struct {
	*schedtest.World
	r          *rand.Rand
	policy     scheduler.Policy
	runTimes   map[scheduler.AttemptID]time.Duration // the run time of each attempt
	since      map[scheduler.AttemptID]scheduler.Time
	onDecision func(d *scheduler.Decision)
}

func newPreemptionWorld(t testing.TB, seed uint64, policy string, params map[string]string) *preemptionWorld {
	w := &preemptionWorld{World: schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 100)).AddTenants("a=2", "b"), r: rand.New(rand.NewPCG(seed, 3)),
		policy: mustNew(t, policy, params), runTimes: map[scheduler.AttemptID]time.Duration{}, since: map[scheduler.AttemptID]scheduler.Time{}}
	return w
}

// step submits a job now and then, runs a cycle and advances the clock by a second.
func (w *preemptionWorld) step(submit bool) {
	if submit && w.r.IntN(4) == 0 {
		est := time.Duration(1+w.r.IntN(10)) * time.Second
		w.Submit([]string{"a", "b"}[w.r.IntN(2)], int32(1+w.r.IntN(4)), schedtest.R(float64(1+w.r.IntN(3)), float64(1+w.r.IntN(4)), float64(1+w.r.IntN(20))),
			func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				g.Estimate = est
				j.Priority = scheduler.Priority(1 + w.r.IntN(2))
				if w.r.IntN(3) == 0 {
					j.Deadline, j.AcceptedByQuote = j.Submitted.Add(est*2+time.Duration(w.r.IntN(20))*time.Second), true
				}
			})
	}
	d, err := scheduler.Cycle(w.State, w.policy, w.Now, 1000, scheduler.AcceptAll)
	if err != nil {
		w.Fatalf("%v", err)
	}
	if w.onDecision != nil {
		w.onDecision(&d)
	}
	w.Advance(time.Second)
	for _, a := range w.Attempts() {
		w.advanceAttempt(a)
	}
}

func (w *preemptionWorld) advanceAttempt(a *scheduler.Attempt) {
	var err error
	switch a.Phase {
	case scheduler.AttemptStarting:
		w.runTimes[a.ID] = time.Duration(float64(a.Estimate) * (0.5 + w.r.Float64()))
		err = w.State.Events().AttemptStarted(a.ID, a.Run, w.Now)
	case scheduler.AttemptSuspending:
		has := scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}
		if a.Target == scheduler.LevelSwapped {
			has.Swap = has.Memory
		}
		w.since[a.ID] = w.Now
		err = w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, has, w.Now)
	case scheduler.AttemptResuming:
		delete(w.since, a.ID)
		err = w.State.Events().AttemptResumed(a.ID, a.Run, w.Now)
	case scheduler.AttemptKilling:
		err = w.State.Events().AttemptEnded(a.ID, a.Run, scheduler.OutcomeKilled, w.Now)
	case scheduler.AttemptRunning:
		if a.RanFor(w.Now) >= w.runTimes[a.ID] {
			w.End(a, scheduler.OutcomeSucceeded)
		}
	}
	if j := w.State.Job(a.ID.Job); err == nil && j.Live == 0 && schedtest.Complete(j) { // a second attempt may have to be killed
		err = w.State.Events().EndJob(a.ID.Job)
	}
	if err != nil {
		w.Fatalf("%v", err)
	}
}

// PDSonQueue, 3DSF 7.3: deadline jobs are never victims, and every suspended task resumes: capacity
// is reserved for it after half of max_suspended, and the tasks in its way run for at most 15 s.
func TestVictimsAreRegularAndResume(t *testing.T) {
	const limit, longestTask = 40 * time.Second, 15 * time.Second
	total := 0
	for range 300 {
		seed := seed.New(t)
		victims := 0
		for _, policy := range []string{"3dsf", "pdsonqueue"} {
			w := newPreemptionWorld(t, seed, policy, map[string]string{"max_suspended": limit.String()})
			w.onDecision = func(d *scheduler.Decision) {
				for i := range d.Actions {
					act := &d.Actions[i]
					if act.Kind != scheduler.ActSuspend && act.Kind != scheduler.ActKill {
						continue
					}
					victims++
					a := w.State.Attempt(act.AttemptID())
					if j := w.State.StageOf(a).Job; j.Spec.AcceptedByQuote {
						if _, ok := w.State.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.InfeasibleState, Job: j.Spec.ID}); !ok {
							t.Fatalf("seed %d, %s: job %d has an accepted deadline and is a victim", seed, policy, j.Spec.ID)
						}
					}
					if act.Kind == scheduler.ActKill {
						t.Fatalf("seed %d, %s: it kills a task", seed, policy)
					}
				}
				for id, at := range w.since {
					if w.Now.Sub(at) > limit+longestTask {
						t.Fatalf("seed %d, %s: %s has been suspended for %v", seed, policy, id, w.Now.Sub(at))
					}
				}
			}
			for range 300 {
				w.step(true)
			}
			for range 200 {
				w.step(false)
			}
			if w.State.Attempts().Live() > 0 || w.State.JobCount() > 0 {
				t.Fatalf("seed %d, %s: %d attempts and %d jobs are left", seed, policy, w.State.Attempts().Live(), w.State.JobCount())
			}
		}
		total += victims
	}
	if total < 1000 {
		t.Errorf("only %d suspensions: too few for a meaningful test", total)
	}
}

// No policy that preempts for deadline tasks of any length can bound how long a
// victim is suspended, since the deadline task itself is not preempted (7.3). The
// victim resumes when that ends, before anything else.
func TestLongDeadlineTaskOutlastsMaxSuspended(t *testing.T) {
	const limit = 40 * time.Second
	for _, policy := range []string{"3dsf", "pdsonqueue"} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(1, 4, 10)).AddTenants("t")
		p := mustNew(t, policy, map[string]string{"max_suspended": limit.String()})
		regular := w.Submit("t", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
		w.Cycle(p)
		w.Start().Advance(time.Second)
		for range 2 { // the second one waits already when the victim is due to resume
			w.Submit("t", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				g.Estimate, j.Deadline, j.AcceptedByQuote = 2*limit, j.Submitted.Add(5*limit), true
			})
		}
		w.Cycle(p)
		victim := w.State.Attempt(scheduler.AttemptID{TaskID: scheduler.TaskID{Job: regular}, Attempt: 1})
		if err := w.State.Events().AttemptSuspended(victim.ID, victim.Run, victim.Target, scheduler.Footprint{Memory: victim.Demand[scheduler.Memory]}, w.Now); err != nil {
			t.Fatal(err)
		}
		w.Cycle(p)
		w.Start()
		for range 2 * limit / time.Second {
			w.Advance(time.Second)
			w.Cycle(p)
			if victim.Phase != scheduler.AttemptSuspended {
				t.Fatalf("%s: the victim is %v %v after its suspension", policy, victim.Phase, w.Now.Sub(victim.SuspendedAt))
			}
		}
		for _, a := range w.Attempts() {
			if a != victim {
				w.End(a, scheduler.OutcomeSucceeded)
			}
		}
		if w.Cycle(p); victim.Phase != scheduler.AttemptResuming {
			t.Errorf("%s: the victim is %v although capacity is free", policy, victim.Phase)
		}
	}
}

// A task that was suspended for max_suspended is not preempted again, except for a
// due reservation, which was guaranteed on the assumption that it can be.
func TestGuaranteeOutranksMaxSuspended(t *testing.T) {
	const limit = 40 * time.Second
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 4, 10)).AddTenants("t")
	newPolicy := func() scheduler.Policy { return mustNew(t, "3dsf", map[string]string{"max_suspended": limit.String()}) }
	p := newPolicy()
	w.Submit("t", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
	policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	w.Start().Advance(time.Second)
	victim := w.Attempts()[0]
	suspend := func() {
		if victim.Phase != scheduler.AttemptSuspending {
			t.Fatalf("at %d the regular task is %v", w.Now, victim.Phase)
		}
		if err := w.State.Events().AttemptSuspended(victim.ID, victim.Run, victim.Target, scheduler.Footprint{Memory: victim.Demand[scheduler.Memory]}, w.Now); err != nil {
			t.Fatal(err)
		}
		policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
		w.Start()
	}
	inLane := func() scheduler.JobID {
		return w.Submit("t", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			g.Estimate, j.Deadline, j.AcceptedByQuote = limit, j.Submitted.Add(limit+time.Second), true
		})
	}
	first := inLane()
	policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	suspend()
	w.Advance(limit)
	for _, a := range w.Attempts() {
		if a.ID.Job == first {
			w.End(a, scheduler.OutcomeSucceeded)
		}
	}
	policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	if err := w.State.Events().AttemptResumed(victim.ID, victim.Run, w.Now); err != nil {
		t.Fatal(err)
	}
	w.Advance(time.Second)
	lane := inLane()
	policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	if victim.Phase != scheduler.AttemptRunning || w.State.Job(lane).Live != 0 {
		t.Fatalf("the regular task is %v for a deadline job", victim.Phase)
	}
	if err := w.State.Events().EndJob(lane); err != nil { // its capacity would not be guaranteed to others
		t.Fatal(err)
	}
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Tenant: 0, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	guaranteed := w.Submit("t", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 1, limit })
	policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
	if !w.State.Project(1).HasState(scheduler.GuaranteeState) {
		t.Fatalf("the project of job %d has no guarantee", guaranteed)
	}
	suspend()
	if w.State.Job(guaranteed).Live != 1 {
		t.Errorf("the guaranteed task does not run")
	}
}

// With preempt = kill victims are killed, with none there are no victims.
func TestPreemptModes(t *testing.T) {
	for mode, want := range map[string]scheduler.ActionKind{"suspend": scheduler.ActSuspend, "kill": scheduler.ActKill, "none": 0} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(1, 2, 10)).AddTenants("t")
		p := mustNew(t, "pdsonqueue", map[string]string{"preempt": mode})
		w.Submit("t", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
		w.Cycle(p)
		w.Start()
		w.Submit("t", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			g.Estimate, j.Deadline = time.Minute, j.Submitted.Add(2*time.Minute)
		})
		d := w.Cycle(p)
		got := scheduler.ActionKind(0)
		if len(d.Actions) > 0 {
			got = d.Actions[0].Kind
		}
		if got != want {
			t.Errorf("%s: %v", mode, d.String())
		}
	}
}

// The levels: frozen if CPU is lacking, swapped if memory is, checkpointed without
// swap, none if the node supports none.
func TestVictimsUseCheapestSufficientLevel(t *testing.T) {
	for what, c := range map[string]struct {
		demand scheduler.Resources
		levels scheduler.LevelSet
		swap   int64
		want   scheduler.Level
	}{
		"not enough CPU":                   {schedtest.R(1, 0.5, 1), scheduler.AllLevels, 64 << 30, scheduler.LevelFrozen},
		"not enough memory":                {schedtest.R(0.5, 2, 1), scheduler.AllLevels, 64 << 30, scheduler.LevelSwapped},
		"not enough memory, no swap":       {schedtest.R(0.5, 2, 1), scheduler.AllLevels, 0, scheduler.LevelCheckpointed},
		"not enough memory, freezing only": {schedtest.R(0.5, 2, 1), scheduler.Levels(scheduler.LevelFrozen), 0, 0},
	} {
		w := schedtest.New(t)
		spec := schedtest.NodeSpec(0, "/r", schedtest.R(1, 3, 10))
		spec.Levels, spec.Swap = c.levels, c.swap
		spec.Speeds = scheduler.SuspendSpeed{Freeze: 10 * time.Millisecond, SwapPerS: 200 << 20, Checkpoint: 3 * time.Second, CheckpointPerS: 100 << 20}
		if err := w.State.Events().AddNode(spec); err != nil {
			t.Fatal(err)
		}
		w.AddTenants("t")
		p := mustNew(t, "pdsonqueue", nil)
		w.Submit("t", 1, schedtest.R(1, 2, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
		w.Cycle(p)
		w.Start()
		w.Submit("t", 1, c.demand, func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			g.Estimate, j.Deadline = time.Minute, j.Submitted.Add(2*time.Minute)
		})
		d := w.Cycle(p)
		got := scheduler.Level(0)
		if len(d.Actions) > 0 {
			got = d.Actions[0].Level
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// A job of many tasks preempts only as many as keep its predicted end: 6 tasks of 10
// s in 35 s need 3 waves of 2.
func TestFewestVictimsThatMeetDeadline(t *testing.T) {
	w := schedtest.New(t).AddNodes(6, schedtest.R(1, 2, 10)).AddTenants("t")
	p := mustNew(t, "pdsonqueue", nil)
	w.Submit("t", 6, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
	w.Cycle(p)
	w.Start()
	w.Submit("t", 6, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		g.Estimate, j.Deadline = 10*time.Second, j.Submitted.Add(35*time.Second)
	})
	d := w.Cycle(p)
	n := 0
	for i := range d.Actions {
		if d.Actions[i].Kind == scheduler.ActSuspend {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d victims:\n%s", n, d.String())
	}
}
