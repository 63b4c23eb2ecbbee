package bench

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// shareJudge measures how far a decision is from progressive filling: giving
// each place to the tenant whose weighted dominant share with its next task is
// the smallest, from the root of the tree down. It knows nothing of how the
// decision was made and looks at its end, the State with the decision applied.
//
// Room only shrinks within a decision. So a task that could still be placed at
// its end could be placed all along, and no sibling should have been given more
// before it: at its last placement the sibling was at most where the waiting
// tenant would have been with its next task. The error of a tenant that waits
// is
//
//	(share of the sibling that was served - its own share) / share of one task
//
// with shares over weights, and one task the largest that was its next one in
// this decision: placed, or at or before the first of its regular order that
// could still be placed. Progressive filling of whole tasks gives at most 1.
//
// A tenant counts as waiting only if it has a task that could be placed at the
// end: ready, within max_parallel and every cap, with a node that has room, not
// held back for its data, by a reservation or behind one a node is kept for. So demand that is satisfied, a
// head that does not fit, and a cap are no errors. Jobs with a promise (an
// accepted deadline, a reservation) neither count as served nor as waiting, as
// they go by their promise; what they hold counts in shares.
type shareJudge struct {
	of      []shareOf // by tenant
	held    map[scheduler.StageID]bool
	promise map[scheduler.JobID]bool
	now     scheduler.Time
	free    []scheduler.Resources // of each node before the decision
	fitted  map[scheduler.Resources]bool
}

// shareOf is what one decision did to a tenant and all below it.
type shareOf struct {
	served bool                // a regular task was placed
	share  float64             // right after the last regular one
	later  scheduler.Resources // placed after that
	due    bool                // a regular task could still be placed
	unit   float64             // dominant share of its largest next task, not over its weight
}

// judge gives the largest error of a decision that is applied to the State, in
// tasks, 0 where the order was kept. O(tenants + (actions + stages with ready
// work) x depth).
func (f *shareJudge) judge(s *scheduler.State, d *scheduler.Decision) float64 {
	f.reset(s, d)
	for i := len(d.Actions) - 1; i >= 0; i-- {
		if a := &d.Actions[i]; a.Kind == scheduler.ActPlace {
			f.placed(s, s.Stage(a.Task.StageID()))
		}
	}
	for t := s.NextReadyTenant(0); t != scheduler.NoTenant; t = s.NextReadyTenant(t + 1) {
		f.waits(s, t)
	}
	worst := 0.0
	byParent := map[scheduler.TenantID][]scheduler.TenantID{}
	for _, t := range s.Tenants() {
		byParent[t.Spec.Parent] = append(byParent[t.Spec.Parent], t.Spec.ID)
	}
	for _, siblings := range byParent {
		worst = max(worst, f.among(s, siblings))
	}
	return worst
}

func (f *shareJudge) reset(s *scheduler.State, d *scheduler.Decision) {
	f.now = d.At
	f.of = make([]shareOf, len(s.Tenants()))
	f.held, f.promise = map[scheduler.StageID]bool{}, map[scheduler.JobID]bool{}
	for i := range d.Waiting {
		switch w := &d.Waiting[i]; w.Reason {
		case scheduler.ReasonData, scheduler.ReasonReservation, scheduler.ReasonSuspending, scheduler.ReasonShare:
			f.held[w.Stage] = true
		}
	}
	for _, r := range s.Reservations() {
		if r.Kind.Promise() {
			f.promise[r.Job] = true
		}
	}
	for _, p := range s.Projects() { // also those whose last task has started
		for _, id := range p.Jobs {
			f.promise[id] = f.promise[id] || p.Noted(scheduler.NotePromise)
		}
	}
}

// placed takes in a placement, the last of the decision first.
func (f *shareJudge) placed(s *scheduler.State, g *scheduler.Stage) {
	for t := s.Tenant(g.Job.Spec.Tenant); t != nil; t = s.Tenant(t.Spec.Parent) {
		o := &f.of[t.Spec.ID]
		if f.regular(g.Job) {
			if !o.served {
				o.served = true
				o.share = t.Used.Sub(o.later).DominantShare(s.Total()) / t.Spec.Weight
			}
			o.unit = max(o.unit, g.Spec.Demand.DominantShare(s.Total()))
		}
		o.later = o.later.Add(g.Spec.Demand)
	}
}

// begin looks at the State before the decision: what did not fit then was
// nobody's next task. Without it nothing is known of that. O(nodes).
func (f *shareJudge) begin(s *scheduler.State) {
	f.free = f.free[:0]
	for _, n := range s.Nodes() {
		if n.Takes() {
			f.free = append(f.free, n.Free)
		}
	}
	f.fitted = map[scheduler.Resources]bool{}
}

// couldFit tells whether a task of the stage had room before the decision.
func (f *shareJudge) couldFit(g *scheduler.Stage) bool {
	fits, known := f.fitted[g.Spec.Demand]
	if !known && f.fitted != nil {
		fits = slices.ContainsFunc(f.free, g.Spec.Demand.Fits)
		f.fitted[g.Spec.Demand] = fits
	}
	return fits
}

// waits walks the regular order of a tenant to the first task that could still
// be placed. Where there is none, those that could be placed before count as
// next ones of the groups it is in.
func (f *shareJudge) waits(s *scheduler.State, id scheduler.TenantID) {
	unit, could := 0.0, 0.0
	for _, p := range []scheduler.Priority{scheduler.PriorityHigh, scheduler.PriorityLow} {
		for j, at := s.NextReadyOf(id, 0); j != nil; j, at = s.NextReadyOf(id, at) {
			for _, g := range j.Stages {
				if j.Spec.Priority != p || j.Spec.Accepted || !g.Ready() {
					continue
				}
				// A task with a reservation to come is next where it fits before.
				unit = max(unit, g.Spec.Demand.DominantShare(s.Total()))
				if f.couldFit(g) {
					could = max(could, g.Spec.Demand.DominantShare(s.Total()))
				}
				if f.regular(j) && f.placeable(s, g) {
					f.up(s, id, unit, true)
					return
				}
			}
		}
	}
	f.up(s, id, could, false)
}

// up tells a tenant and all above it what its largest next task was, and whether
// one could still be placed.
func (f *shareJudge) up(s *scheduler.State, id scheduler.TenantID, unit float64, due bool) {
	for t := s.Tenant(id); t != nil; t = s.Tenant(t.Spec.Parent) {
		o := &f.of[t.Spec.ID]
		o.due, o.unit = o.due || due, max(o.unit, unit)
	}
}

func (f *shareJudge) placeable(s *scheduler.State, g *scheduler.Stage) bool {
	if g.Startable() == 0 || f.held[g.ID()] {
		return false
	}
	if _, waits := s.Note(scheduler.NoteKey{Kind: scheduler.NoteWaitSince, Job: g.Job.Spec.ID, Stage: g.Index}); waits {
		return false // for its data: a full decision says only that it is full
	}
	if _, _, _, ok := s.UnderCaps(g); !ok {
		return false
	}
	for id := s.NextNode(g, 0); id != scheduler.NoNode; id = s.NextNode(g, id+1) {
		if f.beside(s, g, id) {
			return true
		}
	}
	return false
}

// beside tells whether a task fits on a node beside what is kept there for
// others: room that is being made for a deadline or a suspended task is no room.
func (f *shareJudge) beside(s *scheduler.State, g *scheduler.Stage, id scheduler.NodeID) bool {
	need := g.Spec.Demand
	for _, r := range s.ReservationsOn(id) {
		if r.Kind == scheduler.HoldPreempt && r.Job != g.Job.Spec.ID && r.End > f.now {
			need = need.Add(r.Demand)
		}
	}
	return need.Fits(s.Node(id).Free)
}

// among gives the largest error among siblings.
func (f *shareJudge) among(s *scheduler.State, siblings []scheduler.TenantID) float64 {
	ahead, worst := math.Inf(-1), 0.0
	for _, id := range siblings {
		if o := &f.of[id]; o.served {
			ahead = max(ahead, o.share)
		}
	}
	for _, id := range siblings {
		if o := &f.of[id]; o.due {
			t := s.Tenant(id)
			worst = max(worst, (ahead-t.Used.DominantShare(s.Total())/t.Spec.Weight)*t.Spec.Weight/o.unit)
		}
	}
	return worst
}

// regular tells whether a job goes by its tenant's share.
func (f *shareJudge) regular(j *scheduler.Job) bool {
	return !j.Spec.Accepted && !j.Noted(scheduler.NoteAccepted) && !f.promise[j.Spec.ID]
}
