package policytest

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// leaves reports whether a node leaves before the end of a task of a stage that starts now, with
// now rounded up to ten seconds.
func leaves(g *scheduler.Stage, n *scheduler.Node, now scheduler.Time) bool {
	const step = scheduler.Time(10 * time.Second)
	end := (now + step - 1) / step * step
	switch {
	case g.Bound() > 0:
		end = end.Add(g.Bound())
	case g.Spec.Estimate > 0:
		end = end.Add(g.Spec.Estimate)
	default:
		end++
	}
	return slices.ContainsFunc(n.Spec.Windows, func(w scheduler.Window) bool { return w.To > now && w.From < end })
}

// checkWindows returns an error if a decision starts a task on a node that leaves before the task would
// end. A task planned there may start: its plan ends in time, by what was known when it was made.
func checkWindows(s *scheduler.State, d *scheduler.Decision, now scheduler.Time) error {
	for i := range d.Actions {
		a := &d.Actions[i]
		if a.Kind != scheduler.ActPlace {
			continue
		}
		g, n := s.Stage(a.Task.StageID()), s.Node(a.Node)
		until := scheduler.Never
		switch {
		case g.Bound() > 0:
			until = now.Add(g.Bound())
		case g.Spec.Estimate > 0:
			until = now.Add(g.Spec.Estimate)
		default:
			until = now + 1
		}
		planned := slices.ContainsFunc(s.Reservations().On(a.Node), func(r *scheduler.Reservation) bool {
			return r.Kind.IsGuarantee() && r.Job == a.Task.Job && r.Start <= now && !n.AwayWithin(r.Start, r.End)
		})
		if n.AwayWithin(now, until) && !planned {
			return fmt.Errorf("task %v starts on node %q, which leaves before it would end at %d: %v", a.Task, n.Spec.Name, until, n.Spec.Windows)
		}
	}
	return nil
}
