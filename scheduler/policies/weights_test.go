package policies

import (
	"math"
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Under fair the jobs of one tenant share by their weights, a job without one
// counting as weight 1; under equ weights do not count.
func TestJobsShareByWeight(t *testing.T) {
	for policy, want := range map[string][2]int32{"fair": {9, 3}, "equ": {6, 6}} {
		t.Run(policy, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(12, 12, 12)).AddTenants("a")
			a := w.Submit("a", 20, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Weight = 3 })
			b := w.Submit("a", 20, schedtest.R(1, 1, 1))
			p, err := New(policy, nil)
			if err != nil {
				t.Fatal(err)
			}
			w.Cycle(p)
			if x, y := w.State.Job(a).Stages[0].Running, w.State.Job(b).Stages[0].Running; [2]int32{x, y} != want {
				t.Errorf("%d and %d tasks run, want %v", x, y, want)
			}
		})
	}
}

func TestJobWeightMustBeFinite(t *testing.T) {
	for _, weight := range []float64{-1, math.NaN(), math.Inf(1)} {
		s := schedtest.New(t).AddTenants("a").State
		job := scheduler.JobSpec{ID: 1, Name: "j", Priority: scheduler.PriorityLow, Submitted: 1, Weight: weight}
		if err := s.Events().SubmitJob(job, []scheduler.StageSpec{{Name: "main", Kind: scheduler.KindGroup, Tasks: 1, Demand: schedtest.R(1, 1, 1)}}); err == nil {
			t.Errorf("weight %v is accepted", weight)
		}
	}
}
