package coordinator

import (
	"context"
	"errors"
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
	defaultPastSamples  = 1000
	maxPastSamples      = 10_000
	maxNamesakes        = 1000 // past jobs of one name among which one that the caller may read is looked for
)

// historyService serves the past from the history.
type historyService struct{ core *core }

var _ droverv1connect.HistoryServiceHandler = (*historyService)(nil)

// ListPastJobs returns ended jobs that the caller may read.
func (s *historyService) ListPastJobs(ctx context.Context, req *connect.Request[droverv1.ListPastJobsRequest]) (*connect.Response[droverv1.ListPastJobsResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	m := req.Msg
	if err := checkStates(m.GetStates()); err != nil {
		return nil, err
	}
	jobs, next, err := s.core.past.Jobs(past.JobQuery{Tenant: m.GetTenant(), User: userName(m.GetUser()), NamePrefix: m.GetNamePrefix(), States: m.GetStates(),
		SinceMS: m.GetSinceMs(), UntilMS: m.GetUntilMs(), Limit: limitOf(m.GetLimit(), defaultPastJobs, maxPastJobs), Page: m.GetPage(), Visible: s.core.rights.visiblePast(ctx)})
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

// GetPastJob returns an ended job.
func (s *historyService) GetPastJob(ctx context.Context, req *connect.Request[droverv1.GetPastJobRequest]) (*connect.Response[droverv1.GetPastJobResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	j, err := s.core.pastJobs.find(ctx, req.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.GetPastJobResponse{Job: j}), nil
}

// ListPastAttempts returns the ended attempts of a job that may still be live.
func (s *historyService) ListPastAttempts(ctx context.Context, req *connect.Request[droverv1.ListPastAttemptsRequest]) (*connect.Response[droverv1.ListPastAttemptsResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
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

// findAnyJob finds a job that the caller may read, live or ended, and returns its number and the
// names of its stages.
func (c *core) findAnyJob(ctx context.Context, name string) (id uint64, stages []string, err error) {
	c.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = c.rights.findJob(ctx, f, name); err == nil {
			id, stages = j.ID, stageNames(j.Spec)
		}
	})
	if !errors.Is(err, fault.NotFound) {
		return id, stages, err
	}
	j, err := c.pastJobs.find(ctx, name)
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
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	m := req.Msg
	for _, g := range m.GetGroups() {
		if _, known := droverv1.UsageGroup_name[int32(g)]; !known || g == droverv1.UsageGroup_USAGE_GROUP_UNSPECIFIED {
			return nil, fault.New(fault.Invalid, "usage cannot be grouped by %d: tenant, user, job and day are known", g)
		}
	}
	rows, err := s.core.past.Usage(past.UsageQuery{SinceMS: m.GetSinceMs(), UntilMS: m.GetUntilMs(), Tenant: m.GetTenant(), User: userName(m.GetUser()), Name: m.GetName(),
		Groups: m.GetGroups(), Visible: s.core.rights.visibleTenantUser(ctx)})
	if err != nil {
		return nil, err
	}
	n := min(len(rows), limitOf(m.GetLimit(), defaultUsageRows, MaxListed))
	return connect.NewResponse(&droverv1.UsageResponse{Rows: rows[:n], More: int32(len(rows) - n)}), nil
}

// ListPastSamples returns samples over time. As in ListTenants, everybody may see
// the shares of all tenants.
func (s *historyService) ListPastSamples(ctx context.Context, req *connect.Request[droverv1.ListPastSamplesRequest]) (*connect.Response[droverv1.ListPastSamplesResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
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

// addPastJobs adds past jobs that match a list of jobs and are not in the facts. The list has the
// known ones already, which may have been forgotten since.
func (s *clientService) addPastJobs(ctx context.Context, q *droverv1.ListJobsRequest, limit int, known map[uint64]bool, res *droverv1.ListJobsResponse) error {
	pq := past.JobQuery{Tenant: q.GetTenant(), NamePrefix: q.GetNamePrefix(), States: q.GetStates(), Limit: maxPastJobs, Visible: s.core.rights.visiblePast(ctx)}
	if q.GetMine() {
		pq.User = caller(ctx).name
	}
	for counted := 0; counted < MaxListed; {
		jobs, next, err := s.core.past.Jobs(pq)
		if err != nil {
			return err
		}
		s.core.view(func(f *facts.Facts) {
			for _, j := range jobs {
				switch {
				case known[j.GetJob()], f.Job(j.GetJob()) != nil:
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
