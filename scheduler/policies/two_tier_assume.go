package policies

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// boundAssumptions assume that each attempt runs until its bound or its estimate.
type boundAssumptions struct {
	defaultBound time.Duration
	margin       time.Duration
	grace        time.Duration
	hasBounds    bool // some job has a bound of its own
}

// ChargeTenants reports false: reservations are not charged to tenants.
func (boundAssumptions) ChargeTenants() bool { return false }

// ClaimOf returns what an attempt occupies, until its expected end. One that is suspended has overrun its bound only if
// it ran for longer, and no time changes that. Until a claim expires, it must not matter when it was asked for: the
// NextChange of a timeline that has the claim already must be that of a new one.
func (b boundAssumptions) ClaimOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Claim {
	if a.Level.Suspended() {
		return scheduler.Claim{Occupied: a.Occupied, End: scheduler.Never, SourceEnd: scheduler.Never, ValidUntil: scheduler.Never,
			Overran: a.Ran > taskBound(s.StageOf(a), b.defaultBound)}
	}
	end, bound := b.expectedEnd(s, a, now), b.assumedEnd(s, a, now)
	c := scheduler.Claim{Occupied: a.Occupied, End: end, SourceEnd: end, ValidUntil: end, Overran: bound < now}
	if end == now { // it may end right now; if not, it is extended
		c.ValidUntil = now + 1
	}
	if w := b.windowOf(s, a, now); w != nil && w.From == bound { // after it, it is another one
		c.ValidUntil = min(c.ValidUntil, w.To)
	}
	return c
}

// expectedEnd returns until when an attempt is assumed to occupy its capacity. One
// past its bound is assumed to run for grace longer, then 2 x grace, 4 x grace and
// so on, so that the plan changes at times known to Wake.
func (b boundAssumptions) expectedEnd(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Time {
	if a.Level.Suspended() {
		return scheduler.Never
	}
	end := b.assumedEnd(s, a, now)
	for grace := b.grace; end < now; grace *= 2 {
		if end = end.Add(grace); grace > 1<<61 {
			return scheduler.Never
		}
	}
	return end
}

// assumedEnd returns when an attempt should have ended by its bound or estimate, or will have left with its node.
func (b boundAssumptions) assumedEnd(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Time {
	g := s.StageOf(a)
	end := a.Placed.Add(boundLeft(g, b.defaultBound, a.Ran) + b.margin)
	if g.Job.Spec.Bound <= 0 && b.stays(s, g.Job, a.Node) {
		end = scheduler.Never
	}
	if w := b.windowOf(s, a, now); w != nil {
		end = min(end, w.From)
	}
	return end
}

// windowOf returns the window at which an attempt leaves at the latest, the next one of its node that is not
// over: nil if there is none, or the attempt's bound or estimate says when it ends.
func (b boundAssumptions) windowOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) *scheduler.Window {
	windows := s.Node(a.Node).Spec.Windows
	g := s.StageOf(a)
	if len(windows) == 0 || (!isUnknown(g) && (g.Job.Spec.Bound > 0 || !b.stays(s, g.Job, a.Node))) {
		return nil
	}
	if i := slices.IndexFunc(windows, func(w scheduler.Window) bool { return w.To > now }); i >= 0 {
		return &windows[i]
	}
	return nil
}

// isUnknown reports whether nothing says how long tasks of a stage run. Such a task may start at any time
// before a node leaves, and is assumed to run until then at most.
func isUnknown(g *scheduler.Stage) bool { return g.Bound() <= 0 && g.Spec.Estimate <= 0 }

// stays reports whether a task of a job without a bound is assumed to stay on a node
// until that leaves, for ever where it does not: it is non-preemptible there, and its
// capacity may be guaranteed to others. If no job has a bound, nothing is guaranteed
// and the estimate is good enough.
func (b boundAssumptions) stays(s *scheduler.State, j *scheduler.Job, n scheduler.NodeID) bool {
	// Other than Check (scheduler.Node.CanPreempt), this spares jobs whose deadline is accepted without a guarantee.
	return b.hasBounds && (j.IsAccepted() || j.Spec.Project != 0 || !s.Node(n).Spec.Levels.FreesMemory())
}
