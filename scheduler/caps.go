package scheduler

// HasCaps reports whether any tenant has a cap. O(1).
func (t *TenantTree) HasCaps() bool { return t.capped > 0 }

// Allows reports whether one more task of the stage stays within all caps. O(depth of the tenant).
func (t *TenantTree) Allows(g *Stage) bool { return t.WithinCaps(g.Job, g.Spec.Demand, g.Spec.Demand) }

// Waiting returns why a stage waits regardless of free capacity: its max_parallel or a cap. Reason is 0 for neither.
func (t *TenantTree) Waiting(g *Stage) Waiting {
	w, ok := Waiting{Stage: g.ID(), Tasks: g.Pending}, true
	if g.Startable() == 0 {
		w.Reason = ReasonMaxParallel
	} else if w.Tenant, w.Cap, w.Resource, ok = t.underCaps(g.Job, g.Spec.Demand, g.Spec.Demand, nil); !ok {
		w.Reason = ReasonCap
	}
	return w
}

// WithinCaps reports whether a job stays within all caps if it occupies more in addition, with task
// the total of the one task concerned. O(depth of the tenant); O(1) if no tenant has a cap.
func (t *TenantTree) WithinCaps(j *Job, task, more Resources) bool {
	_, _, _, ok := t.underCaps(j, task, more, nil)
	return ok
}

// capCharges is what a decision adds to the use of tenants and jobs.
type capCharges struct {
	tenants map[TenantID]Resources
	jobs    map[JobID]Resources
}

// underCaps reports whether a task that occupies task in total, of which more is new, stays within
// all caps together with the charges so far. If not, it returns the first exceeded cap: the cap on
// a task, then, from the job's tenant upwards, each tenant's cap on a job and its total cap.
func (tree *TenantTree) underCaps(j *Job, task, more Resources, charged *capCharges) (TenantID, CapScope, Resource, bool) {
	if tree.capped == 0 {
		return 0, 0, 0, true
	}
	if r, ok := j.tenant.Spec.Caps.Task.Allows(task); !ok {
		return j.Spec.Tenant, CapTask, r, false
	}
	ofJob := j.Used.Add(more)
	if charged != nil {
		ofJob = ofJob.Add(charged.jobs[j.Spec.ID])
	}
	for t := j.tenant; t != nil; t = tree.tenant(t.Spec.Parent) {
		if r, ok := t.Spec.Caps.Job.Allows(ofJob); !ok {
			return t.Spec.ID, CapJob, r, false
		}
		total := t.Used.Add(more)
		if charged != nil {
			total = total.Add(charged.tenants[t.Spec.ID])
		}
		if r, ok := t.Spec.Caps.Total.Allows(total); !ok {
			return t.Spec.ID, CapTotal, r, false
		}
	}
	return 0, 0, 0, true
}

// IsBelow reports whether tenant id is the tenant above, or is below it. O(depth of the tenant).
func (tree *TenantTree) IsBelow(id, above TenantID) bool {
	for t := tree.tenant(id); t != nil; t = tree.tenant(t.Spec.Parent) {
		if t.Spec.ID == above {
			return true
		}
	}
	return false
}

// CanResume reports whether a suspended attempt is not parked, has its input, fits on its own node, which may be
// draining, and stays within all caps. O(depth of the tenant).
func (at Attempts) CanResume(a *Attempt) bool {
	g := at.s.StageOf(a)
	return a.Phase == AttemptSuspended && !a.Parked && !g.WaitsForInput() && g.Job.Phase == JobActive && a.FitsBack(at.s.cluster.nodes[a.Node]) &&
		at.s.tree.WithinCaps(g.Job, a.Demand, a.Demand.Sub(a.Occupied.Resources))
}
