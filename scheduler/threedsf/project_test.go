package threedsf_test

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// The jobs of a project come one by one, with decisions in between. It requests a guarantee once it is complete, and then
// all of its jobs are planned, also by a policy that knew the first ones before: here two tasks of 30 s and a margin of
// 2 s, each as large as the cluster, so that it departs after 64 s.
func TestProjectIsPlannedWithAllOfItsJobs(t *testing.T) {
	maker := func() scheduler.Policy { return guaranteeing() }
	for name, x := range map[string]struct {
		jobs int32                  // of the project
		last func(*schedtest.World) // what completes it after the first two
	}{
		"the second job comes later": {2, nil},
		"the spec counts fewer later": {3, func(w *schedtest.World) {
			spec := w.State.Project(1).Spec
			spec.Jobs = 2
			if err := w.State.Events().PutProject(spec); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(2, 2, 10)).AddTenants("a")
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(2, 2, 10))}, 0)
			w.Start()
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: x.jobs}); err != nil {
				t.Fatal(err)
			}
			p := maker()
			for range 2 {
				w.Submit("a", 1, schedtest.R(2, 2, 10), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
					j.Project, j.Bound, g.Estimate = 1, 30*time.Second, 20*time.Second
				})
				if w.State.Project(1).HasState(scheduler.GuaranteeState) {
					t.Fatal("a part of the project has a guarantee")
				}
				policytest.Round(t, w.State, p, maker, w.Now, 1000)
			}
			if x.last != nil {
				x.last(w)
				policytest.Round(t, w.State, p, maker, w.Now, 1000)
			}
			got, ok := w.State.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.GuaranteeState, Project: 1})
			if want := w.Now.Add(64 * time.Second); !ok || got.At != want {
				t.Errorf("the project's departure is guaranteed (%v) for %d, want %d", ok, got.At, want)
			}
		})
	}
}

// A job that joins a project after its guarantee was given is included if it can end by the latest departure, and has no
// guarantee otherwise: what was guaranteed to the others stays.
func TestJobJoinsAGuaranteedProject(t *testing.T) {
	maker := func() scheduler.Policy { return guaranteeing() }
	for name, x := range map[string]struct {
		bound    time.Duration // of the job that joins
		tasks    int32
		included bool
		third    bool // another one, of one task, is included then
	}{
		"it fits":               {10 * time.Second, 1, true, false},
		"it is too long":        {30 * time.Second, 1, false, false},
		"some of its tasks fit": {10 * time.Second, 3, false, true},
		"its end is not known":  {0, 1, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(2, 2, 10)).AddTenants("a")
			p := maker()
			join := func(bound time.Duration, tasks, jobs int32) *scheduler.Job {
				if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: schedtest.New(t).Now, Jobs: jobs}); err != nil {
					t.Fatal(err)
				}
				j := w.State.Job(w.Submit("a", tasks, schedtest.R(2, 2, 10), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = 1, bound }))
				policytest.Round(t, w.State, p, maker, w.Now, 1000)
				return j
			}
			first := join(30*time.Second, 1, 1)
			latest, ok := w.State.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.LatestDepartureState, Project: 1})
			if !ok {
				t.Fatal("the project has no guarantee")
			}
			w.Advance(100 * time.Millisecond)
			second := join(x.bound, x.tasks, 2)
			pr := w.State.Project(1)
			if pr.HasState(scheduler.ViolatedState) || !w.State.GuaranteeIncludes(first) || first.Live+first.Guarantees != 1 {
				t.Errorf("the guarantee of the project is violated: %v; its first job has %d tasks or reservations", pr.HasState(scheduler.ViolatedState), first.Live+first.Guarantees)
			}
			if got := w.State.GuaranteeIncludes(second); got != x.included || second.HasState(scheduler.RefusedState) == x.included || (second.Guarantees > 0) != x.included {
				t.Errorf("the job that joins is included: %v, want %v; refused: %v, with %d reservations", got, x.included, second.HasState(scheduler.RefusedState), second.Guarantees)
			}
			for _, r := range second.Reservations() {
				if r.End > latest.At {
					t.Errorf("a task of it is planned until %d, the latest departure is %d", r.End, latest.At)
				}
			}
			w.Advance(100 * time.Millisecond)
			if third := join(x.bound, 1, 3); w.State.GuaranteeIncludes(third) != x.third || pr.HasState(scheduler.ViolatedState) {
				t.Errorf("a third job is included: %v, the guarantee violated: %v", w.State.GuaranteeIncludes(third), pr.HasState(scheduler.ViolatedState))
			}
			if x.included || x.third {
				return
			}
			w.Start().Advance(20 * time.Second)
			w.End(w.Attempts()[0], scheduler.OutcomeSucceeded)
			w.Now = latest.At.Add(-time.Second) // none of the others could end in time
			if policytest.Round(t, w.State, p, maker, w.Now, 1000); pr.HasState(scheduler.ViolatedState) {
				t.Error("the guarantee is violated by jobs that it does not include")
			}
		})
	}
}
