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

// shareError judges the order of tenants in a decision that was applied: among
// the children of one tenant, one that was served must not be ahead, by
// dominant share for its weight right after its placement, of one that still
// waits for its turn, by more than that one's next task. It gives the largest
// lead in tasks of the one that waits, 0 for none. Only regular jobs count,
// and only stages that wait for their turn or share: one that waits for its
// data or for room is passed over rightly.
func (w *World) shareError(d *scheduler.Decision) float64 {
	if w.Features != FeaturesAll {
		return 0
	}
	total := w.S.Total()
	ahead := map[scheduler.TenantID]float64{} // by parent: largest share of one served
	later := map[scheduler.TenantID]scheduler.Resources{}
	for i := len(d.Actions) - 1; i >= 0; i-- {
		a := &d.Actions[i]
		if a.Kind != scheduler.ActPlace {
			continue
		}
		g := w.S.Stage(a.Task.StageID())
		t := w.S.Tenant(g.Job.Spec.Tenant)
		if regular(g.Job) {
			share := t.Used.Sub(later[t.Spec.ID]).DominantShare(total) / t.Spec.Weight
			ahead[t.Spec.Parent] = max(ahead[t.Spec.Parent], share)
		}
		later[t.Spec.ID] = later[t.Spec.ID].Add(g.Spec.Demand)
	}
	worst := 0.0
	first := map[scheduler.TenantID]bool{} // only a tenant's first task in its order has its turn
	for i := range d.Waiting {
		g := w.S.Stage(d.Waiting[i].Stage)
		t := w.S.Tenant(g.Job.Spec.Tenant)
		lead, ok := ahead[t.Spec.Parent]
		r := d.Waiting[i].Reason
		if !ok || !regular(g.Job) || first[t.Spec.ID] {
			continue
		}
		first[t.Spec.ID] = r == scheduler.ReasonTurn || r == scheduler.ReasonShare || r == scheduler.ReasonData
		if !first[t.Spec.ID] || r == scheduler.ReasonData {
			continue
		}
		next := t.Used.Add(g.Spec.Demand).DominantShare(total) / t.Spec.Weight
		step := g.Spec.Demand.DominantShare(total) / t.Spec.Weight
		worst = max(worst, (lead-next)/step)
	}
	return worst
}

func regular(j *scheduler.Job) bool { return !j.Spec.Accepted && j.Spec.Project == 0 }
