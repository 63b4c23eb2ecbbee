package scheduler

// UnderCaps tells whether one more task of the stage keeps within all caps,
// and if not, which tenant's cap of which scope on which resource it breaks:
// the task's, then from the job's tenant upwards each tenant's cap for a job
// and in total. O(depth of the tenant).
func (s *State) UnderCaps(g *Stage) (TenantID, CapScope, Resource, bool) {
	d := g.Spec.Demand
	t := s.tenants[g.Job.Spec.Tenant]
	if r, ok := t.Spec.Caps.Task.Allows(d); !ok {
		return t.Spec.ID, CapTask, r, false
	}
	for id, n := t.Spec.ID, 0; id != NoTenant && n <= MaxTenantDepth; n++ {
		t := s.tenants[id]
		if !t.Spec.Caps.Job.None() {
			if r, ok := t.Spec.Caps.Job.Allows(g.Job.Used.Add(d)); !ok {
				return id, CapJob, r, false
			}
		}
		if !t.Spec.Caps.Total.None() {
			if r, ok := t.Spec.Caps.Total.Allows(t.Used.Add(d)); !ok {
				return id, CapTotal, r, false
			}
		}
		id = t.Spec.Parent
	}
	return 0, 0, 0, true
}
