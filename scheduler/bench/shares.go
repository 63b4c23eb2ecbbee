package bench

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// shareEvaluator measures how far a decision is from progressive filling: giving each place to the
// tenant whose weighted dominant share with its next task is the smallest, from the root of the
// tree down. It is independent of the policy and examines only the State with the decision applied.
//
// Free capacity only shrinks within a decision. A task that could still be placed at its end could
// therefore have been placed all along, and no sibling should have been given more before it: at
// its last placement the sibling was at most where the waiting tenant would have been with its next
// task. The error of a waiting tenant is
//
//	(share of the sibling that was served - its own share) / share of one task
//
// with shares over weights, where one task is the largest of its next tasks in this decision:
// placed tasks, or tasks with at least the priority of the first that could still be placed,
// whatever the order of its jobs. Progressive filling of whole tasks has an error of at most 1. A
// decision at its limit of actions does not say which tasks wait behind a node reserved in it
// (parameter reserve): such tasks count as waiting, and the error is too large.
//
// A tenant counts as waiting only if it has a task that could be placed at the end: ready, within
// max_parallel and every cap, with a node that it fits on, and not delayed for its data, by a
// reservation, or behind a task that a node is reserved for. Satisfied demand, a first task that
// does not fit, and a cap are therefore no errors. Jobs with a guarantee (an accepted deadline, a
// reservation) count neither as served nor as waiting, because their order follows the guarantee;
// what they occupy counts in shares.
type shareEvaluator struct {
	tenants    []tenantShare // indexed by tenant
	withheld   map[scheduler.StageID]bool
	explained  map[scheduler.StageID]bool // stages explained by the decision, if it explains only a part; nil if all
	guaranteed map[scheduler.JobID]bool
	now        scheduler.Time
	free       []scheduler.Resources // of each schedulable node before the decision
	fitCache   map[scheduler.Resources]bool
}

// tenantShare is the effect of one decision on a tenant and its descendants.
type tenantShare struct {
	served      bool                // a regular task was placed
	share       float64             // right after the last regular placement
	placedLater scheduler.Resources // demand placed after that
	canPlace    bool                // a regular task could still be placed
	taskShare   float64             // dominant share of its largest next task, not divided by its weight
}

// largestError returns the largest error of a decision that has been applied to the State, in
// tasks. O(tenants + (actions + stages with ready work) x depth).
func (f *shareEvaluator) largestError(s *scheduler.State, d *scheduler.Decision) float64 {
	f.reset(s, d)
	for i := len(d.Actions) - 1; i >= 0; i-- {
		if a := &d.Actions[i]; a.Kind == scheduler.ActPlace {
			f.recordPlacement(s, s.Stage(a.Task.StageID()))
		}
	}
	for t := s.Queue().NextTenant(0); t != scheduler.NoTenant; t = s.Queue().NextTenant(t + 1) {
		f.findWaiting(s, t)
	}
	worst := 0.0
	byParent := map[scheduler.TenantID][]scheduler.TenantID{}
	for _, t := range s.Tenants() {
		byParent[t.Spec.Parent] = append(byParent[t.Spec.Parent], t.Spec.ID)
	}
	for _, siblings := range byParent {
		worst = max(worst, f.siblingError(s, siblings))
	}
	return worst
}

func (f *shareEvaluator) reset(s *scheduler.State, d *scheduler.Decision) {
	f.now = d.At
	f.tenants = make([]tenantShare, len(s.Tenants()))
	f.withheld, f.guaranteed, f.explained = map[scheduler.StageID]bool{}, map[scheduler.JobID]bool{}, nil
	if d.WaitingContinues || d.WaitingMore {
		f.explained = map[scheduler.StageID]bool{}
		for i := range d.Waiting {
			f.explained[d.Waiting[i].Stage] = true
		}
	}
	for i := range d.Waiting {
		switch w := &d.Waiting[i]; w.Reason {
		case scheduler.ReasonData, scheduler.ReasonReservation, scheduler.ReasonSuspending, scheduler.ReasonShare:
			f.withheld[w.Stage] = true
		}
	}
	for _, r := range s.Reservations().All() {
		if r.Kind.IsGuarantee() {
			f.guaranteed[r.Job] = true
		}
	}
	for _, p := range s.Projects() { // including those whose last task has started
		for _, id := range p.Jobs {
			f.guaranteed[id] = f.guaranteed[id] || p.HasState(scheduler.GuaranteeState)
		}
	}
}

// recordPlacement records a placement. The caller passes the placements in reverse order.
func (f *shareEvaluator) recordPlacement(s *scheduler.State, g *scheduler.Stage) {
	for t := s.Tenant(g.Job.Spec.Tenant); t != nil; t = s.Tenant(t.Spec.Parent) {
		o := &f.tenants[t.Spec.ID]
		if f.isRegular(g.Job) {
			if !o.served {
				o.served = true
				o.share = t.Used.Sub(o.placedLater).DominantShare(s.Cluster().Total()) / t.Spec.Weight
			}
			o.taskShare = max(o.taskShare, g.Spec.Demand.DominantShare(s.Cluster().Total()))
		}
		o.placedLater = o.placedLater.Add(g.Spec.Demand)
	}
}

// beforeDecision records the free capacity before the decision: a task that did not fit then was
// not a next task. Without it fitBefore is always false. O(nodes).
func (f *shareEvaluator) beforeDecision(s *scheduler.State) {
	f.free = f.free[:0]
	for _, n := range s.Nodes() {
		if n.Schedulable() {
			f.free = append(f.free, n.Free)
		}
	}
	f.fitCache = map[scheduler.Resources]bool{}
}

// fitBefore reports whether a task of the stage fitted on a node before the decision.
func (f *shareEvaluator) fitBefore(g *scheduler.Stage) bool {
	fits, known := f.fitCache[g.Spec.Demand]
	if !known && f.fitCache != nil {
		fits = slices.ContainsFunc(f.free, g.Spec.Demand.Fits)
		f.fitCache[g.Spec.Demand] = fits
	}
	return fits
}

// findWaiting searches the regular jobs of a tenant for a task that could still be placed.
// If there is none, the tasks that could be placed before the decision count as next tasks of the
// tenant's ancestors.
func (f *shareEvaluator) findWaiting(s *scheduler.State, id scheduler.TenantID) {
	largest, largestBefore, canPlace := 0.0, 0.0, false
	for _, p := range []scheduler.Priority{scheduler.PriorityHigh, scheduler.PriorityLow} {
		for j, at := s.Queue().NextOf(id, 0); j != nil; j, at = s.Queue().NextOf(id, at) {
			for _, g := range j.Stages {
				if j.Spec.Priority != p || j.Spec.AcceptedByQuote || !g.Ready() {
					continue
				}
				// A task with a later reservation is a next task if it fits now.
				largest = max(largest, g.Spec.Demand.DominantShare(s.Cluster().Total()))
				if f.fitBefore(g) {
					largestBefore = max(largestBefore, g.Spec.Demand.DominantShare(s.Cluster().Total()))
				}
				canPlace = canPlace || f.isRegular(j) && f.isPlaceable(s, g)
			}
		}
		if canPlace {
			f.updateAncestors(s, id, largest, true)
			return
		}
	}
	f.updateAncestors(s, id, largestBefore, false)
}

// updateAncestors records for a tenant and its ancestors their largest next task and whether one
// could still be placed.
func (f *shareEvaluator) updateAncestors(s *scheduler.State, id scheduler.TenantID, taskShare float64, canPlace bool) {
	for t := s.Tenant(id); t != nil; t = s.Tenant(t.Spec.Parent) {
		o := &f.tenants[t.Spec.ID]
		o.canPlace, o.taskShare = o.canPlace || canPlace, max(o.taskShare, taskShare)
	}
}

func (f *shareEvaluator) isPlaceable(s *scheduler.State, g *scheduler.Stage) bool {
	if g.Startable() == 0 || f.withheld[g.ID()] || f.explained != nil && !f.explained[g.ID()] {
		return false // its reason may be in another decision: it may be withheld
	}
	if _, waits := g.WaitingSince(); waits {
		return false // delayed for its data; a decision at its action limit does not report that
	}
	if !s.TenantTree().Allows(g) {
		return false
	}
	for id := s.Cluster().NextNode(g, 0); id != scheduler.NoNode; id = s.Cluster().NextNode(g, id+1) {
		if f.fitsBesideReservations(s, g, id) {
			return true
		}
	}
	return false
}

// fitsBesideReservations reports whether a task fits on a node in addition to the preemption
// reservations of other jobs.
func (f *shareEvaluator) fitsBesideReservations(s *scheduler.State, g *scheduler.Stage, id scheduler.NodeID) bool {
	need := g.Spec.Demand
	for _, r := range s.Reservations().On(id) {
		if r.Kind == scheduler.ReservePreempt && r.Job != g.Job.Spec.ID && r.End > f.now {
			need = need.Add(r.Demand)
		}
	}
	return need.Fits(s.Node(id).Free)
}

// siblingError returns the largest error among siblings.
func (f *shareEvaluator) siblingError(s *scheduler.State, siblings []scheduler.TenantID) float64 {
	ahead, worst := math.Inf(-1), 0.0
	for _, id := range siblings {
		if o := &f.tenants[id]; o.served {
			ahead = max(ahead, o.share)
		}
	}
	for _, id := range siblings {
		if o := &f.tenants[id]; o.canPlace {
			t := s.Tenant(id)
			worst = max(worst, (ahead-t.Used.DominantShare(s.Cluster().Total())/t.Spec.Weight)*t.Spec.Weight/o.taskShare)
		}
	}
	return worst
}

// isRegular reports whether a job is ordered by its tenant's share.
func (f *shareEvaluator) isRegular(j *scheduler.Job) bool {
	return !j.Spec.AcceptedByQuote && !j.HasState(scheduler.AcceptedState) && !f.guaranteed[j.Spec.ID]
}
