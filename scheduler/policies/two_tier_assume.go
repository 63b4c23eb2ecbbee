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

// ClaimOf returns what an attempt occupies, until its expected end. A suspended attempt has overrun its bound
// only if it ran for longer, and time does not change that. Until a claim expires, it must not depend on the
// time of the call: NextChange of a timeline that has the claim already must equal that of a new one.
func (b boundAssumptions) ClaimOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Claim {
	if a.Level.Suspended() {
		return scheduler.Claim{Occupied: a.Occupied, End: scheduler.Never, SourceEnd: scheduler.Never, ValidUntil: scheduler.Never,
			Overran: a.Ran > taskBound(s.StageOf(a), b.defaultBound)}
	}
	end, bound := b.expectedEnd(s, a, now), b.assumedEnd(s, a, now)
	c := scheduler.Claim{Occupied: a.Occupied, End: end, SourceEnd: end, ValidUntil: end, Overran: bound < now}
	if end == now { // it may end right now; otherwise it is extended
		c.ValidUntil = now + 1
	}
	if w := b.windowOf(s, a, now); w != nil && w.From == bound { // after the window the claim is another one
		c.ValidUntil = min(c.ValidUntil, w.To)
	}
	return c
}

// expectedEnd returns until when an attempt is assumed to occupy its capacity. An attempt past its
// bound is assumed to run for grace longer, then 2 x grace, 4 x grace and so on, so that the plan
// changes at times known to Wake.
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

// assumedEnd returns when an attempt should end by its bound or estimate, or leaves with its node.
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

// windowOf returns the window in which an attempt leaves at the latest: its node's next window that is
// not over. It returns nil if there is none, or if the attempt's bound or estimate determines its end.
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

// isUnknown reports whether the run time of a stage's tasks is unknown. Such a task may start at
// any time before a node leaves, and is assumed to run at most until then.
func isUnknown(g *scheduler.Stage) bool { return g.Bound() <= 0 && g.Spec.Estimate <= 0 }

// stays reports whether a task of a job without a bound is assumed to stay on a node until the node
// leaves, or for ever: it is non-preemptible there, and its capacity may be guaranteed to others.
// If no job has a bound, nothing is guaranteed and the estimate suffices.
func (b boundAssumptions) stays(s *scheduler.State, j *scheduler.Job, n scheduler.NodeID) bool {
	// Unlike Check (scheduler.Node.CanPreempt), this spares jobs whose deadline is accepted without a guarantee.
	return b.hasBounds && (j.IsAccepted() || j.Spec.Project != 0 || !s.Node(n).Spec.Levels.FreesMemory())
}
