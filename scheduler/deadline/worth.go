package deadline

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// IsWorthwhile compares a plan that costs more than freezing with waiting until capacity is
// released while the tasks that can be frozen are. The plan is worthwhile if it lets the task start
// by latest and waiting does not, or if both are too late and the plan is sooner. If it is not,
// until is the predicted end of waiting, after which the caller must ask again. plan must be the
// result of the last FindVictims. O(attempts x log of those on a node) if it costs anything.
func (p *Preemptor) IsWorthwhile(s *scheduler.State, g *scheduler.Stage, plan *PreemptionPlan, latest, now scheduler.Time) (ok bool, until scheduler.Time) {
	if plan.cost == 0 { // always with Kill
		return true, 0
	}
	limit := max(latest, now.Add(plan.timeToFree))
	for _, n := range s.Nodes() {
		if p.isUsable(s, n, g) {
			if at := p.earliestRelease(s, g, n, now); at <= limit {
				return false, at
			}
		}
	}
	return true, scheduler.Never
}

// earliestRelease returns when a task of the stage is predicted to fit on a node if no memory is
// moved and nothing is killed, Never if it does not: attempts that can be frozen are frozen, and
// the others release what they occupy when they end.
func (p *Preemptor) earliestRelease(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node, now scheduler.Time) scheduler.Time {
	reserved, space := p.Reserved(n)
	r := &p.capacity
	r.load(s, n, reserved, space)
	p.victims = p.victims[:0]
	if n.Spec.Levels.Has(scheduler.LevelFrozen) {
		p.listCandidates(s, g, n)
		p.victims = slices.DeleteFunc(p.victims, func(v Victim) bool { return v.group != groupFrozen && !n.CanReach(v.Attempt, scheduler.LevelFrozen) })
	}
	for i := range p.victims {
		if p.victims[i].group != groupFrozen {
			p.victims[i].Level = scheduler.LevelFrozen
			r.addVictim(&p.victims[i], 1)
		}
	}
	for _, e := range p.ends.On(s, n.Spec.ID) {
		if e.At <= now || e.Attempt.Phase > scheduler.AttemptRunning {
			continue
		}
		if slices.ContainsFunc(p.victims, func(v Victim) bool { return v.Attempt == e.Attempt }) { // frozen: its CPU and I/O count already
			r.Free[scheduler.Memory] += e.Attempt.Occupied.Resources[scheduler.Memory]
		} else {
			r.addVictim(&Victim{Attempt: e.Attempt, Kill: true}, 1)
		}
		if r.fits(&g.Spec) {
			return e.At
		}
	}
	return scheduler.Never
}
