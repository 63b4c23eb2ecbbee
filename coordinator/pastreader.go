package coordinator

import (
	"context"
	"errors"
	"strconv"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// pastReader reads ended jobs from the history, in the form that the API has for live jobs.
type pastReader struct {
	store  *past.Store
	view   func(func(*facts.Facts))
	rights *authorizer
}

// find finds an ended job that the caller may read, by NAME, TENANT/NAME or number. Of several jobs
// of a name it returns the one that ended last. A job that the caller may not read is reported as
// not found.
func (p *pastReader) find(ctx context.Context, name string) (*droverv1.PastJob, error) {
	if name == "" {
		return nil, fault.New(fault.Invalid, "which job? give its name or number")
	}
	visible := p.rights.visiblePast(ctx)
	tenant, short, qualified := strings.Cut(name, "/")
	if !qualified {
		tenant, short = "", name
	}
	var ids []uint64
	if id, err := strconv.ParseUint(name, 10, 64); err == nil {
		ids = append(ids, id)
	}
	for _, id := range append(ids, p.store.Named(short, maxNamesakes)...) {
		j, err := p.store.Job(id)
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if (!qualified || j.GetSummary().GetTenant() == tenant) && visible(j.GetSummary()) {
			return j, nil
		}
	}
	return nil, fault.New(fault.NotFound, "there is no job %q that you may read; `drover job history` lists ended ones", clipText(name, 128))
}

// status returns a past job as GetJob returns a live one. A caller who may submit in its tenant
// today may run it again.
func (p *pastReader) status(ctx context.Context, j *droverv1.PastJob) *droverv1.GetJobResponse {
	may := false
	p.view(func(f *facts.Facts) {
		t := f.Tenant(j.GetSummary().GetTenant())
		may = t != nil && p.rights.need(ctx, maySubmit, t.Spec) == nil
	})
	r := &droverv1.GetJobResponse{MaySubmit: may, Job: j.GetSummary(), Stages: j.GetStages(), Spec: j.GetSpec(), Counters: j.GetCounters(), Output: j.GetOutput(),
		OutputBytes: j.GetOutputBytes(), Emulated: j.GetEmulated(), Preempted: j.GetPreempted(), FailedTask: j.GetFailedTask(), FailureTail: j.GetFailureTail()}
	if spec, err := jobspec.DecodeStored([]byte(j.GetSpec())); err == nil { // of an earlier version it may not be readable
		r.Logs = facts.LogsFolder(spec, j.GetSummary().GetName(), j.GetSummary().GetJob())
		r.LogsGathered = r.Logs != "" // a job is not forgotten before
	}
	return r
}

// tasks returns the tasks of a past job that a request asks for, with their attempts. A task
// without attempts had not started when the job ended. O(attempts of the tasks returned).
func (p *pastReader) tasks(j *droverv1.PastJob, q *droverv1.ListTasksRequest) (*droverv1.ListTasksResponse, error) {
	var stages []string
	for _, s := range j.GetStages() {
		stages = append(stages, s.GetName())
	}
	if name := q.GetStage(); name != "" && stageIndex(stages, name) < 0 {
		return nil, fault.New(fault.NotFound, "job %q has no stage %q; it has %s", j.GetSummary().GetName(), clipText(name, 128), strings.Join(stages, ", "))
	}
	limit := int32(maxTasks)
	if n := q.GetLimit(); n > 0 {
		limit = min(limit, n)
	}
	res := &droverv1.ListTasksResponse{}
	for i, s := range j.GetStages() {
		if q.GetStage() != "" && s.GetName() != q.GetStage() {
			continue
		}
		first := min(max(q.GetFrom()-res.Total, 0), s.GetTasks())
		end := min(first+max(limit-int32(len(res.Tasks)), 0), s.GetTasks())
		list, err := p.tasksOf(j.GetSummary().GetJob(), int32(i), s.GetName(), first, end)
		if err != nil {
			return nil, err
		}
		if s.GetDone() == s.GetTasks() { // includes maps whose output was lost after all reduces had fetched it
			for _, t := range list {
				t.State = facts.TaskDone.String()
			}
		}
		res.Tasks = append(res.Tasks, list...)
		res.Total += s.GetTasks()
	}
	return res, nil
}

// tasksOf returns the tasks of a stage from first to before end.
func (p *pastReader) tasksOf(job uint64, stage int32, name string, first, end int32) ([]*droverv1.TaskStatus, error) {
	out := make([]*droverv1.TaskStatus, end-first)
	for i := range out {
		out[i] = &droverv1.TaskStatus{Stage: name, Task: first + int32(i), State: "not started"}
	}
	up := map[string]bool{}
	p.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			up[n.Info.GetName()] = n.Up
		}
	})
	for page := past.PageAt(job, stage, first); page != "" && len(out) > 0; {
		list, next, err := p.store.Attempts(job, stage, min(maxPastAttempts, 2*len(out)), page)
		if err != nil {
			return nil, err
		}
		for _, a := range list {
			if a.GetKey().GetTask() >= end {
				return out, nil
			}
			t := out[a.GetKey().GetTask()-first]
			t.Attempts = append(t.Attempts, pastTaskAttempt(a, up[a.GetNode()]))
			if t.State != facts.TaskDone.String() {
				t.State = a.GetState()
			}
			if a.GetWinner() {
				t.State = facts.TaskDone.String()
			}
		}
		page = next
	}
	return out, nil
}

func pastTaskAttempt(a *droverv1.PastAttempt, retained bool) *droverv1.TaskAttempt {
	seen := &droverv1.SeenAttempt{Key: a.GetKey(), Phase: droverv1.Phase_PHASE_FAILED, Level: droverv1.Level_LEVEL_RUNNING, Cause: a.GetCause(), ExitCode: a.GetExitCode(),
		Message: a.GetMessage(), StderrTail: a.GetStderrTail(), Usage: a.GetUsage(), Limits: a.GetLimits(), StartedMs: a.GetStartedMs(), EndedMs: a.GetEndedMs(),
		StartPauseMs: a.GetStartPauseMs(), FetchingMs: a.GetFetchingMs(), CommittingMs: a.GetCommittingMs(),
		RunningMs: a.GetRunningMs(), OutputLength: a.GetOutputBytes(), InputBytes: a.GetInputBytes(), DiskOccupied: a.GetDisk()}
	switch a.GetState() {
	case facts.AttemptSucceeded.String():
		seen.Phase, seen.Progress = droverv1.Phase_PHASE_SUCCEEDED, 1
	case facts.AttemptLost.String():
		seen.Phase, seen.Cause = droverv1.Phase_PHASE_GONE, droverv1.Cause_CAUSE_INFRA
	}
	return &droverv1.TaskAttempt{Key: a.GetKey(), Node: a.GetNode(), Seen: seen, Locality: a.GetLocality(), PlacedMs: a.GetPlacedMs(), Committed: a.GetWinner(), Retained: retained,
		Level: &droverv1.LevelStatus{Level: droverv1.Level_LEVEL_RUNNING, Suspends: a.GetSuspends(), SuspendedMs: a.GetSuspendedMs()}}
}
