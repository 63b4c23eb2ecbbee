package policies

import (
	"fmt"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A project of 100,000 tasks with bounds does not make a cycle long: none takes more steps than
// its budget and those of one task, none reads or plans more tasks than are planned at the same
// time, and a small project that comes later is guaranteed in the cycle in which it arrives.
func TestALargeProjectIsPlannedInParts(t *testing.T) {
	for _, name := range []string{"two_tier", "conservative"} {
		t.Run(name, func(t *testing.T) {
			p := mustNew(t, name, nil).(*reservingPolicy)
			w := schedtest.New(t).AddNodes(3, schedtest.R(8, 32, 100)).AddTenants("a")
			submit := func(id scheduler.ProjectID, tasks int32) scheduler.JobID {
				if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: id, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
					t.Fatal(err)
				}
				return w.Submit("a", tasks, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
					j.Project, j.Bound = id, time.Second
				})
			}
			large := submit(1, 100_000)
			guaranteed := func(job scheduler.JobID) bool {
				return w.State.Job(job).HasState(scheduler.GuaranteeState) || w.State.Project(w.State.Job(job).Spec.Project).HasState(scheduler.GuaranteeState)
			}
			const oneTask = 20_000 // steps: all backfill times of one
			cycles := func(n int) {
				t.Helper()
				for range n {
					d, err := scheduler.Cycle(w.State, p, w.Now, 2000, scheduler.AcceptAll)
					if err != nil {
						t.Fatal(err)
					}
					if left := p.plan.planner.StepsLeft(); left < -oneTask || p.plan.planner.Len() > maxPlannedTasks+100 {
						t.Fatalf("a cycle spent %d steps of %d on %d tasks", planSteps-left, planSteps, p.plan.planner.Len())
					}
					w.Start()
					w.Advance(time.Millisecond)
					if d.Empty() {
						return
					}
				}
			}
			cycles(3)
			small := submit(2, 2)
			cycles(1)
			if !guaranteed(small) || guaranteed(large) {
				t.Errorf("guaranteed: the small project %v, the large one %v; want the small one alone", guaranteed(small), guaranteed(large))
			}
			cycles(20)
			if n := len(w.State.Reservations().All()); n < 200 {
				t.Errorf("%d tasks are planned after 24 cycles", n)
			}
			for range 3 {
				for i, a := range w.Attempts() {
					if i < 4 {
						w.End(a, scheduler.OutcomeSucceeded)
					}
				}
				cycles(5)
			}
		})
	}
}

// A plan that is made in parts is the same for a new policy in every cycle, starts its tasks,
// and is guaranteed when all of it is planned.
func TestAPlanInPartsIsGuaranteedAtItsEnd(t *testing.T) {
	for _, variant := range []string{"2tsb", "2tfb-sf"} {
		t.Run(variant, func(t *testing.T) { planInParts(t, variant) })
	}
}

func planInParts(t *testing.T, variant string) {
	newPolicy := func() scheduler.Policy {
		return mustNew(t, "two_tier", map[string]string{"variant": variant, "max_tries": "10"})
	}
	p := newPolicy().(*reservingPolicy)
	w := schedtest.New(t).AddNodes(20, schedtest.R(4, 16, 100)).AddTenants("a")
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
		t.Fatal(err)
	}
	w.Submit("a", planSteps/stepsPerTask*5/4, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 1, time.Minute })
	for n := range 200 {
		d := policytest.DecideWarmAndCold(t, w.State, p, newPolicy, w.Now, 100_000)
		if v := scheduler.Check(w.State, &d, w.Now); len(v) > 0 {
			t.Fatal(v)
		}
		for i := range d.Actions {
			if err := w.State.Apply(&d.Actions[i], w.Now); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.State.PolicyStates().Apply(d.PolicyStates); err != nil {
			t.Fatal(err)
		}
		if err := policytest.ProveAll(w.State, &d, w.Now, 100_000); err != nil {
			t.Fatal(err)
		}
		w.Start()
		w.Advance(1)
		complete := p.plan.planner.NumUnplaced() == 0
		if got := w.State.Project(1).HasState(scheduler.GuaranteeState); got != complete {
			t.Fatalf("cycle %d: guaranteed is %v, planned in full is %v", n, got, complete)
		}
		if complete {
			if n == 0 {
				t.Error("the plan was made in one cycle")
			}
			return
		}
		if d.Wake != w.Now {
			t.Fatalf("cycle %d: the next one is due at %d, not at once", n, d.Wake)
		}
	}
	t.Error("the plan is not complete after 200 cycles")
}

// The fitting tasks of a project are all planned although some fit nowhere, whatever is left of the
// budget when that is found.
func TestAPlanInPartsPassesOverWhatFitsNowhere(t *testing.T) {
	for _, tasks := range []int32{999, 1000, 1001, 1500} {
		p := mustNew(t, "two_tier", map[string]string{"variant": "2tsb"}).(*reservingPolicy)
		w := schedtest.New(t).AddNodes(2, schedtest.R(4, 16, 100)).AddTenants("a")
		if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 2}); err != nil {
			t.Fatal(err)
		}
		inProject := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 1, time.Minute }
		w.Submit("a", tasks, schedtest.R(1, 1, 0), inProject)
		w.Submit("a", 3, schedtest.R(5, 1, 0), inProject)
		for range 20 {
			d, err := scheduler.Cycle(w.State, p, w.Now, 100_000, scheduler.AcceptAll)
			if err != nil {
				t.Fatal(err)
			}
			w.Start()
			w.Advance(1)
			if d.Empty() {
				break
			}
		}
		if n := p.plan.planner.NumUnplaced(); n != 3 {
			t.Errorf("%d tasks of %d are not planned, want the 3 that fit nowhere", n, tasks+3)
		}
	}
}

// Very many jobs of different demands are all planned, some in each cycle, whatever is planned already;
// none of the cycles takes more than its budget, and a new policy decides the same in each.
func TestManyDifferentJobsArePlannedInParts(t *testing.T) {
	const jobs, nodes, most = 500, 200, 40
	for _, name := range []string{"two_tier", "conservative"} {
		t.Run(name, func(t *testing.T) {
			newPolicy := func() scheduler.Policy { return mustNew(t, name, nil) }
			p := newPolicy().(*reservingPolicy)
			w := schedtest.New(t).AddNodes(nodes, schedtest.R(4, 16, 100)).AddTenants("a")
			for i := range jobs {
				w.Submit("a", 1, schedtest.R(2+float64(i)/jobs, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = time.Hour })
			}
			planned := 0
			for cycle := 0; planned < jobs; cycle++ {
				if cycle == most {
					t.Fatalf("%d jobs of %d are planned after %d cycles", planned, jobs, most)
				}
				d := policytest.DecideWarmAndCold(t, w.State, p, newPolicy, w.Now, 100_000)
				if left := p.plan.planner.StepsLeft(); left < -20_000 {
					t.Fatalf("cycle %d spent %d steps of %d", cycle, planSteps-left, planSteps)
				}
				for i := range d.Actions {
					if err := w.State.Apply(&d.Actions[i], w.Now); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.State.PolicyStates().Apply(d.PolicyStates); err != nil {
					t.Fatal(err)
				}
				w.Start()
				was := planned
				planned = len(w.State.Reservations().All()) + len(w.Attempts())
				if planned == was || (planned < jobs && d.Wake != w.Now+1) {
					t.Fatalf("cycle %d planned %d jobs after %d, and the next is due at %d", cycle, planned, was, d.Wake)
				}
				w.Advance(1)
				if cycle == 0 && planned == jobs {
					t.Error("all are planned in one cycle: the budget does not bind")
				}
			}
			for j := range w.State.Jobs() {
				if !j.HasState(scheduler.GuaranteeState) {
					t.Fatalf("job %d has no guarantee", j.Spec.ID)
				}
			}
		})
	}
}

// When nodes are lost with very much that is guaranteed, no cycle takes more steps than its budget; all of it
// has a place again in the end, before new work takes any, and no guarantee that can be kept is reported
// as violated meanwhile.
func TestLostGuaranteesAreRestoredInParts(t *testing.T) {
	const nodes, lost, jobs, tasks = 240, 120, 90, 20
	newPolicy := func() scheduler.Policy { return mustNew(t, "two_tier", map[string]string{"sf": "1000"}) }
	p := newPolicy().(*reservingPolicy)
	w := schedtest.New(t).AddNodes(nodes, schedtest.R(4, 16, 100)).AddTenants("a")
	decide := func() scheduler.Decision {
		t.Helper()
		d := policytest.DecideWarmAndCold(t, w.State, p, newPolicy, w.Now, 100_000)
		if left := p.plan.planner.StepsLeft(); left < -5_000 {
			t.Fatalf("a cycle spent %d steps of %d", planSteps-left, planSteps)
		}
		for i := range d.Actions {
			if err := w.State.Apply(&d.Actions[i], w.Now); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.State.PolicyStates().Apply(d.PolicyStates); err != nil {
			t.Fatal(err)
		}
		w.Start()
		w.Advance(1)
		return d
	}
	unplanned := func() (n int) {
		for j := range w.State.Jobs() {
			if g := j.Stages[0]; j.Spec.Bound == time.Hour {
				for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
					if g.PlannedAt(i) == nil {
						n++
					}
				}
			}
		}
		return n
	}
	submit := func(n int, bound time.Duration) {
		for range n {
			w.Submit("a", tasks, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
		}
	}
	submit(jobs, time.Hour)
	for range 20 {
		decide()
	}
	for id := range scheduler.NodeID(lost) {
		if err := w.State.Events().NodeLost(id, w.Now); err != nil {
			t.Fatal(err)
		}
	}
	if n := unplanned(); n < lost*4 {
		t.Fatalf("%d tasks lost their places", n)
	}
	submit(1, time.Minute) // new work
	for cycle := 0; ; cycle++ {
		d := decide()
		left := unplanned()
		if left == 0 {
			if cycle == 0 {
				t.Error("all are planned in one cycle: the budget does not bind")
			}
			break
		}
		if cycle == 40 || d.Wake != w.Now {
			t.Fatalf("%d tasks have no place after %d cycles, the next at %d", left, cycle+1, d.Wake)
		}
	}
	for j := range w.State.Jobs() {
		if j.HasState(scheduler.ViolatedState) {
			t.Fatalf("the guarantee of job %d was violated", j.Spec.ID)
		}
	}
}

// A decision that has fewer actions than the tasks of a guaranteed project need that are due starts some of them, and the
// next ones the others.
func TestDueTasksOfAGuaranteeStartInParts(t *testing.T) {
	for _, name := range []string{"two_tier", "conservative"} {
		for limit := 1; limit <= 6; limit++ {
			w := schedtest.New(t).AddNodes(1, schedtest.R(2, 8, 100)).AddTenants("a")
			maker := func() scheduler.Policy { return mustNew(t, name, nil) }
			p := maker()
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
				t.Fatal(err)
			}
			job := w.Submit("a", 4, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 1, 10*time.Second })
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			w.Start().Advance(5 * time.Second)
			for _, a := range w.Attempts() {
				w.End(a, scheduler.OutcomeSucceeded)
			}
			for n := 0; w.State.Job(job).Live < 2; n++ {
				if n > 10 {
					t.Fatalf("%s, %d actions: %d of 2 tasks run after %d decisions", name, limit, w.State.Job(job).Live, n)
				}
				policytest.Round(t, w.State, p, maker, w.Now, limit)
				w.Advance(10 * time.Millisecond)
			}
			if w.State.Project(1).HasState(scheduler.ViolatedState) {
				t.Errorf("%s, %d actions: the guarantee is violated", name, limit)
			}
		}
	}
}

// A task that failed, or was lost with its node, violates no guarantee if it still ends in time.
func TestAFailedTaskWithSlackViolatesNothing(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for sf, want := range map[string]bool{"5": false, "0": true} {
			w := schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 100)).AddTenants("a")
			maker := func() scheduler.Policy { return mustNew(t, "two_tier", map[string]string{"sf": sf}) }
			p := maker()
			job := w.Submit("a", 1, schedtest.R(4, 8, 50), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 10 * time.Second })
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			w.Start().Advance(2 * time.Second)
			for _, a := range w.Attempts() {
				if !lost {
					w.End(a, scheduler.OutcomeFailedInfra)
				} else if err := w.State.Events().NodeLost(a.Node, w.Now); err != nil {
					t.Fatal(err)
				}
			}
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			j := w.State.Job(job)
			if violated := j.HasState(scheduler.ViolatedState); violated != want || j.Live != 1 {
				t.Errorf("lost %v, slack factor %s: violated is %v, %d run", lost, sf, violated, j.Live)
			}
		}
	}
}

// Nor does one of an early stage, though the next stage is reserved for a time at which its predecessors have not ended
// now: it follows them.
func TestAFailedTaskOfAnEarlyStageWithSlackViolatesNothing(t *testing.T) {
	for _, c := range []struct {
		policy string
		params map[string]string
		nodes  int
		reduce scheduler.Resources
		lost   bool
	}{
		{"two_tier", map[string]string{"sf": "0.5"}, 2, schedtest.R(2, 4, 25), false},
		{"two_tier", map[string]string{"sf": "0.5"}, 1, schedtest.R(4, 8, 50), false}, // beside the reduce there is no place for a map
		{"two_tier", map[string]string{"sf": "0.5"}, 2, schedtest.R(4, 8, 50), true},
		{"3dsf", map[string]string{"sf": "0.5", "margin": "0s"}, 2, schedtest.R(2, 4, 25), false},
		{"3dsf", map[string]string{"sf": "0.5", "margin": "0s"}, 1, schedtest.R(4, 8, 50), false},
		{"3dsf", map[string]string{"sf": "0.5", "margin": "0s"}, 2, schedtest.R(4, 8, 50), true},
	} {
		t.Run(fmt.Sprint(c.policy, c.nodes, c.reduce, c.lost), func(t *testing.T) {
			w := schedtest.New(t).AddNodes(c.nodes, schedtest.R(4, 8, 100)).AddTenants("a")
			maker := func() scheduler.Policy { return mustNew(t, c.policy, c.params) }
			p := maker()
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
				t.Fatal(err)
			}
			job := w.SubmitStages("a", []scheduler.StageSpec{
				{Name: "map", Kind: scheduler.KindMap, Tasks: 2, Demand: schedtest.R(2, 4, 25)},
				{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 1, Demand: c.reduce, After: []int32{0}},
			}, func(j *scheduler.JobSpec) { j.Bound, j.Project = 10*time.Second, 1 })
			begin := w.Now
			policytest.Round(t, w.State, p, maker, w.Now, 100)
			w.Start().Advance(2 * time.Second)
			if a := w.Attempts()[0]; !c.lost {
				w.End(a, scheduler.OutcomeFailedInfra)
			} else if err := w.State.Events().NodeLost(a.Node, w.Now); err != nil {
				t.Fatal(err)
			}
			j := w.State.Job(job)
			for !schedtest.Complete(j) && w.Now < begin.Add(time.Minute) {
				policytest.Round(t, w.State, p, maker, w.Now, 100)
				w.Start()
				if w.State.Project(1).HasState(scheduler.ViolatedState) {
					t.Fatalf("the guarantee is violated at %v", w.Now.Sub(begin))
				}
				if j.Stages[1].Running == 0 && j.Stages[1].Pending > 0 && len(j.Reservations()) == 0 {
					t.Fatalf("nothing is reserved for the reduce at %v", w.Now.Sub(begin))
				}
				w.Advance(time.Second)
				for _, a := range w.Attempts() {
					if a.RanFor(w.Now) >= 10*time.Second {
						w.End(a, scheduler.OutcomeSucceeded)
					}
				}
			}
			if took := w.Now.Sub(begin); !schedtest.Complete(j) || took != 22*time.Second {
				t.Errorf("complete is %v after %v, want 22s", schedtest.Complete(j), took)
			}
		})
	}
}
