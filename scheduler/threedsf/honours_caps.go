package threedsf

import (
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// capGuarantees is what guarantees need below caps, as of the first question of a pass, and when to ask again.
type capGuarantees struct {
	timeline *scheduler.Timeline   // nil before the first question
	reserved []bool                // by bin of its Caps: a guarantee is below it
	used     []scheduler.Resources // by bin: what the tenant used then
	retryAt  scheduler.Time        // when, if nothing happens, a task leaves the caps enough that did not in this pass; Never for none
	exempt   []capExemption        // scratch of exceededCap
}

// capExemption is what is taken of caps from start to end, and does not count against a task.
type capExemption struct {
	start, end scheduler.Time
	taken      scheduler.Resources
}

// beginPass forgets what was known of an earlier pass.
func (x *guaranteeCheck) beginPass() { x.caps.timeline, x.caps.retryAt = nil, scheduler.Never }

// isBelowCap reports whether a tenant is below a cap on a total. O(depth of the tenant), O(1) if no tenant has a cap.
func (v *view) isBelowCap(id scheduler.TenantID) bool {
	if !v.s.TenantTree().HasCaps() {
		return false
	}
	for t := v.s.Tenant(id); t != nil; t = v.s.Tenant(t.Spec.Parent) {
		if t.Spec.Caps.Total != (scheduler.Limit{}) {
			return true
		}
	}
	return false
}

// leavesCaps reports whether starting a task of a stage, which does not give way, or resuming its attempt a, leaves the
// guarantees below the caps of its tenant what they need of these; if not, it notes in caps.retryAt when it might.
// Guarantees of the job's own later stages that depend on this stage are ignored, and the one that the task no longer
// needs once it has started. So is what Caps has of the attempt, which may be all that it needs. What was placed since
// the first question of the pass counts as staying. O(depth x log n), and once a pass O(nodes + guarantees), where a
// guarantee may be below a cap; times the guarantees of the job if the answer depends on them.
func (x *guaranteeCheck) leavesCaps(g *scheduler.Stage, a *scheduler.Attempt) bool {
	if !x.v.isBelowCap(g.Job.Spec.Tenant) {
		return true
	}
	e := x.exceededCap(g, a, replacedTask(g, a), x.assumedEndFromNow(g, a))
	if e.tenant != nil {
		x.caps.retryAt = min(x.caps.retryAt, e.until)
	}
	return e.tenant == nil
}

// leavesCapsUntil returns when, if nothing happens, resuming an attempt leaves a cap too little that leaves all of them
// enough now, since it would end later; Never for never. O(caps above the tenant) times what leavesCaps costs.
func (x *guaranteeCheck) leavesCapsUntil(g *scheduler.Stage, a *scheduler.Attempt) scheduler.Time {
	end := x.assumedEndFromNow(g, a)
	if end == scheduler.Never || !x.v.isBelowCap(g.Job.Spec.Tenant) {
		return scheduler.Never
	}
	latestEnd := scheduler.Never // that leaves them enough, of the caps found so far: another one may be exceeded earlier
	for e := x.exceededCap(g, a, a.ID.Index, latestEnd); e.tenant != nil && e.at < latestEnd; e = x.exceededCap(g, a, a.ID.Index, latestEnd) {
		latestEnd = e.at
	}
	if latestEnd == scheduler.Never {
		return scheduler.Never
	}
	return x.v.now.Add(latestEnd.Sub(end) + 1)
}

// capExcess is a cap that leaves a task too little beside the guarantees below it.
type capExcess struct {
	tenant *scheduler.Tenant   // nil for none
	bin    int32               // of Caps
	need   scheduler.Resources // of the task, and of what was placed since readCaps
	at     scheduler.Time      // the first time at which it does
	until  scheduler.Time      // when the task leaves it enough, at the earliest
}

// exceededCap returns the first cap that leavesCaps finds exceeded by a task that runs until end. The guarantee of a
// replaced task of the stage, -1 for none, is the one that is no longer needed.
func (x *guaranteeCheck) exceededCap(g *scheduler.Stage, a *scheduler.Attempt, replaced int32, end scheduler.Time) capExcess {
	if x.caps.timeline == nil {
		x.readCaps()
	}
	d := g.Spec.Demand
	if a != nil {
		d = a.Demand
	} else if e := x.firstExceeded(g, d, end); e.tenant == nil || g.Job.Guarantees == 0 {
		return e
	}
	x.listExempt(g, a, replaced)
	x.changeCaps(g, 1)
	defer x.changeCaps(g, -1)
	return x.firstExceeded(g, d, end)
}

// replacedTask returns the task of a stage that starts next, or whose attempt a resumes, and then needs its guarantee
// no longer; -1 if that is not known.
func replacedTask(g *scheduler.Stage, a *scheduler.Attempt) int32 {
	switch {
	case a != nil:
		return a.ID.Index
	case g.Spec.Inputs != nil && g.Pending > 1:
		return -1 // where its input is decides which task starts
	default:
		return g.NextPending(0)
	}
}

// listExempt lists the guarantees of the job of a stage that do not count against a task of the stage, that of the
// replaced one among them, and what its attempt a is assumed to occupy.
func (x *guaranteeCheck) listExempt(g *scheduler.Stage, a *scheduler.Attempt, replaced int32) {
	x.caps.exempt = x.caps.exempt[:0]
	if a != nil {
		c := x.v.assumptions.ClaimOf(x.v.s, a, x.v.now)
		x.caps.exempt = append(x.caps.exempt, capExemption{x.v.now, c.End, c.Occupied.Resources})
	}
	for _, r := range g.Job.Reservations() {
		if isPlanned(r) && ((r.Stage == g.Index && r.Task == replaced) || x.dependsOn(g.Job, r.Stage, g.Index)) {
			x.caps.exempt = append(x.caps.exempt, capExemption{max(r.Start, x.v.now), r.End, r.Demand})
		}
	}
}

// changeCaps returns what is exempt to the caps above the tenant of a stage (sign 1), or takes it again (sign -1).
func (x *guaranteeCheck) changeCaps(g *scheduler.Stage, sign int64) {
	for _, b := range x.caps.timeline.CapsOf(g.Job.Spec.Tenant) {
		for i := range x.caps.exempt {
			e := &x.caps.exempt[i]
			x.caps.timeline.Caps.ChangeUnlogged(b, -1, e.start, e.end, &backfill.Need{Base: e.taken[:]}, sign)
		}
	}
}

// firstExceeded is exceededCap with what counts in Caps now.
func (x *guaranteeCheck) firstExceeded(g *scheduler.Stage, d scheduler.Resources, end scheduler.Time) capExcess {
	now, tenants := x.v.now, x.caps.timeline.CapTenants()
	for _, b := range x.caps.timeline.CapsOf(g.Job.Spec.Tenant) {
		if !x.caps.reserved[b] {
			continue
		}
		t := x.v.s.Tenant(tenants[b])
		e := capExcess{tenant: t, bin: b, need: d.Add(t.Used.Sub(x.caps.used[b]).Max(scheduler.Resources{}))}
		if e.at = x.firstMisfit(&e, now, end); e.at < scheduler.Never {
			fits, _ := x.caps.timeline.Caps.EarliestAt(b, -1, now, end.Sub(now), scheduler.Never, &backfill.Need{Base: e.need[:]})
			e.until = fits.At
			return e
		}
	}
	return capExcess{}
}

// firstMisfit returns the first time in [from, to) at which a cap has too little for what exceeds it, or Never. O(log
// n).
func (x *guaranteeCheck) firstMisfit(e *capExcess, from, to scheduler.Time) scheduler.Time {
	return x.caps.timeline.Caps.FirstMisfit(e.bin, -1, from, to, &backfill.Need{Base: e.need[:]})
}

// readCaps finds out below which caps there are guarantees, and what is in use there now.
func (x *guaranteeCheck) readCaps() {
	c := &x.caps
	c.timeline = x.v.s.Timeline(x.v.assumptions, x.v.now)
	c.reserved, c.used = c.reserved[:0], c.used[:0]
	for _, id := range c.timeline.CapTenants() {
		c.reserved, c.used = append(c.reserved, false), append(c.used, x.v.s.Tenant(id).Used)
	}
	for _, r := range x.v.s.Reservations().Guarantees() {
		if j := x.v.s.Job(r.Job); j != nil && isPlanned(r) && r.End > x.v.now {
			for _, b := range c.timeline.CapsOf(j.Spec.Tenant) {
				c.reserved[b] = true
			}
		}
	}
}

// reservationBelowCap returns a guarantee of another job for which a stage leaves too little of a cap, on nodes with
// free capacity where it does not give way: the first one during which the cap has too little. It returns nil if the
// stage gives way on all these nodes, or leaves enough, or if none of other jobs is in the way. O(guarantees x log n).
func (x *guaranteeCheck) reservationBelowCap(g *scheduler.Stage) *scheduler.Reservation {
	if !x.v.isBelowCap(g.Job.Spec.Tenant) {
		return nil
	}
	s := x.v.s
	id := s.Cluster().NextNode(g, 0)
	for id != scheduler.NoNode && s.Node(id).CanPreempt(g.Job) {
		id = s.Cluster().NextNode(g, id+1)
	}
	if id == scheduler.NoNode {
		return nil
	}
	if x.caps.timeline == nil {
		x.readCaps()
	}
	x.listExempt(g, nil, replacedTask(g, nil))
	x.changeCaps(g, 1)
	defer x.changeCaps(g, -1)
	e := x.firstExceeded(g, g.Spec.Demand, scheduler.Never) // whatever its bound: so the answer does not change with time
	if e.tenant == nil {
		return nil
	}
	for _, r := range s.Reservations().Guarantees() {
		if j := s.Job(r.Job); j != nil && j != g.Job && isPlanned(r) && r.End > e.at && s.TenantTree().IsBelow(j.Spec.Tenant, e.tenant.Spec.ID) &&
			x.firstMisfit(&e, max(r.Start, e.at), r.End) < scheduler.Never {
			return r
		}
	}
	return nil
}

// assumedEndFromNow returns until when a task of a stage that does not give way is taken to run, if it starts now, or
// its attempt a resumes.
func (x *guaranteeCheck) assumedEndFromNow(g *scheduler.Stage, a *scheduler.Attempt) scheduler.Time {
	if b := boundLeft(g, a); b > 0 {
		return x.v.now.Add(b + x.v.cfg.Guarantees.Margin/2)
	}
	return scheduler.Never
}

// boundLeft returns Stage.BoundLeft for a task of a stage that starts, or whose attempt a resumes.
func boundLeft(g *scheduler.Stage, a *scheduler.Attempt) time.Duration {
	if a == nil {
		return g.BoundLeft(0)
	}
	return g.BoundLeft(a.Ran)
}
