package scheduler_test

import (
	"errors"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// roundUp is the end of the ten seconds in which a time is.
func roundUp(now scheduler.Time) scheduler.Time {
	const step = scheduler.Time(10 * time.Second)
	return (now + step - 1) / step * step
}

// returns reports whether a node is away in a window that has an end.
func returns(n *scheduler.Node, now scheduler.Time) bool {
	for _, w := range n.Spec.Windows {
		if w.From <= roundUp(now) && w.To > now && w.To < scheduler.Never {
			return true
		}
	}
	return false
}

// mayStart is the slow and obvious form of the nodes that a task may start on.
func mayStart(g *scheduler.Stage, n *scheduler.Node, now scheduler.Time) bool {
	if _, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); !ok {
		return false
	}
	end := roundUp(now) + 1
	if d := max(g.Job.Spec.Bound, 0); d > 0 {
		end = end - 1 + scheduler.Time(d)
	} else if g.Spec.Estimate > 0 {
		end = end - 1 + scheduler.Time(g.Spec.Estimate)
	}
	for _, w := range n.Spec.Windows {
		if w.To > now && w.From < end {
			return false
		}
	}
	return true
}

// The index of the nodes that fit finds those, and only those, that a look at every node and window
// finds: in any order of events, at any time, and when time goes back.
func TestNoTaskStartsThatWouldNotEndBeforeItsNodeLeaves(t *testing.T) {
	for range 60 {
		c := schedtest.NewChaos(t, seed.New(t))
		for range 60 {
			c.Step()
			applyAll(t, c, c.Actions(c.R.IntN(3)))
			c.Advance(time.Duration(c.R.IntN(4000)) * time.Millisecond)
			if c.R.IntN(3) == 0 {
				c.OrderWindows()
			}
			at := c.Now
			if c.R.IntN(8) == 0 {
				at -= scheduler.Time(c.R.IntN(20)) * scheduler.Time(time.Second)
			}
			c.State.SetTime(max(0, at))
			checkFits(t, c.State, max(0, at))
		}
	}
}

func checkFits(t *testing.T, s *scheduler.State, now scheduler.Time) {
	t.Helper()
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			next := s.Cluster().NextNode(g, 0)
			for _, n := range s.Nodes() {
				want := mayStart(g, n, now)
				if got := next == n.Spec.ID; got != want {
					t.Fatalf("at %d: stage %v on node %d with windows %v: found %v, want %v", now, g.ID(), n.Spec.ID, n.Spec.Windows, got, want)
				}
				if got := s.Cluster().HasCapacity(g, n.Spec.ID); got != want {
					t.Fatalf("at %d: stage %v has capacity on node %d: %v, want %v", now, g.ID(), n.Spec.ID, got, want)
				}
				if want {
					next = s.Cluster().NextNode(g, next+1)
				}
			}
			if best, _ := s.Cluster().BestNode(g, nil); best != scheduler.NoNode && !mayStart(g, s.Node(best), now) {
				t.Fatalf("at %d: stage %v is best on node %d, which it may not start on", now, g.ID(), best)
			}
		}
	}
}

// Windows are part of what a State saves, and those that make no sense are refused.
func TestWindowsOfANode(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100))
	for name, list := range map[string][]scheduler.Window{
		"without length": {{From: 5, To: 5}},
		"overlapping":    {{From: 5, To: 9}, {From: 8, To: 12}},
		"too many":       make([]scheduler.Window, scheduler.MaxWindows+1),
	} {
		if err := w.State.Events().SetWindows(1, list); !errors.Is(err, scheduler.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.State.Events().SetWindows(7, nil); !errors.Is(err, scheduler.ErrUnknown) {
		t.Errorf("an unknown node: %v", err)
	}
	stamp := w.State.Stamp()
	if err := w.State.Events().SetWindows(1, []scheduler.Window{{From: 5, To: 9}, {From: 9, To: scheduler.Never}}); err != nil || w.State.Stamp() == stamp {
		t.Errorf("%v, the stamp changed: %v", err, w.State.Stamp() != stamp)
	}
	if got := w.State.Clone().Node(1).Spec.Windows; len(got) != 2 || got[1].To != scheduler.Never {
		t.Errorf("in a copy: %v", got)
	}
}
