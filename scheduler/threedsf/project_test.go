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
