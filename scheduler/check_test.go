package scheduler_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// checkWorld has two nodes of 4 cores, 8 GiB, 100 MiB/s. Job 1 runs a task on each node, job 2
// waits with three tasks, job 3 has an accepted deadline and one running attempt, job 4's
// attempt is checkpointed on node 0.
func checkWorld(t *testing.T) *schedtest.World {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a", "a/b")
	w.Submit("b", 2, schedtest.R(1, 1, 10))
	w.Submit("b", 3, schedtest.R(1, 1, 10), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Disk = 1 << 30 })
	w.Submit("a", 1, schedtest.R(1, 1, 10), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote = w.Now.Add(time.Hour), true
	})
	w.Submit("a", 1, schedtest.R(1, 1, 10))
	w.Place(task(1, 0), 0)
	w.Place(task(1, 1), 1)
	w.Place(task(3, 0), 0)
	a := w.Place(task(4, 0), 0)
	w.Start()
	apply(t, w, scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: 1, Run: 1, Level: scheduler.LevelCheckpointed})
	if err := w.State.Events().AttemptSuspended(a.ID, 1, scheduler.LevelCheckpointed, scheduler.Footprint{Memory: 1 << 20, Image: 1 << 20}, w.Now); err != nil {
		t.Fatal(err)
	}
	return w
}

func task(job scheduler.JobID, i int32) scheduler.TaskID { return scheduler.TaskID{Job: job, Index: i} }

func apply(t *testing.T, w *schedtest.World, a scheduler.Action) {
	t.Helper()
	if err := w.State.Apply(&a, w.Now); err != nil {
		t.Fatal(err)
	}
}

func place(job scheduler.JobID, i int32, node scheduler.NodeID) scheduler.Action {
	return scheduler.Action{Kind: scheduler.ActPlace, Task: task(job, i), Attempt: 1, Run: 1, Node: node}
}

func actionOn(kind scheduler.ActionKind, job scheduler.JobID, run int32) scheduler.Action {
	return scheduler.Action{Kind: kind, Task: task(job, 0), Attempt: 1, Run: run}
}

func TestCheckCatchesEachKindOfMistake(t *testing.T) {
	with := func(a scheduler.Action, change func(*scheduler.Action)) scheduler.Action {
		change(&a)
		return a
	}
	guarantee := func(change func(*scheduler.Reservation)) scheduler.Action {
		r := scheduler.Reservation{ID: 1, Kind: scheduler.ReserveDeadline, Job: 3, Stage: -1, Task: -1, Node: 1,
			Demand: schedtest.R(4, 4, 0), Start: 100, End: 200, Latest: 150}
		change(&r)
		return scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}
	}
	moved := with(actionOn(scheduler.ActMigrate, 4, 2), func(a *scheduler.Action) { a.Node = 1 })
	parked := func(w *schedtest.World) { must(t, w.State.Events().SetParked(attempt(4), 1, true)) }
	deeper := with(actionOn(scheduler.ActSuspend, 1, 1), func(a *scheduler.Action) { a.Level = scheduler.LevelCheckpointed })
	parkedInMemory := func(w *schedtest.World) {
		frozen := deeper
		frozen.Level = scheduler.LevelFrozen
		apply(t, w, frozen)
		must(t, w.State.Events().AttemptSuspended(attempt(1), 1, scheduler.LevelFrozen, scheduler.Footprint{Memory: 1 << 30}, w.Now))
		must(t, w.State.Events().SetParked(attempt(1), 1, true))
	}
	for name, c := range map[string]struct {
		prepare func(*schedtest.World)
		actions []scheduler.Action
		states  []scheduler.PolicyState
		want    scheduler.Rule // 0: none
		at      int
	}{
		"a good decision":                    {actions: []scheduler.Action{place(2, 0, 0), place(2, 1, 1), actionOn(scheduler.ActResume, 4, 1), actionOn(scheduler.ActKill, 1, 1)}},
		"an unknown job":                     {actions: []scheduler.Action{place(9, 0, 0)}, want: scheduler.RuleUnknown},
		"an unknown task":                    {actions: []scheduler.Action{place(2, 3, 0)}, want: scheduler.RuleUnknown},
		"an unknown node":                    {actions: []scheduler.Action{place(2, 0, 2)}, want: scheduler.RuleUnknown},
		"an unknown disk":                    {actions: []scheduler.Action{with(place(2, 0, 0), func(a *scheduler.Action) { a.Disk = 1 })}, want: scheduler.RuleUnknown},
		"no disk for a task with I/O":        {actions: []scheduler.Action{with(place(2, 0, 0), func(a *scheduler.Action) { a.Disk = -1 })}, want: scheduler.RuleUnknown},
		"a task placed twice":                {actions: []scheduler.Action{place(2, 0, 0), place(2, 0, 1)}, want: scheduler.RuleStale, at: 1},
		"a running task placed":              {actions: []scheduler.Action{with(place(1, 0, 0), func(a *scheduler.Action) { a.Attempt = 2 })}, want: scheduler.RuleStale},
		"a wrong attempt":                    {actions: []scheduler.Action{with(place(2, 0, 0), func(a *scheduler.Action) { a.Attempt = 2 })}, want: scheduler.RuleStale},
		"a wrong run":                        {actions: []scheduler.Action{actionOn(scheduler.ActKill, 1, 2)}, want: scheduler.RuleStale},
		"a second attempt of a running task": {actions: []scheduler.Action{with(place(1, 0, 1), func(a *scheduler.Action) { a.Attempt, a.Speculative = 2, true })}},
		"a second attempt of a waiting task": {actions: []scheduler.Action{with(place(2, 0, 1), func(a *scheduler.Action) { a.Speculative = true })}, want: scheduler.RuleStale},
		"over CPU only in sum": {prepare: func(w *schedtest.World) { w.Submit("a", 9, schedtest.R(1, 1, 1)) },
			actions: []scheduler.Action{place(5, 0, 0), place(5, 1, 0), place(5, 2, 0)}, want: scheduler.RuleCapacity, at: 2},
		"over memory": {prepare: func(w *schedtest.World) { w.Submit("a", 1, schedtest.R(1, 8, 1)) }, actions: []scheduler.Action{place(5, 0, 1)}, want: scheduler.RuleCapacity},
		"over I/O":    {prepare: func(w *schedtest.World) { w.Submit("a", 1, schedtest.R(1, 1, 95)) }, actions: []scheduler.Action{place(5, 0, 1)}, want: scheduler.RuleCapacity},
		"over disk space": {prepare: func(w *schedtest.World) {
			w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Disk = 1 << 41 })
		}, actions: []scheduler.Action{place(5, 0, 1)}, want: scheduler.RuleCapacity},
		"a resume where its capacity was taken": {prepare: func(w *schedtest.World) { w.Submit("a", 1, schedtest.R(2, 1, 1)) },
			actions: []scheduler.Action{place(5, 0, 0), actionOn(scheduler.ActResume, 4, 1)}, want: scheduler.RuleCapacity, at: 1},
		"capacity of a suspension in progress": {prepare: func(w *schedtest.World) { w.Submit("a", 1, schedtest.R(3, 1, 1)) },
			actions: []scheduler.Action{with(actionOn(scheduler.ActSuspend, 1, 1), func(a *scheduler.Action) { a.Level = scheduler.LevelFrozen }), place(5, 0, 0)}, want: scheduler.RuleCapacity, at: 1},
		"a draining node": {prepare: func(w *schedtest.World) { _ = w.State.Events().SetDrain(1, true) }, actions: []scheduler.Action{place(2, 0, 1)}, want: scheduler.RuleCapacity},
		"a lost node":     {prepare: func(w *schedtest.World) { _ = w.State.Events().NodeLost(1, w.Now) }, actions: []scheduler.Action{place(2, 0, 1)}, want: scheduler.RuleCapacity},
		"over a cap of the group": {prepare: func(w *schedtest.World) { caps(w, func(c *scheduler.Caps) { c.Total[scheduler.CPU] = 4000 }) },
			actions: []scheduler.Action{place(2, 0, 0), place(2, 1, 1)}, want: scheduler.RuleCap, at: 1},
		"over a cap of a job": {prepare: func(w *schedtest.World) { caps(w, func(c *scheduler.Caps) { c.Job[scheduler.IO] = 15 << 20 }) },
			actions: []scheduler.Action{place(2, 0, 0), place(2, 1, 1)}, want: scheduler.RuleCap, at: 1},
		"over a cap of a task": {prepare: func(w *schedtest.World) {
			spec := w.Tenant("b").Spec
			spec.Caps.Task[scheduler.Memory] = 1 << 29
			_ = w.State.Events().PutTenant(spec)
		}, actions: []scheduler.Action{place(2, 0, 0)}, want: scheduler.RuleCap},
		"over max_parallel": {prepare: func(w *schedtest.World) {
			w.Submit("a", 3, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.MaxParallel = 1 })
		}, actions: []scheduler.Action{place(5, 0, 0), place(5, 1, 1)}, want: scheduler.RuleParallel, at: 1},
		"a deadline job suspended": {actions: []scheduler.Action{with(actionOn(scheduler.ActSuspend, 3, 1), func(a *scheduler.Action) { a.Level = scheduler.LevelFrozen })}, want: scheduler.RuleVictim},
		"an infeasible deadline job suspended": {actions: []scheduler.Action{with(actionOn(scheduler.ActSuspend, 3, 1), func(a *scheduler.Action) { a.Level = scheduler.LevelFrozen })},
			states: []scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.InfeasibleState, Job: 3}}}},
		"a level the node cannot do": {prepare: func(w *schedtest.World) {
			spec := w.State.Node(0).Spec
			spec.Levels = scheduler.Levels(scheduler.LevelRunning)
			_ = w.State.Events().UpdateNode(spec)
		}, actions: []scheduler.Action{with(actionOn(scheduler.ActSuspend, 1, 1), func(a *scheduler.Action) { a.Level = scheduler.LevelFrozen })}, want: scheduler.RuleInvalid},
		"suspended twice":           {actions: []scheduler.Action{with(actionOn(scheduler.ActSuspend, 1, 1), func(a *scheduler.Action) { a.Level = scheduler.LevelFrozen }), actionOn(scheduler.ActKill, 1, 1)}, want: scheduler.RuleStale, at: 1},
		"suspended without a level": {actions: []scheduler.Action{actionOn(scheduler.ActSuspend, 1, 1)}, want: scheduler.RuleInvalid},
		"resumed while it runs":     {actions: []scheduler.Action{actionOn(scheduler.ActResume, 1, 1)}, want: scheduler.RuleStale},
		"moved to another kind of CPU": {prepare: func(w *schedtest.World) {
			spec := w.State.Node(1).Spec
			spec.CPUClass = "older"
			_ = w.State.Events().UpdateNode(spec)
		}, actions: []scheduler.Action{moved}, want: scheduler.RuleInvalid},
		"moved to a kind of CPU that restores it": {prepare: func(w *schedtest.World) {
			spec := w.State.Node(1).Spec
			spec.CPUClass, spec.Restores = "newer", []string{w.State.Node(0).Spec.CPUClass}
			_ = w.State.Events().UpdateNode(spec)
		}, actions: []scheduler.Action{moved}},
		"a parked attempt resumed":          {prepare: parked, actions: []scheduler.Action{actionOn(scheduler.ActResume, 4, 1)}, want: scheduler.RuleStale},
		"a parked attempt moved":            {prepare: parked, actions: []scheduler.Action{moved}, want: scheduler.RuleStale},
		"a parked attempt killed":           {prepare: parked, actions: []scheduler.Action{actionOn(scheduler.ActKill, 4, 1)}},
		"a parked attempt suspended deeper": {prepare: parkedInMemory, actions: []scheduler.Action{deeper}},
		"moved":                             {actions: []scheduler.Action{moved}},
		"moved to its own node":             {actions: []scheduler.Action{actionOn(scheduler.ActMigrate, 4, 2)}, want: scheduler.RuleInvalid},
		"killed while not live":             {actions: []scheduler.Action{actionOn(scheduler.ActKill, 2, 1)}, want: scheduler.RuleStale},
		"no kind":                           {actions: []scheduler.Action{{}}, want: scheduler.RuleInvalid},
		"a reservation for an unknown job":  {actions: []scheduler.Action{{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: 1, Kind: scheduler.ReserveData, Job: 9, Stage: -1, Task: -1}}}, want: scheduler.RuleUnknown},
		"a reservation backwards":           {actions: []scheduler.Action{guarantee(func(r *scheduler.Reservation) { r.End = 1 })}, want: scheduler.RuleInvalid},
		"a guarantee past its latest start": {actions: []scheduler.Action{guarantee(func(r *scheduler.Reservation) { r.Start = 160 })}, want: scheduler.RuleGuarantee},
		"a guarantee past its latest start, with a cause": {actions: []scheduler.Action{guarantee(func(r *scheduler.Reservation) { r.Start = 160 })},
			states: []scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.ViolatedState, Job: 3}}}},
		"a guarantee's latest start moved": {prepare: func(w *schedtest.World) {
			w.Submit("a", 1, schedtest.R(1, 1, 10), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
				j.Deadline, j.AcceptedByQuote = w.Now.Add(time.Hour), true
			})
			apply(t, w, guarantee(func(r *scheduler.Reservation) { r.Job = 5 }))
		}, actions: []scheduler.Action{guarantee(func(r *scheduler.Reservation) { r.Job, r.Latest = 5, 151 })}, want: scheduler.RuleGuarantee},
		"the latest start of a guarantee that is served moved": {prepare: func(w *schedtest.World) { apply(t, w, guarantee(func(*scheduler.Reservation) {})) },
			actions: []scheduler.Action{guarantee(func(r *scheduler.Reservation) { r.Latest = 151 })}},
		"a non-preemptible start on guaranteed capacity": {prepare: func(w *schedtest.World) {
			spec := w.State.Node(1).Spec
			spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen)
			_ = w.State.Events().UpdateNode(spec)
			a := guarantee(func(r *scheduler.Reservation) {
				r.Start, r.Latest, r.End = w.Now.Add(time.Hour), 0, w.Now.Add(2*time.Hour)
			})
			_ = w.State.Apply(&a, w.Now)
		}, actions: []scheduler.Action{place(2, 0, 1)}, want: scheduler.RuleGuarantee},
		"a preemptible start on guaranteed capacity": {prepare: func(w *schedtest.World) {
			a := guarantee(func(r *scheduler.Reservation) {
				r.Start, r.Latest, r.End = w.Now.Add(time.Hour), 0, w.Now.Add(2*time.Hour)
			})
			_ = w.State.Apply(&a, w.Now)
		}, actions: []scheduler.Action{place(2, 0, 1)}},
		"an unknown reservation deleted":   {actions: []scheduler.Action{{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: 5}}}, want: scheduler.RuleUnknown},
		"a policy state of an unknown job": {states: []scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: 9}}}, want: scheduler.RulePolicyState},
	} {
		t.Run(name, func(t *testing.T) {
			w := checkWorld(t)
			if c.prepare != nil {
				c.prepare(w)
			}
			before := schedtest.Bytes(w.State)
			v := scheduler.Check(w.State, &scheduler.Decision{Actions: c.actions, PolicyStates: c.states}, w.Now)
			switch {
			case c.want == 0 && len(v) > 0:
				t.Errorf("refused: %v", v)
			case c.want != 0 && (len(v) != 1 || v[0].Rule != c.want || v[0].Index != c.at):
				t.Errorf("got %v, want rule %v at %d", v, c.want, c.at)
			case c.want == scheduler.RulePolicyState && !strings.HasPrefix(v[0].Error(), "policy state 0 breaks rule policy_state: "):
				t.Errorf("the violation of a policy state is called: %v", v[0])
			}
			if string(schedtest.Bytes(w.State)) != string(before) {
				t.Error("Check changed the State")
			}
		})
	}
}

// attempt returns the id of the first attempt at the first task of a job.
func attempt(job scheduler.JobID) scheduler.AttemptID {
	return scheduler.AttemptID{TaskID: task(job, 0), Attempt: 1}
}

// The owner of a State applies the resume by a user before it records that the attempt is no longer parked.
func TestParkedAttemptResumesAsAFact(t *testing.T) {
	w := checkWorld(t)
	must(t, w.State.Events().SetParked(attempt(4), 1, true))
	resume := actionOn(scheduler.ActResume, 4, 1)
	if err := w.State.Apply(&resume, w.Now); !errors.Is(err, scheduler.ErrStale) || w.State.Attempts().CanResume(w.State.Attempt(attempt(4))) {
		t.Errorf("Apply says %v, want that it is stale, and CanResume has to agree", err)
	}
	must(t, w.State.ApplyFact(&resume, w.Now))
	if a := w.State.Attempt(attempt(4)); a.Phase != scheduler.AttemptResuming {
		t.Errorf("the attempt is %v, want resuming", a.Phase)
	}
}

func caps(w *schedtest.World, change func(*scheduler.Caps)) {
	spec := w.Tenant("a").Spec
	change(&spec.Caps)
	if err := w.State.Events().PutTenant(spec); err != nil {
		w.Fatalf("%v", err)
	}
}

// Apply and Check agree on each action, except on caps, guarantees, victims and max_parallel, which only Check
// enforces. Apply accepts in order all actions that Check accepts: Check itself sums up what they take together.
func TestCheckAndApplyAgree(t *testing.T) {
	checkAndApplyAgree(t, 0xb3, 39) // regression: Apply took a second attempt of a stage that had closed again
	rapid.Check(t, func(t *rapid.T) {
		checkAndApplyAgree(t, rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 40).Draw(t, "steps"))
	})
}

func checkAndApplyAgree(t schedtest.TB, seed uint64, steps int) {
	c := schedtest.NewChaos(t, seed)
	for range steps {
		c.Step()
		for _, a := range c.Actions(4) {
			v := scheduler.Check(c.State, &scheduler.Decision{Actions: []scheduler.Action{a}}, c.Now)
			m := c.State.Journal().Mark()
			err := c.State.Apply(&a, c.Now)
			c.State.Journal().Rollback(m)
			if len(v) > 0 {
				switch v[0].Rule {
				case scheduler.RuleCap, scheduler.RuleGuarantee, scheduler.RuleVictim, scheduler.RuleParallel:
					continue
				}
			}
			if (err == nil) != (len(v) == 0) {
				t.Fatalf("%v: Apply says %v, Check says %v", &a, err, v)
			}
		}
		m := c.State.Journal().Mark()
		var several []scheduler.Action
		for range 5 {
			for _, a := range c.Actions(1) { // chosen where the ones before have been applied
				if c.State.Apply(&a, c.Now) == nil || c.R.IntN(4) == 0 {
					several = append(several, a)
				}
			}
		}
		c.State.Journal().Rollback(m)
		if len(scheduler.Check(c.State, &scheduler.Decision{Actions: several}, c.Now)) == 0 {
			m := c.State.Journal().Mark()
			for i := range several {
				if err := c.State.Apply(&several[i], c.Now); err != nil {
					t.Fatalf("Check accepts %v, of which Apply refuses the action %d: %v", several, i, err)
				}
			}
			c.State.Journal().Rollback(m)
		}
		applyAll(t, c, c.Actions(3))
	}
}
