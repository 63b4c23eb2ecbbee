package threedsf

import (
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// capGuarantees is the needs of guarantees below caps, read at the first check of a pass, and when to check again.
type capGuarantees struct {
	timeline *scheduler.Timeline   // nil before the first check
	reserved []bool                // by bin of its Caps: a guarantee is below it
	used     []scheduler.Resources // by bin: the tenant's use at the first check
	retryAt  scheduler.Time        // earliest time at which a task refused in this pass leaves the caps enough, if nothing happens; Never for none
	exempt   []capExemption        // scratch of exceededCap
}

// capExemption is an amount taken of caps from start to end that does not count against a task.
type capExemption struct {
	start, end scheduler.Time
	taken      scheduler.Resources
}

// beginPass drops what was read in an earlier pass.
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

// leavesCaps reports whether starting a task of a stage that does not give way, or resuming its attempt a,
// leaves the guarantees below its tenant's caps what they need of these. If not, caps.retryAt records when it
// might. Three things are exempt: guarantees of the job's later stages that depend on this one, the guarantee
// that the task no longer needs once started, and the attempt's own claim in Caps, which may be all that it
// needs. Placements since the first check of the pass count as staying. O(depth x log n), once a pass O(nodes +
// guarantees) if a guarantee may be below a cap; times the job's guarantees if the answer depends on them.
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

// leavesCapsUntil returns when, if nothing happens, resuming an attempt that leaves all caps enough now would
// end too late for one of them; Never for never. O(caps above the tenant) times the cost of leavesCaps.
func (x *guaranteeCheck) leavesCapsUntil(g *scheduler.Stage, a *scheduler.Attempt) scheduler.Time {
	end := x.assumedEndFromNow(g, a)
	if end == scheduler.Never || !x.v.isBelowCap(g.Job.Spec.Tenant) {
		return scheduler.Never
	}
	latestEnd := scheduler.Never // the latest end that leaves them enough, of the caps found so far: another cap may be exceeded earlier
	for e := x.exceededCap(g, a, a.ID.Index, latestEnd); e.tenant != nil && e.at < latestEnd; e = x.exceededCap(g, a, a.ID.Index, latestEnd) {
		latestEnd = e.at
	}
	if latestEnd == scheduler.Never {
		return scheduler.Never
	}
	return x.v.now.Add(latestEnd.Sub(end) + 1)
}

// capExcess is a cap that a task leaves with too little for the guarantees below it.
type capExcess struct {
	tenant *scheduler.Tenant   // nil for none
	bin    int32               // of Caps
	need   scheduler.Resources // of the task, and of placements since readCaps
	at     scheduler.Time      // the first time at which too little is left
	until  scheduler.Time      // the earliest time from which the task leaves enough
}

// exceededCap returns the first cap that leavesCaps finds exceeded by a task that runs until end.
// replaced is the task of the stage whose guarantee is no longer needed, -1 for none.
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

// replacedTask returns the task of a stage that starts next, or whose attempt a resumes, and so no
// longer needs its guarantee; -1 if it is unknown.
func replacedTask(g *scheduler.Stage, a *scheduler.Attempt) int32 {
	switch {
	case a != nil:
		return a.ID.Index
	case g.Spec.Inputs != nil && g.Pending > 1:
		return -1 // the place of its input decides which task starts
	default:
		return g.NextPending(0)
	}
}

// listExempt lists what does not count against a task of the stage: some guarantees of its job,
// with that of the replaced task, and the claim of its attempt a.
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

// changeCaps returns the exemptions to the caps above a stage's tenant (sign 1), or takes them again (sign -1).
func (x *guaranteeCheck) changeCaps(g *scheduler.Stage, sign int64) {
	for _, b := range x.caps.timeline.CapsOf(g.Job.Spec.Tenant) {
		for i := range x.caps.exempt {
			e := &x.caps.exempt[i]
			x.caps.timeline.Caps.ChangeUnlogged(b, -1, e.start, e.end, &backfill.Need{Base: e.taken[:]}, sign)
		}
	}
}

// firstExceeded is exceededCap for the present content of Caps.
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

// firstMisfit returns the first time in [from, to) at which a cap lacks e.need, or Never. O(log n).
func (x *guaranteeCheck) firstMisfit(e *capExcess, from, to scheduler.Time) scheduler.Time {
	return x.caps.timeline.Caps.FirstMisfit(e.bin, -1, from, to, &backfill.Need{Base: e.need[:]})
}

// readCaps reads which caps have guarantees below them, and their present use.
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

// reservationBelowCap returns the guarantee of another job for which a stage, on nodes with free capacity where it
// does not give way, leaves too little of a cap: the first during which the cap has too little. It returns nil if
// the stage gives way on all these nodes, leaves enough, or is stopped only by its own job. O(guarantees x log n).
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
	e := x.firstExceeded(g, g.Spec.Demand, scheduler.Never) // ignores its bound, so that the answer does not change with time
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

// assumedEndFromNow returns the assumed end of a non-preemptible task of a stage that starts now,
// or whose attempt a resumes.
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
