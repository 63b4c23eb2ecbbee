package policies

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// cappedWorld is a cluster that 3dsf schedules, with tenants that have caps.
type cappedWorld struct {
	*schedtest.World
	t        *testing.T
	policy   scheduler.Policy
	projects scheduler.ProjectID
	factor   string // of speculation
}

func newCappedWorld(t *testing.T, nodes int, tenants ...string) *cappedWorld {
	w := &cappedWorld{World: schedtest.New(t).AddNodes(nodes, schedtest.R(4, 16, 100)).AddTenants(tenants...), t: t, factor: "0"}
	w.policy = w.newPolicy()
	return w
}

// newCappedWorldOf returns a world of the tenants "a" and "other", with a node of each number of cores that supports these
// levels.
func newCappedWorldOf(t *testing.T, levels scheduler.LevelSet, cores ...float64) *cappedWorld {
	w := newCappedWorld(t, 0, "a", "other")
	for i, n := range cores {
		spec := schedtest.NodeSpec(scheduler.NodeID(i), "/r1", schedtest.R(n, 16, 100))
		spec.Levels = levels
		if err := w.State.Events().AddNode(spec); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *cappedWorld) newPolicy() scheduler.Policy {
	return mustNew(w.t, "3dsf", map[string]string{"sf": "0", "margin": "2s", "guarantee_share": "1", "max_suspended": "20s", "speculate": w.factor})
}

// speculate starts a task of a tenant on a node, whose stage is done but for it, and advances until it has run more than
// twice as long as the other tasks, so that it is to have a second attempt.
func (w *cappedWorld) speculate(tenant string, node scheduler.NodeID) *scheduler.Stage {
	w.factor = "2"
	w.policy = w.newPolicy()
	g := w.State.Job(w.Submit(tenant, 2, schedtest.R(1, 1, 0))).Stages[0]
	first := w.Place(g.Task(0), node)
	w.Place(g.Task(1), node)
	w.Start().Advance(10*time.Second).End(first, scheduler.OutcomeSucceeded)
	w.Advance(11 * time.Second)
	return g
}

// submitStalled starts reduces of a tenant on a node, and loses the output of the map that they come after. It returns both stages.
func (w *cappedWorld) submitStalled(tenant string, reduces int32, node scheduler.NodeID) (m, r *scheduler.Stage) {
	j := w.State.Job(w.SubmitStages(tenant, []scheduler.StageSpec{
		{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: schedtest.R(1, 1, 0)},
		{Name: "reduce", Kind: scheduler.KindReduce, Tasks: reduces, Demand: schedtest.R(1, 1, 0), After: []int32{0}},
	}))
	m, r = j.Stages[0], j.Stages[1]
	done := w.Place(m.Task(0), node)
	w.Start().End(done, scheduler.OutcomeSucceeded)
	for i := range reduces {
		w.Place(r.Task(i), node)
	}
	w.Start()
	if err := w.State.Events().OutputLost(m.Task(0)); err != nil {
		w.t.Fatal(err)
	}
	return m, r
}

// setCap sets the cap of a tenant's total.
func (w *cappedWorld) setCap(tenant string, cap scheduler.Resources) {
	spec := w.Tenant(tenant).Spec
	spec.Caps.Total = scheduler.Limit(cap)
	if err := w.State.Events().PutTenant(spec); err != nil {
		w.t.Fatal(err)
	}
}

// project submits a project of one job.
func (w *cappedWorld) project(tenant string, tasks int32, demand scheduler.Resources, bound time.Duration) *scheduler.Job {
	w.projects++
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: w.projects, Tenant: w.Tenant(tenant).Spec.ID, Priority: scheduler.PriorityLow,
		Submitted: w.Now, Jobs: 1}); err != nil {
		w.t.Fatal(err)
	}
	return w.State.Job(w.Submit(tenant, tasks, demand, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = w.projects, bound }))
}

// round lets the policy decide and executes its actions, one suspension or resume in each 100 ms.
func (w *cappedWorld) round() {
	w.t.Helper()
	policytest.Round(w.t, w.State, w.policy, w.newPolicy, w.Now, 100)
	w.act()
}

// cycle is round with all that a cycle adds to the decision of the policy.
func (w *cappedWorld) cycle() {
	w.t.Helper()
	w.Cycle(w.policy)
	w.act()
}

// act starts the placed attempts, and suspends or resumes one attempt, within 100 ms.
func (w *cappedWorld) act() {
	w.t.Helper()
	w.Start().Advance(100 * time.Millisecond)
	for _, a := range w.Attempts() {
		var err error
		switch a.Phase {
		case scheduler.AttemptSuspending:
			has := scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}
			if a.Target == scheduler.LevelSwapped {
				has = scheduler.Footprint{Swap: a.Demand[scheduler.Memory]}
			}
			err = w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, has, w.Now)
		case scheduler.AttemptResuming:
			err = w.State.Events().AttemptResumed(a.ID, a.Run, w.Now)
		default:
			continue
		}
		if err != nil {
			w.t.Fatal(err)
		}
		return
	}
}

// A guaranteed task that is due starts although regular work of its tenant, or of another below the same cap, fills
// the cap on other nodes: as many of these tasks as needed give way, and no other task takes what they free.
func TestDueGuaranteeStartsUnderAFullCap(t *testing.T) {
	for name, x := range map[string]struct {
		regular  string
		accepted bool // they have deadlines that were accepted without a guarantee
		cap      scheduler.Resources
		first    scheduler.Resources // demand of what fills the cap
		demand   scheduler.Resources
		want     int32 // suspended
	}{
		"of its tenant":              {"top/a", false, schedtest.R(4, 0, 0), schedtest.R(1, 1, 0), schedtest.R(2, 2, 0), 2},
		"of another tenant below it": {"top/b", false, schedtest.R(4, 0, 0), schedtest.R(1, 1, 0), schedtest.R(2, 2, 0), 2},
		"of accepted deadlines":      {"top/b", true, schedtest.R(4, 0, 0), schedtest.R(1, 1, 0), schedtest.R(2, 2, 0), 2},
		"of memory":                  {"top/a", false, schedtest.R(0, 4, 0), schedtest.R(1, 1, 0), schedtest.R(1, 3, 0), 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCappedWorld(t, 3, "top", "top/a", "top/b", "other")
			w.setCap("top", x.cap)
			regular := w.State.Job(w.Submit(x.regular, 20, x.first, func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				if x.accepted {
					j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(time.Hour), true, 10*time.Minute
				}
			}))
			w.round()
			if got := regular.Stages[0].Running; got != 4 {
				t.Fatalf("%d regular tasks fill the cap, want 4", got)
			}
			j := w.project("top/a", 1, x.demand, 9*time.Second)
			for i := 0; i < 15 && j.Live == 0; i++ {
				w.round()
			}
			if g := regular.Stages[0]; j.Live != 1 || g.Suspended != x.want || w.State.Project(1).HasState(scheduler.ViolatedState) {
				t.Errorf("%d of 1 tasks started with %d suspended, want %d; violated: %v", j.Live, g.Suspended, x.want, w.State.Project(1).HasState(scheduler.ViolatedState))
			}
			w.round()
			if used := w.Tenant("top").Used; x.cap[scheduler.CPU] > 0 && used[scheduler.CPU] != x.cap[scheduler.CPU] {
				t.Errorf("%v is in use below the cap %v", used, x.cap)
			}
		})
	}
}

// Guarantees of all tenants below a cap share it: a deadline for which they leave no time is
// refused, with the earliest end that is possible, and a deadline that is late enough is accepted.
func TestGuaranteesShareTheCapAbove(t *testing.T) {
	for name, x := range map[string]struct {
		cap      float64 // of the tenant above, cores
		deadline time.Duration
		accepted bool
		end      time.Duration // that is planned, or would be
	}{
		"room for both":          {6, 100 * time.Second, true, 62 * time.Second},
		"room for one":           {5, 100 * time.Second, false, 122 * time.Second},
		"room for one, and time": {5, 150 * time.Second, true, 122 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCappedWorld(t, 3, "top", "top/a", "top/b", "other")
			w.setCap("top", schedtest.R(x.cap, 0, 0))
			w.Place(scheduler.TaskID{Job: w.Submit("top/a", 1, schedtest.R(1, 1, 0))}, 0) // gives way
			w.Start()
			start := w.Now
			submit := func(tenant string, deadline time.Duration) scheduler.JobID {
				return w.Submit(tenant, 1, schedtest.R(3, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
					j.Deadline, j.Bound, g.Estimate = start.Add(deadline), time.Minute, 50*time.Second
				})
			}
			submit("top/a", 100*time.Second)
			w.round()
			second := submit("top/b", x.deadline)
			w.Now = start
			policytest.Round(t, w.State, w.policy, w.newPolicy, w.Now, 100)
			kind := map[bool]scheduler.PolicyStateKind{true: scheduler.AcceptedState, false: scheduler.RefusedState}[x.accepted]
			got, ok := w.State.PolicyState(scheduler.PolicyStateKey{Kind: kind, Job: second})
			if !ok || got.At != start.Add(x.end) {
				t.Errorf("accepted or refused as expected: %v, with an end after %v, want %v", ok, got.At.Sub(start), x.end)
			}
		})
	}
}

// Where tasks do not give way, one starts below a cap just if it leaves the cap to a guarantee to come, also on other nodes.
func TestRegularTasksLeaveCapsToGuarantees(t *testing.T) {
	for bound, starts := range map[time.Duration]bool{0: false, 3 * time.Second: true, 30 * time.Second: false} {
		w := newCappedWorldOf(t, scheduler.Levels(scheduler.LevelRunning), 4, 2)
		w.setCap("a", schedtest.R(4, 0, 0))
		w.Place(scheduler.TaskID{Job: w.Submit("other", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 10 * time.Second })}, 0)
		w.Start()
		w.project("a", 1, schedtest.R(4, 1, 0), 9*time.Second)
		w.round()
		if !w.State.Project(1).HasState(scheduler.GuaranteeState) {
			t.Fatal("the project has no guarantee")
		}
		j := w.State.Job(w.Submit("a", 1, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound }))
		w.round()
		if got := j.Live == 1; got != starts {
			t.Errorf("a task with a bound of %v starts: %v, want %v", bound, got, starts)
		}
	}
}

// A guaranteed task whose cap becomes free early starts before its reservation, which it then needs no more.
func TestGuaranteedTaskStartsEarlyBelowACap(t *testing.T) {
	w := newCappedWorldOf(t, scheduler.Levels(scheduler.LevelRunning), 4, 4)
	w.setCap("a", schedtest.R(4, 0, 0))
	brief, first, second := w.project("a", 1, schedtest.R(1, 1, 0), time.Second), w.project("a", 1, schedtest.R(3, 1, 0), 5*time.Second), w.project("a", 1, schedtest.R(3, 1, 0), 20*time.Second)
	w.round()
	if brief.Live != 1 || first.Live != 1 || second.Live != 0 || second.Guarantees != 1 {
		t.Fatalf("%d, %d and %d tasks run, %d is reserved; want 1, 1, 0, 1", brief.Live, first.Live, second.Live, second.Guarantees)
	}
	end := func(j *scheduler.Job) {
		for a := range w.State.Attempts().In(j.Stages[0]) {
			w.End(a, scheduler.OutcomeSucceeded)
		}
	}
	end(brief)
	w.round() // compresses the schedule, for the last time within some seconds
	w.Advance(time.Second)
	end(first)
	w.round()
	if second.Live != 1 || second.Guarantees != 0 {
		t.Errorf("%d of 1 tasks starts with its cap free, %d is still reserved", second.Live, second.Guarantees)
	}
}

// The reason of a task waiting below a cap names the guarantee in the way, not an earlier one that leaves enough.
func TestWaitingBelowACapNamesTheGuaranteeInTheWay(t *testing.T) {
	w := newCappedWorldOf(t, scheduler.Levels(scheduler.LevelRunning), 4, 2, 1)
	w.setCap("a", schedtest.R(4, 0, 0))
	for node, x := range []struct {
		cores float64
		bound time.Duration
	}{{4, 30 * time.Second}, {2, 5 * time.Second}} {
		w.Place(scheduler.TaskID{Job: w.Submit("other", 1, schedtest.R(x.cores, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = x.bound })}, scheduler.NodeID(node))
	}
	w.Start()
	small, large := w.project("a", 1, schedtest.R(2, 1, 0), 3*time.Second), w.project("a", 1, schedtest.R(4, 1, 0), 9*time.Second)
	w.round()
	if len(small.Reservations()) != 1 || len(large.Reservations()) != 1 || small.Reservations()[0].Start >= large.Reservations()[0].Start {
		t.Fatalf("reserved are %v and %v, want one of each job, first that of the small one", small.Reservations(), large.Reservations())
	}
	id := w.Submit("a", 1, schedtest.R(1, 1, 0))
	d := policytest.Round(t, w.State, w.policy, w.newPolicy, w.Now, 100)
	for _, x := range d.Waiting {
		if x.Stage.Job == id && x.Reason == scheduler.ReasonReservation && x.Reservation == large.Reservations()[0].ID {
			return
		}
	}
	t.Errorf("no stage waits for reservation %d:\n%s", large.Reservations()[0].ID, d.String())
}

// freeze brings a running attempt to the frozen level.
func (w *cappedWorld) freeze(a *scheduler.Attempt) {
	w.t.Helper()
	act := a.Act(scheduler.ActSuspend)
	act.Level = scheduler.LevelFrozen
	if err := w.State.Apply(&act, w.Now); err != nil {
		w.t.Fatal(err)
	}
	if err := w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelFrozen, scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}, w.Now); err != nil {
		w.t.Fatal(err)
	}
}

// A task that was suspended where nothing gives way resumes just if a guarantee to come leaves the cap enough for it. Until
// then its node is not reserved for it.
func TestSuspendedTasksLeaveCapsToGuarantees(t *testing.T) {
	for name, x := range map[string]struct {
		bound   time.Duration
		cores   float64 // of the guarantee to come
		resumes bool
	}{
		"there is enough for both":     {0, 2, true},
		"it ends before the guarantee": {4 * time.Second, 4, true},
		"it ends too late":             {14 * time.Second, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCappedWorldOf(t, scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen), 2, 4)
			w.setCap("a", schedtest.R(4, 0, 0))
			other := w.Place(scheduler.TaskID{Job: w.Submit("other", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 25 * time.Second })}, 1)
			a := w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(2, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = x.bound })}, 0)
			w.Start()
			guaranteed := w.project("a", 1, schedtest.R(x.cores, 1, 0), 9*time.Second)
			w.round()
			if guaranteed.Guarantees != 1 || guaranteed.Live != 0 {
				t.Fatalf("%d guarantees, %d tasks; want a reservation to come", guaranteed.Guarantees, guaranteed.Live)
			}
			w.freeze(a)
			w.Advance(15 * time.Second) // more than half of max_suspended
			w.round()
			if got := !a.Level.Suspended(); got != x.resumes {
				t.Errorf("the task resumes: %v, want %v", got, x.resumes)
			}
			if r := w.State.Reservations().Unguaranteed(); len(r) > 0 {
				t.Errorf("%d reservations for a task that may not resume: %v", len(r), r[0])
			}
			w.Advance(10*time.Second).End(other, scheduler.OutcomeSucceeded)
			for range 3 {
				w.round()
			}
			if guaranteed.Live != 1 {
				t.Error("the guaranteed task does not start")
			}
		})
	}
}

// While a due task waits for its cap, no other task takes its free node.
func TestDueTaskKeepsItsNodeWhileItWaitsForACap(t *testing.T) {
	w := newCappedWorld(t, 3, "a", "other")
	w.setCap("a", schedtest.R(4, 0, 0))
	regular := w.Submit("a", 4, schedtest.R(1, 1, 0))
	for i := range int32(4) {
		w.Place(scheduler.TaskID{Job: regular, Index: i}, 2)
	}
	w.Start()
	w.Submit("other", 12, schedtest.R(1, 1, 0))
	j := w.project("a", 1, schedtest.R(4, 1, 0), 9*time.Second)
	for i := 0; i < 10 && j.Live == 0; i++ {
		w.round()
		if j.Live == 0 && j.Guarantees != 1 {
			t.Fatalf("round %d: %d reservations", i, j.Guarantees)
		}
		for _, r := range j.Reservations() {
			for a := range w.State.Attempts().On(r.Node) {
				t.Fatalf("round %d: %s is on the node that is reserved for a task that is due", i, a.ID)
			}
		}
	}
	if j.Live != 1 {
		t.Error("the due task does not start")
	}
}

// A due task gets its need of a cap, and of its node, although some of the many short tasks there
// are always starting, and so cannot give way yet.
func TestDueTaskIsServedAmongTasksThatStart(t *testing.T) {
	for name, x := range map[string]struct {
		cap   scheduler.Resources
		nodes int
		cores float64 // of the due task
	}{"below a cap": {schedtest.R(4, 0, 0), 2, 4}, "on its node": {scheduler.Resources{}, 1, 4}, "on a part of its node": {scheduler.Resources{}, 1, 3}} {
		t.Run(name, func(t *testing.T) {
			w := newCappedWorld(t, x.nodes, "a", "other")
			w.setCap("a", x.cap)
			regular := w.State.Job(w.Submit("a", 1000, schedtest.R(1, 1, 0))).Stages[0]
			// Tasks start a round late and one ends in each round, except those that were starting when the due task came.
			stay := map[scheduler.AttemptID]bool{}
			round := func() {
				policytest.Round(t, w.State, w.policy, w.newPolicy, w.Now, 100)
				w.Advance(100 * time.Millisecond)
				ended := false
				for a := range w.State.Attempts().In(regular) {
					switch {
					case a.Phase == scheduler.AttemptSuspending:
						if err := w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}, w.Now); err != nil {
							t.Fatal(err)
						}
					case a.Phase == scheduler.AttemptRunning && !ended && !stay[a.ID]:
						ended = true
						defer w.End(a, scheduler.OutcomeSucceeded)
					case a.Phase == scheduler.AttemptStarting && a.Placed < w.Now.Add(-200*time.Millisecond):
						if err := w.State.Events().AttemptStarted(a.ID, a.Run, w.Now); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			for range 6 {
				round()
			}
			for a := range w.State.Attempts().In(regular) {
				stay[a.ID] = a.Phase == scheduler.AttemptStarting
			}
			j := w.project("a", 1, schedtest.R(x.cores, 1, 0), 9*time.Second)
			for i := 0; i < 12 && j.Live == 0; i++ {
				round()
			}
			if j.Live != 1 || w.State.Project(1).HasState(scheduler.ViolatedState) {
				t.Errorf("%d of 1 due tasks started; violated: %v", j.Live, w.State.Project(1).HasState(scheduler.ViolatedState))
			}
		})
	}
}

// hasSecond reports whether a stage has a second attempt.
func (w *cappedWorld) hasSecond(g *scheduler.Stage) bool {
	for a := range w.State.Attempts().In(g) {
		if a.Speculative {
			return true
		}
	}
	return false
}

// A second attempt takes nothing of a cap that a due task waits for.
func TestSecondAttemptsLeaveCapsToDueTasks(t *testing.T) {
	w := newCappedWorld(t, 3, "a", "other")
	w.setCap("a", schedtest.R(4, 0, 0))
	regular := w.Submit("a", 3, schedtest.R(1, 1, 0))
	slow := w.speculate("a", 2)
	for i := range int32(3) {
		w.Place(scheduler.TaskID{Job: regular, Index: i}, 1)
	}
	w.Start()
	due := w.project("a", 1, schedtest.R(3, 1, 0), 9*time.Second)
	for i := 0; i < 6 && due.Live == 0; i++ {
		if w.round(); w.hasSecond(slow) {
			t.Fatalf("round %d: a second attempt takes what the due task waits for", i)
		}
	}
	if due.Live != 1 {
		t.Error("the due task does not start")
	}
}

// Where tasks do not give way, a second attempt leaves its cap to a guarantee to come, and starts once that is over.
func TestSecondAttemptsLeaveCapsToGuarantees(t *testing.T) {
	for cores, starts := range map[float64]bool{2: true, 3: false} { // of the guarantee
		w := newCappedWorldOf(t, scheduler.Levels(scheduler.LevelRunning), 4, 2, 1)
		w.setCap("a", schedtest.R(4, 0, 0))
		slow := w.speculate("a", 1)
		other := w.Place(scheduler.TaskID{Job: w.Submit("other", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 5 * time.Second })}, 0)
		w.Start()
		guaranteed := w.project("a", 1, schedtest.R(cores, 1, 0), 9*time.Second)
		w.round()
		if guaranteed.Guarantees != 1 || guaranteed.Live != 0 {
			t.Fatalf("%d guarantees, %d tasks; want a reservation to come", guaranteed.Guarantees, guaranteed.Live)
		}
		if w.round(); w.hasSecond(slow) != starts {
			t.Errorf("beside a guarantee of %v cores a second attempt starts: %v, want %v", cores, !starts, starts)
		}
		w.Advance(5*time.Second).End(other, scheduler.OutcomeSucceeded)
		if w.round(); guaranteed.Live != 1 {
			t.Fatal("the guaranteed task does not start")
		}
		for a := range w.State.Attempts().In(guaranteed.Stages[0]) {
			w.End(a, scheduler.OutcomeSucceeded)
		}
		if w.round(); !w.hasSecond(slow) {
			t.Error("no second attempt starts when the guarantee is over")
		}
	}
}

// A map that stalled reduces wait for takes nothing of a cap that a due task waits for. It runs when that has started, for
// reduces give way to both.
func TestLostMapsLeaveCapsToDueTasks(t *testing.T) {
	w := newCappedWorld(t, 3, "a", "other")
	w.setCap("a", schedtest.R(4, 0, 0))
	m, r := w.submitStalled("a", 4, 1)
	due := w.project("a", 1, schedtest.R(2, 1, 0), 9*time.Second)
	for i := 0; i < 12 && m.Running == 0; i++ {
		if w.cycle(); m.Running > 0 && due.Live == 0 {
			t.Fatalf("cycle %d: the map takes what the due task waits for", i)
		}
	}
	if due.Live != 1 || m.Running != 1 || r.Running != 1 {
		t.Errorf("%d due tasks, %d maps and %d reduces run, want one of each", due.Live, m.Running, r.Running)
	}
}

// Where tasks do not give way, a map that stalled reduces wait for leaves its cap to a guarantee to come.
func TestLostMapsLeaveCapsToGuarantees(t *testing.T) {
	w := newCappedWorldOf(t, scheduler.Levels(scheduler.LevelRunning), 4, 2, 1)
	w.setCap("a", schedtest.R(4, 0, 0))
	m, _ := w.submitStalled("a", 1, 1)
	other := w.Place(scheduler.TaskID{Job: w.Submit("other", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 5 * time.Second })}, 0)
	w.Start()
	guaranteed := w.project("a", 1, schedtest.R(3, 1, 0), 9*time.Second)
	for range 2 {
		if w.cycle(); m.Running > 0 {
			t.Fatal("the map takes what the guarantee needs")
		}
	}
	w.Advance(5*time.Second).End(other, scheduler.OutcomeSucceeded)
	if w.cycle(); guaranteed.Live != 1 {
		t.Fatal("the guaranteed task does not start")
	}
	for a := range w.State.Attempts().In(guaranteed.Stages[0]) {
		w.End(a, scheduler.OutcomeSucceeded)
	}
	if w.cycle(); m.Running != 1 {
		t.Error("the map does not start when the guarantee is over")
	}
}

// A guaranteed task that is due goes before an accepted deadline below the same cap for which capacity was freed before.
func TestDueTaskGoesBeforeFreedCapacity(t *testing.T) {
	w := newCappedWorldOf(t, scheduler.AllLevels, 4, 4)
	w.setCap("a", schedtest.R(4, 0, 0))
	regular := w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(4, 1, 0))}, 0)
	w.Start()
	due, before := w.project("a", 1, schedtest.R(4, 1, 0), 9*time.Second), w.Now
	w.round()
	if due.Live != 0 || due.Guarantees != 1 {
		t.Fatalf("%d tasks run, %d are reserved; want one that waits for its cap", due.Live, due.Guarantees)
	}
	if !regular.Level.Suspended() {
		t.Fatal("the regular task is not suspended")
	}
	lane := w.State.Job(w.Submit("a", 1, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(time.Minute), true, 10*time.Second
	}))
	freed := scheduler.Reservation{ID: w.State.Reservations().NextID(), Kind: scheduler.ReservePreempt, Job: lane.Spec.ID, Task: -1, Node: 1, OnDisk: -1,
		Demand: schedtest.R(1, 1, 0), Start: before - 1, End: w.Now.Add(time.Minute)}
	if due.Reservations()[0].Node == freed.Node {
		freed.Node = 0
	}
	if err := w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: freed}, w.Now); err != nil {
		t.Fatal(err)
	}
	w.round()
	if due.Live != 1 || lane.Live != 0 {
		t.Errorf("%d of 1 due tasks and %d of 1 tasks of the lane start; want the due one only", due.Live, lane.Live)
	}
}

// provedPolicy checks its policy's decisions: a new instance decides the same, and each reason is true.
type provedPolicy struct {
	scheduler.Policy
	t      *testing.T
	maker  policytest.Maker
	waited int // for due tasks below a cap
}

func (p *provedPolicy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	d := policytest.DecideWarmAndCold(p.t, s, p.Policy, p.maker, now, limit)
	after := s.Clone()
	for i := range d.Actions {
		if err := after.Apply(&d.Actions[i], now); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := after.PolicyStates().Apply(d.PolicyStates); err != nil {
		p.t.Fatal(err)
	}
	if err := policytest.ProveAll(after, &d, now, limit); err != nil {
		p.t.Fatalf("%v\n%s", err, d.String())
	}
	for _, w := range d.Waiting {
		if r := after.Reservations().Get(w.Reservation); w.Reason == scheduler.ReasonReservation && r.Kind.IsGuarantee() && r.Start <= now &&
			!after.TenantTree().Allows(after.Stage(r.StageID())) {
			p.waited++
		}
	}
	return d
}

// cappedParams are the parameters of 3dsf in the world of cappedGuarantees for a seed: in half of the worlds tasks that lag
// get second attempts.
func cappedParams(seed uint64) map[string]string {
	return map[string]string{"max_suspended": []string{"10m", "2s"}[seed%2], "guarantee_share": "1", "speculate": []string{"0", "1.2"}[seed/2%2]}
}

// cappedGuarantees returns a world of guarantees in which the tenants are below another one with a cap, and have caps
// themselves now and then.
func cappedGuarantees(t *testing.T, seed uint64) (*guaranteeWorld, *provedPolicy) {
	params := cappedParams(seed)
	p := newGuaranteeWorld(t, seed, 3, params)
	proved := &provedPolicy{Policy: p.policy, t: t, maker: func() scheduler.Policy { return mustNew(t, "3dsf", params) }}
	p.policy = proved
	p.AddTenants("top")
	put := func(name string, cap scheduler.Resources) {
		spec := p.Tenant(name).Spec
		if name != "top" {
			spec.Parent = p.Tenant("top").Spec.ID
		}
		spec.Caps.Total = scheduler.Limit(cap)
		if err := p.State.Events().PutTenant(spec); err != nil {
			t.Fatal(err)
		}
	}
	put("top", schedtest.R(float64(4+p.r.IntN(4)), float64([]int{0, 12}[p.r.IntN(2)]), 0))
	put("a", schedtest.R(float64([]int{0, 4}[p.r.IntN(2)]), 0, 0))
	put("b", schedtest.R(0, float64([]int{0, 6}[p.r.IntN(2)]), 0))
	return p, proved
}

// join submits another job of a project that has a guarantee.
func (p *guaranteeWorld) join() {
	if p.projects == 0 {
		return
	}
	pr := p.State.Project(1 + scheduler.ProjectID(p.r.IntN(int(p.projects))))
	if pr == nil || len(pr.Jobs) == 0 || !pr.HasState(scheduler.GuaranteeState) {
		return
	}
	spec, bound := pr.Spec, time.Duration(2+p.r.IntN(10))*time.Second
	spec.Jobs++
	if err := p.State.Events().PutProject(spec); err != nil {
		p.Fatalf("%v", err)
	}
	p.Submit(p.State.Tenant(spec.Tenant).Spec.Name, int32(1+p.r.IntN(2)), schedtest.R(float64(1+p.r.IntN(2)), 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Project, j.Bound, g.Estimate = spec.ID, bound, bound*2/3
	})
}

// checkIncluded checks the guarantees of projects whose included jobs are all gone.
func (p *guaranteeWorld) checkIncluded(t *testing.T) {
	t.Helper()
	for id := scheduler.ProjectID(1); id <= p.projects; id++ {
		key := fmt.Sprintf("project %d", id)
		pr, latest := p.State.Project(id), p.guaranteed[key]
		if pr == nil || latest == 0 || slices.ContainsFunc(pr.Jobs, func(j scheduler.JobID) bool { return p.State.GuaranteeIncludes(p.State.Job(j)) }) {
			continue
		}
		if _, violated := p.violated[key]; !violated && p.Now > latest {
			t.Errorf("seed %d: %s is guaranteed to depart by %v and did at %v", p.seed, key, latest, p.Now)
		}
		delete(p.guaranteed, key)
	}
}

// While tasks end by their bounds, no guarantee below a cap is violated, whatever else runs below it and whatever
// jobs join the guaranteed projects. Due tasks wait for tasks that give way there, and everything else for them.
func TestGuaranteesHoldUnderCaps(t *testing.T) {
	accepted, waited := 0, 0
	hold := func(seed uint64) {
		p, proved := cappedGuarantees(t, seed)
		for range 200 {
			if p.r.IntN(10) == 0 {
				p.join()
			}
			p.advanceSecond(true)
			p.checkIncluded(t)
		}
		for i := 0; i < 4000 && p.State.Attempts().Live()+p.State.Queue().Ready() > 0; i++ {
			p.advanceSecond(false)
			p.checkIncluded(t)
		}
		for key, cause := range p.violated {
			t.Errorf("seed %d: the guarantee of %s is violated: %v", seed, key, cause)
		}
		p.checkGuarantees(t)
		accepted, waited = accepted+p.accepted, waited+proved.waited
	}
	for range soakRounds(8) {
		hold(seed.New(t))
	}
	hold(7779499618583643541)  // regression: a due stage was told that it waits for its own reservation
	hold(17564131066883219483) // regression: with speculation a decision was given again at a time at which the policy decides another one
	if t.Logf("%d guarantees accepted, %d times a stage waited for a due task below a cap", accepted, waited); accepted == 0 || waited == 0 {
		t.Error("too few cases for a meaningful test")
	}
}
