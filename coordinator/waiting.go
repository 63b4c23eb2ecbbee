package coordinator

import (
	"fmt"
	"strings"
	"time"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// waitText says why a stage waits in a user's words: names for numbers, until when,
// and what helps. What ended since the decision is left out. Other jobs go by their
// numbers: not everybody who may read this one may read those. O(nodes) where no node
// has room, otherwise O(tenants).
func (c *core) waitText(f *facts.Facts, w *scheduler.Waiting) string {
	s := w.Reason.String()
	switch w.Reason {
	case scheduler.ReasonNoNode:
		if len(f.Nodes()) == 0 {
			return s + ": none has registered yet; start `drover node` on a machine"
		}
		return s + ": " + c.idleNodes(f)
	case scheduler.ReasonNoCPU, scheduler.ReasonNoMemory, scheduler.ReasonNoIO, scheduler.ReasonNoDiskSpace:
		s += fmt.Sprintf(" on %d nodes", w.Nodes)
		if w.Nodes == 1 {
			s = strings.TrimSuffix(s, "s")
		}
		if idle := c.idleNodes(f); idle != "" {
			s += "; others take no work: " + idle
		}
	case scheduler.ReasonCap:
		s += capText(f, w)
	case scheduler.ReasonReservation:
		if r := f.Reservation(uint64(w.Reservation)); r != nil {
			s += atNode(f, scheduler.NodeID(r.GetNode()-1)) + ofJob(f, scheduler.JobID(r.GetJob()))
		}
		s += untilText(w.Until)
	case scheduler.ReasonData:
		s += nodeName(f, w.Node) + untilText(w.Until)
	case scheduler.ReasonSuspending, scheduler.ReasonDue:
		s += atNode(f, w.Node)
	case scheduler.ReasonHeadOfLine, scheduler.ReasonShare:
		s += ofJob(f, w.Behind.Job)
	}
	return s
}

// capText names the cap that holds a stage back.
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

// ofJob is another job's number, "" where it is gone. Its name is for those who may
// read it: `drover job status NUMBER`.
func ofJob(f *facts.Facts, id scheduler.JobID) string {
	if f.Job(uint64(id)) == nil {
		return ""
	}
	return fmt.Sprintf(": job %d", id)
}

func atNode(f *facts.Facts, id scheduler.NodeID) string {
	if n := nodeName(f, id); n != "" {
		return " on" + n
	}
	return ""
}

// nodeName is a blank and the node's name, "" for none.
func nodeName(f *facts.Facts, id scheduler.NodeID) string {
	if n := f.Node(int32(id) + 1); n != nil {
		return " " + n.Info.GetName()
	}
	return ""
}

// untilText is the instant, to the second; "" where none is in sight.
func untilText(t scheduler.Time) string {
	if t <= 0 || t >= scheduler.Never {
		return ""
	}
	return " until " + time.Unix(0, int64(t)).UTC().Format("15:04:05 MST")
}
