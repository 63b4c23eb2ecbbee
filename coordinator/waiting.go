package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// waitingReason describes why a stage waits: with names, until when, and what
// helps. Jobs and nodes that are gone since the decision are left out. Other
// jobs appear by number, because not every reader of this job may read those.
// O(nodes) if no node has the capacity, otherwise O(tenants).
func (c *core) waitingReason(f *facts.Facts, w *scheduler.Waiting) string {
	s := w.Reason.String()
	switch w.Reason {
	case scheduler.ReasonNoNode:
		if len(f.Nodes()) == 0 {
			return s + ": none has registered yet; start `drover node` on a machine"
		}
		if why := c.unschedulableNodes(f); why != "" {
			return s + ": " + why
		}
		return s + " in the last cycle; there is one now"
	case scheduler.ReasonNoCPU, scheduler.ReasonNoMemory, scheduler.ReasonNoIO, scheduler.ReasonNoDiskSpace:
		s += fmt.Sprintf(" on %d nodes", w.Nodes)
		if w.Nodes == 1 {
			s = strings.TrimSuffix(s, "s")
		}
		if idle := c.unschedulableNodes(f); idle != "" {
			s += "; others are not schedulable: " + idle
		}
	case scheduler.ReasonCap:
		s += capText(f, w)
	case scheduler.ReasonReservation:
		if r := f.Reservation(uint64(w.Reservation)); r != nil {
			s += onNodeText(f, scheduler.NodeID(r.GetNode()-1)) + jobText(f, scheduler.JobID(r.GetJob()))
		}
		s += untilText(w.Until)
	case scheduler.ReasonData:
		s += nodeNameText(f, w.Node) + untilText(w.Until)
	case scheduler.ReasonSuspending, scheduler.ReasonDue:
		s += onNodeText(f, w.Node)
	case scheduler.ReasonHeadOfLine, scheduler.ReasonShare:
		s += jobText(f, w.Behind.Job)
	}
	return s
}

// capText names the cap that delays a stage.
func capText(f *facts.Facts, w *scheduler.Waiting) string {
	s := " on " + w.Resource.String()
	switch w.Cap {
	case scheduler.CapTask:
		s += " for one task"
	case scheduler.CapJob:
		s += " for one job"
	}
	for _, t := range f.Tenants() {
		if scheduler.TenantID(t.ID) == w.Tenant {
			return fmt.Sprintf("%s of tenant %s (drover tenant list)", s, t.Spec.GetName())
		}
	}
	return s
}

// jobText returns ": job NUMBER", "" if the job is gone.
func jobText(f *facts.Facts, id scheduler.JobID) string {
	if f.Job(uint64(id)) == nil {
		return ""
	}
	return fmt.Sprintf(": job %d", id)
}

func onNodeText(f *facts.Facts, id scheduler.NodeID) string {
	if n := nodeNameText(f, id); n != "" {
		return " on" + n
	}
	return ""
}

// nodeNameText returns a blank and the node's name, "" for none.
func nodeNameText(f *facts.Facts, id scheduler.NodeID) string {
	if n := f.Node(int32(id) + 1); n != nil {
		return " " + n.Info.GetName()
	}
	return ""
}

// untilText returns " until TIME", to the second; "" if no time is known.
func untilText(t scheduler.Time) string {
	if t <= 0 || t >= scheduler.Never {
		return ""
	}
	return " until " + time.Unix(0, int64(t)).UTC().Format("15:04:05 MST")
}

// pendingSums sums up why the tasks of the cluster wait, most tasks first.
// O(waiting stages).
func (c *core) pendingSums() []*droverv1.PendingSum {
	sums := map[string]*droverv1.PendingSum{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiting {
		reason := w.Reason.String()
		p := sums[reason]
		if p == nil {
			p = &droverv1.PendingSum{Reason: reason}
			sums[reason] = p
		}
		p.Stages++
		p.Tasks += int64(w.Tasks)
	}
	out := make([]*droverv1.PendingSum, 0, len(sums))
	for _, p := range sums {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *droverv1.PendingSum) int {
		return cmp.Or(cmp.Compare(b.GetTasks(), a.GetTasks()), cmp.Compare(a.GetReason(), b.GetReason()))
	})
	return out
}
