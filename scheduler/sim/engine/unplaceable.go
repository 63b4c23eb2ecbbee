package engine

import (
	"fmt"

	"github.com/drover-run/drover/scheduler"
)

// findUnplaceable returns why a job can never run on this cluster: a task fits on no empty node, or
// exceeds a cap of its tenant or of a tenant above. It returns "" if no such reason is known.
func (a *admission) findUnplaceable(w *world, in *Job) string {
	for k := range in.Stages {
		g := &in.Stages[k]
		if g.Tasks == 0 {
			continue
		}
		if w.cluster.slotsInCluster(w, g.Demand, g.Disk) == 0 {
			return fmt.Sprintf("stage %d: a task needs %v, which no node has", k, g.Demand)
		}
		for id := in.Tenant; id != scheduler.NoTenant; id = w.Tenants[id].Parent {
			t := &w.Tenants[id]
			for _, limit := range []scheduler.Limit{t.Caps.Task, t.Caps.Job, t.Caps.Total} {
				if r, ok := limit.Allows(g.Demand); !ok {
					return fmt.Sprintf("stage %d: a task needs %v, above the %v cap of tenant %q", k, g.Demand, r, t.Name)
				}
			}
		}
	}
	return ""
}

// refuseUnplaceable counts the jobs that can never run. The scheduler does not see them, and their
// projects do not wait for them.
func (a *admission) refuseUnplaceable(w *world) {
	copied := false
	for i := range w.jobs {
		why := a.findUnplaceable(w, &w.Jobs[i])
		if why == "" {
			continue
		}
		w.jobs[i].refused = true
		w.jobs[i].res.Refused = true
		if w.res.Refused++; w.res.Refused == 1 {
			w.res.FirstRefused = fmt.Sprintf("job %d (%s): %s", i+1, w.Jobs[i].Name, why)
		}
		if p := w.Jobs[i].Project; p > 0 {
			if !copied {
				w.Projects, copied = append([]Project(nil), w.Projects...), true
			}
			w.Projects[p-1].Jobs--
		}
	}
}

// StuckError is the error of a simulation in which jobs wait and nothing is left that could start
// or end them. The Result holds everything up to that point.
type StuckError struct {
	Left int    // jobs that did not end
	why  string // no event is left, with the policy's reason for the first stage that waits, or nodes fail too often
}

// Error returns what is left and why.
func (e *StuckError) Error() string {
	return fmt.Sprintf("%d jobs cannot end because %s", e.Left, e.why)
}
