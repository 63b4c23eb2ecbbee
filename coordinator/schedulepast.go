package coordinator

import (
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/past"
)

// buildPast builds the schedule of a job that only the history has, since its submission unless the
// caller asked for another time.
func (b *scheduleBuilder) buildPast(j *droverv1.PastJob) error {
	b.job = j.GetSummary().GetJob()
	if b.req.GetFromMs() == 0 {
		b.from = time.UnixMilli(min(j.GetSummary().GetSubmittedMs(), b.from.UnixMilli()))
		b.out.FromMs = b.from.UnixMilli()
	}
	b.core.view(b.addNodes)
	return nil
}

// addPast adds attempts of jobs that the facts no longer have and the history does, from the job
// that ended last, up to the limit of the response. O(attempts added + jobs that ended since).
func (b *scheduleBuilder) addPast() error {
	nodes := map[string]int32{}
	for _, n := range b.out.Nodes {
		nodes[n.GetName()] = n.GetNode()
	}
	q := past.JobQuery{Tenant: b.req.GetTenant(), SinceMS: b.from.UnixMilli(), Limit: maxPastJobs, Visible: b.core.rights.visiblePast(b.ctx)}
	for counted := 0; counted < MaxListed; {
		jobs, next, err := b.core.past.Jobs(q)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			if b.known[j.GetJob()] || b.job != 0 && j.GetJob() != b.job {
				continue
			}
			if len(b.out.Attempts) >= maxScheduled {
				b.out.More += j.GetTasks()
				continue
			}
			if err := b.addPastJob(j, nodes); err != nil {
				return err
			}
		}
		if counted += len(jobs); next == "" {
			return nil
		}
		q.Page = next
	}
	return nil
}

func (b *scheduleBuilder) addPastJob(j *droverv1.JobSummary, nodes map[string]int32) error {
	list, _, err := b.core.past.Attempts(j.GetJob(), -1, maxScheduled, "")
	if err != nil {
		return err
	}
	listed := len(b.out.Attempts)
	for _, a := range list {
		if a.GetEndedMs() < b.from.UnixMilli() || b.req.GetNode() != "" && a.GetNode() != b.req.GetNode() {
			continue
		}
		node, ok := nodes[a.GetNode()]
		if !ok { // it left the cluster
			node = -int32(len(nodes)) - 1
			nodes[a.GetNode()] = node
			b.out.Nodes = append(b.out.Nodes, &droverv1.ScheduleNode{Node: node, Name: a.GetNode(), State: "removed"})
		}
		b.out.Attempts = append(b.out.Attempts, &droverv1.ScheduleAttempt{Key: a.GetKey(), Node: node, PlacedMs: a.GetPlacedMs(), StartedMs: a.GetStartedMs(), EndMs: a.GetEndedMs(),
			State: a.GetState(), Gaps: pastGaps(a)})
	}
	if len(b.out.Attempts) == listed {
		return nil
	}
	whole, err := b.core.past.Job(j.GetJob())
	if err != nil {
		return err
	}
	out := &droverv1.ScheduleJob{Job: j.GetJob(), Name: j.GetName(), Tenant: j.GetTenant(), State: j.GetState(), DeadlineMs: j.GetDeadlineMs(), GuaranteedMs: j.GetGuaranteedMs()}
	for _, s := range whole.GetStages() {
		out.Stages = append(out.Stages, s.GetName())
	}
	b.out.Jobs = append(b.out.Jobs, out)
	return nil
}

// pastGaps returns when an ended attempt was suspended. If it was suspended more than once, only
// the total is known.
func pastGaps(a *droverv1.PastAttempt) []*droverv1.ScheduleGap {
	if a.GetSuspends() != 1 || a.GetSuspendedAtMs() == 0 {
		return nil
	}
	return []*droverv1.ScheduleGap{{FromMs: a.GetSuspendedAtMs(), ToMs: min(a.GetSuspendedAtMs()+a.GetSuspendedMs(), a.GetEndedMs())}}
}
