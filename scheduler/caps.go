package scheduler

// Capped tells whether any tenant has a cap. O(1).
func (s *State) Capped() bool { return s.capped > 0 }

// UnderCaps tells whether one more task of the stage keeps within all caps,
// and if not, which tenant's cap of which scope on which resource it breaks:
// the task's, then from the job's tenant upwards each tenant's cap for a job
// and in total. O(depth of the tenant).
func (s *State) UnderCaps(g *Stage) (TenantID, CapScope, Resource, bool) {
	return s.underCaps(g.Job, g.Spec.Demand, g.Spec.Demand)
}

// MayHold tells whether a job keeps within all caps with so much more, one task
// of it holding task in all. O(depth of the tenant); O(1) where no tenant is
// capped.
func (s *State) MayHold(j *Job, task, more Resources) bool {
	_, _, _, ok := s.underCaps(j, task, more)
	return ok
}

// underCaps is UnderCaps for a task that holds task in all and takes more.
func (s *State) underCaps(j *Job, task, more Resources) (TenantID, CapScope, Resource, bool) {
	if s.capped == 0 {
		return 0, 0, 0, true
	}
	t := s.tenants[j.Spec.Tenant]
	if r, ok := t.Spec.Caps.Task.Allows(task); !ok {
		return t.Spec.ID, CapTask, r, false
	}
	for id, n := t.Spec.ID, 0; id != NoTenant && n <= MaxTenantDepth; n++ {
		t := s.tenants[id]
		if !t.Spec.Caps.Job.None() {
			if r, ok := t.Spec.Caps.Job.Allows(j.Used.Add(more)); !ok {
				return id, CapJob, r, false
			}
		}
		if !t.Spec.Caps.Total.None() {
			if r, ok := t.Spec.Caps.Total.Allows(t.Used.Add(more)); !ok {
				return id, CapTotal, r, false
			}
		}
		id = t.Spec.Parent
	}
	return 0, 0, 0, true
}

// CanResume tells whether a suspended attempt has room on its own node, which
// may be draining, and keeps within all caps. O(depth of the tenant).
func (s *State) CanResume(a *Attempt) bool {
	n := s.nodes[a.Node]
	g := s.StageOf(a)
	if a.Phase != AttemptSuspended || n.Spec.Down || g.Job.Phase != JobActive {
		return false
	}
	more := a.Demand.Sub(a.Held.Resources)
	if !n.hasRoom(a.Disk, more.Max(Resources{}), max(a.DiskSpace-a.Held.Disk, 0)) {
		return false
	}
	_, _, _, ok := s.underCaps(g.Job, a.Demand, more)
	return ok
}
