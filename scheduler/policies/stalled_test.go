package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// stalledWorld is a node that the reduces of a job fill.
type stalledWorld struct {
	*schedtest.World
	policy scheduler.Policy
	job    scheduler.JobID
}

// newStalledWorld returns a world with a project in which the output of a map has just been lost.
func newStalledWorld(t *testing.T, policy string, levels scheduler.LevelSet, change ...func(*scheduler.JobSpec)) *stalledWorld {
	t.Helper()
	w := &stalledWorld{World: schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a"), policy: mustNew(t, policy, nil)}
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	spec := w.State.Node(0).Spec
	spec.Levels = levels
	if err := w.State.Events().UpdateNode(spec); err != nil {
		t.Fatal(err)
	}
	w.job = w.SubmitStages("a", []scheduler.StageSpec{
		{Name: "map", Kind: scheduler.KindMap, Tasks: 2, Demand: schedtest.R(2, 4, 1), Estimate: time.Minute},
		{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 2, Demand: schedtest.R(2, 4, 1), After: []int32{0}, Estimate: time.Minute},
	}, append(change, func(j *scheduler.JobSpec) { j.Bound = 2 * time.Minute })...)
	w.cycle().end(0).cycle()
	for n := 0; n < 10 && w.stage(1).Running < 2; n++ { // a guarantee begins when the maps should have ended
		w.Advance(30 * time.Second)
		w.cycle()
	}
	if g := w.stage(1); g.Running != 2 {
		t.Fatalf("%d reduces run", g.Running)
	}
	if err := w.State.Events().OutputLost(w.stage(0).Task(1)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *stalledWorld) stage(i int) *scheduler.Stage { return w.State.Job(w.job).Stages[i] }

// cycle runs cycles until one decides nothing, and reports each action as done: a
// suspended attempt has filled its memory.
func (w *stalledWorld) cycle() *stalledWorld {
	w.Helper()
	for n := 0; !w.step(); n++ {
		if n == 20 {
			w.Fatalf("20 cycles without an end")
		}
	}
	return w
}

// step runs a cycle and reports whether it decided nothing.
func (w *stalledWorld) step() bool {
	w.Helper()
	d := w.Cycle(w.policy)
	w.Start()
	for _, a := range d.Actions {
		var err error
		switch at := w.State.Attempt(a.AttemptID()); a.Kind {
		case scheduler.ActSuspend:
			m := at.Demand[scheduler.Memory]
			err = w.State.Events().AttemptSuspended(at.ID, at.Run, a.Level, scheduler.Footprint{Memory: m, Swap: m}, w.Now)
		case scheduler.ActResume:
			err = w.State.Events().AttemptResumed(at.ID, at.Run, w.Now)
		case scheduler.ActKill:
			w.End(at, scheduler.OutcomeKilled)
		}
		if err != nil {
			w.Fatalf("%v: %v", &a, err)
		}
	}
	w.Advance(time.Second)
	return d.Empty()
}

// mustLose loses the output of the first map.
func (w *stalledWorld) mustLose() *stalledWorld {
	w.Helper()
	if err := w.State.Events().OutputLost(w.stage(0).Task(0)); err != nil {
		w.Fatalf("%v", err)
	}
	return w
}

// mustEndAll runs cycles and ends running tasks, until every job is complete.
func (w *stalledWorld) mustEndAll() {
	w.Helper()
	for range 20 {
		w.Advance(30 * time.Second) // to what is planned
		w.cycle()
		complete := true
		for j := range w.State.Jobs() {
			complete = complete && schedtest.Complete(j)
		}
		if complete {
			return
		}
		for _, a := range w.Attempts() {
			if a.Phase == scheduler.AttemptRunning && !w.State.StageOf(a).WaitsForInput() {
				w.End(a, scheduler.OutcomeSucceeded)
			}
		}
	}
	w.Fatalf("not all jobs end")
}

// end ends the running attempts of a stage.
func (w *stalledWorld) end(stage int) *stalledWorld {
	w.Helper()
	for _, a := range w.Attempts() {
		if a.ID.Stage == int32(stage) && a.Phase == scheduler.AttemptRunning {
			w.End(a, scheduler.OutcomeSucceeded)
		}
	}
	return w
}

// Under every policy a reduce gives way to the lost map that it waits for, and continues when that
// is done: it is suspended if its node can free its memory, else killed.
func TestReducesGiveWayToLostMaps(t *testing.T) {
	for _, info := range table {
		for name, c := range map[string]struct {
			levels    scheduler.LevelSet
			suspended int32
		}{
			"suspended": {scheduler.AllLevels, 1},
			"killed":    {scheduler.Levels(scheduler.LevelRunning), 0},
		} {
			t.Run(info.Name+"/"+name, func(t *testing.T) {
				w := newStalledWorld(t, info.Name, c.levels).cycle()
				if m, r := w.stage(0), w.stage(1); m.Running != 1 || r.Running != 1 || r.Suspended != c.suspended {
					t.Fatalf("%d maps and %d reduces run, %d are suspended", m.Running, r.Running, r.Suspended)
				}
				w.end(0).cycle()
				if r := w.stage(1); r.Running != 2 || r.Suspended != 0 {
					t.Fatalf("after the map: %d reduces run, %d are suspended", r.Running, r.Suspended)
				}
				if w.end(1); w.stage(1).Done != 2 {
					t.Fatalf("%d reduces are done", w.stage(1).Done)
				}
			})
		}
	}
}

// No reduce gives way where the map fits beside it.
func TestReducesStayWhereTheMapFits(t *testing.T) {
	w := newStalledWorld(t, "3dsf", scheduler.AllLevels)
	w.AddNodes(1, schedtest.R(4, 8, 100))
	w.cycle()
	if m, r := w.stage(0), w.stage(1); m.Running != 1 || r.Running != 2 {
		t.Fatalf("%d maps and %d reduces run", m.Running, r.Running)
	}
}

// A map whose output was lost runs even if the policy leaves the free capacity to a task that waits
// for the stalled reduces.
func TestLostMapsRunBeforeWhatWaitsForTheirReduces(t *testing.T) {
	for _, c := range []struct {
		policy string
		params map[string]string
	}{
		{"3dsf", nil},
		{"fifo", map[string]string{"strict": "true"}},
		{"easy", nil},
		{"multifactor", nil},
	} {
		t.Run(c.policy, func(t *testing.T) {
			w := &stalledWorld{World: schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a", "b"), policy: mustNew(t, c.policy, c.params)}
			w.Advance(time.Second)
			w.job = w.SubmitStages("a", []scheduler.StageSpec{
				{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: schedtest.R(1, 1, 1)},
				{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 3, Demand: schedtest.R(1, 1, 1), After: []int32{0}},
			})
			w.cycle().end(0).cycle()
			large := w.Submit("b", 1, schedtest.R(3.5, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
				j.Priority, j.Submitted = scheduler.PriorityHigh, 1
			})
			w.Advance(2 * time.Hour) // the reduces are past their bounds
			w.mustLose().cycle()
			if m, r := w.stage(0), w.stage(1); m.Running != 1 || r.Running != 3 {
				t.Fatalf("%d maps and %d reduces run", m.Running, r.Running)
			}
			if w.State.Job(large).Live != 0 {
				t.Fatal("the large task runs: this test proves nothing")
			}
			w.mustEndAll()
		})
	}
}

// Under every policy reduces give way to a lost map that fits but would exceed a cap which they fill.
func TestReducesGiveWayWithinCaps(t *testing.T) {
	for _, info := range table {
		for name, c := range map[string]struct {
			caps   scheduler.Caps
			levels scheduler.LevelSet
			gone   int32 // reduces that do not run
		}{
			"cpu of the tenant":      {scheduler.Caps{Total: scheduler.Limit{4000}}, scheduler.AllLevels, 1},
			"memory of the job":      {scheduler.Caps{Job: scheduler.Limit{0, 8 * schedtest.GiB}}, scheduler.AllLevels, 1},
			"both":                   {scheduler.Caps{Total: scheduler.Limit{4000, 8 * schedtest.GiB}}, scheduler.AllLevels, 1},
			"killed":                 {scheduler.Caps{Total: scheduler.Limit{4000, 8 * schedtest.GiB}}, scheduler.Levels(scheduler.LevelRunning), 1},
			"a cap that is not full": {scheduler.Caps{Total: scheduler.Limit{40_000}}, scheduler.AllLevels, 0},
		} {
			t.Run(info.Name+"/"+name, func(t *testing.T) {
				w := newStalledWorld(t, info.Name, c.levels)
				w.AddNodes(1, schedtest.R(4, 8, 100))
				spec := w.Tenant("a").Spec
				spec.Caps = c.caps
				if err := w.State.Events().PutTenant(spec); err != nil {
					t.Fatal(err)
				}
				w.cycle()
				if m, r := w.stage(0), w.stage(1); m.Running != 1 || r.Running != 2-c.gone {
					t.Fatalf("%d maps and %d reduces run", m.Running, r.Running)
				}
				w.mustEndAll()
			})
		}
	}
}

// Reduces of a job with an accepted deadline, guaranteed or not, and of a project with a guarantee give way too.
func TestGuaranteedReducesGiveWayToLostMaps(t *testing.T) {
	for _, info := range table {
		for name, change := range map[string]func(*scheduler.JobSpec){
			"accepted":   func(j *scheduler.JobSpec) { j.Deadline, j.AcceptedByQuote = j.Submitted.Add(time.Hour), true },
			"guaranteed": func(j *scheduler.JobSpec) { j.Deadline = j.Submitted.Add(time.Hour) },
			"missed":     func(j *scheduler.JobSpec) { j.Deadline = j.Submitted.Add(4 * time.Minute) },
			"project":    func(j *scheduler.JobSpec) { j.Project = 1 },
		} {
			t.Run(info.Name+"/"+name, func(t *testing.T) {
				w := newStalledWorld(t, info.Name, scheduler.AllLevels, change)
				if name == "missed" {
					w.Advance(time.Hour)
				}
				w.cycle()
				if m, r := w.stage(0), w.stage(1); m.Running != 1 || r.Running > 1 { // two_tier stops both once they are past their bound
					t.Fatalf("%d maps and %d reduces run", m.Running, r.Running)
				}
				w.mustEndAll()
			})
		}
	}
}

// Guarantees that start after reduces that give way hold, or their violation is recorded: no
// decision breaks a rule, and all jobs end.
func TestGuaranteesBehindReducesThatGiveWay(t *testing.T) {
	for _, policy := range []string{"3dsf", "two_tier"} {
		for name, levels := range map[string]scheduler.LevelSet{"suspended": scheduler.AllLevels, "killed": scheduler.Levels(scheduler.LevelRunning)} {
			t.Run(policy+"/"+name, func(t *testing.T) {
				w := newStalledWorld(t, policy, levels, func(j *scheduler.JobSpec) { j.Project = 1 })
				if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 2, Name: "behind", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
					t.Fatal(err)
				}
				w.Submit("a", 1, schedtest.R(4, 8, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 2, time.Minute })
				w.cycle()
				for id := scheduler.ProjectID(1); id <= 2; id++ {
					if !w.State.Project(id).HasState(scheduler.GuaranteeState) {
						t.Errorf("project %d has no guarantee: this test proves nothing", id)
					}
				}
				w.mustEndAll()
			})
		}
	}
}

// Reduces that wait for maps of two stages give way to both, none of them twice.
func TestReducesGiveWayToLostMapsOfTwoStages(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			w := &stalledWorld{World: schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a"), policy: mustNew(t, info.Name, nil)}
			half := schedtest.R(2, 4, 1)
			w.job = w.SubmitStages("a", []scheduler.StageSpec{
				{Name: "left", Kind: scheduler.KindMap, Tasks: 1, Demand: half},
				{Name: "right", Kind: scheduler.KindMap, Tasks: 1, Demand: half},
				{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 2, Demand: half, After: []int32{0, 1}},
			}, func(j *scheduler.JobSpec) { j.Bound = 2 * time.Minute })
			w.cycle().end(0).end(1).cycle()
			if n := w.stage(2).Running; n != 2 {
				t.Fatalf("%d reduces run", n)
			}
			for i := range 2 {
				if err := w.State.Events().OutputLost(w.stage(i).Task(0)); err != nil {
					t.Fatal(err)
				}
			}
			w.cycle()
			if w.stage(0).Running != 1 || w.stage(1).Running != 1 {
				t.Errorf("%d and %d maps run", w.stage(0).Running, w.stage(1).Running)
			}
			w.mustEndAll()
		})
	}
}

// idlePolicy decides nothing.
type idlePolicy struct{}

func (idlePolicy) Name() string { return "idle" }

func (idlePolicy) Decide(*scheduler.State, scheduler.Time, int) scheduler.Decision {
	return scheduler.Decision{}
}

// A map that a policy leaves waiting takes nothing of guarantees and of preemptions in progress, and reduces give way to
// what is due. It takes what is only planned.
func TestLostMapsLeaveGuaranteesAlone(t *testing.T) {
	const place, suspend, nothing = scheduler.ActPlace, scheduler.ActSuspend, scheduler.ActionKind(0)
	none, rigid := scheduler.LevelSet(0), scheduler.Levels(scheduler.LevelRunning)
	for name, c := range map[string]struct {
		kind     scheduler.ReservationKind
		from, to time.Duration
		own      bool
		levels   scheduler.LevelSet // of the node with the reservation, none for all
		want     scheduler.ActionKind
	}{
		"a guarantee in force":                       {scheduler.ReserveDeadline, -time.Minute, time.Hour, false, none, suspend},
		"a guarantee that has ended":                 {scheduler.ReserveDeadline, -time.Hour, -time.Minute, false, none, place},
		"a guarantee to come, to which it gives way": {scheduler.ReserveDeadline, time.Minute, time.Hour, false, none, place},
		"a guarantee that begins before it ends":     {scheduler.ReserveDeadline, time.Minute, time.Hour, false, rigid, nothing},
		"a guarantee that begins when it has ended":  {scheduler.ReserveDeadline, 2 * time.Minute, time.Hour, false, rigid, place},
		"its own guarantee":                          {scheduler.ReserveDeadline, -time.Minute, time.Hour, true, none, place},
		"a preemption in progress":                   {scheduler.ReservePreempt, 0, time.Minute, false, none, suspend},
		"a plan":                                     {scheduler.ReserveHead, 0, time.Hour, false, none, place},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStalledWorld(t, "fifo", scheduler.AllLevels)
			w.AddNodes(1, schedtest.R(4, 8, 100))
			if c.levels != none {
				spec := w.State.Node(1).Spec
				spec.Levels = c.levels
				if err := w.State.Events().UpdateNode(spec); err != nil {
					t.Fatal(err)
				}
			}
			of := w.Submit("a", 1, schedtest.R(4, 8, 1))
			if c.own {
				of = w.job
			}
			r := scheduler.Reservation{ID: 1, Kind: c.kind, Job: of, Stage: -1, Task: -1, Node: 1, Demand: schedtest.R(4, 8, 1),
				OnDisk: -1, Start: w.Now.Add(c.from), End: w.Now.Add(c.to)}
			if err := w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, w.Now); err != nil {
				t.Fatal(err)
			}
			got := nothing
			if d := w.Cycle(idlePolicy{}); len(d.Actions) > 0 {
				got = d.Actions[0].Kind
			}
			if got != c.want {
				t.Errorf("decided %v, want %v", got, c.want)
			}
		})
	}
}
