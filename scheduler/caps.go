package scheduler

// HasCaps reports whether any tenant has a cap. O(1).
func (t *TenantTree) HasCaps() bool { return t.capped > 0 }

// UnderCaps reports whether one more task of the stage stays within all caps. If not, it
// returns the tenant, scope and resource of the first cap exceeded: the cap on a task, then,
// from the job's tenant upwards, each tenant's cap on a job and in total. O(depth of the
// tenant).
func (t *TenantTree) UnderCaps(g *Stage) (TenantID, CapScope, Resource, bool) {
	return t.underCaps(g.Job, g.Spec.Demand, g.Spec.Demand)
}

// Allows is UnderCaps without the reason.
func (t *TenantTree) Allows(g *Stage) bool {
	return t.WithinCaps(g.Job, g.Spec.Demand, g.Spec.Demand)
}

// Waiting returns why a stage waits whatever is free: its max_parallel or a cap. Reason is 0 if neither holds it.
func (t *TenantTree) Waiting(g *Stage) Waiting {
	w, ok := Waiting{Stage: g.ID(), Tasks: g.Pending}, true
	if g.Startable() == 0 {
		w.Reason = ReasonMaxParallel
	} else if w.Tenant, w.Cap, w.Resource, ok = t.UnderCaps(g); !ok {
		w.Reason = ReasonCap
	}
	return w
}

// WithinCaps reports whether the job stays within all caps if it occupies more in addition,
// and one of its tasks occupies task in total. O(depth of the tenant); O(1) if no tenant has a
// cap.
func (t *TenantTree) WithinCaps(j *Job, task, more Resources) bool {
	_, _, _, ok := t.underCaps(j, task, more)
	return ok
}

// underCaps implements UnderCaps for a task that occupies task in total, of which more is new.
func (tree *TenantTree) underCaps(j *Job, task, more Resources) (TenantID, CapScope, Resource, bool) {
	if tree.capped == 0 {
		return 0, 0, 0, true
	}
	t := tree.tenants[j.Spec.Tenant]
	if r, ok := t.Spec.Caps.Task.Allows(task); !ok {
		return t.Spec.ID, CapTask, r, false
	}
	for id, n := t.Spec.ID, 0; id != NoTenant && n <= MaxTenantDepth; n++ {
		t := tree.tenants[id]
		if !t.Spec.Caps.Job.none() {
			if r, ok := t.Spec.Caps.Job.Allows(j.Used.Add(more)); !ok {
				return id, CapJob, r, false
			}
		}
		if !t.Spec.Caps.Total.none() {
			if r, ok := t.Spec.Caps.Total.Allows(t.Used.Add(more)); !ok {
				return id, CapTotal, r, false
			}
		}
		id = t.Spec.Parent
	}
	return 0, 0, 0, true
}

// CanResume reports whether a suspended attempt has its input, fits on its own node, which may be
// draining, and stays within all caps. O(depth of the tenant).
func (at Attempts) CanResume(a *Attempt) bool {
	n := at.s.cluster.nodes[a.Node]
	g := at.s.StageOf(a)
	if a.Phase != AttemptSuspended || n.Spec.Down || g.WaitsForInput() || g.Job.Phase != JobActive {
		return false
	}
	more := a.Demand.Sub(a.Occupied.Resources)
	return n.hasCapacity(a.Disk, more.Max(Resources{}), max(a.DiskSpace-a.Occupied.Disk, 0)) && at.s.tree.WithinCaps(g.Job, a.Demand, more)
}
