package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// waitList holds why stages wait, as of the last decision.
type waitList struct {
	now func() time.Time

	mu     sync.Mutex
	stages map[scheduler.StageID]scheduler.Waiting
	// before holds the stages of the previous round, while further decisions still add to stages.
	before map[scheduler.StageID]scheduler.Waiting
}

// set stores why stages wait. If each of several decisions explains a part, it keeps the last ones
// together.
func (l *waitList) set(d *scheduler.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !d.WaitingContinues {
		l.before, l.stages = l.stages, make(map[scheduler.StageID]scheduler.Waiting, len(d.Waiting))
	}
	for _, one := range d.Waiting {
		l.stages[one.Stage] = one
	}
	if !d.WaitingMore {
		l.before = nil
	}
}

// of returns why a stage waits; false if it does not wait, or its reason is not known yet.
func (l *waitList) of(s scheduler.StageID) (scheduler.Waiting, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	why, ok := l.stages[s]
	if !ok {
		why, ok = l.before[s]
	}
	return why, ok
}

// reason describes why a stage waits: with names, until when, and what helps. Jobs and nodes that
// are gone since the decision are left out. Other jobs appear by number, because not every reader
// of this job may read them. O(nodes) if no node has the capacity, otherwise O(tenants).
func (l *waitList) reason(f *facts.Facts, w *scheduler.Waiting) string {
	s := w.Reason.String()
	switch w.Reason {
	case scheduler.ReasonNoNode:
		if len(f.Nodes()) == 0 {
			return s + ": none has registered yet; start `drover node` on a machine"
		}
		if why := unschedulableNodes(f, l.now()); why != "" {
			return s + ": " + why
		}
		return s + " in the last cycle; there is one now"
	case scheduler.ReasonNoCPU, scheduler.ReasonNoMemory, scheduler.ReasonNoIO, scheduler.ReasonNoDiskSpace:
		s += fmt.Sprintf(" on %d nodes", w.Nodes)
		if w.Nodes == 1 {
			s = strings.TrimSuffix(s, "s")
		}
		s += tooSmallText(f, w.Stage)
		if idle := unschedulableNodes(f, l.now()); idle != "" {
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

// reasonOfJob returns why a live job has no active attempts, or "".
func (l *waitList) reasonOfJob(f *facts.Facts, j *facts.Job) string {
	for i := range j.Stages {
		if j.Stages[i].Live > 0 {
			return ""
		}
	}
	for i := range j.Stages {
		if w, ok := l.of(scheduler.StageID{Job: scheduler.JobID(j.ID), Stage: int32(i)}); ok && j.Stages[i].Pending > 0 {
			return j.Spec.Stages[i].Name + ": " + l.reason(f, &w)
		}
	}
	return ""
}

// tooSmallText says what the nodes could run if no task of a stage fits even on one that is empty: the node that was
// large enough when the job was accepted is down, drained or gone. Otherwise it returns "".
func tooSmallText(f *facts.Facts, id scheduler.StageID) string {
	j := f.Job(uint64(id.Job))
	if j == nil || int(id.Stage) >= len(j.Spec.Stages) {
		return ""
	}
	stage := &j.Spec.Stages[id.Stage]
	closest, lack := closestNode(f, stage, (*facts.Node).Schedulable)
	if closest == nil || lack <= 1 {
		return ""
	}
	return ", too small even when empty: " + mostOf(closest, stage, f.TaskOverheadMemory())
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

// nodeNameText returns a space and the node's name, "" for none.
func nodeNameText(f *facts.Facts, id scheduler.NodeID) string {
	if n := f.Node(int32(id) + 1); n != nil {
		return " " + n.Info.GetName()
	}
	return ""
}

// untilText returns " until TIME", to the second and with the date; "" if no time is
// known.
func untilText(t scheduler.Time) string {
	if t <= 0 || t >= scheduler.Never {
		return ""
	}
	return " until " + time.Unix(0, int64(t)).UTC().Format("2006-01-02 15:04:05 MST")
}

// sums totals the reasons for which the tasks of the cluster wait, most tasks first. O(waiting
// stages).
func (l *waitList) sums() []*droverv1.PendingSum {
	sums := map[string]*droverv1.PendingSum{}
	add := func(w scheduler.Waiting) {
		reason := w.Reason.String()
		p := sums[reason]
		if p == nil {
			p = &droverv1.PendingSum{Reason: reason}
			sums[reason] = p
		}
		p.Stages++
		p.Tasks += int64(w.Tasks)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.stages {
		add(w)
	}
	for id, w := range l.before {
		if _, again := l.stages[id]; !again {
			add(w)
		}
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
