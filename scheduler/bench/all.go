package bench

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// submitProjects submits projects of 5 jobs whose tasks each want half a
// machine for ten minutes, so that they wait with reservations.
func (w *World) submitProjects() error {
	if w.Features != FeaturesAll {
		return nil
	}
	for i := range w.Projects {
		spec := scheduler.ProjectSpec{ID: scheduler.ProjectID(i + 1), Name: fmt.Sprintf("project%05d", i), Tenant: w.leaves[w.rng.IntN(len(w.leaves))],
			Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 5}
		if w.rng.IntN(5) == 0 {
			spec.Priority = scheduler.PriorityHigh
		}
		if err := w.S.PutProject(spec); err != nil {
			return err
		}
		for range spec.Jobs {
			w.nextJob++
			job := scheduler.JobSpec{ID: w.nextJob, Name: spec.Name, Tenant: spec.Tenant, Priority: spec.Priority, Submitted: w.Now,
				Bound: 10 * time.Minute, Estimate: 5 * time.Minute, Project: spec.ID}
			stage := scheduler.StageSpec{Name: "main", Kind: scheduler.KindGroup, Tasks: 2, Demand: scheduler.Resources{16_000, 64 << 30, 100_000_000},
				Disk: 1 << 30, Estimate: 5 * time.Minute}
			if err := w.S.SubmitJob(job, []scheduler.StageSpec{stage}); err != nil {
				return err
			}
			w.byJob[job.ID] = stage.Tasks
			w.waiting += int(stage.Tasks)
			w.want = w.want.Add(stage.Demand.Times(int64(stage.Tasks)))
		}
	}
	return nil
}

// placements counts the tasks that a decision places.
func placements(d *scheduler.Decision) int {
	n := 0
	for i := range d.Actions {
		if d.Actions[i].Kind == scheduler.ActPlace {
			n++
		}
	}
	return n
}
