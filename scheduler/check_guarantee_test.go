package scheduler_test

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// guaranteeWorld has two nodes of 4 cores, 8 GiB and two disks of 50 MiB/s and 10 GiB, on
// which suspension cannot free memory. Job 1 of project 1, whose departure is guaranteed, runs
// one of its two tasks on node 0; job 2 is regular and waits; job 3 has an accepted deadline
// and waits.
func guaranteeWorld(t *testing.T) *schedtest.World {
	w := schedtest.New(t).AddTenants("a")
	disk := scheduler.Disk{IO: 50 << 20, Space: 10 << 30}
	for i, name := range []string{"n0", "n1"} {
		spec := scheduler.NodeSpec{ID: scheduler.NodeID(i), Name: name, Capacity: schedtest.R(4, 8, 100),
			Levels: scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen)}
		for _, k := range []string{"sda", "sdb"} {
			disk.Name = k
			spec.Disks = append(spec.Disks, disk)
		}
		must(t, w.State.Events().AddNode(spec))
	}
	must(t, w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Tenant: 0, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}))
	must(t, w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.GuaranteeState, Project: 1}, At: w.Now.Add(time.Hour)}}))
	w.Submit("a", 2, schedtest.R(1, 1, 10), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 1, 10*time.Minute })
	w.Submit("a", 5, schedtest.R(1, 1, 10), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Disk = 4 << 30 })
	w.Submit("a", 1, schedtest.R(1, 1, 45), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote = w.Now.Add(time.Hour), true
	})
	w.Place(task(1, 0), 0)
	w.Start()
	return w
}

// Mutations of a valid decision for each rule about guarantees.
func TestCheckDefendsGuarantees(t *testing.T) {
	var w *schedtest.World
	suspend := func(job scheduler.JobID) scheduler.Action {
		a := actionOn(scheduler.ActSuspend, job, 1)
		a.Level = scheduler.LevelFrozen
		return a
	}
	// reserve returns a reservation for job 3 that starts in an hour.
	reserve := func(change func(*scheduler.Reservation)) scheduler.Action {
		r := scheduler.Reservation{ID: 1, Kind: scheduler.ReserveDeadline, Job: 3, Stage: 0, Task: 0, Node: 1,
			Demand: schedtest.R(1, 1, 0), Start: w.Now.Add(time.Hour), End: w.Now.Add(2 * time.Hour)}
		if change != nil {
			change(&r)
		}
		return scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}
	}
	applyReserve := func(change func(*scheduler.Reservation)) {
		a := reserve(change)
		must(t, w.State.Apply(&a, w.Now))
	}
	// freeze freezes the task of job 1, which may run for 10 minutes, after it has run for 9.
	freeze := func() {
		w.Advance(9 * time.Minute)
		a := suspend(1)
		must(t, w.State.Apply(&a, w.Now))
		must(t, w.State.Events().AttemptSuspended(attempt(1), 1, scheduler.LevelFrozen, scheduler.Footprint{Memory: 1 << 30}, w.Now))
		w.Advance(time.Hour)
	}
	// reserveNode reserves memory on the node of job 1 for job 3.
	reserveNode := func(in time.Duration, gib float64) {
		applyReserve(func(r *scheduler.Reservation) {
			r.Node, r.Demand, r.Start = 0, schedtest.R(1, gib, 0), w.Now.Add(in)
		})
	}
	// reserveFrozen reserves capacity for the frozen task of job 1 to go on, for so long.
	reserveFrozen := func(in, lasts time.Duration) scheduler.Action {
		return reserve(func(r *scheduler.Reservation) {
			r.ID, r.Kind, r.Job, r.Project, r.Node, r.Demand = 2, scheduler.ReserveProject, 1, 1, 0, schedtest.R(1, 0, 0)
			r.Start, r.End = w.Now.Add(in), w.Now.Add(in+lasts)
		})
	}
	// freezeFor is freeze, with a guarantee in three minutes for what 1 GiB leaves of the node's memory, and one for the
	// frozen task to go on.
	freezeFor := func(in, lasts time.Duration) {
		freeze()
		reserveNode(3*time.Minute, 7)
		a := reserveFrozen(in, lasts)
		must(t, w.State.Apply(&a, w.Now))
	}
	guaranteeJob := func(job scheduler.JobID) {
		must(t, w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.GuaranteeState, Job: job}, At: w.Now.Add(time.Hour)}}))
	}
	// reserveJob reserves capacity for the first task of job 2, which waits and has no project, for its guarantee or
	// without one.
	reserveJob := func(guaranteed bool) {
		if guaranteed {
			guaranteeJob(2)
		}
		applyReserve(func(r *scheduler.Reservation) { r.Kind, r.Job = scheduler.ReserveProject, 2 })
	}
	resume := actionOn(scheduler.ActResume, 1, 1)
	drop := scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: 1}}
	// reserveJoined reserves capacity for job 4 of project 1, whose guarantee includes the jobs up to last.
	reserveJoined := func(last int64) {
		must(t, w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.GuaranteeState, Project: 1}, Value: last, At: w.Now.Add(time.Hour)}}))
		w.Submit("a", 1, schedtest.R(1, 1, 10), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 1, 10*time.Minute })
		applyReserve(func(r *scheduler.Reservation) { r.Kind, r.Job, r.Project = scheduler.ReserveProject, 4, 1 })
	}
	policyStates := func(kind scheduler.PolicyStateKind, job scheduler.JobID, project scheduler.ProjectID) []scheduler.PolicyState {
		return []scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: kind, Job: job, Project: project, Slot: 1}, At: w.Now}}
	}
	for name, c := range map[string]struct {
		prepare func()
		actions func() []scheduler.Action
		states  func() []scheduler.PolicyState
		want    scheduler.Rule
	}{
		"a guaranteed project's task suspended": {actions: func() []scheduler.Action { return []scheduler.Action{suspend(1)} }, want: scheduler.RuleVictim},
		"a guaranteed project's task killed":    {actions: func() []scheduler.Action { return []scheduler.Action{actionOn(scheduler.ActKill, 1, 1)} }, want: scheduler.RuleVictim},
		"its guarantee is violated with a cause": {actions: func() []scheduler.Action { return []scheduler.Action{suspend(1)} },
			states: func() []scheduler.PolicyState { return policyStates(scheduler.ViolatedState, 0, 1) }},
		"its guarantee was violated before": {prepare: func() { must(t, w.State.PolicyStates().Apply(policyStates(scheduler.ViolatedState, 0, 1))) },
			actions: func() []scheduler.Action { return []scheduler.Action{suspend(1)} }},
		"it ran past its bound": {prepare: func() { w.Now = w.Now.Add(11 * time.Minute) },
			actions: func() []scheduler.Action { return []scheduler.Action{suspend(1)} }},
		"its project has no guarantee": {prepare: func() {
			must(t, w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.TombstoneState, Project: 1}, Value: int64(scheduler.GuaranteeState)}}))
		}, actions: func() []scheduler.Action { return []scheduler.Action{suspend(1)} }},

		"enough disk space beside a guarantee": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Disk = 10 << 30 }) },
			actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 1)} }},
		"guaranteed disk space": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Task, r.Disk = -1, 17<<30 }) },
			actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 1)} }, want: scheduler.RuleGuarantee},
		"a fast enough disk remains": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Demand[scheduler.IO] = 45 << 20 }) },
			actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 1)} }},
		"no single fast enough disk remains": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Demand[scheduler.IO] = 45 << 20 }) },
			actions: func() []scheduler.Action {
				second := place(2, 1, 1)
				second.Disk = 1
				return []scheduler.Action{place(2, 0, 1), second}
			}, want: scheduler.RuleGuarantee},

		"a guarantee deleted": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action { return []scheduler.Action{drop} }, want: scheduler.RuleGuarantee},
		"a guarantee deleted with a cause": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action { return []scheduler.Action{drop} },
			states: func() []scheduler.PolicyState { return policyStates(scheduler.ViolatedState, 3, 0) }},
		"the guarantee of an infeasible job deleted": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action { return []scheduler.Action{drop} },
			states: func() []scheduler.PolicyState {
				return []scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.InfeasibleState, Job: 3}, At: w.Now}}
			}},
		"a guarantee replaced under another id": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action {
			return []scheduler.Action{drop, reserve(func(r *scheduler.Reservation) { r.ID = 2 })}
		}},
		"a guarantee replaced under another id with a later latest start": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Latest = r.Start }) },
			actions: func() []scheduler.Action {
				return []scheduler.Action{drop, reserve(func(r *scheduler.Reservation) { r.ID, r.Start, r.Latest = 2, r.Start+1, r.Start+1 })}
			}, want: scheduler.RuleGuarantee},
		"a guarantee replaced under another id without a latest start": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Latest = r.Start }) },
			actions: func() []scheduler.Action {
				return []scheduler.Action{drop, reserve(func(r *scheduler.Reservation) { r.ID = 2 })}
			}, want: scheduler.RuleGuarantee},
		"a guarantee replaced under another id with the same latest start": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Latest = r.Start }) },
			actions: func() []scheduler.Action {
				return []scheduler.Action{drop, reserve(func(r *scheduler.Reservation) { r.ID, r.Latest = 2, r.Start })}
			}},
		"a guarantee replaced under another id that is deleted then": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action {
			second := drop
			second.Reservation.ID = 2
			return []scheduler.Action{drop, reserve(func(r *scheduler.Reservation) { r.ID = 2 }), second}
		}, want: scheduler.RuleGuarantee},
		"a guarantee replaced twice under two ids": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Latest = r.Start }) },
			actions: func() []scheduler.Action {
				return []scheduler.Action{drop, reserve(func(r *scheduler.Reservation) { r.ID, r.Latest = 2, r.Start }), reserve(func(r *scheduler.Reservation) { r.ID = 3 })}
			}},
		"a guarantee's id used for another job": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action {
			return []scheduler.Action{reserve(func(r *scheduler.Reservation) { r.Job = 2 })}
		}, want: scheduler.RuleGuarantee},
		"a guarantee's id used for a preemption": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action {
			return []scheduler.Action{reserve(func(r *scheduler.Reservation) { r.Kind = scheduler.ReservePreempt })}
		}, want: scheduler.RuleGuarantee},
		"a guarantee's id used for another job, and the guarantee reserved again": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action {
			return []scheduler.Action{reserve(func(r *scheduler.Reservation) { r.Job = 2 }), reserve(func(r *scheduler.Reservation) { r.ID = 2 })}
		}},
		"a guarantee for another job instead": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action {
			return []scheduler.Action{drop, reserve(func(r *scheduler.Reservation) { r.ID, r.Job = 2, 2 })}
		}, want: scheduler.RuleGuarantee},
		"a guarantee served by a start": {prepare: func() { applyReserve(nil) }, actions: func() []scheduler.Action { return []scheduler.Action{drop, place(3, 0, 1)} }},
		"the guarantee of a stopped job deleted": {prepare: func() {
			applyReserve(nil)
			must(t, w.State.Events().StopJob(3))
		}, actions: func() []scheduler.Action { return []scheduler.Action{drop} }},
		"a reservation without a guarantee deleted": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Job = 2 }) },
			actions: func() []scheduler.Action { return []scheduler.Action{drop} }},
		"the latest start of a guarantee moved": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Latest = r.Start }) },
			actions: func() []scheduler.Action {
				return []scheduler.Action{reserve(func(r *scheduler.Reservation) { r.Start, r.Latest = r.Start+1, r.Start+1 })}
			}, want: scheduler.RuleGuarantee},
		"the latest start of a reservation without a guarantee moved": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Job, r.Latest = 2, r.Start }) },
			actions: func() []scheduler.Action {
				return []scheduler.Action{reserve(func(r *scheduler.Reservation) { r.Job, r.Start, r.Latest = 2, r.Start+1, r.Start+1 })}
			}},
		"a task resumed that ends by its bound before a guarantee begins": {prepare: func() {
			freeze()
			reserveNode(2*time.Minute, 8)
		}, actions: func() []scheduler.Action { return []scheduler.Action{resume} }},
		"a task resumed that does not": {prepare: func() {
			freeze()
			reserveNode(30*time.Second, 8)
		}, actions: func() []scheduler.Action { return []scheduler.Action{resume} }, want: scheduler.RuleGuarantee},
		"a start beside a task that ends by its bound": {prepare: func() { reserveNode(11*time.Minute, 7) },
			actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 0)} }},
		"a start beside a task that does not": {prepare: func() { reserveNode(9*time.Minute, 7) },
			actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 0)} }, want: scheduler.RuleGuarantee},
		"a start beside a frozen task, whose memory stays": {prepare: func() {
			freeze()
			reserveNode(2*time.Minute, 7)
		}, actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 0)} }, want: scheduler.RuleGuarantee},
		"a start beside a frozen task that a guarantee lets end before": {prepare: func() { freezeFor(2*time.Minute, time.Minute) },
			actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 0)} }},
		"a start beside one that a guarantee lets end later": {prepare: func() { freezeFor(2*time.Minute+1, time.Minute) },
			actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 0)} }, want: scheduler.RuleGuarantee},
		"a start beside one whose guarantee is shorter than its bound": {prepare: func() { freezeFor(2*time.Minute, time.Minute-1) },
			actions: func() []scheduler.Action { return []scheduler.Action{place(2, 0, 0)} }, want: scheduler.RuleGuarantee},
		"a start beside one whose guarantee the decision moves to a time before": {prepare: func() { freezeFor(4*time.Minute, time.Minute) },
			actions: func() []scheduler.Action {
				return []scheduler.Action{reserveFrozen(time.Minute, time.Minute), place(2, 0, 0)}
			}},
		"a start beside one whose guarantee the decision moves to a time after": {prepare: func() { freezeFor(2*time.Minute, time.Minute) },
			actions: func() []scheduler.Action {
				return []scheduler.Action{reserveFrozen(4*time.Minute, time.Minute), place(2, 0, 0)}
			}, want: scheduler.RuleGuarantee},
		"two starts beside one that is resumed before its guarantee, whose memory counts once": {prepare: func() { freezeFor(2*time.Minute, time.Minute) },
			actions: func() []scheduler.Action { return []scheduler.Action{resume, place(2, 0, 0), place(2, 1, 0)} }, want: scheduler.RuleGuarantee},
		"a start beside one that is resumed and then ends": {prepare: func() {
			freeze()
			reserveNode(2*time.Minute, 7)
		}, actions: func() []scheduler.Action { return []scheduler.Action{resume, place(2, 0, 0)} }},
		"a reservation of a project with a guarantee deleted": {prepare: func() { reserveJoined(4) }, actions: func() []scheduler.Action { return []scheduler.Action{drop} }, want: scheduler.RuleGuarantee},
		"that of a job which the guarantee does not include":  {prepare: func() { reserveJoined(3) }, actions: func() []scheduler.Action { return []scheduler.Action{drop} }},
		"the guarantee of a job without a project deleted": {prepare: func() { reserveJob(true) }, actions: func() []scheduler.Action { return []scheduler.Action{drop} },
			want: scheduler.RuleGuarantee},
		"the plan of a job without a project or a guarantee deleted": {prepare: func() { reserveJob(false) }, actions: func() []scheduler.Action { return []scheduler.Action{drop} }},
		"the guarantee of a job without a project deleted with a cause": {prepare: func() { reserveJob(true) }, actions: func() []scheduler.Action { return []scheduler.Action{drop} },
			states: func() []scheduler.PolicyState { return policyStates(scheduler.ViolatedState, 2, 0) }},
		"a task of a job without a project that has a guarantee suspended": {prepare: func() {
			w.Place(task(2, 1), 1)
			w.Start()
			guaranteeJob(2)
		}, actions: func() []scheduler.Action {
			a := suspend(2)
			a.Task = task(2, 1)
			return []scheduler.Action{a}
		}, want: scheduler.RuleVictim},
		"a preemption reservation deleted": {prepare: func() { applyReserve(func(r *scheduler.Reservation) { r.Kind = scheduler.ReservePreempt }) },
			actions: func() []scheduler.Action { return []scheduler.Action{drop} }},
	} {
		t.Run(name, func(t *testing.T) {
			w = guaranteeWorld(t)
			if c.prepare != nil {
				c.prepare()
			}
			d := scheduler.Decision{Actions: c.actions()}
			if c.states != nil {
				d.PolicyStates = c.states()
			}
			v := scheduler.Check(w.State, &d, w.Now)
			if c.want == 0 && len(v) > 0 {
				t.Errorf("refused: %v", v)
			}
			if c.want != 0 && (len(v) != 1 || v[0].Rule != c.want) {
				t.Errorf("got %v, want rule %v", v, c.want)
			}
		})
	}
}

// A running task of a deadline job is a victim only where another guarantee is due on its node, and only if its own deadline has no
// guarantee that holds.
func TestCheckDefendsDeadlines(t *testing.T) {
	for name, c := range map[string]struct {
		accepted, guaranteed, violated, due bool
		elsewhere                           bool    // it is due on another node
		now                                 bool    // and reserved by the same decision
		starts                              bool    // a task of one core starts before, by the same decision
		cap                                 float64 // of both jobs' tenant, cores
		want                                scheduler.Rule
	}{
		"not accepted":                                   {},
		"accepted":                                       {accepted: true, want: scheduler.RuleVictim},
		"accepted, another guarantee is due":             {accepted: true, due: true},
		"accepted, another is due elsewhere":             {accepted: true, due: true, elsewhere: true, cap: 5, want: scheduler.RuleVictim},
		"accepted, another is due under a full cap":      {accepted: true, due: true, elsewhere: true, cap: 4},
		"accepted, another is made due under a full cap": {accepted: true, due: true, elsewhere: true, now: true, cap: 4},
		"accepted, a start fills another's cap":          {accepted: true, due: true, elsewhere: true, starts: true, cap: 5},
		"accepted, a start leaves another's cap room":    {accepted: true, due: true, elsewhere: true, starts: true, cap: 6, want: scheduler.RuleVictim},
		"guaranteed, another is due under a full cap":    {guaranteed: true, due: true, elsewhere: true, cap: 4, want: scheduler.RuleVictim},
		"guaranteed":                                {guaranteed: true, want: scheduler.RuleVictim},
		"guaranteed, another guarantee is due":      {guaranteed: true, due: true, want: scheduler.RuleVictim},
		"its guarantee is violated":                 {guaranteed: true, violated: true, want: scheduler.RuleVictim},
		"its guarantee is violated, another is due": {guaranteed: true, violated: true, due: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(2, schedtest.R(4, 4, 10)).AddTenants("a")
			tenant := w.Tenant("a").Spec
			tenant.Caps.Total = scheduler.Limit(schedtest.R(c.cap, 0, 0))
			must(t, w.State.Events().PutTenant(tenant))
			id := w.Submit("a", 1, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
				j.Deadline, j.AcceptedByQuote, j.Bound = w.Now.Add(time.Hour), c.accepted, time.Second
			})
			a := w.Place(scheduler.TaskID{Job: id}, 0)
			w.Start()
			record := func(kind scheduler.PolicyStateKind, slot int32) {
				must(t, w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: kind, Job: id, Slot: slot}, At: w.Now}}))
			}
			if c.guaranteed {
				record(scheduler.AcceptedState, 0)
			}
			if c.violated {
				record(scheduler.ViolatedState, 1)
			}
			d := scheduler.Decision{At: w.Now}
			if c.due {
				other := w.Submit("a", 1, schedtest.R(4, 1, 0))
				r := scheduler.Reservation{ID: 1, Kind: scheduler.ReserveDeadline, Job: other, Demand: schedtest.R(4, 1, 0), OnDisk: -1, Start: w.Now, End: w.Now.Add(time.Minute)}
				if c.elsewhere {
					r.Node = 1
				}
				reserve := scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}
				if d.Actions = append(d.Actions, reserve); !c.now {
					must(t, w.State.Apply(&reserve, w.Now))
					d.Actions = nil
				}
			}
			if c.starts {
				first := scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}
				d.Actions = append(d.Actions, scheduler.Action{Kind: scheduler.ActPlace, Task: first, Attempt: 1, Run: 1, Disk: -1})
			}
			d.Actions = append(d.Actions, scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: scheduler.LevelFrozen})
			got := scheduler.Rule(0)
			for _, v := range scheduler.Check(w.State, &d, w.Now) {
				got = v.Rule
			}
			if got != c.want {
				t.Errorf("Check finds %v, want %v", got, c.want)
			}
		})
	}
}

// Check counts the guarantee of a job as violated, in the decision that records that and in later ones, just if a State that
// has the record counts it so.
func TestCheckAndStateAgreeOnViolations(t *testing.T) {
	for name, key := range map[string]scheduler.PolicyStateKey{"its own": {Job: 1}, "that of its project": {Project: 1}, "that of another job": {Job: 2},
		"that of another project": {Project: 2}} {
		for _, before := range []bool{false, true} {
			w := guaranteeWorld(t)
			must(t, w.State.Events().PutProject(scheduler.ProjectSpec{ID: 2, Name: "q", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}))
			key.Kind = scheduler.ViolatedState
			record := []scheduler.PolicyState{{PolicyStateKey: key, At: w.Now}}
			d := scheduler.Decision{Actions: []scheduler.Action{actionOn(scheduler.ActSuspend, 1, 1)}}
			d.Actions[0].Level = scheduler.LevelFrozen
			if before {
				must(t, w.State.PolicyStates().Apply(record))
			} else {
				d.PolicyStates = record
			}
			allowed := len(scheduler.Check(w.State, &d, w.Now)) == 0
			if !before {
				must(t, w.State.PolicyStates().Apply(record))
			}
			if violated := w.State.Reservations().IsViolated(w.State.Job(1)); allowed != violated {
				t.Errorf("%s, recorded before: %v: Check lets its task be suspended: %v, the State counts its guarantee as violated: %v", name, before, allowed, violated)
			}
		}
	}
}
