package deadline

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// Worth judges a plan that costs more than to freeze against waiting until room
// comes by itself, as long as the tasks that would be frozen then may still be:
// it is worth its cost where it lets the task start by latest and waiting does
// not, or where both are too late and it comes sooner. until is when waiting is
// predicted to end; past it the question is to be asked again. A plan of the last
// Plan; O(attempts x log of those on a node) where it costs anything.
func (p *Preemptor) Worth(s *scheduler.State, g *scheduler.Stage, plan *Plan, latest, now scheduler.Time) (ok bool, until scheduler.Time) {
	if plan.Cost == 0 || p.Mode == Kill {
		return true, 0
	}
	there := now.Add(plan.Takes)
	limit := latest
	if there > latest {
		limit = there
	}
	until = p.release(s, g, limit, now)
	return until > limit, until
}

// release is an instant at which a task of the stage is predicted to fit on some
// node though no memory was moved and nothing ended before its time: the first
// that is found by limit, else the earliest.
func (p *Preemptor) release(s *scheduler.State, g *scheduler.Stage, limit, now scheduler.Time) scheduler.Time {
	first := scheduler.Never
	for _, n := range s.Nodes() {
		if !p.usable(n, g) {
			continue
		}
		if first = min(first, p.releaseOn(s, g, n, now)); first <= limit {
			break
		}
	}
	return first
}

// ending is an attempt that is predicted to end.
type ending struct {
	at scheduler.Time
	of *scheduler.Attempt
}

// releaseOn is release on one node: those that may be frozen are, and the others
// give what they hold when they end.
func (p *Preemptor) releaseOn(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node, now scheduler.Time) scheduler.Time {
	held, space := p.held(n, g.Job)
	var r room
	r.on(s, n, held, space)
	p.victims = p.victims[:0]
	if n.Spec.Levels.Has(scheduler.LevelFrozen) {
		p.candidates(s, g, n)
		p.victims = slices.DeleteFunc(p.victims, func(v Victim) bool { return v.Group != Frozen && !reaches(n, v.Attempt, scheduler.LevelFrozen) })
	}
	frozen := func(a *scheduler.Attempt) bool {
		return slices.ContainsFunc(p.victims, func(v Victim) bool { return v.Attempt == a })
	}
	p.ends = p.ends[:0]
	for a := range s.AttemptsOn(n.Spec.ID) {
		if at, known := locality.EndOf(s, a); known && a.Phase <= scheduler.AttemptRunning && at > now {
			p.ends = append(p.ends, ending{at, a})
		}
	}
	for i := range p.victims {
		if p.victims[i].Group != Frozen {
			p.victims[i].Level = scheduler.LevelFrozen
			r.take(&p.victims[i], 1)
		}
	}
	slices.SortFunc(p.ends, func(x, y ending) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.of.Seq, y.of.Seq)) })
	for _, e := range p.ends {
		gone := Victim{Attempt: e.of, Kill: true}
		if frozen(e.of) { // its CPU and I/O are counted already
			r.free[scheduler.Memory] += e.of.Held.Resources[scheduler.Memory]
		} else {
			r.take(&gone, 1)
		}
		if r.fits(&g.Spec) {
			return e.at
		}
	}
	return scheduler.Never
}
