package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// capWait is a due task for which capacity is being freed: no other task may take what its caps allow.
type capWait struct {
	stage       *scheduler.Stage
	reservation *scheduler.Reservation // the reservation that is due
}

// allows reports whether caps let one more task of a stage start, besides the due tasks that wait for them. O(depth).
func (v *view) allows(g *scheduler.Stage) bool {
	return v.withinCaps(g.Job, g.Spec.Demand, g.Spec.Demand)
}

// withinCaps is TenantTree.WithinCaps, with room for the due tasks that wait for the caps.
func (v *view) withinCaps(j *scheduler.Job, task, more scheduler.Resources) bool {
	return v.s.TenantTree().WithinCaps(j, task, more) && capWaitAgainst(v.s, v.capWaits, j, more) == nil
}

// capWaitAgainst returns a due task that shares a cap with a job and needs what the job would take: a task
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

// awaitedBelow returns the sum of the demands of the due tasks below a tenant.
func awaitedBelow(s *scheduler.State, waits []capWait, id scheduler.TenantID) (sum scheduler.Resources) {
	for i := range waits {
		if g := waits[i].stage; s.TenantTree().IsBelow(g.Job.Spec.Tenant, id) {
			sum = sum.Add(g.Spec.Demand)
		}
	}
	return sum
}

// firstCapWait returns the first due task below a tenant that needs a resource: of another job than
// j, else of j, nil for none.
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

// others decides what may start below caps that the policy does not place itself: second attempts, and maps
// that reduces wait for. It has a view of its own, since the cycle's view belongs to the last decision.
type others struct {
	view       view // capWaits are the guarantees that are due, whether capacity is being freed for them or not
	guarantees guaranteeCheck
	seen       scheduler.Stamp // of the State in view, since the last decision
}

// RefusedByCap implements scheduler.RefusedByCap. It reports whether the next task of a stage, or a second
// attempt at one, may not start on a node: it would leave too little of a cap to a due task of another job
// or, if it does not give way, to a future guarantee. A second attempt must also leave the caps to tasks of
// its own job, except those that wait for its stage. O(1) if no cap is above the tenant or there is no
// guarantee; else O(due tasks x depth²), and once per State O(nodes + guarantees).
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

// listDue lists the due guarantees of ready tasks, and drops what it knew of another State. O(1) if
// nothing changed.
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
