package facts

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/jobspec"
)

// taskName returns the name of an attempt for users: stage/index.attempt.run.
func (j *Job) taskName(k Key, run int32) string {
	return fmt.Sprintf("%s/%d.%d.%d", j.Spec.Stages[k.Stage].Name, k.Task, k.Attempt, run)
}

// applyAttempts applies reports of a node: attempts that ended or changed
// level.
func (en attemptEntries) applyAttempts(e *droverv1.Entry, af *droverv1.AttemptsFact, r *Result) {
	n := en.f.Node(af.GetNode())
	if n == nil || !n.Up || n.Epoch != af.GetEpoch() {
		r.Dropped = append(r.Dropped, Drop{Reason: "the node is not up in that epoch"})
		return
	}
	for i, seen := range af.GetSeen() {
		if why := en.applyReport(e, n, seen); why != "" {
			r.Dropped = append(r.Dropped, Drop{i, why})
		} else {
			r.Changed++
		}
	}
}

// applyReport applies one report and returns "" or why it is stale.
func (en attemptEntries) applyReport(e *droverv1.Entry, n *Node, seen *droverv1.SeenAttempt) string {
	k := KeyOf(seen.GetKey())
	a := en.f.Attempt(k)
	switch {
	case a == nil:
		return "no such attempt"
	case a.Run != seen.GetKey().GetRun():
		return fmt.Sprintf("run %d, the present one is %d", seen.GetKey().GetRun(), a.Run)
	case a.Node != n.ID || a.Epoch != n.Epoch:
		return "the attempt is on another node or in another epoch"
	}
	lost := en.applyLostOutputs(e, k, a, seen.GetLostOutputs())
	if !a.State.IsActive() {
		if lost || ((seen.GetPhase() == droverv1.Phase_PHASE_GONE || seen.GetPhase() == droverv1.Phase_PHASE_FAILED) && a.State == AttemptSucceeded && en.loseOutput(e, k, a, "the node no longer has it")) {
			return ""
		}
		return "the attempt has ended"
	}
	switch seen.GetPhase() {
	case droverv1.Phase_PHASE_SUCCEEDED:
		en.endAttempt(e, k, a, AttemptSucceeded, seen)
	case droverv1.Phase_PHASE_FAILED:
		if a.State == AttemptStopping {
			en.endAttempt(e, k, a, AttemptStopped, seen)
		} else {
			en.endAttempt(e, k, a, AttemptFailed, seen)
		}
	case droverv1.Phase_PHASE_GONE:
		if a.State == AttemptStopping {
			en.endAttempt(e, k, a, AttemptStopped, seen)
		} else {
			gone := proto.CloneOf(seen)
			gone.Cause, gone.Message = droverv1.Cause_CAUSE_INFRA, cmp.Or(gone.Message, "the node no longer has it")
			en.endAttempt(e, k, a, AttemptFailed, gone)
		}
	case droverv1.Phase_PHASE_RUNNING:
		if a.State == AttemptLive && levelsOf(en.f).confirmLevel(e, k, a, seen) {
			return ""
		}
		if !lost {
			return "nothing durable changed"
		}
	default:
		if !lost {
			return "nothing durable changed"
		}
	}
	return ""
}

// applyLostOutputs makes map tasks pending again whose outputs a reduce task could not fetch. It
// reports whether there were any. It ignores outputs of attempts that no longer count: the report
// was made before the reduce task knew of the new output.
func (en attemptEntries) applyLostOutputs(e *droverv1.Entry, k Key, a *Attempt, outputs []*droverv1.MapOutput) bool {
	j := en.f.jobs[k.Job]
	m := j.MapStage()
	if len(outputs) == 0 || int(k.Stage) != j.ReduceStage() || m < 0 || a.State != AttemptLive && a.State != AttemptFailed {
		return false
	}
	lost := false
	for _, o := range outputs {
		w := en.f.jobs[k.Job].MapOutput(o)
		if w == nil || en.f.jobs[k.Job].HasEnded() {
			continue
		}
		mk := Key{k.Job, int32(m), o.GetTask(), w.Attempt}
		if !en.loseOutput(e, mk, w, "reduce task "+fmt.Sprint(k.Task)+" could not fetch it") {
			continue
		}
		lost = true
		en.recordInfraRetry(e, mk)
	}
	return lost
}

// recordInfraRetry counts an infrastructure failure of a task and fails its job
// at infraRetries.
func (en attemptEntries) recordInfraRetry(e *droverv1.Entry, k Key) {
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	t := *j.Stages[k.Stage].Task(k.Task)
	t.InfraFailures++
	writerOf(en.f).setTask(j, k.Stage, k.Task, &t)
	if t.InfraFailures >= infraRetries && !j.HasEnded() {
		en.failJob(e, j, k, fmt.Sprintf("the infrastructure failed it %d times", t.InfraFailures), nil)
	}
}

// mayLoseOutputs reports whether map outputs may be lost with an entry that is proposed.
func (en attemptEntries) mayLoseOutputs(e *droverv1.Entry) bool {
	switch b := e.GetBody().(type) {
	case *droverv1.Entry_NodeLost, *droverv1.Entry_Node:
		return true
	case *droverv1.Entry_Attempts:
		return slices.ContainsFunc(b.Attempts.GetSeen(), func(seen *droverv1.SeenAttempt) bool {
			a := en.f.Attempt(KeyOf(seen.GetKey()))
			return len(seen.GetLostOutputs()) > 0 || a != nil && a.State == AttemptSucceeded
		})
	default:
		return false
	}
}

// loseOutput makes a done map task pending again if its output is still needed.
// It reports whether it did.
func (en attemptEntries) loseOutput(e *droverv1.Entry, k Key, a *Attempt, why string) bool {
	j := en.f.jobs[k.Job]
	t := j.Stages[k.Stage].Task(k.Task)
	if t.State != TaskDone || t.Winner != k.Attempt || !j.OutputsNeeded(int(k.Stage)) {
		return false
	}
	j = writerOf(en.f).writableJob(j)
	c := *a
	c.State, c.LostSeq = AttemptLost, writerOf(en.f).nextSeq()
	n := t.withAttempt(&c)
	s := &j.Stages[k.Stage]
	s.Done--
	if n.State, n.Winner = TaskActive, 0; !hasActiveAttempt(n) {
		n.State = TaskPending
		s.Pending++
	}
	s.countLocality(a.Locality, -1)
	if e.GetStepRules() >= lossRules {
		s.SumTaskMS -= a.taskMS()
		j.subtractCounters(a.Seen().GetCounters())
	}
	writerOf(en.f).setTask(j, k.Stage, k.Task, n)
	en.f.EndedLog().addAttempt(j, k, n, &c)
	delete(en.f.onNode[a.Node], k)
	en.f.EventLog().add(e, "task.output_lost", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: en.f.EventLog().nodeNameOf(a.Node), Text: why})
	writerOf(en.f).recordChange(Change{Kind: ChangeOutput, Key: k, Node: a.Node})
	return true
}

func (l EventLog) nodeNameOf(id int32) string {
	if n := l.f.Node(id); n != nil {
		return n.Info.GetName()
	}
	return ""
}

func (s *Stage) countLocality(locality string, by int32) {
	switch locality {
	case "node":
		s.NodeLocal += by
	case "rack":
		s.RackLocal += by
	case "remote":
		s.Remote += by
	}
}

// stopAttempt tells a live attempt to end; it occupies its node until the node
// reports the end. The job came from writableJob.
func (en attemptEntries) stopAttempt(j *Job, k Key, a *Attempt) {
	c := *a
	c.State = AttemptStopping
	writerOf(en.f).setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).withAttempt(&c))
	writerOf(en.f).recordChange(Change{Kind: ChangeStopping, Key: k, Node: a.Node})
}

// endAttempt ends an active attempt and updates its task and job. The order of the steps is part of
// what Apply decides:
//
//  1. The attempt's resources are freed and its usage is added to the totals.
//  2. A success wins if the task has no winner. A task without winner and without active attempt is pending again.
//  3. The attempt is stored, with its event.
//  4. A success counts for its node while the job runs.
//  5. A winner stops the other attempts, and completes the job with its last task.
//  6. A node on probation is schedulable again if the end proves that it can run tasks.
//  7. A failure counts towards the limits of the node, the task and the job, and may fail the job.
//  8. With its last attempt an ended job leaves its project and goes to the history.
//  9. Where everything in the task's block has ended, the block is sealed.
func (en attemptEntries) endAttempt(e *droverv1.Entry, k Key, a *Attempt, state AttemptState, seen *droverv1.SeenAttempt) {
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	endedBefore := j.HasEnded()
	c, change := en.closeAttempt(j, k, a, state, seen)
	t, won := en.updateTask(j, k, c)
	en.recordEnd(e, j, k, t, c, change)
	if state == AttemptSucceeded && len(j.NodeFailures) > 0 && !j.HasEnded() {
		en.recordNodeSuccess(e, j, k, c)
	}
	if won {
		en.stopOthers(j, k)
		jobsOf(en.f).finishIfComplete(e, j)
	}
	if provesHealth(c) {
		nodesOf(en.f).endProbation(e, c)
	}
	if state == AttemptFailed && !j.HasEnded() {
		en.recordNodeFailure(e, j, k, c)
		en.recordFailure(e, j, k, c)
	}
	if en.f.jobs[k.Job].HasEnded() && j.Live == 0 {
		en.recordLastEnd(j, endedBefore)
	}
	writerOf(en.f).sealFinished(j, k.Stage, k.Task)
}

// closeAttempt returns a copy of an active attempt that has ended, and the change to record of it.
// It frees what the attempt occupied and adds its usage to the totals.
func (en attemptEntries) closeAttempt(j *Job, k Key, a *Attempt, state AttemptState, seen *droverv1.SeenAttempt) (*Attempt, Change) {
	s := &j.Stages[k.Stage]
	c := *a
	c.State, c.Ended, c.Target, c.EndSeq = state, en.f.now, 0, writerOf(en.f).nextSeq()
	if seen != nil {
		c.seen, c.sealed = seen, nil
	}
	levelsOf(en.f).addPreemption(j, a.preemptionAtEnd(state, seen))
	change := Change{Kind: ChangeEnded, Key: k, Node: a.Node}
	if a.Suspension.ImageNode != 0 {
		change.Nodes, change.Run = []int32{a.Suspension.ImageNode}, a.Suspension.ImageRun
		c.clearImage()
	}
	nodesOf(en.f).charge(a.Node, a.Occupied, -1)
	c.Occupied = Amounts{}
	s.Live--
	j.Live--
	if a.Level != droverv1.Level_LEVEL_RUNNING {
		s.Suspended--
	}
	s.addUsage(seen)
	if state == AttemptFailed && !j.HasEnded() {
		s.FailedAttempts++
		if int(j.RetainedAttempts) < j.Spec.KeepFailed {
			c.Retained = true
			j.RetainedAttempts++
		}
	}
	return &c, change
}

// updateTask returns the task with its ended attempt, to be stored, and whether the attempt is its
// winner.
func (en attemptEntries) updateTask(j *Job, k Key, ended *Attempt) (t *Task, won bool) {
	s := &j.Stages[k.Stage]
	t = s.Task(k.Task).withAttempt(ended)
	won = ended.State == AttemptSucceeded && t.Winner == 0 && !j.HasEnded()
	if won {
		en.setWinner(j, k, t, ended)
	} else if t.Winner == 0 && !hasActiveAttempt(t) && t.State == TaskActive {
		t.State = TaskPending
		s.Pending++
	}
	return t, won
}

// recordEnd stores the task with its ended attempt, and records the event and the change.
func (en attemptEntries) recordEnd(e *droverv1.Entry, j *Job, k Key, t *Task, ended *Attempt, change Change) {
	writerOf(en.f).setTask(j, k.Stage, k.Task, t)
	en.f.EndedLog().addAttempt(j, k, t, ended)
	if !j.occupiesNode(k, t, ended) {
		delete(en.f.onNode[ended.Node], k)
	}
	en.addEvent(e, j, k, ended)
	writerOf(en.f).recordChange(change)
}

// recordLastEnd records that an ended job has no attempt left. endedBefore says that the job had
// ended before its last attempt; otherwise endJob has done all but the change.
func (en attemptEntries) recordLastEnd(j *Job, endedBefore bool) {
	if endedBefore {
		en.f.Deadlines().leaveProject(j)
		en.f.EndedLog().addJob(j)
		writerOf(en.f).sealJob(j)
	}
	writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

func hasActiveAttempt(t *Task) bool {
	for _, a := range t.Attempts {
		if a.State.IsActive() {
			return true
		}
	}
	return false
}

// setWinner makes a the winner of its task.
func (en attemptEntries) setWinner(j *Job, k Key, t *Task, a *Attempt) {
	s := &j.Stages[k.Stage]
	t.State, t.Winner = TaskDone, k.Attempt
	s.Done++
	s.countLocality(a.Locality, +1)
	ms := a.taskMS()
	s.SumTaskMS += ms
	s.MaxTaskMS = max(s.MaxTaskMS, ms)
	if j.WritesOutput(int(k.Stage)) {
		j.OutputBytes = addClamped(j.OutputBytes, a.Seen().GetOutputLength())
	}
	if n := en.f.Node(a.Node); n != nil && n.Info.GetEmulated() {
		j.Emulated = true
	}
	en.f.Deadlines().recordCompletion(j, k, a)
	j.addCounters(a.Seen().GetCounters())
}

// taskMS returns how long an attempt that succeeded ran, in milliseconds.
func (a *Attempt) taskMS() int64 {
	return max(0, cmp.Or(a.Seen().GetRunningMs(), (a.Ended-a.Placed)/1e6))
}

// stopOthers stops the remaining attempts of a task that has a winner.
func (en attemptEntries) stopOthers(j *Job, k Key) {
	for _, o := range j.Stages[k.Stage].Task(k.Task).Attempts {
		if o.State == AttemptLive {
			en.stopAttempt(j, Key{k.Job, k.Stage, k.Task, o.Attempt}, o)
		}
	}
}

// userFault reports whether a failure counts towards the task's attempts. An
// unreadable input counts, unless the report names the map outputs to
// recompute.
func userFault(seen *droverv1.SeenAttempt) bool {
	switch seen.GetCause() {
	case droverv1.Cause_CAUSE_EXIT, droverv1.Cause_CAUSE_MEMORY, droverv1.Cause_CAUSE_TIME, droverv1.Cause_CAUSE_DISK,
		droverv1.Cause_CAUSE_OUTPUT, droverv1.Cause_CAUSE_SPEC, droverv1.Cause_CAUSE_DATA:
		return true
	case droverv1.Cause_CAUSE_INPUT:
		return len(seen.GetLostOutputs()) == 0
	default:
		return false
	}
}

// UserFault reports whether the attempt failed by the user's fault.
func (a *Attempt) UserFault() bool { return a.State == AttemptFailed && userFault(a.Seen()) }

func (en attemptEntries) recordFailure(e *droverv1.Entry, j *Job, k Key, a *Attempt) {
	if !userFault(a.Seen()) {
		if c := a.Cause(); c != droverv1.Cause_CAUSE_INPUT && c != droverv1.Cause_CAUSE_REBOOT {
			nodesOf(en.f).recordInfraFailure(e, k.Job, a, a.Seen().GetMessage())
		}
		en.recordInfraRetry(e, k)
		return
	}
	t := *j.Stages[k.Stage].Task(k.Task)
	t.Failures++
	writerOf(en.f).setTask(j, k.Stage, k.Task, &t)
	limit := int32(j.Spec.Stages[k.Stage].Attempts)
	if limit <= 0 {
		limit = jobspec.DefaultAttempts
	}
	switch {
	case a.Cause() == droverv1.Cause_CAUSE_SPEC && !a.Seen().GetElsewhere():
		en.failJob(e, j, k, "it cannot be run", a)
	case a.Cause() == droverv1.Cause_CAUSE_DATA:
		en.failJob(e, j, k, "no attempt can process its data", a)
	case t.Failures >= limit:
		en.failJob(e, j, k, fmt.Sprintf("%d of %d attempts failed", t.Failures, limit), a)
	}
}

// failJob ends a job because of a task. a is the failed attempt to show, or
// nil.
func (en attemptEntries) failJob(e *droverv1.Entry, j *Job, k Key, why string, a *Attempt) {
	msg := fmt.Sprintf("task %s/%d: %s", j.Spec.Stages[k.Stage].Name, k.Task, why)
	j.FailedTask = fmt.Sprintf("%s/%d", j.Spec.Stages[k.Stage].Name, k.Task)
	if a != nil {
		j.FailedTask = j.taskName(k, a.Run)
		j.FailureTail = clipTail(a.Seen().GetStderrTail(), 4096)
		if m := a.Seen().GetMessage(); m != "" {
			msg += "; the last: " + m
		}
	}
	jobsOf(en.f).endJob(e, j, droverv1.JobState_JOB_STATE_FAILED, msg)
}

// clipTail returns at most the last n bytes of s, cut at a rune boundary.
func clipTail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	for i := 0; i < len(s) && i < 4; i++ {
		if s[i]&0xC0 != 0x80 {
			return s[i:]
		}
	}
	return s
}

func (en attemptEntries) addEvent(e *droverv1.Entry, j *Job, k Key, a *Attempt) {
	text := a.Seen().GetMessage()
	if a.State == AttemptFailed {
		text = apitext.Cause(a.Cause()) + ": " + text
	}
	en.f.EventLog().add(e, "task."+a.State.String(), &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: en.f.EventLog().nodeNameOf(a.Node), Text: text})
}
