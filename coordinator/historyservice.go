package coordinator

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// Limits of answers about the past.
const (
	defaultPastJobs     = 100
	maxPastJobs         = 1000
	defaultPastAttempts = 1000
	maxPastAttempts     = maxTasks
	defaultUsageRows    = 1000
	maxUsageRows        = 10_000
	defaultPastSamples  = 1000
	maxPastSamples      = 10_000
	maxNamesakes        = 1000 // past jobs of one name among which one that the caller may read is looked for
)

// historyService serves the past from the history.
type historyService struct{ core *core }

var _ droverv1connect.HistoryServiceHandler = (*historyService)(nil)

// ListPastJobs returns ended jobs that the caller may read.
func (s *historyService) ListPastJobs(ctx context.Context, req *connect.Request[droverv1.ListPastJobsRequest]) (*connect.Response[droverv1.ListPastJobsResponse], error) {
	if err := s.core.needUser(ctx); err != nil {
		return nil, err
	}
	m := req.Msg
	jobs, next, err := s.core.past.Jobs(past.JobQuery{Tenant: m.GetTenant(), User: userName(m.GetUser()), NamePrefix: m.GetNamePrefix(), States: m.GetStates(),
		SinceMS: m.GetSinceMs(), UntilMS: m.GetUntilMs(), Limit: limitOf(m.GetLimit(), defaultPastJobs, maxPastJobs), Page: m.GetPage(), Visible: s.core.visiblePast(ctx)})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.ListPastJobsResponse{Jobs: jobs, NextPage: next}), nil
}

func limitOf(n int32, otherwise, most int) int {
	if n <= 0 {
		return otherwise
	}
	return min(int(n), most)
}

// userName returns the name of a user as certificates have it: without a kind in
// front, a user's.
func userName(name string) string {
	if name == "" || name == "local" || strings.Contains(name, "/") {
		return name
	}
	return "user/" + name
}

// visiblePast returns which jobs of the past the caller may read: those of tenants
// that it may read now, and those that it submitted.
func (c *core) visiblePast(ctx context.Context) func(*droverv1.JobSummary) bool {
	may := c.visibleTenantUser(ctx)
	return func(j *droverv1.JobSummary) bool { return may(j.GetTenant(), j.GetSubmitter()) }
}

func (c *core) visibleTenantUser(ctx context.Context) func(tenant, user string) bool {
	id := caller(ctx)
	if c.operator(id) {
		return func(string, string) bool { return true }
	}
	readable := map[string]bool{}
	c.view(func(f *facts.Facts) {
		for _, t := range f.Tenants() {
			readable[t.Spec.GetName()] = c.allowed(id, mayRead, t.Spec)
		}
	})
	return func(tenant, user string) bool {
		return readable[tenant] || id.kind == kindUser && id.name == user && id.scope.coversOwn(mayRead, tenant)
	}
}

// GetPastJob returns an ended job.
func (s *historyService) GetPastJob(ctx context.Context, req *connect.Request[droverv1.GetPastJobRequest]) (*connect.Response[droverv1.GetPastJobResponse], error) {
	if err := s.core.needUser(ctx); err != nil {
		return nil, err
	}
	j, err := s.core.findPast(ctx, req.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.GetPastJobResponse{Job: j}), nil
}

// findPast finds an ended job that the caller may read by NAME, TENANT/NAME or
// number, among those of a name the last that ended. One that the caller may not
// read is as one that does not exist.
func (c *core) findPast(ctx context.Context, name string) (*droverv1.PastJob, error) {
	if name == "" {
		return nil, fault.New(fault.Invalid, "which job? give its name or number")
	}
	visible := c.visiblePast(ctx)
	tenant, short, qualified := strings.Cut(name, "/")
	if !qualified {
		tenant, short = "", name
	}
	var ids []uint64
	if id, err := strconv.ParseUint(name, 10, 64); err == nil {
		ids = append(ids, id)
	}
	for _, id := range append(ids, c.past.Named(short, maxNamesakes)...) {
		j, err := c.past.Job(id)
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

// ListPastAttempts returns the ended attempts of a job that may still be live.
func (s *historyService) ListPastAttempts(ctx context.Context, req *connect.Request[droverv1.ListPastAttemptsRequest]) (*connect.Response[droverv1.ListPastAttemptsResponse], error) {
	if err := s.core.needUser(ctx); err != nil {
		return nil, err
	}
	id, stages, err := s.core.findAnyJob(ctx, req.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	stage := int32(-1)
	if name := req.Msg.GetStage(); name != "" {
		if stage = stageIndex(stages, name); stage < 0 {
			return nil, fault.New(fault.NotFound, "job %d has no stage %q; it has %s", id, clipText(name, 128), strings.Join(stages, ", "))
		}
	}
	list, next, err := s.core.past.Attempts(id, stage, limitOf(req.Msg.GetLimit(), defaultPastAttempts, maxPastAttempts), req.Msg.GetPage())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.ListPastAttemptsResponse{Attempts: list, NextPage: next, Job: id}), nil
}

func stageIndex(stages []string, name string) int32 {
	for i, s := range stages {
		if s == name {
			return int32(i)
		}
	}
	return -1
}

// findAnyJob finds a job that the caller may read, live or ended, and returns its
// number and the names of its stages.
func (c *core) findAnyJob(ctx context.Context, name string) (id uint64, stages []string, err error) {
	c.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = c.findJob(ctx, f, name); err == nil {
			id, stages = j.ID, stageNames(j.Spec)
		}
	})
	if !errors.Is(err, fault.NotFound) {
		return id, stages, err
	}
	j, err := c.findPast(ctx, name)
	if err != nil {
		return 0, nil, err
	}
	for _, s := range j.GetStages() {
		stages = append(stages, s.GetName())
	}
	return j.GetSummary().GetJob(), stages, nil
}

func stageNames(spec *jobspec.Job) (out []string) {
	for i := range spec.Stages {
		out = append(out, spec.Stages[i].Name)
	}
	return out
}

// Usage sums up what ended attempts had and used.
func (s *historyService) Usage(ctx context.Context, req *connect.Request[droverv1.UsageRequest]) (*connect.Response[droverv1.UsageResponse], error) {
	if err := s.core.needUser(ctx); err != nil {
		return nil, err
	}
	m := req.Msg
	for _, g := range m.GetGroups() {
		if _, known := droverv1.UsageGroup_name[int32(g)]; !known || g == droverv1.UsageGroup_USAGE_GROUP_UNSPECIFIED {
			return nil, fault.New(fault.Invalid, "usage cannot be grouped by %d: tenant, user, job and day are known", g)
		}
	}
	rows, err := s.core.past.Usage(past.UsageQuery{SinceMS: m.GetSinceMs(), UntilMS: m.GetUntilMs(), Tenant: m.GetTenant(), User: userName(m.GetUser()), Name: m.GetName(),
		Groups: m.GetGroups(), Visible: s.core.visibleTenantUser(ctx)})
	if err != nil {
		return nil, err
	}
	n := min(len(rows), limitOf(m.GetLimit(), defaultUsageRows, maxUsageRows))
	return connect.NewResponse(&droverv1.UsageResponse{Rows: rows[:n], More: int32(len(rows) - n)}), nil
}

// ListPastSamples returns samples over time. As in ListTenants, everybody may see
// the shares of all tenants.
func (s *historyService) ListPastSamples(ctx context.Context, req *connect.Request[droverv1.ListPastSamplesRequest]) (*connect.Response[droverv1.ListPastSamplesResponse], error) {
	if err := s.core.needUser(ctx); err != nil {
		return nil, err
	}
	m := req.Msg
	until := m.GetUntilMs()
	if until == 0 {
		until = s.core.now().UnixMilli()
	}
	list, err := s.core.past.Samples(m.GetTenant(), m.GetSinceMs(), until, limitOf(m.GetLimit(), defaultPastSamples, maxPastSamples))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.ListPastSamplesResponse{Samples: list}), nil
}

// pastStatus returns a past job as GetJob does a present one. Whoever may submit in
// its tenant today may run it again.
func (c *core) pastStatus(ctx context.Context, j *droverv1.PastJob) *droverv1.GetJobResponse {
	may := false
	c.view(func(f *facts.Facts) {
		t := f.Tenant(j.GetSummary().GetTenant())
		may = t != nil && c.need(ctx, maySubmit, t.Spec) == nil
	})
	r := &droverv1.GetJobResponse{MaySubmit: may, Job: j.GetSummary(), Stages: j.GetStages(), Spec: j.GetSpec(), Counters: j.GetCounters(), Output: j.GetOutput(),
		OutputBytes: j.GetOutputBytes(), Emulated: j.GetEmulated(), Preempted: j.GetPreempted(), FailedTask: j.GetFailedTask(), FailureTail: j.GetFailureTail()}
	if spec, err := jobspec.DecodeStored([]byte(j.GetSpec())); err == nil { // of an earlier version it may not be readable
		r.Logs = facts.LogsFolder(spec, j.GetSummary().GetName(), j.GetSummary().GetJob())
		r.LogsGathered = r.Logs != "" // a job is not forgotten before
	}
	return r
}

// addPastJobs adds past jobs that match a list of jobs and are not in the facts.
func (s *clientService) addPastJobs(ctx context.Context, q *droverv1.ListJobsRequest, limit int, res *droverv1.ListJobsResponse) error {
	pq := past.JobQuery{Tenant: q.GetTenant(), NamePrefix: q.GetNamePrefix(), States: q.GetStates(), Limit: maxPastJobs, Visible: s.visiblePast(ctx)}
	if q.GetMine() {
		pq.User = caller(ctx).name
	}
	for counted := 0; counted < maxListed; {
		jobs, next, err := s.past.Jobs(pq)
		if err != nil {
			return err
		}
		s.view(func(f *facts.Facts) {
			for _, j := range jobs {
				switch {
				case f.Job(j.GetJob()) != nil:
				case len(res.Jobs) < limit:
					res.Jobs = append(res.Jobs, j)
				default:
					res.More++
				}
			}
		})
		if counted += len(jobs); next == "" {
			return nil
		}
		pq.Page = next
	}
	return nil
}

// pastTasks returns the tasks of a past job that a request asks for, with their
// attempts. A task without one did not begin before the job ended. O(attempts of
// the tasks returned).
func (c *core) pastTasks(j *droverv1.PastJob, q *droverv1.ListTasksRequest) (*droverv1.ListTasksResponse, error) {
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
		list, err := c.pastTasksOf(j.GetSummary().GetJob(), int32(i), s.GetName(), first, end)
		if err != nil {
			return nil, err
		}
		res.Tasks = append(res.Tasks, list...)
		res.Total += s.GetTasks()
	}
	return res, nil
}

// pastTasksOf returns the tasks of a stage from first to before end.
func (c *core) pastTasksOf(job uint64, stage int32, name string, first, end int32) ([]*droverv1.TaskStatus, error) {
	out := make([]*droverv1.TaskStatus, end-first)
	for i := range out {
		out[i] = &droverv1.TaskStatus{Stage: name, Task: first + int32(i), State: "not started"}
	}
	up := map[string]bool{}
	c.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			up[n.Info.GetName()] = n.Up
		}
	})
	for page := past.PageAt(job, stage, first); page != "" && len(out) > 0; {
		list, next, err := c.past.Attempts(job, stage, min(maxPastAttempts, 2*len(out)), page)
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
