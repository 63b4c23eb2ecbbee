package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// capWait is a due task for which capacity is being freed: nobody else may take what its caps allow then.
type capWait struct {
	stage       *scheduler.Stage
	reservation *scheduler.Reservation // that is due
}

// allows reports whether caps let one more task of a stage start, beside due tasks that wait for them. O(depth).
func (v *view) allows(g *scheduler.Stage) bool {
	return v.withinCaps(g.Job, g.Spec.Demand, g.Spec.Demand)
}

// withinCaps is TenantTree.WithinCaps, beside the due tasks that wait for the caps.
func (v *view) withinCaps(j *scheduler.Job, task, more scheduler.Resources) bool {
	return v.s.TenantTree().WithinCaps(j, task, more) && capWaitAgainst(v.s, v.capWaits, j, more) == nil
}

// capWaitAgainst returns one of some due tasks whose tenant shares a cap with a job that so leaves no more for the job:
// one of another job if there is one, nil for none. O(1) without due tasks, else O(due tasks x depth²).
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

// awaitedBelow returns what those of some due tasks wait for that are below a tenant.
func awaitedBelow(s *scheduler.State, waits []capWait, id scheduler.TenantID) (sum scheduler.Resources) {
	for i := range waits {
		if g := waits[i].stage; s.TenantTree().IsBelow(g.Job.Spec.Tenant, id) {
			sum = sum.Add(g.Spec.Demand)
		}
	}
	return sum
}

// firstCapWait returns the first of some due tasks below a tenant that needs a resource: of another job than j, else
// one of j, nil for none.
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

// others finds out what may be started below caps that is not placed by the policy: second attempts, and maps that
// reduces wait for. It has a view of its own: that of the cycle belongs to the last decision.
type others struct {
	view       view // capWaits are the guarantees that are due, whether capacity is being freed for them or not
	guarantees guaranteeCheck
	seen       scheduler.Stamp // of the State in view, since the last decision
}

// RefusedByCap implements scheduler.RefusedByCap. It reports whether the next task of a stage, or a second attempt at
// one, may not start on a node: it leaves too little of a cap to a task of another job that is due, or, if it does not
// give way, to a guarantee to come. A second attempt leaves the caps to tasks of its own job as well, but for those
// that wait for its stage. O(1) if no cap is above the tenant or there is no guarantee; else O(due tasks x depth²), and
// once for a State O(nodes + guarantees).
func (p *Policy) RefusedByCap(s *scheduler.State, g *scheduler.Stage, node scheduler.NodeID, second bool, now scheduler.Time) (r scheduler.CapRefusal, refused bool) {
	o := &p.others
	o.view.s = s
	if len(s.Reservations().Guarantees()) == 0 || !o.view.isBelowCap(g.Job.Spec.Tenant) {
		return r, false
	}
	o.listDue(s, now)
	waits, replaced := o.view.capWaits, int32(-1)
	if !second {
		waits = slices.DeleteFunc(slices.Clone(waits), func(x capWait) bool { return x.stage.Job == g.Job })
		replaced = replacedTask(g, nil)
	}
	if w := capWaitAgainst(s, waits, g.Job, g.Spec.Demand); w != nil {
		return scheduler.CapRefusal{Awaited: w.stage.Spec.Demand, Until: w.reservation.End}, true
	}
	if s.Node(node).CanPreempt(g.Job) {
		return r, false
	}
	e := o.guarantees.exceededCap(g, nil, replaced, o.guarantees.assumedEndFromNow(g, nil))
	return scheduler.CapRefusal{Until: e.until}, e.tenant != nil
}

// listDue lists the guarantees of ready tasks that are due, and forgets what was known of another State. O(1) if it is
// the same.
func (o *others) listDue(s *scheduler.State, now scheduler.Time) {
	if stamp := s.Stamp(); o.seen != stamp || o.view.now != now {
		o.seen, o.view.now, o.view.capWaits = stamp, now, o.view.capWaits[:0]
		o.guarantees.beginPass()
		for _, r := range s.Reservations().Guarantees() {
			if r.Start > now {
				break
			}
			if k := s.Stage(r.StageID()); r.End > now && isPlanned(r) && k != nil && k.Ready() && k.IsPending(r.Task) {
				o.view.capWaits = append(o.view.capWaits, capWait{k, r})
			}
		}
	}
}
