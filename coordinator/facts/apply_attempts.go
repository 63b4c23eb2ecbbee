package facts

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// taskName is how people and events name an attempt: stage/index.attempt.run.
func (j *Job) taskName(k Key, run int32) string {
	return fmt.Sprintf("%s/%d.%d.%d", j.Spec.Stages[k.Stage].Name, k.Task, k.Attempt, run)
}

// applyAttempts takes what a node reported as ended or moved between levels.
func (f *Facts) applyAttempts(e *droverv1.Entry, af *droverv1.AttemptsFact, r *Result) {
	n := f.Node(af.GetNode())
	if n == nil || !n.Up || n.Epoch != af.GetEpoch() {
		r.Dropped = append(r.Dropped, Drop{Reason: "the node is not up in that epoch"})
		return
	}
	for i, seen := range af.GetSeen() {
		if why := f.applySeen(e, n, seen); why != "" {
			r.Dropped = append(r.Dropped, Drop{i, why})
		} else {
			r.Changed++
		}
	}
}

// applySeen takes one report and gives "" or why it does not hold.
func (f *Facts) applySeen(e *droverv1.Entry, n *Node, seen *droverv1.SeenAttempt) string {
	k := KeyOf(seen.GetKey())
	a := f.Attempt(k)
	switch {
	case a == nil:
		return "no such attempt"
	case a.Run != seen.GetKey().GetRun():
		return fmt.Sprintf("run %d, the present one is %d", seen.GetKey().GetRun(), a.Run)
	case a.Node != n.ID || a.Epoch != n.Epoch:
		return "the attempt is on another node or in another epoch"
	}
	lost := f.applyLostMaps(e, k, a, seen.GetLostMaps())
	if !a.State.Holds() {
		if lost || ((seen.GetPhase() == droverv1.Phase_PHASE_GONE || seen.GetPhase() == droverv1.Phase_PHASE_FAILED) && a.State == AttemptSucceeded && f.loseOutput(e, k, a, "its node has it no more")) {
			return ""
		}
		return "the attempt has ended"
	}
	switch seen.GetPhase() {
	case droverv1.Phase_PHASE_SUCCEEDED:
		f.endAttempt(e, k, a, AttemptSucceeded, seen)
	case droverv1.Phase_PHASE_FAILED:
		if a.State == AttemptStopping {
			f.endAttempt(e, k, a, AttemptStopped, seen)
		} else {
			f.endAttempt(e, k, a, AttemptFailed, seen)
		}
	case droverv1.Phase_PHASE_GONE:
		if a.State == AttemptStopping {
			f.endAttempt(e, k, a, AttemptStopped, seen)
		} else {
			gone := proto.CloneOf(seen)
			gone.Cause, gone.Message = droverv1.Cause_CAUSE_INFRA, cmp.Or(gone.Message, "its node has it no more")
			f.endAttempt(e, k, a, AttemptFailed, gone)
		}
	case droverv1.Phase_PHASE_RUNNING:
		if a.State == AttemptLive && f.confirmLevel(e, k, a, seen) {
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

// applyLostMaps takes the word of a reduce task for map outputs that it could
// not fetch.
func (f *Facts) applyLostMaps(e *droverv1.Entry, k Key, a *Attempt, maps []int32) bool {
	j := f.jobs[k.Job]
	m := j.MapStage()
	if len(maps) == 0 || int(k.Stage) != j.ReduceStage() || m < 0 || a.State != AttemptLive && a.State != AttemptFailed {
		return false
	}
	lost := false
	for _, i := range maps {
		if i < 0 || i >= j.Stages[m].Tasks || f.jobs[k.Job].HasEnded() {
			continue
		}
		t := f.jobs[k.Job].Stages[m].Task(i)
		w := t.Win()
		if t.State != TaskDone || w == nil {
			continue
		}
		mk := Key{k.Job, int32(m), i, w.Attempt}
		if !f.loseOutput(e, mk, w, "reduce task "+fmt.Sprint(k.Task)+" could not fetch it") {
			continue
		}
		lost = true
		f.countRetry(e, mk)
	}
	return lost
}

// countRetry counts an infrastructure failure of a task and fails its job at
// the limit.
func (f *Facts) countRetry(e *droverv1.Entry, k Key) {
	j := f.write(f.jobs[k.Job])
	t := *j.Stages[k.Stage].Task(k.Task)
	t.Infra++
	f.setTask(j, k.Stage, k.Task, &t)
	if t.Infra >= InfraRetries && !j.HasEnded() {
		f.failJob(e, j, k, fmt.Sprintf("the infrastructure failed it %d times", t.Infra), nil)
	}
}

// loseOutput makes a done map task wait again, if its output is still needed.
func (f *Facts) loseOutput(e *droverv1.Entry, k Key, a *Attempt, why string) bool {
	j := f.jobs[k.Job]
	t := j.Stages[k.Stage].Task(k.Task)
	if t.State != TaskDone || t.Winner != k.Attempt || !j.OutputsNeeded(int(k.Stage)) {
		return false
	}
	j = f.write(j)
	c := *a
	c.State, c.LostSeq = AttemptLost, f.next()
	n := t.with(&c)
	s := &j.Stages[k.Stage]
	s.Done--
	if n.State, n.Winner = TaskActive, 0; !anyHolds(n) {
		n.State = TaskPending
		s.Pending++
	}
	s.countLocality(a.Locality, -1)
	f.setTask(j, k.Stage, k.Task, n)
	f.event(e, "task.output_lost", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: f.nodeNameOf(a.Node), Text: why})
	f.record(Change{Kind: ChangeOutput, Key: k, Node: a.Node})
	return true
}

func (f *Facts) nodeNameOf(id int32) string {
	if n := f.Node(id); n != nil {
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

// stopAttempt tells a live attempt to end; it holds what it held until its
// node reports. The job came from write.
func (f *Facts) stopAttempt(j *Job, k Key, a *Attempt) {
	c := *a
	c.State = AttemptStopping
	f.setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).with(&c))
	f.record(Change{Kind: ChangeStopping, Key: k, Node: a.Node})
}

// endAttempt ends an attempt that holds something and draws the conclusions
// for its task and job:
//
//  1. The attempt frees its node and its usage is summed up.
//  2. A success wins, if the task has no winner; the others are told to stop.
//  3. A failure by the user's fault counts towards the attempts, one of the
//     infrastructure towards the node's and the task's limits.
//  4. A task without winner and without live attempt waits again.
//  5. The job fails at a limit, and completes with its last task.
func (f *Facts) endAttempt(e *droverv1.Entry, k Key, a *Attempt, state AttemptState, seen *droverv1.SeenAttempt) {
	j := f.write(f.jobs[k.Job])
	s := &j.Stages[k.Stage]
	c := *a
	c.State, c.Ended, c.Target, c.EndSeq = state, f.at, 0, f.next()
	if seen != nil {
		c.Seen = seen
	}
	f.count(j, a.endTally(state, seen))
	change := Change{Kind: ChangeEnded, Key: k, Node: a.Node}
	if a.Sus.Holder != 0 {
		change.Nodes, change.Run = []int32{a.Sus.Holder}, a.Sus.HolderRun
		c.release()
	}
	f.hold(a.Node, a.Held, -1)
	c.Held = Amounts{}
	s.Live--
	j.Live--
	if a.Level != droverv1.Level_LEVEL_RUNNING {
		s.Suspended--
	}
	s.sum(seen)
	if state == AttemptFailed && !j.HasEnded() && int(j.Kept) < j.Spec.KeepFailed {
		c.Kept = true
		j.Kept++
	}
	over := j.HasEnded()
	t := s.Task(k.Task).with(&c)
	won := state == AttemptSucceeded && t.Winner == 0 && !j.HasEnded()
	if won {
		f.win(j, k, t, &c)
	} else if t.Winner == 0 && !anyHolds(t) && t.State == TaskActive {
		t.State = TaskPending
		s.Pending++
	}
	if state == AttemptFailed && !j.HasEnded() {
		s.FailedAttempts++
	}
	f.setTask(j, k.Stage, k.Task, t)
	f.attemptEvent(e, j, k, &c)
	f.record(change)
	if won {
		f.stopOthers(j, k)
		f.checkComplete(e, j)
	}
	if ran(&c) {
		f.passed(e, &c)
	}
	if state == AttemptFailed && !j.HasEnded() {
		f.countFailure(e, j, k, &c)
	}
	if f.jobs[k.Job].HasEnded() && j.Live == 0 {
		if over { // else endJob saw to it
			f.leaveProject(j)
		}
		f.record(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	}
}

func anyHolds(t *Task) bool {
	for _, a := range t.Attempts {
		if a.State.Holds() {
			return true
		}
	}
	return false
}

// win makes the attempt its task's winner.
func (f *Facts) win(j *Job, k Key, t *Task, a *Attempt) {
	s := &j.Stages[k.Stage]
	t.State, t.Winner = TaskDone, k.Attempt
	s.Done++
	s.countLocality(a.Locality, +1)
	ms := max(0, cmp.Or(a.Seen.GetRunningMs(), (a.Ended-a.Placed)/1e6))
	s.SumTaskMS += ms
	s.MaxTaskMS = max(s.MaxTaskMS, ms)
	if j.Writes(int(k.Stage)) {
		j.OutputBytes = addClamped(j.OutputBytes, a.Seen.GetOutputLength())
	}
	if n := f.Node(a.Node); n != nil && n.Info.GetEmulated() {
		j.Emulated = true
	}
	f.learn(j, k, a)
	j.addCounters(a.Seen.GetCounters())
}

func addClamped(a, b int64) int64 {
	if b < 0 || a > math.MaxInt64-b {
		return a
	}
	return a + b
}

func (j *Job) addCounters(add map[string]int64) {
	if len(add) == 0 {
		return
	}
	sum := make(map[string]int64, len(j.Counters)+len(add))
	for k, v := range j.Counters {
		sum[k] = v
	}
	// Which names are left out at the limit must not depend on map order.
	for _, k := range sortedKeys(add) {
		if _, ok := sum[k]; ok || len(sum) < MaxCounters {
			sum[k] += add[k]
		}
	}
	j.Counters = sum
}

// sum adds a report of an end to the stage's sums.
func (s *Stage) sum(seen *droverv1.SeenAttempt) {
	if seen == nil {
		return
	}
	u := seen.GetUsage()
	s.PeakMemory = max(s.PeakMemory, u.GetMemoryPeak())
	s.PeakDisk = max(s.PeakDisk, seen.GetDiskHeld())
	s.CPUMS = addClamped(s.CPUMS, u.GetCpuMs())
	s.ReadBytes = addClamped(s.ReadBytes, u.GetReadBytes())
	s.WriteBytes = addClamped(s.WriteBytes, u.GetWriteBytes())
	if l := seen.GetLimits(); l != nil {
		s.Limits = l
		s.LimitsChecked++
	}
}

// stopOthers tells the other attempts of a task that was won to stop.
func (f *Facts) stopOthers(j *Job, k Key) {
	for _, o := range j.Stages[k.Stage].Task(k.Task).Attempts {
		if o.State == AttemptLive {
			f.stopAttempt(j, Key{k.Job, k.Stage, k.Task, o.Attempt}, o)
		}
	}
}

// userFault tells whether a failure counts towards the attempts. An input that
// could not be read counts unless the report names the outputs to make again.
func userFault(seen *droverv1.SeenAttempt) bool {
	switch seen.GetCause() {
	case droverv1.Cause_CAUSE_EXIT, droverv1.Cause_CAUSE_MEMORY, droverv1.Cause_CAUSE_TIME, droverv1.Cause_CAUSE_DISK,
		droverv1.Cause_CAUSE_OUTPUT, droverv1.Cause_CAUSE_SPEC:
		return true
	case droverv1.Cause_CAUSE_INPUT:
		return len(seen.GetLostMaps()) == 0
	default:
		return false
	}
}

// UserFault tells whether the attempt failed by the user's fault.
func (a *Attempt) UserFault() bool { return a.State == AttemptFailed && userFault(a.Seen) }

func (f *Facts) countFailure(e *droverv1.Entry, j *Job, k Key, a *Attempt) {
	if !userFault(a.Seen) {
		if a.Cause() != droverv1.Cause_CAUSE_INPUT {
			f.countInfra(e, a, a.Seen.GetMessage())
		}
		f.countRetry(e, k)
		return
	}
	t := *j.Stages[k.Stage].Task(k.Task)
	t.Failures++
	f.setTask(j, k.Stage, k.Task, &t)
	limit := int32(j.Spec.Stages[k.Stage].Attempts)
	if limit <= 0 {
		limit = jobspec.DefaultAttempts
	}
	switch {
	case a.Cause() == droverv1.Cause_CAUSE_SPEC:
		f.failJob(e, j, k, "it cannot be run", a)
	case t.Failures >= limit:
		f.failJob(e, j, k, fmt.Sprintf("%d of %d attempts failed", t.Failures, limit), a)
	}
}

// failJob ends a job because of a task; a is the attempt to look at, or nil.
func (f *Facts) failJob(e *droverv1.Entry, j *Job, k Key, why string, a *Attempt) {
	msg := fmt.Sprintf("task %s/%d: %s", j.Spec.Stages[k.Stage].Name, k.Task, why)
	j.FailedTask = fmt.Sprintf("%s/%d", j.Spec.Stages[k.Stage].Name, k.Task)
	if a != nil {
		j.FailedTask = j.taskName(k, a.Run)
		j.FailureTail = clipTail(a.Seen.GetStderrTail(), 4096)
		if m := a.Seen.GetMessage(); m != "" {
			msg += "; the last: " + m
		}
	}
	f.endJob(e, j, droverv1.JobState_JOB_STATE_FAILED, msg)
}

// clipTail keeps at most the last n bytes of s, from a rune's start.
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

func (f *Facts) attemptEvent(e *droverv1.Entry, j *Job, k Key, a *Attempt) {
	text := a.Seen.GetMessage()
	if a.State == AttemptFailed {
		text = strings.ToLower(strings.TrimPrefix(a.Cause().String(), "CAUSE_")) + ": " + text
	}
	f.event(e, "task."+a.State.String(), &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: f.nodeNameOf(a.Node), Text: text})
}
