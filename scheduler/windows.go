package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A node may have windows: times, known ahead, in which it will be away. Policies treat it as not
// schedulable for tasks that would not end before it leaves, by their bound or else their estimate;
// a task with neither may start. In the Timeline the whole node is taken during a window, and free
// again after it. Other events (SetDrain, NodeLost, NodeUp) report that the node really leaves and
// returns. As with avoided nodes, Check does not enforce windows.

// Window is a time in which a node is away.
type Window struct {
	From Time `json:"from"`
	To   Time `json:"to"` // Never: it does not come back
}

// MaxWindows bounds the windows of a node.
const MaxWindows = 32

// windowStep is the precision of comparing tasks with windows: an error is a step too early, never too late.
const windowStep = Time(10 * time.Second)

// windows is the index of the windows of all nodes that have not ended.
type windows struct {
	// now is the time of the State for windows, rounded up to a windowStep.
	now Time
	// begins are when nodes leave, in order: of the windows that had not ended at builtAt.
	begins  []Time
	builtAt Time
	nextEnd Time // the first end of these windows
}

// isAhead reports whether a window had not ended when the index was built.
func (w *windows) isAhead(x Window) bool { return x.To > w.builtAt }

// SetWindows replaces the windows of a node.
func (e Events) SetWindows(id NodeID, list []Window) error {
	n, err := e.eventNode(id)
	if err != nil {
		return err
	}
	if err := checkWindows(fmt.Sprintf("node %q", n.Spec.Name), list); err != nil {
		return err
	}
	if slices.Equal(n.Spec.Windows, list) {
		return nil
	}
	n.Spec.Windows = slices.Clone(list)
	e.s.cluster.nodeChanged(n)
	e.s.cluster.bumpNodeVersion(id)
	e.s.countChange()
	return nil
}

func checkWindows(what string, list []Window) error {
	if len(list) > MaxWindows {
		return refuse(ErrInvalid, what, "%d windows: at most %d", len(list), MaxWindows)
	}
	for i, w := range list {
		if w.From >= w.To || (i > 0 && w.From < list[i-1].To) {
			return refuse(ErrInvalid, what, "the window from %d to %d has no length, or begins before the one before it ends", w.From, w.To)
		}
	}
	return nil
}

// SetTime sets the time of the next decision. Cycle calls it; a caller of Policy.Decide must call it first.
// O(1) while no node has windows. It counts as a change when tasks may no longer end before a window.
func (s *State) SetTime(now Time) {
	w := &s.cluster.windows
	at := now
	if r := now % windowStep; r > 0 {
		at = now.Add(time.Duration(windowStep - r))
	}
	was := w.now
	w.now = at
	switch {
	case now < w.builtAt || (len(w.begins) > 0 && now >= w.nextEnd): // time went back, or a window ended
		w.builtAt = now
		s.cluster.orderWindows()
		s.cluster.changeCount++ // timelines and caches of policies are rebuilt
		s.countChange()
	case at != was && len(w.begins) > 0:
		if slices.ContainsFunc(w.begins, func(b Time) bool { return was < b && b <= at }) { // see Plannable
			s.cluster.changeCount++
		}
		s.countChange()
	}
}

// orderWindows rebuilds the index: a node changed, or a window ended. O(nodes).
func (c *Cluster) orderWindows() {
	w := &c.windows
	had := len(w.begins) > 0
	w.begins, w.nextEnd = w.begins[:0], Never
	for _, n := range c.nodes {
		for _, x := range n.Spec.Windows {
			if w.isAhead(x) {
				w.begins = append(w.begins, x.From)
				w.nextEnd = min(w.nextEnd, x.To)
			}
		}
	}
	slices.Sort(w.begins)
	w.begins = slices.Compact(w.begins)
	if had || len(w.begins) > 0 {
		c.fit.dropClasses()
	}
}

// begunBy returns how many times at which nodes leave come before the end of a task of the stage that starts now.
func (c *Cluster) begunBy(g *Stage) int32 {
	w := &c.windows
	if len(w.begins) == 0 {
		return 0
	}
	n, _ := slices.BinarySearch(w.begins, w.now.Add(max(1, cmp.Or(g.Bound(), g.Spec.Estimate))))
	return int32(n)
}

// Plannable reports whether work may be planned for the node: it is schedulable, or will be when a window ends.
func (c *Cluster) Plannable(n *Node) bool { return n.Schedulable() || c.windows.awayIn(n) >= 0 }

// awayIn returns the index of the window for which an unschedulable node is away, if it returns from it, else -1.
func (w *windows) awayIn(n *Node) int {
	if n.Schedulable() {
		return -1
	}
	return slices.IndexFunc(n.Spec.Windows, func(x Window) bool { return x.From <= w.now && w.isAhead(x) && x.To < Never })
}

// AwayWithin reports whether a node has a window that overlaps [from, to).
func (n *Node) AwayWithin(from, to Time) bool {
	return slices.ContainsFunc(n.Spec.Windows, func(w Window) bool { return w.From < to && from < w.To })
}
