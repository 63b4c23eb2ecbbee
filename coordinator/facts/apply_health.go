package facts

import (
	"fmt"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// A node on which the infrastructure fails, or which reports a problem, is
// held off: it takes no new work for HoldFirst, twice as long each time in a
// row. Then it is tried: one attempt at a time, until one passes (it takes work
// as before) or fails by the infrastructure's fault (it is held off again).
// Who drained a node by hand ends that by hand.

// OnTrial is why a second placement on a node on trial is dropped. A policy
// does not know of trials and may place several in one decision.
const OnTrial = "the node is on trial and takes one task at a time"

func (f *Facts) applyNodeDrain(e *droverv1.Entry, d *droverv1.NodeDrainFact, r *Result) {
	n := f.Node(d.GetNode())
	switch {
	case n == nil:
		r.Err = fault.New(fault.NotFound, "node %d is unknown", d.GetNode())
		return
	case d.GetByItself() && d.GetDraining() && (n.Draining || !n.Up):
		r.Dropped = append(r.Dropped, Drop{Reason: "the node takes no new work already"})
		return
	case d.GetByItself() && !d.GetDraining() && (!n.Draining || n.Back == 0 || n.Back > f.at):
		r.Dropped = append(r.Dropped, Drop{Reason: "the node is not to be tried now"})
		return
	case d.GetByItself() && d.GetDraining():
		f.holdOff(e, n, d.GetWhy())
	case d.GetByItself():
		f.try(e, n)
	case n.Draining == d.GetDraining() && n.Why == d.GetWhy() && !n.Trial:
		return
	default:
		f.drain(e, n, d.GetDraining(), d.GetWhy())
	}
	r.Changed = 1
}

// drain is an operator's word: it ends whatever the coordinator had begun.
func (f *Facts) drain(e *droverv1.Entry, n *Node, on bool, why string) {
	c := *n
	c.Draining, c.Why = on, clip(why, 256)
	c.Back, c.Holds, c.Trial = 0, 0, false
	kind := "node.drain"
	if !on {
		kind, c.Infra, c.Since = "node.undrain", nil, f.at
	}
	f.putNode(&c)
	f.event(e, kind, &Event{Node: n.Info.GetName(), Text: why})
}

func (f *Facts) putNode(n *Node) {
	f.nodes[n.ID-1] = n
	f.record(Change{Kind: ChangeNode, Node: n.ID})
}

// holdOff keeps new work off a node for a while.
func (f *Facts) holdOff(e *droverv1.Entry, n *Node, why string) {
	c := *n
	if !c.Trial && f.at-c.Since > int64(InfraWindow) {
		c.Holds = 0 // it did well since the last time
	}
	wait := min(HoldMost, HoldFirst<<min(c.Holds, 16))
	c.Holds++
	c.Draining, c.Trial, c.Why, c.Back = true, false, clip(why, 256), f.at+int64(wait)
	f.putNode(&c)
	f.event(e, "node.hold", &Event{Node: n.Info.GetName(), Text: fmt.Sprintf("no new work for %s: %s", span(wait), c.Why)})
}

// try lets a node that was held off show whether it works again.
func (f *Facts) try(e *droverv1.Entry, n *Node) {
	c := *n
	c.Draining, c.Trial, c.Back, c.Since, c.Infra = false, true, 0, f.at, nil
	f.putNode(&c)
	f.event(e, "node.trial", &Event{Node: n.Info.GetName(), Text: "one task at a time until one passes"})
}

// passed ends the trial of a node on which an attempt ran to an end that was
// not the infrastructure's. Attempts placed before the trial prove nothing.
func (f *Facts) passed(e *droverv1.Entry, a *Attempt) {
	n := f.Node(a.Node)
	if n == nil || !n.Trial || a.Placed < n.Since {
		return
	}
	c := *n
	c.Trial, c.Why = false, ""
	f.putNode(&c)
	f.event(e, "node.works", &Event{Node: n.Info.GetName(), Text: "a task ran on it: it takes work as before"})
}

// ran tells whether an attempt's end shows that its node can run tasks.
func ran(a *Attempt) bool {
	if a.State == AttemptSucceeded {
		return true
	}
	switch a.Cause() {
	case droverv1.Cause_CAUSE_EXIT, droverv1.Cause_CAUSE_MEMORY, droverv1.Cause_CAUSE_TIME, droverv1.Cause_CAUSE_DISK, droverv1.Cause_CAUSE_OUTPUT:
		return a.State == AttemptFailed
	default:
		return false
	}
}

// hold charges (sign 1) or frees (sign -1) an attempt's node.
func (f *Facts) hold(node int32, held Amounts, sign int64) {
	n := f.Node(node)
	if n == nil {
		return
	}
	c := *n
	c.Used = c.Used.add(held, sign)
	c.Attempts += int32(sign)
	f.nodes[node-1] = &c
	if c.Closed() != n.Closed() {
		f.record(Change{Kind: ChangeNode, Node: node})
	}
}

// countInfra notes an infrastructure failure; at InfraLimit within
// InfraWindow, or at the first one on trial, the node is held off. Attempts
// that were placed before it last took work again do not count.
func (f *Facts) countInfra(e *droverv1.Entry, a *Attempt, what string) {
	n := f.Node(a.Node)
	if n == nil || !n.Up || a.Epoch != n.Epoch || a.Placed < n.Since {
		return
	}
	c := *n
	c.Infra = nil
	for _, at := range n.Infra {
		if f.at-at < int64(InfraWindow) {
			c.Infra = append(c.Infra, at)
		}
	}
	c.Infra = append(c.Infra, f.at)
	f.nodes[n.ID-1] = &c
	switch {
	case c.Draining:
	case c.Trial:
		f.holdOff(e, &c, "it failed again when it was tried: "+what)
	case len(c.Infra) >= InfraLimit:
		f.holdOff(e, &c, fmt.Sprintf("%d failures of the infrastructure in %s, the last: %s", len(c.Infra), span(InfraWindow), what))
	}
}

// span writes a whole number of minutes or seconds as people do.
func span(d time.Duration) string {
	if d >= time.Minute && d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}
