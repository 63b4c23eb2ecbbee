package scheduler_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAReduceStageStartsWhenEnoughMapsAreDone(t *testing.T) {
	bounded := func(j *scheduler.JobSpec) { j.Bound = time.Hour }
	for name, c := range map[string]struct {
		slow   float64
		want   int // maps done when it opens, of 4
		change []func(*scheduler.JobSpec)
	}{
		"by default when all are":              {0, 4, nil},
		"slow start at a half":                 {0.5, 2, nil},
		"slow start at a third rounds up":      {1.0 / 3, 2, nil},
		"at once":                              {1e-9, 1, nil},
		"when all are, if the job has a bound": {0.5, 4, []func(*scheduler.JobSpec){bounded}},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
			d := schedtest.R(1, 1, 1)
			id := w.SubmitStages("a", []scheduler.StageSpec{{Kind: scheduler.KindMap, Tasks: 4, Demand: d},
				{Kind: scheduler.KindReduce, Tasks: 1, Demand: d, After: []int32{0}, SlowStart: c.slow}}, c.change...)
			maps, reduce := w.State.Stage(scheduler.StageID{Job: id}), w.State.Stage(scheduler.StageID{Job: id, Stage: 1})
			var running []*scheduler.Attempt
			for i := range int32(3) {
				running = append(running, w.Place(task(id, i), 0))
			}
			w.End(running[0], scheduler.OutcomeSucceeded)
			w.End(running[1], scheduler.OutcomeSucceeded)
			if reduce.Open {
				t.Fatal("it is open while a map waits")
			}
			mark := w.State.Journal().Mark()
			running = append(running, w.Place(task(id, 3), 0))
			if reduce.Open {
				t.Fatal("it opened during a try")
			}
			w.State.Journal().Keep(mark)
			suspendAndResume(t, w, running[3], reduce, c.want <= 2)
			for done := 2; done < 4; done++ {
				if reduce.Open != (done >= c.want) {
					t.Fatalf("with %d maps done it is open: %v", done, reduce.Open)
				}
				w.End(running[done], scheduler.OutcomeSucceeded)
			}
			must(t, w.State.Events().OutputLost(task(id, 3)))
			if maps.Pending != 1 || reduce.Open || w.State.Attempts().NextAttempt(maps, 3) != 2 {
				t.Errorf("after a lost output: %d pending, open %v, next attempt %d", maps.Pending, reduce.Open, w.State.Attempts().NextAttempt(maps, 3))
			}
			w.Place(task(id, 3), 0)
			if reduce.Open != (c.want <= 3) {
				t.Errorf("with the lost map placed it is open: %v", reduce.Open)
			}
		})
	}
}

// Each of many stages follows all before it, and the last one is a reduce with a slow start: a
// change in the first must not be followed along each way from it to the last.
func TestManyWaysToASlowStartCostNothing(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	d := schedtest.R(1, 1, 1)
	stages := []scheduler.StageSpec{{Kind: scheduler.KindMap, Tasks: 1, Demand: d}}
	after := []int32{0}
	for i := range int32(60) {
		stages = append(stages, scheduler.StageSpec{Kind: scheduler.KindGroup, Tasks: 1, Demand: d, After: slices.Clone(after)})
		after = append(after, i+1)
	}
	stages = append(stages, scheduler.StageSpec{Kind: scheduler.KindReduce, Tasks: 1, Demand: d, After: after, SlowStart: 0.5})
	id := w.SubmitStages("a", stages)
	for k := range stages {
		first := scheduler.TaskID{Job: id, Stage: int32(k)}
		if g := w.State.Stage(first.StageID()); !g.Open {
			t.Fatalf("stage %d is closed after the end of those before it", k)
		}
		w.End(w.Place(first, 0), scheduler.OutcomeSucceeded)
	}
}

// A placement that was decided before its stage closed, and committed after, is of an attempt that lives: State has it.
func TestACommittedPlacementIsAppliedInAClosedStage(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	d := schedtest.R(1, 1, 1)
	id := w.SubmitStages("a", []scheduler.StageSpec{{Kind: scheduler.KindMap, Tasks: 1, Demand: d}, {Kind: scheduler.KindReduce, Tasks: 1, Demand: d, After: []int32{0}}})
	reduce := w.State.Stage(scheduler.StageID{Job: id, Stage: 1})
	w.End(w.Place(task(id, 0), 0), scheduler.OutcomeSucceeded)
	place := w.State.Attempts().PlaceAction(reduce, 0, 0, 0)
	must(t, w.State.Events().OutputLost(task(id, 0)))
	if err := w.State.Apply(&place, w.Now); !errors.Is(err, scheduler.ErrStale) {
		t.Errorf("a decision places it in a closed stage: %v", err)
	}
	must(t, w.State.ApplyFact(&place, w.Now))
	if reduce.Open || reduce.Running != 1 || !reduce.WaitsForInput() {
		t.Errorf("open %v, %d run, waits for input: %v", reduce.Open, reduce.Running, reduce.WaitsForInput())
	}
	if err := schedtest.Invariants(w.State); err != nil {
		t.Error(err)
	}
}

// suspendAndResume checks that a reduce stage that is open while a map runs is closed while the map is suspended.
func suspendAndResume(t *testing.T, w *schedtest.World, a *scheduler.Attempt, reduce *scheduler.Stage, open bool) {
	t.Helper()
	w.Start()
	check := func(what string, want bool) {
		if t.Helper(); reduce.Open != want {
			t.Fatalf("%s it is open: %v", what, reduce.Open)
		}
	}
	apply := func(kind scheduler.ActionKind, level scheduler.Level) {
		t.Helper()
		must(t, w.State.Apply(&scheduler.Action{Kind: kind, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: level}, w.Now))
	}
	apply(scheduler.ActSuspend, scheduler.LevelFrozen)
	check("while a map is being suspended", open)
	must(t, w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelFrozen, scheduler.Footprint{}, w.Now))
	check("while a map is suspended", false)
	mark := w.State.Journal().Mark()
	apply(scheduler.ActResume, 0)
	check("in a try", false)
	w.State.Journal().Rollback(mark)
	check("after a try", false)
	mark = w.State.Journal().Mark()
	apply(scheduler.ActResume, 0)
	w.State.Journal().Keep(mark)
	check("when the map resumes", open)
	must(t, w.State.Events().AttemptResumed(a.ID, a.Run, w.Now))
}

func TestOnlyTheUsersFailuresCount(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.MaxAttempts = 2 })
	g := w.State.Stage(scheduler.StageID{Job: id})
	for i, o := range []scheduler.Outcome{scheduler.OutcomeFailedInfra, scheduler.OutcomeLost, scheduler.OutcomeKilled, scheduler.OutcomeFailedUser} {
		w.End(w.Place(task(id, 0), 0), o)
		if g.Pending != 1 || g.Job.Phase != scheduler.JobActive {
			t.Fatalf("after %v: %d pending, job %v", o, g.Pending, g.Job.Phase)
		}
		if n := w.State.Attempts().NextAttempt(g, 0); n != int32(i)+2 {
			t.Fatalf("after %v: next attempt %d", o, n)
		}
	}
	w.End(w.Place(task(id, 0), 0), scheduler.OutcomeFailedUser)
	if g.Failed != 1 || g.Ready() || g.Job.Phase != scheduler.JobFailing {
		t.Errorf("after its last attempt: failed %d, ready %v, job %v", g.Failed, g.Ready(), g.Job.Phase)
	}
	must(t, w.State.Events().EndJob(id))
	if w.State.Job(id) != nil {
		t.Error("the job is still there")
	}
}

func TestTheFasterOfTwoAttemptsWins(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(8, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1))
	first := w.Place(task(id, 0), 0)
	apply(t, w, scheduler.Action{Kind: scheduler.ActPlace, Task: task(id, 0), Attempt: 2, Run: 1, Node: 1, Speculative: true})
	second := w.State.Attempt(scheduler.AttemptID{TaskID: task(id, 0), Attempt: 2})
	w.End(second, scheduler.OutcomeSucceeded)
	g := w.State.Stage(scheduler.StageID{Job: id})
	if g.Done != 1 || first.Phase != scheduler.AttemptKilling || w.State.Node(0).Releasing != first.Demand {
		t.Errorf("done %d, the first is %v", g.Done, first.Phase)
	}
	w.End(first, scheduler.OutcomeKilled)
	if g.Pending != 0 || !schedtest.Complete(g.Job) || w.State.Attempts().Live() != 0 {
		t.Errorf("%d pending, %d live", g.Pending, w.State.Attempts().Live())
	}
}

// A second attempt that is left alone is as any other.
func TestASecondAttemptThatIsLeftAlone(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(8, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1))
	first := w.Place(task(id, 0), 0)
	apply(t, w, scheduler.Action{Kind: scheduler.ActPlace, Task: task(id, 0), Attempt: 2, Run: 1, Node: 1, Speculative: true})
	second := w.State.Attempt(scheduler.AttemptID{TaskID: task(id, 0), Attempt: 2})
	if !second.Speculative {
		t.Fatal("it is not speculative beside the first")
	}
	w.End(first, scheduler.OutcomeLost)
	if second.Speculative {
		t.Error("it is speculative without the first")
	}
	w.End(second, scheduler.OutcomeLost)
	if g := w.State.Stage(scheduler.StageID{Job: id}); g.Pending != 1 || w.State.Attempts().Live() != 0 {
		t.Errorf("%d pending, %d live", g.Pending, w.State.Attempts().Live())
	}
	if err := schedtest.Invariants(w.State); err != nil {
		t.Error(err)
	}
}

// A disk of several that gains space which another one has as well makes a task fit: the index finds it.
func TestSpaceOfOneDiskOfSeveralIsFound(t *testing.T) {
	const mib = schedtest.MiB
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	spec := w.State.Node(0).Spec
	spec.Disks = []scheduler.Disk{{Name: "a", IO: 50 * mib, Space: 99 * mib}, {Name: "b", IO: 50 * mib, Space: 100 * mib}}
	must(t, w.State.Events().UpdateNode(spec))
	disk := func(n int64) func(*scheduler.JobSpec, *scheduler.StageSpec) {
		return func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Disk = n * mib }
	}
	files, busy := w.Submit("a", 1, schedtest.R(1, 1, 0), disk(90)), w.Submit("a", 1, schedtest.R(1, 1, 45), disk(1))
	a := w.Place(task(files, 0), 0)
	w.Start()
	apply(t, w, scheduler.Action{Kind: scheduler.ActSuspend, Task: task(files, 0), Attempt: 1, Run: 1, Level: scheduler.LevelCheckpointed})
	must(t, w.State.Events().AttemptSuspended(a.ID, 1, scheduler.LevelCheckpointed, scheduler.Footprint{Files: 90 * mib}, w.Now))
	apply(t, w, scheduler.Action{Kind: scheduler.ActPlace, Task: task(busy, 0), Attempt: 1, Run: 1, Node: 0, Disk: 1})
	g := w.State.Stage(scheduler.StageID{Job: w.Submit("a", 1, schedtest.R(1, 1, 25), disk(50))})
	if n := w.State.Cluster().NextNode(g, 0); n != scheduler.NoNode {
		t.Fatalf("it fits on node %d, with the space on one disk and the I/O on the other", n)
	}
	w.End(a, scheduler.OutcomeKilled)
	if n := w.State.Cluster().NextNode(g, 0); n != 0 {
		t.Errorf("it fits on node %d, want 0", n)
	}
}

// The levels that a node failed to bring an attempt to are part of the node's version.
func TestRefusedLevelsChangeTheNode(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	a := w.Place(task(w.Submit("a", 1, schedtest.R(1, 1, 1)), 0), 0)
	for _, refused := range []scheduler.LevelSet{scheduler.Levels(scheduler.LevelCheckpointed), 0} {
		before := w.State.Cluster().NodeVersion(0)
		must(t, w.State.Events().SetRefusedLevels(a.ID, 1, refused))
		if w.State.Cluster().NodeVersion(0) == before {
			t.Errorf("with %v refused the node's version is the same", refused)
		}
	}
}

func TestASuspendedTaskOccupiesWhatItsLevelSays(t *testing.T) {
	const mib = schedtest.MiB
	has := scheduler.Footprint{Memory: 600 * mib, Swap: 500 * mib, Image: 620 * mib, Files: 30 * mib}
	for level, want := range map[scheduler.Level]scheduler.Occupancy{
		scheduler.LevelFrozen:       {Resources: scheduler.Resources{0, 600 * mib, 0}, Swap: 500 * mib, Disk: 30 * mib},
		scheduler.LevelSwapped:      {Resources: scheduler.Resources{0, 100 * mib, 0}, Swap: 500 * mib, Disk: 30 * mib},
		scheduler.LevelCheckpointed: {Disk: 650 * mib},
	} {
		t.Run(level.String(), func(t *testing.T) {
			w := schedtest.New(t).AddNodes(2, schedtest.R(2, 2, 100)).AddTenants("a")
			id := w.Submit("a", 1, schedtest.R(1, 1, 10), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Disk = 100 * mib })
			a := w.Place(task(id, 0), 0)
			w.Start().Advance(10 * time.Second)
			apply(t, w, scheduler.Action{Kind: scheduler.ActSuspend, Task: task(id, 0), Attempt: 1, Run: 1, Level: level})
			if w.State.Node(0).Free != schedtest.R(1, 1, 90) {
				t.Errorf("before it is confirmed %v is free", w.State.Node(0).Free)
			}
			must(t, w.State.Events().AttemptSuspended(a.ID, 1, level, has, w.Now))
			n := w.State.Node(0)
			if a.Occupied != want || n.Used() != want.Resources || w.Tenant("a").Used != want.Resources ||
				n.Spec.Swap-n.SwapFree != want.Swap || n.Spec.Disks[0].Space-n.Disks[0].FreeSpace != want.Disk {
				t.Errorf("it occupies %+v, want %+v", a.Occupied, want)
			}
			w.Advance(time.Minute)
			g := w.State.Stage(scheduler.StageID{Job: id})
			if got := g.TaskTime(w.Now); got != 10*time.Second || a.RanFor(w.Now) != 10*time.Second {
				t.Errorf("running time %v", got)
			}
			apply(t, w, scheduler.Action{Kind: scheduler.ActResume, Task: task(id, 0), Attempt: 1, Run: 1})
			must(t, w.State.Events().AttemptResumed(a.ID, 1, w.Now))
			w.Advance(5 * time.Second)
			if n.Free != schedtest.R(1, 1, 90) || n.SwapFree != n.Spec.Swap || g.TaskTime(w.Now) != 15*time.Second {
				t.Errorf("resumed: %v free, ran %v", n.Free, g.TaskTime(w.Now))
			}
		})
	}
}

func TestAMigratingTaskOccupiesBothNodes(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(2, 2, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 10))
	a := w.Place(task(id, 0), 0)
	w.Start()
	apply(t, w, scheduler.Action{Kind: scheduler.ActMigrate, Task: task(id, 0), Attempt: 1, Run: 2, Node: 1})
	if w.State.Node(0).Free != schedtest.R(1, 1, 90) || w.State.Node(1).Free != schedtest.R(1, 1, 90) || a.Run != 2 {
		t.Errorf("free %v and %v", w.State.Node(0).Free, w.State.Node(1).Free)
	}
	if err := w.State.Events().AttemptResumed(a.ID, 1, w.Now); !errors.Is(err, scheduler.ErrStale) {
		t.Errorf("the old run is accepted: %v", err)
	}
	must(t, w.State.Events().AttemptResumed(a.ID, 2, w.Now))
	if w.State.Node(0).Free != schedtest.R(2, 2, 100) || a.From != scheduler.NoNode {
		t.Errorf("the source is still occupied: %v free", w.State.Node(0).Free)
	}
	must(t, w.State.Events().NodeLost(1, w.Now))
	if g := w.State.Stage(scheduler.StageID{Job: id}); g.Pending != 1 || w.State.Attempts().Live() != 0 {
		t.Errorf("its node was lost: %d pending", g.Pending)
	}
}

func TestSharesAreOrderedByLevel(t *testing.T) {
	total := scheduler.Resources{24, 36, 54}
	for lev, want := range map[int]float64{1: 4.0 / 36, 2: 2.0 / 24, 3: 3.0 / 54} {
		if got := (scheduler.Resources{2, 4, 3}).Share(total, lev); got != want {
			t.Errorf("Lev %d: %v, want %v", lev, got, want)
		}
	}
	if r := (scheduler.Resources{2, 4, 3}).Dominant(total); r != scheduler.Memory {
		t.Errorf("dominant %v", r)
	}
	if _, ok := (scheduler.Resources{1 << 40, 0, 0}).TimesChecked(1 << 40); ok {
		t.Error("an overflow is not reported")
	}
}

func TestDistanceCountsSwitches(t *testing.T) {
	w := schedtest.New(t)
	for _, p := range []string{"/d1/r1", "/d1/r1", "/d1/r2", "/d2/r3"} {
		w.AddRack(p, 1, schedtest.R(1, 1, 1))
	}
	for to, want := range []int{0, 1, 3, 5} {
		if got := w.State.Cluster().Dist(0, scheduler.NodeID(to)); got != want {
			t.Errorf("to node %d: %d, want %d", to, got, want)
		}
	}
}

func TestTaskTimeIsExact(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	id := w.Submit("a", 2, schedtest.R(1, 1, 1))
	w.Place(task(id, 0), 0) // 1 attempt for 5 s, then 2 for 3 s
	w.Advance(5*time.Second).Place(task(id, 1), 0)
	w.Advance(3 * time.Second)
	if got := w.State.Stage(scheduler.StageID{Job: id}).TaskTime(w.Now); got != 11*time.Second {
		t.Errorf("%v, want 11 s", got)
	}
}

// A task that succeeded accepts no second attempt while the losing one is still being killed.
func TestATaskThatIsDoneTakesNoSecondAttempt(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1))
	second := func(attempt int32) scheduler.Action {
		return scheduler.Action{Kind: scheduler.ActPlace, Task: scheduler.TaskID{Job: id}, Attempt: attempt, Run: 1, Speculative: true}
	}
	w.Place(scheduler.TaskID{Job: id}, 0)
	w.Start()
	a := second(2)
	must(t, w.State.Apply(&a, w.Now))
	must(t, w.State.Events().AttemptEnded(scheduler.AttemptID{TaskID: scheduler.TaskID{Job: id}, Attempt: 1}, 1, scheduler.OutcomeSucceeded, w.Now))
	a = second(3)
	v := scheduler.Check(w.State, &scheduler.Decision{Actions: []scheduler.Action{a}}, w.Now)
	if err := w.State.Apply(&a, w.Now); err == nil || len(v) != 1 {
		t.Errorf("Apply returns %v, Check %v: both should refuse", err, v)
	}
}

// The history records the job's name at the time when the task ended.
func TestTheHistoryKeepsTheNameAtTheEnd(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 100)).AddTenants("a")
	id := w.Submit("a", 2, schedtest.R(1, 1, 1))
	w.End(w.Place(scheduler.TaskID{Job: id}, 0), scheduler.OutcomeSucceeded)
	spec := w.State.Job(id).Spec
	was := spec.Name
	spec.Name = "renamed"
	must(t, w.State.Events().UpdateJob(spec))
	w.End(w.Place(scheduler.TaskID{Job: id, Index: 1}, 0), scheduler.OutcomeSucceeded)
	for what, s := range map[string]*scheduler.State{"original": w.State, "copy": w.State.Clone()} {
		var names []string
		s.History().Tasks(func(f *scheduler.FinishedTask) bool {
			names = append(names, f.JobName)
			return true
		})
		if want := []string{was, "renamed"}; !slices.Equal(names, want) {
			t.Errorf("%s: %q, want %q", what, names, want)
		}
	}
}

// A node with one small file of a packed split is not where its input is: the run time has a transfer in it.
func TestTheHistoryKnowsWhereMostOfTheInputWas(t *testing.T) {
	w := schedtest.New(t).AddNodes(3, schedtest.R(4, 4, 100)).AddTenants("a")
	id := w.Submit("a", 3, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) {
		g.Kind = scheduler.KindMap
		g.Inputs = &scheduler.Inputs{Bytes: []int64{100, 100, 100}, Start: []int32{0, 2, 4, 6}, Nodes: []scheduler.NodeID{0, 1, 0, 1, 0, 1}, Local: []int64{50, 49, 50, 49, 50, 49}}
	})
	for i := range int32(3) {
		w.End(w.Place(scheduler.TaskID{Job: id, Index: i}, scheduler.NodeID(i)), scheduler.OutcomeSucceeded)
	}
	var local []bool
	w.State.History().Tasks(func(f *scheduler.FinishedTask) bool {
		local = append(local, f.Local)
		return true
	})
	if want := []bool{true, false, false}; !slices.Equal(local, want) {
		t.Errorf("local is %v, want %v", local, want)
	}
}

// Bounded counts the jobs with a bound of their own, as they come, change and go.
func TestBoundedFollowsTheJobs(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 100)).AddTenants("a")
	want := func(what string, n int) {
		t.Helper()
		if got := w.State.Queue().Bounded(); got != n || w.State.Clone().Queue().Bounded() != n {
			t.Errorf("%s: %d jobs with a bound, a copy has %d, want %d", what, got, w.State.Clone().Queue().Bounded(), n)
		}
	}
	bounded := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = time.Minute }
	id := w.Submit("a", 1, schedtest.R(1, 1, 1))
	want("none", 0)
	w.Submit("a", 1, schedtest.R(1, 1, 1), bounded)
	want("the second", 1)
	spec := w.State.Job(id).Spec
	spec.Bound = time.Second
	must(t, w.State.Events().UpdateJob(spec))
	want("both", 2)
	spec.Bound = 0
	must(t, w.State.Events().UpdateJob(spec))
	want("the second again", 1)
	must(t, w.State.Events().UpdateJob(w.State.Job(id+1).Spec))
	want("the same", 1)
	must(t, w.State.Events().EndJob(id+1))
	want("it ended", 0)
}

// The use of a tenant's tasks, and the part being freed, is charged to its new ancestors when it moves.
func TestAMovedTenantIsChargedToItsNewParent(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("top", "top/a", "other")
	a := w.Place(scheduler.TaskID{Job: w.Submit("top/a", 1, schedtest.R(1, 1, 1))}, 0)
	kill := a.Act(scheduler.ActKill)
	must(t, w.State.Apply(&kill, w.Now))
	spec := w.Tenant("top/a").Spec
	spec.Parent = w.Tenant("other").Spec.ID
	must(t, w.State.Events().PutTenant(spec))
	must(t, schedtest.Invariants(w.State))
	if top, other := w.Tenant("top"), w.Tenant("other"); !top.Used.IsZero() || !top.Releasing.IsZero() || other.Used != a.Demand || other.Releasing != a.Demand {
		t.Errorf("the old parent uses %v and releases %v, the new one %v and %v", top.Used, top.Releasing, other.Used, other.Releasing)
	}
}
