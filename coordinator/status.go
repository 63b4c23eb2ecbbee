package coordinator

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// jobView builds the API's messages about live jobs.
type jobView struct {
	sessions *sessions
	waits    *waitList
}

// summary returns a job's row in a list.
func (v *jobView) summary(f *facts.Facts, j *facts.Job) *droverv1.JobSummary {
	s := &droverv1.JobSummary{Job: j.ID, Name: j.Name, Tenant: j.Spec.Tenant, State: j.State, Priority: string(j.Spec.Priority),
		SubmittedMs: j.Submitted / 1e6, StartedMs: j.Started / 1e6, EndedMs: j.Ended / 1e6, Message: j.Message, Submitter: j.Actor}
	s.Project = j.Spec.Project
	if d := j.DeadlineNS(); d > 0 {
		s.DeadlineMs, s.Probability, s.DeadlineState = d/1e6, j.Quote.GetProbability(), deadlineState(j)
	}
	for i := range j.Stages {
		st := &j.Stages[i]
		s.Tasks += st.Tasks
		s.TasksDone += st.Done + fetchedBeforeLoss(j, i)
		s.TasksRunning += st.Live - st.Suspended
	}
	if s.Message == "" && !j.HasEnded() {
		s.Message = v.waits.reasonOfJob(f, j)
	}
	return s
}

// States of the deadline of a live job that can still be met. It is at risk if the job is expected
// to end later.
const (
	deadlineOnTrack = "on track"
	deadlineAtRisk  = "at risk"
)

// deadlineState describes a job's deadline in words.
func deadlineState(j *facts.Job) string {
	switch {
	case j.HasEnded() && j.State == droverv1.JobState_JOB_STATE_SUCCEEDED && j.Ended <= j.DeadlineNS():
		return "met"
	case j.HasEnded() && (j.Ended > j.DeadlineNS() || j.Miss != nil), j.Miss != nil && j.Miss.Passed:
		return "missed"
	case j.HasEnded():
		return "ended before"
	case j.Miss != nil:
		return "infeasible"
	default:
		return deadlineOnTrack
	}
}

func (v *jobView) status(f *facts.Facts, j *facts.Job) *droverv1.GetJobResponse {
	r := &droverv1.GetJobResponse{Job: v.summary(f, j), Spec: j.SpecJSON, Counters: j.Counters, Output: j.Output, OutputBytes: j.OutputBytes, Emulated: j.Emulated,
		FailedTask: j.FailedTask, FailureTail: j.FailureTail, Preempted: j.Preempted.Proto(),
		Logs: j.LogsFolder(), LogsMissing: j.LogsMissing, LogsGathered: j.LogsGathered}
	for _, id := range j.AvoidedNodes() {
		if n := f.Node(id); n != nil {
			r.AvoidedNodes = append(r.AvoidedNodes, n.Info.GetName())
		}
	}
	r.Job.GuaranteedMs, r.Job.GuaranteeViolated = f.Deadlines().LatestDeparture(j)/1e6, f.Deadlines().GuaranteeViolated(j)
	for i := range j.Stages {
		r.Stages = append(r.Stages, v.stageStatus(f, j, i))
	}
	return r
}

func (v *jobView) stageStatus(f *facts.Facts, j *facts.Job, i int) *droverv1.StageSummary {
	s, spec := &j.Stages[i], &j.Spec.Stages[i]
	fetched := fetchedBeforeLoss(j, i)
	out := &droverv1.StageSummary{Name: spec.Name, Kind: string(spec.Kind), Tasks: s.Tasks, Pending: s.Pending - fetched, Running: s.Live - s.Suspended, Suspended: s.Suspended,
		Done: s.Done + fetched, FailedAttempts: s.FailedAttempts, NodeLocal: s.NodeLocal, RackLocal: s.RackLocal, Remote: s.Remote,
		Demand: &droverv1.Resources{Cpu: spec.Resources.CPU, Memory: spec.Resources.Memory, Io: spec.Resources.IO}, PeakMemory: s.PeakMemory, CpuMs: s.CPUMS,
		ReadBytes: s.ReadBytes, WriteBytes: s.WriteBytes, LimitsChecked: s.LimitsChecked, Limits: s.Limits, Disk: spec.Disk, MaxTaskMs: s.MaxTaskMS,
		EstimateMs: s.EstimateNS / 1e6, EstimateSource: s.EstimateSource}
	if s.Done > 0 {
		out.MeanTaskMs = s.SumTaskMS / int64(s.Done)
	}
	part := float64(s.Done + fetched)
	if s.Live > 0 {
		f.EachActive(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) {
			if int(k.Stage) == i && a.State == facts.AttemptLive {
				part += v.sessions.seen(a.Node, k, a.Run).GetProgress()
			}
		})
	}
	if s.Tasks > 0 {
		out.Progress = math.Min(1, part/float64(s.Tasks))
	} else {
		out.Progress = 1
	}
	if w, ok := v.waits.of(scheduler.StageID{Job: scheduler.JobID(j.ID), Stage: int32(i)}); ok && s.Pending > 0 && !j.HasEnded() {
		out.Waiting = v.waits.reason(f, &w)
	}
	return out
}

// addTasks adds the tasks of the requested stage, or of all stages, from the requested task on.
func (v *jobView) addTasks(f *facts.Facts, j *facts.Job, q *droverv1.ListTasksRequest, res *droverv1.ListTasksResponse) error {
	stage, limit := q.GetStage(), int32(maxTasks)
	if n := q.GetLimit(); n > 0 {
		limit = min(limit, n)
	}
	found := stage == ""
	for i := range j.Stages {
		if name := j.Spec.Stages[i].Name; stage != "" && name != stage {
			continue
		}
		found = true
		tasks := j.Stages[i].Tasks
		first := min(max(q.GetFrom()-res.Total, 0), tasks)
		for t := first; t < tasks && int32(len(res.Tasks)) < limit; t++ {
			res.Tasks = append(res.Tasks, v.taskStatus(f, j, int32(i), t))
		}
		res.Total += tasks
	}
	if found {
		return nil
	}
	var names []string
	for i := range j.Spec.Stages {
		names = append(names, j.Spec.Stages[i].Name)
	}
	hint := ""
	if s := jobspec.Suggest(stage, names); s != "" {
		hint = fmt.Sprintf("; did you mean %q?", s)
	}
	return fault.New(fault.NotFound, "job %q has no stage %q; it has %s%s", j.Name, clipText(stage, 128), strings.Join(names, ", "), hint)
}

func (v *jobView) taskStatus(f *facts.Facts, j *facts.Job, stage, task int32) *droverv1.TaskStatus {
	t := j.Stages[stage].Task(task)
	out := &droverv1.TaskStatus{Stage: j.Spec.Stages[stage].Name, Task: task, State: taskState(j, int(stage), t)}
	for _, a := range t.Attempts {
		k := facts.Key{Job: j.ID, Stage: stage, Task: task, Attempt: a.Attempt}
		n := f.Node(a.Node)
		st := &droverv1.TaskAttempt{Key: k.Proto(a.Run), Node: n.Info.GetName(), Locality: a.Locality, PlacedMs: a.Placed / 1e6, Committed: t.Winner == a.Attempt,
			Retained: n.Up}
		st.Seen, st.Level = lastSeen(v.sessions.seen(a.Node, k, a.Run), k, a), levelStatus(f, j, a)
		out.Attempts = append(out.Attempts, st)
	}
	return out
}

// fetchedBeforeLoss returns how many maps of a stage are pending in the facts but count as done:
// their outputs were lost after all reduces had fetched them, and the reduces are done. They do not
// run again. Their attempts remain marked as lost.
func fetchedBeforeLoss(j *facts.Job, stage int) int32 {
	r := j.ReduceStage()
	if r < 0 || stage != j.MapStage() || j.Stages[r].Tasks == 0 || j.Stages[r].Done < j.Stages[r].Tasks {
		return 0
	}
	return j.Stages[stage].Pending
}

// taskState returns the state of a task in words. A task that was pending when its job ended will
// not run, so its state is that of its last attempt.
func taskState(j *facts.Job, stage int, t *facts.Task) string {
	if t.State == facts.TaskPending && fetchedBeforeLoss(j, stage) > 0 {
		return facts.TaskDone.String()
	}
	if !j.HasEnded() || t.State != facts.TaskPending {
		return t.State.String()
	}
	if n := len(t.Attempts); n > 0 {
		return t.Attempts[n-1].State.String()
	}
	return "not run"
}

// lastSeen returns a node's last report of an attempt; if the attempt has ended, the report in the
// facts.
func lastSeen(live *droverv1.SeenAttempt, k facts.Key, a *facts.Attempt) *droverv1.SeenAttempt {
	if a.State.IsActive() && live != nil {
		return live
	}
	seen := a.Seen()
	if seen == nil {
		seen = &droverv1.SeenAttempt{Key: k.Proto(a.Run), Phase: droverv1.Phase_PHASE_PREPARING}
	}
	seen = proto.CloneOf(seen)
	seen.StderrTail = clipText(seen.StderrTail, maxTail)
	switch a.State {
	case facts.AttemptSucceeded:
		seen.Phase = droverv1.Phase_PHASE_SUCCEEDED
	case facts.AttemptFailed, facts.AttemptStopped:
		seen.Phase = droverv1.Phase_PHASE_FAILED
	case facts.AttemptLost:
		seen.Phase, seen.Cause = droverv1.Phase_PHASE_GONE, droverv1.Cause_CAUSE_INFRA
		if seen.Message == "" {
			seen.Message = "its node or its output was lost"
		}
	}
	if a.Ended > 0 && seen.EndedMs == 0 {
		seen.EndedMs = a.Ended / 1e6
	}
	return seen
}

func tenantStatus(f *facts.Facts) []*droverv1.TenantStatus {
	out := make([]*droverv1.TenantStatus, len(f.Tenants()))
	used := make([]facts.Amounts, len(out))
	for i, t := range f.Tenants() {
		out[i] = &droverv1.TenantStatus{Tenant: t.Spec, Preempted: t.Preempted.Proto()}
	}
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		t := f.Tenant(j.Spec.Tenant)
		if t == nil || (j.HasEnded() && j.Live == 0) {
			continue
		}
		if !j.HasEnded() {
			out[t.ID].Jobs++
			addTaskCounts(out[t.ID], j)
		}
		f.EachActive(j, func(_ facts.Key, _ *facts.Task, a *facts.Attempt) {
			u := &used[t.ID]
			u.CPU, u.Memory, u.IO = u.CPU+a.Occupied.CPU, u.Memory+a.Occupied.Memory, u.IO+a.Occupied.IO
		})
	}
	var total scheduler.Resources
	for _, n := range f.Nodes() {
		if n.Up {
			total = total.Add(resources(facts.AmountsOf(n.Info.GetAllocatable())))
		}
	}
	for i := range out {
		out[i].Used = used[i].Proto()
		if share := resources(used[i]).DominantShare(total); !math.IsInf(share, 0) {
			out[i].DominantShare = share
		}
	}
	out = slices.DeleteFunc(out, func(t *droverv1.TenantStatus) bool { return f.Tenant(t.GetTenant().GetName()) == nil })
	fairShares(out)
	return out
}

// addTaskCounts adds the tasks of a live job to its tenant's.
func addTaskCounts(t *droverv1.TenantStatus, j *facts.Job) {
	for i := range j.Stages {
		st := &j.Stages[i]
		t.TasksPending += st.Pending
		t.TasksRunning += st.Live - st.Suspended
		t.TasksSuspended += st.Suspended
	}
}

// suspendedByNode returns what suspended attempts occupy, by node and level.
// O(attempts of jobs with suspended ones).
func suspendedByNode(f *facts.Facts) map[int32][]*droverv1.LevelUse {
	out := map[int32][]*droverv1.LevelUse{}
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		some := false
		for i := range j.Stages {
			some = some || j.Stages[i].Suspended > 0
		}
		if !some {
			continue
		}
		f.EachActive(j, func(_ facts.Key, _ *facts.Task, a *facts.Attempt) {
			if a.Level <= droverv1.Level_LEVEL_RUNNING {
				return
			}
			list := out[a.Node]
			at := slices.IndexFunc(list, func(u *droverv1.LevelUse) bool { return u.GetLevel() == a.Level })
			if at < 0 {
				at, list = len(list), append(list, &droverv1.LevelUse{Level: a.Level})
				out[a.Node] = list
			}
			list[at].Attempts++
			list[at].Memory += a.Occupied.Memory
			list[at].Swap += a.Seen().GetSwapOccupied()
			list[at].Image += a.Seen().GetImageOccupied()
		})
	}
	return out
}
