package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
)

// capWait is a due task for which capacity is being freed: nobody else may take what the caps of its tenants allow then.
type capWait struct {
	stage       *scheduler.Stage
	reservation *scheduler.Reservation // that is due
}

// findCapVictims finds victims for a due task that the caps of its tenants stop; ok is false if none suffice. It then
// finds none for that stage again in this pass. The victims are valid until others are searched.
func (l *reservedLane) findCapVictims(r *scheduler.Reservation, g *scheduler.Stage) (victims []deadline.Victim, ok bool) {
	if l.c.cfg.Preempt == deadline.None || slices.Contains(l.withoutVictims, g) {
		return nil, false
	}
	if victims, ok = l.preemption.capVictimsForDue(g, r.Node); !ok {
		l.withoutVictims = append(l.withoutVictims, g)
	}
	return victims, ok
}

// allows reports whether caps let one more task of a stage start, beside the due tasks that wait for them.
// O(depth of the tenant).
func (v *view) allows(g *scheduler.Stage) bool {
	return v.withinCaps(g.Job, g.Spec.Demand, g.Spec.Demand)
}

// withinCaps is TenantTree.WithinCaps, beside the due tasks that wait for the caps.
func (v *view) withinCaps(j *scheduler.Job, task, more scheduler.Resources) bool {
	return v.s.TenantTree().WithinCaps(j, task, more) && v.capWaitAgainst(j, more) == nil
}

// capWaitAgainst returns a due task whose tenant shares a cap with a job that so leaves no more for the job, or nil.
// O(1) while no due task waits for a cap, else O(those tasks x depth²).
func (v *view) capWaitAgainst(j *scheduler.Job, more scheduler.Resources) *capWait {
	if len(v.capWaits) == 0 {
		return nil
	}
	for t := v.s.Tenant(j.Spec.Tenant); t != nil; t = v.s.Tenant(t.Spec.Parent) {
		if t.Spec.Caps.Total == (scheduler.Limit{}) {
			continue
		}
		used := t.Used.Add(v.awaitedOf(t.Spec.ID)).Add(more)
		for r, limit := range t.Spec.Caps.Total {
			if limit > 0 && used[r] > limit && more[r] > 0 {
				return v.firstCapWait(t.Spec.ID)
			}
		}
	}
	return nil
}

// awaitedOf returns what due tasks below a tenant wait for.
func (v *view) awaitedOf(id scheduler.TenantID) (sum scheduler.Resources) {
	for i := range v.capWaits {
		if g := v.capWaits[i].stage; v.s.TenantTree().IsBelow(g.Job.Spec.Tenant, id) {
			sum = sum.Add(g.Spec.Demand)
		}
	}
	return sum
}

// firstCapWait returns the first due task below a tenant that waits for a cap, or nil.
func (v *view) firstCapWait(id scheduler.TenantID) *capWait {
	for i := range v.capWaits {
		if w := &v.capWaits[i]; v.s.TenantTree().IsBelow(w.stage.Job.Spec.Tenant, id) {
			return w
		}
	}
	return nil
}
