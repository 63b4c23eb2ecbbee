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

// mustEndAll runs cycles and ends what can end, until every job is complete.
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

// Under every policy a reduce gives way to the lost map that it waits for, and goes on
// when that is done: suspended where its node can free its memory, else killed.
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

// Reduces of a job with an accepted deadline, guaranteed or not, and of a project with a guarantee give way too.
func TestGuaranteedReducesGiveWayToLostMaps(t *testing.T) {
	for _, info := range table {
		for name, change := range map[string]func(*scheduler.JobSpec){
			"accepted":   func(j *scheduler.JobSpec) { j.Deadline, j.Accepted = j.Submitted.Add(time.Hour), true },
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

// What a guarantee reserves behind reduces that give way holds, or its violation is recorded: no decision breaks a rule,
// and all jobs end.
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
