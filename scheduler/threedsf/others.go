package threedsf

import "github.com/drover-run/drover/scheduler"

// others finds out what may be started below caps that is not placed by the policy: second attempts, and maps that reduces
// wait for. It has a view of its own: that of the cycle belongs to the last decision.
type others struct {
	view       view // capWaits are the guarantees that are due, whether capacity is being freed for them or not
	guarantees guaranteeCheck
	seen       scheduler.Stamp // of the State in view, since the last decision
}

// begin forgets what was known before a decision, which changes what is known of caps as it tries.
func (o *others) begin() { o.seen = scheduler.Stamp{} }

// refusedByCap reports whether the next task of a stage, or a second attempt at one, may not start on a node: it leaves too
// little of a cap to a task of another job that is due, or, if it does not give way, to a guarantee to come. A second attempt
// leaves the caps to tasks of its own job as well, but for those that wait for its stage. O(1) if no cap is above the tenant
// or there is no guarantee; else O(due tasks x depth²), and once for a State O(nodes + guarantees).
func (o *others) refusedByCap(s *scheduler.State, g *scheduler.Stage, node scheduler.NodeID, second bool, now scheduler.Time) (r scheduler.CapRefusal, refused bool) {
	if o.view.s = s; len(s.Reservations().Guarantees()) == 0 || !o.view.isBelowCap(g.Job.Spec.Tenant) {
		return r, false
	}
	o.listDue(s, now)
	waits, replaced := o.view.capWaits, int32(-1)
	if !second {
		waits, replaced = withoutJob(waits, g.Job), replacedTask(g, nil)
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

// listDue lists the guarantees of ready tasks that are due, and forgets what was known of another State. O(1) if it is the same.
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

// withoutJob returns those of some due tasks that are not of a job.
func withoutJob(waits []capWait, j *scheduler.Job) []capWait {
	out := make([]capWait, 0, len(waits))
	for i := range waits {
		if waits[i].stage.Job != j {
			out = append(out, waits[i])
		}
	}
	return out
}
