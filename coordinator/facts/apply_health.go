package facts

import (
	"fmt"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// A node on which the infrastructure fails repeatedly, or which reports a
// problem, is quarantined: it takes no new work for QuarantineMin, doubled each
// time in a row up to quarantineMax. Then it is on probation: it takes one
// attempt at a time until one proves it healthy, or fails by the
// infrastructure's fault, which quarantines it again. A drain by an operator is
// ended only by an operator.

// DropProbation is why a second placement on a node on probation is dropped.
// Policies do not know of probation and may place several tasks in one
// decision.
const DropProbation = "the node is on probation and takes one task at a time"

func (en nodeEntries) applyNodeDrain(e *droverv1.Entry, d *droverv1.NodeDrainFact, r *Result) {
	n := en.f.Node(d.GetNode())
	switch {
	case n == nil:
		r.Err = fault.New(fault.NotFound, "node %d is unknown", d.GetNode())
		return
	case d.GetAutomatic() && d.GetDraining() && (n.Draining || !n.Up):
		r.Dropped = append(r.Dropped, Drop{Reason: "the node is draining, quarantined or down already"})
		return
	case d.GetAutomatic() && !d.GetDraining() && (!n.IsQuarantined() || n.RetryAt > en.f.now):
		r.Dropped = append(r.Dropped, Drop{Reason: "the node's quarantine has not ended"})
		return
	case d.GetAutomatic() && d.GetDraining():
		en.quarantine(e, n, d.GetReason())
	case d.GetAutomatic():
		en.startProbation(e, n)
	case n.Draining == d.GetDraining() && n.Reason == d.GetReason() && n.DrainDeadline == d.GetDeadline() && !n.Probation && (d.GetDraining() || len(n.AvoidedBy) == 0):
		return
	default:
		en.setDraining(e, n, d)
	}
	r.Changed = 1
}

// setDraining applies an operator's drain or undrain. It ends any quarantine or
// probation.
func (en nodeEntries) setDraining(e *droverv1.Entry, n *Node, d *droverv1.NodeDrainFact) {
	c, why := *n, d.GetReason()
	c.Draining, c.Reason, c.DrainDeadline = d.GetDraining(), clip(why, 256), 0
	c.DrainSetAt = 0
	c.RetryAt, c.QuarantineStreak, c.Probation = 0, 0, false
	c.Maintenance = overridden(n.Maintenance, c.Draining)
	kind := "node.drain"
	switch {
	case !c.Draining:
		kind, c.InfraFailures, c.SchedulableSince = "node.undrain", nil, en.f.now
	case d.GetDeadline() > 0:
		c.DrainDeadline = d.GetDeadline()
		left := time.Duration(c.DrainDeadline - en.f.now)
		if d.GetDeadlineMs() > 0 {
			left, c.DrainSetAt = time.Duration(d.GetDeadlineMs())*time.Millisecond, en.f.now
		}
		why += ", what still runs leaves it in " + formatDuration(left)
	}
	for _, w := range c.Maintenance {
		if w.Begun && c.DrainDeadline == 0 {
			c.DrainDeadline = w.From // what the window moved off the node stays off
		}
	}
	en.putNode(&c)
	en.f.EventLog().add(e, kind, &Event{Node: n.Info.GetName(), Text: why})
	if !c.Draining {
		en.endAvoidances(e, n.ID, "an operator lets the node take work again")
	}
	if c.DrainDeadline == 0 {
		levelsOf(en.f).unparkDrained(n.ID)
	}
}

func (en nodeEntries) putNode(n *Node) {
	en.f.nodes[n.ID-1] = n
	writerOf(en.f).recordChange(Change{Kind: ChangeNode, Node: n.ID})
}

// quarantine keeps new work off a node until RetryAt.
func (en nodeEntries) quarantine(e *droverv1.Entry, n *Node, why string) {
	c := *n
	if !c.Probation && en.f.now-c.SchedulableSince > int64(infraWindow) {
		c.QuarantineStreak = 0 // it was healthy since the last quarantine
	}
	wait := min(quarantineMax, QuarantineMin<<min(c.QuarantineStreak, 16))
	c.QuarantineStreak++
	c.Draining, c.Probation, c.Reason, c.RetryAt = true, false, clip(why, 256), en.f.now+int64(wait)
	en.putNode(&c)
	en.f.EventLog().add(e, "node.quarantined", &Event{Node: n.Info.GetName(), Text: fmt.Sprintf("no new work for %s: %s", formatDuration(wait), c.Reason)})
}

// startProbation lets a quarantined node take one attempt at a time.
func (en nodeEntries) startProbation(e *droverv1.Entry, n *Node) {
	c := *n
	c.Draining, c.Probation, c.RetryAt, c.SchedulableSince, c.InfraFailures = false, true, 0, en.f.now, nil
	en.putNode(&c)
	en.f.EventLog().add(e, "node.probation", &Event{Node: n.Info.GetName(), Text: "one task at a time until one proves the node healthy"})
}

// endProbation ends the probation of a node on which an attempt ran to an end
// that was not the infrastructure's fault. Attempts placed before the probation
// prove nothing.
func (en nodeEntries) endProbation(e *droverv1.Entry, a *Attempt) {
	n := en.f.Node(a.Node)
	if n == nil || !n.Probation || a.Placed < n.SchedulableSince {
		return
	}
	c := *n
	c.Probation, c.Reason = false, ""
	en.putNode(&c)
	en.f.EventLog().add(e, "node.recovered", &Event{Node: n.Info.GetName(), Text: "a task ran on it: it is schedulable again"})
}

// provesHealth reports whether an attempt's end shows that its node can run
// tasks.
func provesHealth(a *Attempt) bool {
	if a.State == AttemptSucceeded {
		return true
	}
	switch a.Cause() {
	case droverv1.Cause_CAUSE_EXIT, droverv1.Cause_CAUSE_MEMORY, droverv1.Cause_CAUSE_TIME, droverv1.Cause_CAUSE_DISK, droverv1.Cause_CAUSE_OUTPUT, droverv1.Cause_CAUSE_DATA:
		return a.State == AttemptFailed
	default:
		return false
	}
}

// charge adds (sign 1) or subtracts (sign -1) an attempt's amounts on its node.
func (en nodeEntries) charge(node int32, amounts Amounts, sign int64) {
	n := en.f.Node(node)
	if n == nil {
		return
	}
	c := *n
	c.Used = c.Used.add(amounts, sign)
	c.Attempts += int32(sign)
	en.f.nodes[node-1] = &c
	if c.Cordoned() != n.Cordoned() {
		writerOf(en.f).recordChange(Change{Kind: ChangeNode, Node: node})
	}
}

// recordInfraFailure records an infrastructure failure. The node is quarantined
// at infraLimit failures within infraWindow, or at the first one on probation.
// Attempts placed before SchedulableSince do not count.
func (en nodeEntries) recordInfraFailure(e *droverv1.Entry, job uint64, a *Attempt, what string) {
	n := en.f.Node(a.Node)
	if n == nil || !n.Up || a.Epoch != n.Epoch || a.Placed < n.SchedulableSince {
		return
	}
	c := *n
	if en.blameJob(e, &c, job, what) {
		en.f.nodes[n.ID-1] = &c
		return
	}
	c.InfraFailures = nil
	for _, at := range n.InfraFailures {
		if en.f.now-at < int64(infraWindow) {
			c.InfraFailures = append(c.InfraFailures, at)
		}
	}
	c.InfraFailures = append(c.InfraFailures, en.f.now)
	en.f.nodes[n.ID-1] = &c
	switch {
	case c.Draining:
	case c.Probation:
		en.quarantine(e, &c, failedOnProbation+": "+what)
	case len(c.InfraFailures) >= infraLimit:
		en.quarantine(e, &c, fmt.Sprintf("%d%s%s, the last: %s", len(c.InfraFailures), infraFailures, formatDuration(infraWindow), what))
	}
}

// What stands in the reason of a quarantine before the message of the attempt that failed last.
// Apply has stored it: it may not change.
const (
	failedOnProbation = "it failed again on probation"
	infraFailures     = " failures of the infrastructure in "
)

// WithoutMessage returns the reason of a node, or the text of an event of it, without the message
// of the attempt that failed last: that may name the files of a tenant.
func WithoutMessage(text string) string {
	again, often := strings.Index(text, failedOnProbation+": "), strings.Index(text, infraFailures)
	switch {
	case again >= 0 && (often < 0 || again < often): // the other one is of the message
		return text[:again+len(failedOnProbation)]
	case often >= 0:
		before, _, _ := strings.Cut(text[often:], ", the last: ")
		return text[:often] + before
	default:
		return text
	}
}

// Limits of blaming a job.
const (
	blameNodes   = 2  // other nodes on which a job must have failed
	maxInfraJobs = 16 // jobs remembered for each node
)

// InfraJob says when the infrastructure last failed a job on a node.
type InfraJob struct {
	Job uint64 `json:"job"`
	At  int64  `json:"at"` // Unix ns
}

// blameJob records in n that the infrastructure failed a job there, and reports
// whether the failure follows the job and not the node: within infraWindow the job
// failed so on blameNodes other nodes, and no other job failed here. Such failures
// count against the job alone (see infraRetries), so that one job cannot take node
// after node out of service. O(nodes).
func (en nodeEntries) blameJob(e *droverv1.Entry, n *Node, job uint64, what string) bool {
	var jobs []InfraJob
	known := false
	for _, j := range n.InfraJobs {
		if en.f.now-j.At >= int64(infraWindow) {
			continue
		}
		if j.Job == job {
			known = true
			continue
		}
		jobs = append(jobs, j)
	}
	alone := len(jobs) == 0
	n.InfraJobs = append(jobs[max(0, len(jobs)-maxInfraJobs+1):], InfraJob{job, en.f.now})
	others := 0
	for _, m := range en.f.nodes {
		for _, j := range m.InfraJobs {
			if m.ID != n.ID && j.Job == job && en.f.now-j.At < int64(infraWindow) {
				others++
			}
		}
	}
	if !alone || others < blameNodes {
		return false
	}
	if !known {
		nodesOf(en.f).acquitNodes(e, n.ID, job)
		en.f.EventLog().add(e, "job.blamed", &Event{Job: en.f.jobs[job].Name, JobID: job, Node: n.Info.GetName(), Text: fmt.Sprintf("the infrastructure failed it here and on %d other nodes in %s: not counted against the node: %s", others, formatDuration(infraWindow), clip(what, 256))})
	}
	return true
}

// acquitNodes ends the quarantine of the nodes that a job alone brought into it,
// once it is blamed: they are on probation from now on. O(nodes).
func (en nodeEntries) acquitNodes(e *droverv1.Entry, but int32, job uint64) {
	for _, n := range en.f.nodes {
		if n.ID == but || !n.IsQuarantined() || len(n.InfraFailures) < infraLimit || !en.failedAlone(n, job) {
			continue
		}
		c := *n
		c.QuarantineStreak, c.Reason = 0, ""
		nodesOf(en.f).startProbation(e, &c)
	}
}

// failedAlone reports whether the infrastructure failed one job on a node within
// infraWindow, and no other.
func (en nodeEntries) failedAlone(n *Node, job uint64) (alone bool) {
	for _, j := range n.InfraJobs {
		if en.f.now-j.At < int64(infraWindow) {
			if j.Job != job {
				return false
			}
			alone = true
		}
	}
	return alone
}

// formatDuration formats whole minutes as "3 min", other durations as usual.
func formatDuration(d time.Duration) string {
	if d >= time.Minute && d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}
