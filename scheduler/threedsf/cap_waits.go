package threedsf

import "github.com/drover-run/drover/scheduler"

// capWait is a due task for which capacity is being freed: nobody else may take what the caps of its tenants allow then.
type capWait struct {
	stage       *scheduler.Stage
	reservation *scheduler.Reservation // that is due
}

// allows reports whether caps let one more task of a stage start, beside the due tasks that wait for them.
// O(depth of the tenant).
func (v *view) allows(g *scheduler.Stage) bool {
	return v.withinCaps(g.Job, g.Spec.Demand, g.Spec.Demand)
}

// withinCaps is TenantTree.WithinCaps, beside the due tasks that wait for the caps.
func (v *view) withinCaps(j *scheduler.Job, task, more scheduler.Resources) bool {
	return v.s.TenantTree().WithinCaps(j, task, more) && capWaitAgainst(v.s, v.capWaits, j, more) == nil
}

// capWaitAgainst returns one of some due tasks whose tenant shares a cap with a job that so leaves no more for the job: one
// of another job if there is one, nil for none. O(1) without due tasks, else O(due tasks x depth²).
func capWaitAgainst(s *scheduler.State, waits []capWait, j *scheduler.Job, more scheduler.Resources) *capWait {
	if len(waits) == 0 {
		return nil
	}
	for t := s.Tenant(j.Spec.Tenant); t != nil; t = s.Tenant(t.Spec.Parent) {
		if t.Spec.Caps.Total == (scheduler.Limit{}) {
			continue
		}
		used := t.Used.Add(awaitedBelow(s, waits, t.Spec.ID)).Add(more)
		for r, limit := range t.Spec.Caps.Total {
			if limit > 0 && used[r] > limit && more[r] > 0 {
				return firstCapWait(s, waits, t.Spec.ID, scheduler.Resource(r), j)
			}
		}
	}
	return nil
}

// awaitedOf returns what due tasks below a tenant wait for.
func (v *view) awaitedOf(id scheduler.TenantID) scheduler.Resources {
	return awaitedBelow(v.s, v.capWaits, id)
}

// awaitedBelow returns what those of some due tasks wait for that are below a tenant.
func awaitedBelow(s *scheduler.State, waits []capWait, id scheduler.TenantID) (sum scheduler.Resources) {
	for i := range waits {
		if g := waits[i].stage; s.TenantTree().IsBelow(g.Job.Spec.Tenant, id) {
			sum = sum.Add(g.Spec.Demand)
		}
	}
	return sum
}

// firstCapWait returns the first of some due tasks below a tenant that needs a resource: of another job than j, else one of j,
// nil for none.
func firstCapWait(s *scheduler.State, waits []capWait, id scheduler.TenantID, r scheduler.Resource, j *scheduler.Job) (own *capWait) {
	for i := range waits {
		w := &waits[i]
		switch {
		case w.stage.Spec.Demand[r] == 0 || !s.TenantTree().IsBelow(w.stage.Job.Spec.Tenant, id):
		case w.stage.Job != j:
			return w
		case own == nil:
			own = w
		}
	}
	return own
}
