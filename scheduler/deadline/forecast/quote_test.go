package forecast

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// exact is the Residual of predictions without error.
func exact(float64) float64 { return 1 }

func oneStage(tasks int32, run time.Duration) []scheduler.StageSpec {
	return []scheduler.StageSpec{{Name: "main", Kind: scheduler.KindGroup, Tasks: tasks, Demand: schedtest.R(1, 1, 1), Estimate: run}}
}

func mustQuote(t *testing.T, w *schedtest.World, q Query) *Quote {
	t.Helper()
	before := schedtest.Bytes(w.State)
	out := quote(t, w, q)
	if !bytes.Equal(before, schedtest.Bytes(w.State)) {
		t.Fatal("a quote changed the State")
	}
	return out
}

// quote is mustQuote for tests of thousands of quotes: it does not write out the State before and
// after, which takes five times as long as the quote.
func quote(t *testing.T, w *schedtest.World, q Query) *Quote {
	t.Helper()
	var p Forecaster
	q.Samples = cmp.Or(q.Samples, 100)
	out, err := p.Quote(w.State, q, w.Now)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// leave orders a window of a node, times from now; to 0 is for ever.
func leave(t *testing.T, w *schedtest.World, id scheduler.NodeID, from, to time.Duration) {
	t.Helper()
	x := scheduler.Window{From: w.Now.Add(from), To: w.Now.Add(to)}
	if to == 0 {
		x.To = scheduler.Never
	}
	if err := w.State.Events().SetWindows(id, []scheduler.Window{x}); err != nil {
		t.Fatal(err)
	}
	w.State.SetTime(w.Now)
}

// capTotal caps the processors of tenant a.
func capTotal(t *testing.T, w *schedtest.World, cpus float64) {
	t.Helper()
	spec := w.Tenant("a").Spec
	spec.Caps.Total[scheduler.CPU] = schedtest.R(cpus, 1, 1)[scheduler.CPU]
	if err := w.State.Events().PutTenant(spec); err != nil {
		t.Fatal(err)
	}
}

// reserveProject reserves all processors for the four tasks of a guaranteed project, times from now.
func reserveProject(t *testing.T, w *schedtest.World, from, to time.Duration) {
	t.Helper()
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	job := w.Submit("b", 4, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Project, j.Bound, g.Estimate = 1, to-from, to-from
	})
	for i := range int32(4) {
		r := scheduler.Reservation{ID: scheduler.ReservationID(i + 1), Kind: scheduler.ReserveProject, Job: job, Task: i, Project: 1, Node: scheduler.NodeID(i / 2),
			Demand: schedtest.R(1, 1, 1), OnDisk: -1, Start: w.Now.Add(from), End: w.Now.Add(to)}
		if err := w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, w.Now); err != nil {
			t.Fatal(err)
		}
	}
}

// reserveBelowCap caps the processors of tenant a, and reserves the two of node 1 for two tasks of
// a guaranteed project of that tenant, at times from now.
func reserveBelowCap(t *testing.T, w *schedtest.World, cpus float64, from, to time.Duration) {
	t.Helper()
	capTotal(t, w, cpus)
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	job := w.Submit("a", 2, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Project, j.Bound, g.Estimate = 1, to-from, to-from
	})
	for i := range int32(2) {
		r := scheduler.Reservation{ID: scheduler.ReservationID(i + 1), Kind: scheduler.ReserveProject, Job: job, Task: i, Project: 1, Node: 1,
			Demand: schedtest.R(1, 1, 1), OnDisk: -1, Start: w.Now.Add(from), End: w.Now.Add(to)}
		if err := w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, w.Now); err != nil {
			t.Fatal(err)
		}
	}
}

// fill lets a job of tenant a run one-core tasks on all four cores for an hour, each with so much memory (GiB).
func fill(w *schedtest.World, memory float64) scheduler.JobID {
	job := w.Submit("a", 4, schedtest.R(1, memory, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
	for i := range int32(4) {
		w.Place(scheduler.TaskID{Job: job, Index: i}, scheduler.NodeID(i/2))
	}
	w.Start()
	return job
}

// actOnAll requests an action on each attempt, which no node has confirmed.
func actOnAll(t *testing.T, w *schedtest.World, kind scheduler.ActionKind, level scheduler.Level) {
	t.Helper()
	for _, a := range w.Attempts() {
		actOn(t, w, a, kind, level)
	}
}

// actOn requests an action on an attempt.
func actOn(t *testing.T, w *schedtest.World, a *scheduler.Attempt, kind scheduler.ActionKind, level scheduler.Level) {
	t.Helper()
	act := a.Act(kind)
	act.Level = level
	if err := w.State.Apply(&act, w.Now); err != nil {
		t.Fatal(err)
	}
}

// submitDue submits a job of tenant a with an accepted deadline, from now.
func submitDue(w *schedtest.World, tasks int32, in, run time.Duration) scheduler.JobID {
	return w.Submit("a", tasks, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(in), true, run
	})
}

// markInfeasible lets a policy have found that a job cannot meet its deadline.
func markInfeasible(t *testing.T, w *schedtest.World, job scheduler.JobID) {
	t.Helper()
	key := scheduler.PolicyStateKey{Kind: scheduler.InfeasibleState, Job: job}
	if err := w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: key, At: w.Now}}); err != nil {
		t.Fatal(err)
	}
}

// suspendTwo lets a user suspend two of the four tasks of 10 s of a job with a deadline, of which at most two may run at once.
func suspendTwo(t *testing.T, w *schedtest.World, in time.Duration) {
	t.Helper()
	job := w.Submit("a", 4, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote, g.Estimate, g.MaxParallel = w.Now.Add(in), true, 10*time.Second, 2
	})
	for i := range int32(2) {
		w.Place(scheduler.TaskID{Job: job, Index: i}, 0)
	}
	actOnAll(t, w.Start(), scheduler.ActSuspend, scheduler.LevelSwapped)
	for _, a := range w.Attempts() {
		if err := w.State.Events().SetParked(a.ID, a.Run, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range w.Attempts() {
		if err := w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelSwapped, scheduler.Footprint{}, w.Now); err != nil {
			t.Fatal(err)
		}
	}
}

// Without errors of prediction the quotes can be computed by hand.
func TestQuotesByHand(t *testing.T) {
	for what, c := range map[string]struct {
		set  func(w *schedtest.World)
		q    Query
		want time.Duration
	}{
		"an idle cluster: two waves of 10 s": {func(*schedtest.World) {}, Query{Stages: oneStage(8, 10*time.Second)}, 20 * time.Second},
		"behind running tasks: 30 s, then 10 s": {func(w *schedtest.World) {
			job := w.Submit("a", 4, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 30 * time.Second })
			for i := range int32(4) {
				w.Place(scheduler.TaskID{Job: job, Index: i}, scheduler.NodeID(i/2))
			}
		}, Query{Stages: oneStage(1, 10*time.Second)}, 40 * time.Second},
		"before waiting tasks, because it has a deadline": {func(w *schedtest.World) {
			w.Submit("a", 40, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 30 * time.Second })
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(4, 10*time.Second)}, 10 * time.Second},
		"the only node that fits leaves before its task would end, and comes back": {func(w *schedtest.World) {
			w.Submit("a", 2, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
			for i := range int32(2) {
				w.Place(scheduler.TaskID{Job: 1, Index: i}, 1)
			}
			leave(t, w, 0, 5*time.Second, 25*time.Second)
		}, Query{Stages: oneStage(1, 10*time.Second)}, 35 * time.Second},
		"a node is away, and comes back": {func(w *schedtest.World) {
			leave(t, w, 0, -5*time.Second, 15*time.Second)
			leave(t, w, 1, -5*time.Second, 20*time.Second)
		}, Query{Stages: oneStage(1, 10*time.Second)}, 25 * time.Second},
		"a node leaves for good": {func(w *schedtest.World) {
			leave(t, w, 0, 15*time.Second, 0)
		}, Query{Stages: oneStage(8, 10*time.Second)}, 30 * time.Second},
		"with at most two tasks at once": {func(*schedtest.World) {}, Query{Stages: []scheduler.StageSpec{{Tasks: 4, MaxParallel: 2, Demand: schedtest.R(1, 1, 1), Estimate: 10 * time.Second}}}, 20 * time.Second},
		"before tasks that wait for suspended ones, with at most two at once": {func(w *schedtest.World) {
			suspendTwo(t, w, time.Hour)
		}, Query{Job: scheduler.JobSpec{Submitted: scheduler.Time(time.Minute)}, Stages: oneStage(4, 10*time.Second)}, 10 * time.Second},
		"such tasks of a job with a deadline preempt nothing": {func(w *schedtest.World) {
			suspendTwo(t, w, 15*time.Second)
			fill(w, 1)
		}, Query{Job: scheduler.JobSpec{Submitted: scheduler.Time(time.Minute)}, Stages: oneStage(4, 10*time.Second), Preempt: true}, time.Hour + 10*time.Second},
		"with run times that are half of what is predicted": {func(*schedtest.World) {}, Query{Stages: oneStage(1, 10*time.Second),
			Errors: func(scheduler.StageID) (Residual, Residual) { return exact, func(float64) float64 { return 0.5 } }}, 5 * time.Second},
		"behind a job with a later deadline, which has to start earlier: it has a second stage": {func(w *schedtest.World) {
			stages := append(oneStage(4, 10*time.Second), oneStage(1, 45*time.Second)...)
			stages[1].Name, stages[1].After = "then", []int32{0}
			w.SubmitStages("a", stages, func(j *scheduler.JobSpec) { j.Deadline, j.AcceptedByQuote = scheduler.Time(100*time.Second), true })
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Minute)}, Stages: oneStage(4, 10*time.Second)}, 20 * time.Second},
		"under a cap of its tenant, on an idle cluster": {func(w *schedtest.World) {
			capTotal(t, w, 2)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(8, 10*time.Second)}, 40 * time.Second},
		"under a cap that a running job uses up": {func(w *schedtest.World) {
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 30 * time.Second })}, 0)
			capTotal(t, w, 1)
		}, Query{Stages: oneStage(2, 10*time.Second)}, 50 * time.Second},
		"around what is reserved for a project": {func(w *schedtest.World) {
			reserveProject(t, w, 5*time.Second, 65*time.Second)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(4, 10*time.Second)}, 75 * time.Second},
		"before what is reserved for a project": {func(w *schedtest.World) {
			reserveProject(t, w, 5*time.Second, 65*time.Second)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(4, 5*time.Second)}, 5 * time.Second},
		"behind what is reserved for a project and due": {func(w *schedtest.World) {
			reserveProject(t, w, 0, 30*time.Second)
		}, Query{Stages: oneStage(4, 10*time.Second)}, 40 * time.Second},
		"suspended for what is reserved for a project": {func(w *schedtest.World) {
			reserveProject(t, w, 5*time.Second, 65*time.Second)
		}, Query{Stages: oneStage(4, 10*time.Second), Preempt: true}, 70 * time.Second},
		"around what is reserved of a cap": {func(w *schedtest.World) {
			reserveBelowCap(t, w, 2, 5*time.Second, 65*time.Second)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(2, 10*time.Second)}, 75 * time.Second},
		"before what is reserved of a cap": {func(w *schedtest.World) {
			reserveBelowCap(t, w, 2, 5*time.Second, 65*time.Second)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(2, 5*time.Second)}, 5 * time.Second},
		"beside what is reserved of a cap that is large enough": {func(w *schedtest.World) {
			reserveBelowCap(t, w, 4, 5*time.Second, 65*time.Second)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(2, 10*time.Second)}, 10 * time.Second},
		"of another tenant than that whose cap is reserved": {func(w *schedtest.World) {
			reserveBelowCap(t, w, 2, 5*time.Second, 65*time.Second)
		}, Query{Job: scheduler.JobSpec{Tenant: 1, Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(2, 10*time.Second)}, 10 * time.Second},
		"suspended for what is reserved of a cap": {func(w *schedtest.World) {
			reserveBelowCap(t, w, 2, 5*time.Second, 65*time.Second)
		}, Query{Stages: oneStage(2, 10*time.Second), Preempt: true}, 70 * time.Second},
		"beside what is reserved of a cap, with what gives way below it": {func(w *schedtest.World) {
			job := w.Submit("a", 2, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
			for i := range int32(2) {
				w.Place(scheduler.TaskID{Job: job, Index: i}, 0)
			}
			w.Start()
			reserveBelowCap(t, w, 3, 5*time.Second, 65*time.Second)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(30 * time.Minute)}, Stages: oneStage(2, 10*time.Second), Preempt: true}, 20 * time.Second},
		"a job that occupies all is being stopped": {func(w *schedtest.World) {
			job := fill(w, 1)
			actOnAll(t, w, scheduler.ActKill, 0)
			if err := w.State.Events().StopJob(job); err != nil {
				t.Fatal(err)
			}
		}, Query{Stages: oneStage(1, 10*time.Second)}, 10 * time.Second},
		"one that is being stopped counts no longer against a cap": {func(w *schedtest.World) {
			job := fill(w, 1)
			actOnAll(t, w, scheduler.ActKill, 0)
			if err := w.State.Events().StopJob(job); err != nil {
				t.Fatal(err)
			}
			capTotal(t, w, 4)
		}, Query{Stages: oneStage(4, 10*time.Second)}, 10 * time.Second},
		"before tasks that are being killed, and start again": {func(w *schedtest.World) {
			fill(w, 1)
			actOnAll(t, w, scheduler.ActKill, 0)
		}, Query{Stages: oneStage(1, 10*time.Second)}, 10 * time.Second},
		"behind tasks that are being killed, and start again": {func(w *schedtest.World) {
			fill(w, 1)
			actOnAll(t, w, scheduler.ActKill, 0)
		}, Query{Job: scheduler.JobSpec{Submitted: scheduler.Time(time.Minute)}, Stages: oneStage(1, 10*time.Second)}, time.Hour + 10*time.Second},
		"before tasks that are being suspended": {func(w *schedtest.World) {
			fill(w, 1)
			actOnAll(t, w, scheduler.ActSuspend, scheduler.LevelFrozen)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(1, 10*time.Second)}, 10 * time.Second},
		"behind tasks that are being suspended, which go on first": {func(w *schedtest.World) {
			fill(w, 1)
			actOnAll(t, w, scheduler.ActSuspend, scheduler.LevelFrozen)
		}, Query{Stages: oneStage(1, 10*time.Second)}, time.Hour + 10*time.Second},
		"behind tasks that are being frozen with all memory": {func(w *schedtest.World) {
			fill(w, 50)
			actOnAll(t, w, scheduler.ActSuspend, scheduler.LevelFrozen)
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, Stages: oneStage(1, 10*time.Second)}, time.Hour + 10*time.Second},
		"before a job of its tenant that was infeasible already": {func(w *schedtest.World) {
			markInfeasible(t, w, submitDue(w, 4, time.Hour, 30*time.Second))
		}, Query{Job: scheduler.JobSpec{Submitted: scheduler.Time(time.Minute)}, Stages: oneStage(4, 10*time.Second)}, 10 * time.Second},
		"before a job of its tenant that is infeasible now": {func(w *schedtest.World) {
			submitDue(w, 4, 5*time.Second, 30*time.Second)
		}, Query{Job: scheduler.JobSpec{Submitted: scheduler.Time(time.Minute)}, Stages: oneStage(4, 10*time.Second)}, 10 * time.Second},
		"before one that is infeasible now, where the lane preempts": {func(w *schedtest.World) {
			submitDue(w, 4, 5*time.Second, 30*time.Second)
		}, Query{Job: scheduler.JobSpec{Submitted: scheduler.Time(time.Minute)}, Stages: oneStage(4, 10*time.Second), Preempt: true}, 10 * time.Second},
		"behind a job with a deadline that was infeasible, for a scheduler that ignores it": {func(w *schedtest.World) {
			markInfeasible(t, w, submitDue(w, 4, time.Hour, 30*time.Second))
		}, Query{Job: scheduler.JobSpec{Submitted: scheduler.Time(time.Minute)}, Stages: oneStage(4, 10*time.Second), NoDeadlineLane: true}, 40 * time.Second},
		"infeasible itself, behind what its tenant submitted later": {func(w *schedtest.World) {
			w.Submit("a", 4, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 30 * time.Second })
		}, Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(5 * time.Second)}, Stages: oneStage(4, 10*time.Second)}, 40 * time.Second},
		"too large for any node": {func(*schedtest.World) {}, Query{Stages: []scheduler.StageSpec{{Tasks: 1, Demand: schedtest.R(9, 1, 1)}}}, -1},
	} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(2, 100, 100)).AddTenants("a", "b")
		c.set(w)
		got := mustQuote(t, w, c.q).EndQuantile(1)
		if c.want < 0 && got == scheduler.Never {
			continue
		}
		if got != w.Now.Add(c.want) {
			t.Errorf("%s: after %v, want %v", what, got.Sub(w.Now), c.want)
		}
	}
}

// The expected times of running and waiting jobs, computed by hand: on four slots two tasks run for
// 30 s, four wait for 10 s each, and a second stage of 5 s follows.
func TestExpectedByHand(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(2, 100, 100)).AddTenants("a", "b")
	runs := w.Submit("a", 2, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 30 * time.Second })
	for i := range int32(2) {
		w.Place(scheduler.TaskID{Job: runs, Index: i}, scheduler.NodeID(0))
	}
	waits := w.Submit("b", 4, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 10 * time.Second })
	never := w.Submit("b", 1, schedtest.R(9, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 10 * time.Second })
	var p Forecaster
	got, err := p.Expect(w.State, Query{}, w.Now, 0)
	if err != nil {
		t.Fatal(err)
	}
	for job, after := range map[scheduler.JobID]time.Duration{runs: 30 * time.Second, waits: 20 * time.Second} {
		if got.Ends[job] != w.Now.Add(after) {
			t.Errorf("job %d is expected to end after %v, want %v", job, got.Ends[job].Sub(w.Now), after)
		}
	}
	if _, known := got.Ends[never]; known || len(got.Starts) != 1 || got.Starts[scheduler.StageID{Job: waits}] != w.Now {
		t.Errorf("expected %v", got)
	}
	if got, err = p.Expect(w.State, Query{}, w.Now, 1); err != nil || len(got.Ends) == 2 {
		t.Errorf("after few ends of tasks: %v %v", got, err)
	}
}

// A suspended task that resumes by itself comes before waiting tasks, also on a draining node, or when its node is
// back. A task that a user suspended, or is suspending, does not resume, and blocks others only by what it occupies.
func TestExpectedOfSuspendedTasks(t *testing.T) {
	for what, c := range map[string]struct {
		set         func(w *schedtest.World, a *scheduler.Attempt) error
		memory      float64       // GiB of the job, of the 100 of the node
		job, behind time.Duration // expected ends of the job, and of one that waits behind it; 0 for none
	}{
		"suspended for others": {nil, 1, time.Hour, time.Hour + 10*time.Second},
		"suspended by a user": {func(w *schedtest.World, a *scheduler.Attempt) error {
			return w.State.Events().SetParked(a.ID, a.Run, true)
		}, 1, 0, 10 * time.Second},
		"suspended by a user, with all memory": {func(w *schedtest.World, a *scheduler.Attempt) error {
			return w.State.Events().SetParked(a.ID, a.Run, true)
		}, 100, 0, 0},
		"being swapped by a user": {func(w *schedtest.World, a *scheduler.Attempt) error {
			swap := a.Act(scheduler.ActSuspend)
			swap.Level = scheduler.LevelSwapped
			if err := w.State.Apply(&swap, w.Now); err != nil {
				return err
			}
			return w.State.Events().SetParked(a.ID, a.Run, true)
		}, 60, 0, 10 * time.Second},
		"parked until a window of its node ends": {func(w *schedtest.World, a *scheduler.Attempt) error {
			leave(t, w, 0, -5*time.Second, 15*time.Second)
			return w.State.Events().SetParked(a.ID, a.Run, true)
		}, 1, time.Hour + 15*time.Second, time.Hour + 25*time.Second},
		"on a node that is draining": {func(w *schedtest.World, _ *scheduler.Attempt) error {
			return w.State.Events().SetDrain(0, true)
		}, 1, time.Hour, 0},
		"on a node that is down": {func(w *schedtest.World, _ *scheduler.Attempt) error {
			n := w.State.Node(0).Spec
			n.Down = true
			return w.State.Events().UpdateNode(n)
		}, 1, 0, 0},
	} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(1, 100, 100)).AddTenants("a")
		job := occupy(w, 0, schedtest.R(1, c.memory, 1), time.Hour)
		w.Start()
		behind := w.Submit("a", 1, schedtest.R(1, 50, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 10 * time.Second })
		a := w.Attempts()[0]
		freeze(t, w, a)
		if c.set != nil {
			if err := c.set(w, a); err != nil {
				t.Fatal(err)
			}
		}
		var p Forecaster
		got, err := p.Expect(w.State, Query{}, w.Now, 0)
		if err != nil {
			t.Fatal(err)
		}
		for id, after := range map[scheduler.JobID]time.Duration{job: c.job, behind: c.behind} {
			if end, known := got.Ends[id]; known != (after > 0) || (known && end != w.Now.Add(after)) {
				t.Errorf("%s: job %d is expected to end after %v (%t), want %v", what, id, end.Sub(w.Now), known, after)
			}
		}
	}
}

// freeze suspends an attempt that runs.
func freeze(t *testing.T, w *schedtest.World, a *scheduler.Attempt) {
	t.Helper()
	actOn(t, w, a, scheduler.ActSuspend, scheduler.LevelFrozen)
	if err := w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelFrozen, scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}, w.Now); err != nil {
		t.Fatal(err)
	}
}

// Suspended tasks on a full node resume in the order of suspension, as under the policies. A task
// being suspended comes after all suspended ones, even if it was suspended before.
func TestSuspendedTasksResumeInTheOrderOfTheirSuspension(t *testing.T) {
	for what, again := range map[string]bool{"suspended": false, "suspended, resumed, and being suspended again": true} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(1, 100, 100)).AddTenants("a")
		second := w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
		run := func(job scheduler.JobID) *scheduler.Attempt {
			a := w.Place(scheduler.TaskID{Job: job}, 0)
			w.Start()
			return a
		}
		var a *scheduler.Attempt
		if again {
			a = run(second)
			freeze(t, w, a)
			w.Advance(time.Second)
		}
		first := w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
		freeze(t, w, run(first))
		w.Advance(time.Second)
		if again {
			actOn(t, w, a, scheduler.ActResume, 0)
			if err := w.State.Events().AttemptResumed(a.ID, a.Run, w.Now); err != nil {
				t.Fatal(err)
			}
			actOn(t, w, a, scheduler.ActSuspend, scheduler.LevelFrozen)
		} else {
			freeze(t, w, run(second))
		}
		var p Forecaster
		got, err := p.Expect(w.State, Query{}, w.Now, 0)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := got.Ends[first].Sub(w.Now), got.Ends[second].Sub(w.Now); a != time.Hour || b != 2*time.Hour {
			t.Errorf("%s: they are expected to end after %v and %v", what, a, b)
		}
	}
}

// A task with two attempts, one of which is being killed because the other succeeded, is done. A
// task whose attempts are both being killed waits once.
func TestTasksOfSecondAttempts(t *testing.T) {
	for what, c := range map[string]struct {
		set  func(w *schedtest.World, first, second *scheduler.Attempt)
		want time.Duration
	}{
		"the first one succeeded":  {func(w *schedtest.World, first, _ *scheduler.Attempt) { w.End(first, scheduler.OutcomeSucceeded) }, 30 * time.Minute},
		"the second one succeeded": {func(w *schedtest.World, _, second *scheduler.Attempt) { w.End(second, scheduler.OutcomeSucceeded) }, 30 * time.Minute},
		"both are being killed": {func(w *schedtest.World, first, second *scheduler.Attempt) {
			for _, a := range []*scheduler.Attempt{first, second} {
				kill := a.Act(scheduler.ActKill)
				if err := w.State.Apply(&kill, w.Now); err != nil {
					t.Fatal(err)
				}
			}
		}, time.Hour},
	} {
		w := schedtest.New(t).AddNodes(3, schedtest.R(1, 100, 100)).AddTenants("a")
		job := w.Submit("a", 2, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })
		w.Place(scheduler.TaskID{Job: job, Index: 1}, 2)
		first := w.Place(scheduler.TaskID{Job: job}, 0)
		second := w.State.Attempts().PlaceAction(w.State.Stage(scheduler.StageID{Job: job}), 0, 1, 0)
		second.Speculative = true
		if err := w.State.Apply(&second, w.Now); err != nil {
			t.Fatal(err)
		}
		w.Start().Advance(30 * time.Minute)
		c.set(w, first, w.State.Attempt(second.AttemptID()))
		leave(t, w, 1, -time.Second, 0)
		var p Forecaster
		got, err := p.Expect(w.State, Query{}, w.Now, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got.Ends[job] != w.Now.Add(c.want) {
			t.Errorf("%s: the job is expected to end after %v, want %v", what, got.Ends[job].Sub(w.Now), c.want)
		}
	}
}

// A quote is a probability: over clusters whose run times differ from their predictions
// as the residuals say, the job ends by the quoted time in the quoted share.
func TestQuotesAreCalibrated(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	residual := func(u float64) float64 { return math.Exp(0.4 * math.Sqrt2 * math.Erfinv(2*u-1)) }
	worlds := 400
	if testing.Short() {
		worlds = 80
	}
	for _, p := range []float64{0.5, 0.9} {
		onTime := 0
		for range worlds {
			w := schedtest.New(t).AddNodes(2, schedtest.R(2, 100, 100)).AddTenants("a")
			w.Submit("a", 6, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 20 * time.Second })
			q := Query{Stages: oneStage(4, 10*time.Second), Errors: sameErrors(residual), Seed: r.Uint64(), Samples: 200}
			quoted := mustQuote(t, w, q).EndQuantile(p)
			q.Seed, q.Samples = r.Uint64(), 1 // the actual run
			if mustQuote(t, w, q).EndQuantile(1) <= quoted {
				onTime++
			}
		}
		if got, sd := float64(onTime)/float64(worlds), math.Sqrt(p*(1-p)*(1/float64(worlds)+1.0/200)); math.Abs(got-p) > 4*sd {
			t.Errorf("quoted %.2f, on time %.3f", p, got)
		}
	}
}

// An offered deadline holds when the job has it, and a while later. A refused deadline was too
// early to try, or the deadlines that hold are far later.
func TestOfferedDeadlinesHold(t *testing.T) {
	const margin = offerMargin + time.Second // that of the offer, and its rounding
	regular := func(w *schedtest.World, run time.Duration) {
		w.Submit("a", 40, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = run })
		for i := range int32(4) {
			w.Place(scheduler.TaskID{Job: 1, Index: i}, scheduler.NodeID(i/2))
		}
		w.Start()
	}
	for what, c := range map[string]struct {
		set     func(w *schedtest.World)
		refused time.Duration
		q       Query
		least   time.Duration // of what holds; -1 for nothing
	}{
		"infeasible, else it preempts": {func(w *schedtest.World) { regular(w, 4*time.Hour) }, 90 * time.Second,
			Query{Stages: oneStage(1, 100*time.Second), Preempt: true}, 100 * time.Second},
		"infeasible, and nothing is preempted": {func(w *schedtest.World) { regular(w, 4*time.Hour) }, 90 * time.Second,
			Query{Stages: oneStage(1, 100*time.Second)}, 4*time.Hour + 100*time.Second},
		"two waves on an idle cluster": {func(*schedtest.World) {}, 15 * time.Second, Query{Stages: oneStage(8, 10*time.Second), Preempt: true}, 20 * time.Second},
		"with a later deadline others go first": {func(w *schedtest.World) {
			w.Submit("a", 4, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(140*time.Second), true, 100*time.Second
			})
		}, 5 * time.Second, Query{Stages: oneStage(4, 10*time.Second), Preempt: true}, 10 * time.Second},
		"too large for any node": {func(*schedtest.World) {}, time.Minute, Query{Stages: []scheduler.StageSpec{{Tasks: 1, Demand: schedtest.R(9, 1, 1), Estimate: time.Second}}}, -1},
	} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(2, 100, 100)).AddTenants("a", "b")
		c.set(w)
		var p Forecaster
		c.q.Samples, c.q.Job.Deadline = 100, w.Now.Add(c.refused)
		at, err := p.EarliestDeadline(w.State, c.q, w.Now, 0.95, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if c.least < 0 {
			if at != scheduler.Never {
				t.Errorf("%s: offered %v", what, at.Sub(w.Now))
			}
			continue
		}
		if in := at.Sub(w.Now); in < c.least || float64(in) > 1.3*float64(c.least+margin) || at%scheduler.Time(time.Second) != 0 {
			t.Errorf("%s: offered %v, want little after %v", what, in, c.least)
		}
		c.q.Job.Deadline = at
		if by := mustQuote(t, w, c.q).ProbabilityBy(at); by < 0.95 {
			t.Errorf("%s: the offer %v holds with probability %.2f", what, at.Sub(w.Now), by)
		}
	}
}

func TestQuotesAreRepeatable(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(2, 100, 100)).AddTenants("a")
	q := Query{Stages: oneStage(9, 10*time.Second), Errors: sameErrors(func(u float64) float64 { return 0.5 + u }), Seed: 7}
	a, b := mustQuote(t, w, q), mustQuote(t, w, q)
	if a.Samples() != 100 || a.EndQuantile(0.5) != b.EndQuantile(0.5) || a.EndQuantile(0.1) > a.EndQuantile(0.9) {
		t.Errorf("%v and %v", a.ends, b.ends)
	}
	if by := a.ProbabilityBy(a.EndQuantile(0.7)); by < 0.7 {
		t.Errorf("probability by the 0.7 quantile: %v", by)
	}
}

func TestBadQueries(t *testing.T) {
	w := schedtest.New(t).AddTenants("a")
	for what, q := range map[string]Query{
		"too many tasks": {Stages: oneStage(maxTasks+1, 1)},
	} {
		var p Forecaster
		if _, err := p.Quote(w.State, q, w.Now); !errors.Is(err, errQuote) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// sameErrors returns the model in which each task's error is drawn from one distribution.
func sameErrors(task Residual) ErrorModel {
	return func(scheduler.StageID) (Residual, Residual) { return exact, task }
}

// A query that is stopped makes no more samples, and ends also within a long one.
func TestStoppedQueriesEnd(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 1, 1)).AddTenants("a")
	for what, c := range map[string]struct {
		tasks int32 // that end one after another
		after int   // calls of Stop, which says no
		want  int   // calls
	}{
		"at once":                 {1, 0, 1},
		"after the first sample":  {1, 1, 2},
		"within the first sample": {3 * stopEvery, 2, 3},
		"never":                   {1, 5, 2},
	} {
		calls := 0
		var p Forecaster
		q := Query{Stages: oneStage(c.tasks, time.Second), Samples: 2, Stop: func() bool { calls++; return calls > c.after }}
		out, err := p.Quote(w.State, q, w.Now)
		if stopped := c.want > c.after; errors.Is(err, errStopped) != stopped || (out == nil) != stopped || calls != c.want {
			t.Errorf("%s: %d calls, %v, want %d", what, calls, err, c.want)
		}
	}
	var p Forecaster
	if _, err := p.Expect(w.State, Query{Stop: func() bool { return true }}, w.Now, 0); !errors.Is(err, errStopped) {
		t.Errorf("what is expected: %v", err)
	}
}
