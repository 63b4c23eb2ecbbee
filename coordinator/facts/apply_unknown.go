package facts

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// After a restore nodes have runs that were placed after the archive was saved: unknown
// runs. A node freezes and reports them. One whose task is pending becomes the attempt again
// that it was, suspended, so that the task is not placed a second time; an operator lets
// it go on (adopts it) or kills it. Of all others nothing can come: they can only be killed.

const unknownReason = "it was placed after the archive that the coordinator was restored from: an operator adopts or kills it (drover operator runs)"

// WhyNotAdoptable returns why a run that a node reports as unknown cannot become an attempt of its
// task, "" if it can.
func (s Restores) WhyNotAdoptable(n *Node, seen *droverv1.SeenAttempt) string {
	k := KeyOf(seen.GetKey())
	j, t := s.f.jobs[k.Job], s.f.task(k)
	switch {
	case s.f.restores.ClusterEpoch == 0:
		return "the cluster was never restored"
	case j == nil || k.Job > s.f.restores.LastJob:
		return "its job is unknown"
	case t == nil:
		return "its job has no such task"
	case j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING:
		return "its job has ended"
	case t.State == TaskDone:
		return "its task is done"
	case t.State != TaskPending:
		return "its task has another attempt"
	case k.Attempt != lastAttempt(t)+1 || seen.GetKey().GetRun() < 1:
		return fmt.Sprintf("it is attempt %d, and the next of its task is %d", k.Attempt, lastAttempt(t)+1)
	case slices.ContainsFunc(j.Spec.StagesBefore(int(k.Stage)), func(i int32) bool { return j.Stages[i].Done < j.Stages[i].Tasks }):
		return "an earlier stage is not done"
	case diskOf(n, seen) < 0 && len(n.Info.GetDisks()) > 0:
		return "its disk is unknown"
	case seen.GetPhase() != droverv1.Phase_PHASE_RUNNING || seen.GetLevel() < droverv1.Level_LEVEL_FROZEN || seen.GetLevel() > droverv1.Level_LEVEL_CHECKPOINTED:
		return "it is not frozen"
	}
	return ""
}

func lastAttempt(t *Task) (last int32) {
	for _, a := range t.Attempts {
		last = max(last, a.Attempt)
	}
	return last
}

// diskOf returns the index of the disk that an unknown run is on, -1 for none.
func diskOf(n *Node, seen *droverv1.SeenAttempt) int32 {
	return int32(slices.IndexFunc(n.Info.GetDisks(), func(d *droverv1.Disk) bool { return d.GetName() == seen.GetUnknown().GetDiskName() }))
}

func (en decisionEntries) applyUnknownRuns(e *droverv1.Entry, u *droverv1.UnknownRunsFact, r *Result) {
	n := en.f.Node(u.GetNode())
	if n == nil || !n.Up || n.Epoch != u.GetEpoch() {
		r.Err = fault.New(fault.Conflict, "node %d is not up in epoch %d: `drover node list` shows its state", u.GetNode(), u.GetEpoch())
		return
	}
	for i, seen := range u.GetFound() {
		if why := RestoresOf(en.f).WhyNotAdoptable(n, seen); why != "" {
			r.Dropped = append(r.Dropped, Drop{i, why})
			continue
		}
		en.addUnknownRun(e, n, seen)
		r.Changed++
	}
	if u.GetKey() == nil {
		return
	}
	if r.Err = en.decideUnknownRun(e, n, u.GetKey(), u.GetDecision()); r.Err == nil {
		r.Changed++
	}
}

// addUnknownRun makes a frozen run the attempt again that it was, parked.
func (en decisionEntries) addUnknownRun(e *droverv1.Entry, n *Node, seen *droverv1.SeenAttempt) {
	k := KeyOf(seen.GetKey())
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	report := proto.CloneOf(seen)
	report.Unknown = nil
	a := &Attempt{
		Attempt: k.Attempt, Run: seen.GetKey().GetRun(), Node: n.ID, Epoch: n.Epoch, Disk: diskOf(n, seen), State: AttemptLive, Level: seen.GetLevel(),
		Locality: "none", Placed: en.f.now, Seq: writerOf(en.f).nextSeq(), Occupied: AmountsOf(seen.GetOccupied()), EstimateNS: j.Stages[k.Stage].EstimateNS, seen: report,
		Suspension: Suspension{LevelSince: en.f.now, SuspendedAt: en.f.now, Parked: true, Unknown: true, Reason: unknownReason},
	}
	j.Stages[k.Stage].Suspended++
	en.addAttempt(e, j, k, a)
	en.f.EventLog().add(e, "run.found", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: n.Info.GetName(), Text: LevelName(a.Level) + ": " + unknownReason})
	writerOf(en.f).recordChange(Change{Kind: ChangePlaced, Key: k, Node: n.ID})
	writerOf(en.f).recordChange(Change{Kind: ChangeLevel, Key: k, Node: n.ID})
}

// decideUnknownRun applies an operator's decision. A run that never became an attempt can only be
// killed; the leader tells its node.
func (en decisionEntries) decideUnknownRun(e *droverv1.Entry, n *Node, key *droverv1.AttemptKey, decision droverv1.UnknownRunDecision) error {
	k, adopt := KeyOf(key), decision == droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_ADOPT
	a, ev := en.f.Attempt(k), &Event{Task: fmt.Sprintf("%d.%d.%d.%d.%d", k.Job, k.Stage, k.Task, k.Attempt, key.GetRun()), Node: n.Info.GetName()}
	known := a != nil && a.Node == n.ID && a.Run == key.GetRun() && a.State.IsActive()
	switch {
	case !adopt && decision != droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_KILL:
		return fault.New(fault.Invalid, "say whether the run is adopted or killed")
	case known && (a.State != AttemptLive || !a.Suspension.Unknown):
		return fault.New(fault.Conflict, "run %s on node %s is not unknown: it is an attempt of job %d", ev.Task, ev.Node, k.Job)
	case !known && adopt:
		return fault.New(fault.Conflict, "run %s on node %s cannot be adopted: `drover operator runs list` says why", ev.Task, ev.Node)
	case !known:
		en.f.EventLog().add(e, "run.killed", ev)
		return nil
	}
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	ev.Job, ev.JobID, ev.Task = j.Name, j.ID, j.taskName(k, a.Run)
	c := *a
	c.Suspension.Unknown, c.Suspension.Parked, c.Suspension.Actor = false, false, clip(e.GetActor(), 128)
	if !adopt {
		attemptsOf(en.f).stopAttempt(j, k, &c)
		en.f.EventLog().add(e, "run.killed", ev)
		return nil
	}
	c.Suspension.Reason = "it was adopted, and goes on when there is room"
	writerOf(en.f).setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).withAttempt(&c))
	en.f.EventLog().add(e, "run.adopted", ev)
	writerOf(en.f).recordChange(Change{Kind: ChangeLevel, Key: k, Node: a.Node})
	return nil
}
