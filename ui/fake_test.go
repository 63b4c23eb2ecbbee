package ui

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// scripted is an API that returns what a test sets. Calls that it does not
// expect fail: the embedded interface is nil.
type scripted struct {
	droverv1connect.ClientServiceClient
	droverv1connect.HistoryServiceClient
	t *testing.T

	mu    sync.Mutex
	calls map[string]int
	down  bool // the coordinator does not answer
	nodes []*droverv1.NodeStatus
	job   *droverv1.GetJobResponse
	tasks []*droverv1.TaskStatus
	plan  *droverv1.GetScheduleResponse

	lately    []*droverv1.PastSample
	levels    map[int32]error // answers of SetLevel by task; nil for others
	live      int32           // jobs
	moreJobs  int32           // that ListJobs leaves out
	askedJobs []*droverv1.ListJobsRequest
	askedPast []*droverv1.ListPastJobsRequest
}

// count counts a call, and returns the error of a coordinator that is gone.
func (s *scripted) count(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[name]++
	if s.down {
		return wire.Error(fault.New(fault.Unavailable, "nobody leads"))
	}
	return nil
}

func (s *scripted) counted(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[name]
}

func reply[T any](s *scripted, name string, v *T) (*connect.Response[T], error) {
	if err := s.count(name); err != nil {
		return nil, err
	}
	return connect.NewResponse(v), nil
}

func (s *scripted) Status(context.Context, *connect.Request[droverv1.StatusRequest]) (*connect.Response[droverv1.StatusResponse], error) {
	return reply(s, "Status", &droverv1.StatusResponse{Version: "v", Cluster: "c", Caller: "user/alice", JobsRunning: s.live, Nodes: int32(len(s.nodes)), NodesUp: int32(len(s.nodes))})
}

func (s *scripted) ListNodes(context.Context, *connect.Request[droverv1.ListNodesRequest]) (*connect.Response[droverv1.ListNodesResponse], error) {
	return reply(s, "ListNodes", &droverv1.ListNodesResponse{Nodes: s.nodes})
}

func (s *scripted) ListTenants(context.Context, *connect.Request[droverv1.ListTenantsRequest]) (*connect.Response[droverv1.ListTenantsResponse], error) {
	return reply(s, "ListTenants", &droverv1.ListTenantsResponse{Tenants: []*droverv1.TenantStatus{{Tenant: &droverv1.Tenant{Name: "default"}}}})
}

func (s *scripted) ListJobs(_ context.Context, r *connect.Request[droverv1.ListJobsRequest]) (*connect.Response[droverv1.ListJobsResponse], error) {
	s.mu.Lock()
	s.askedJobs = append(s.askedJobs, r.Msg)
	s.mu.Unlock()
	return reply(s, "ListJobs", &droverv1.ListJobsResponse{Jobs: []*droverv1.JobSummary{s.job.GetJob()}, More: s.moreJobs})
}

func (s *scripted) GetJob(context.Context, *connect.Request[droverv1.GetJobRequest]) (*connect.Response[droverv1.GetJobResponse], error) {
	return reply(s, "GetJob", s.job)
}

func (s *scripted) ListTasks(_ context.Context, r *connect.Request[droverv1.ListTasksRequest]) (*connect.Response[droverv1.ListTasksResponse], error) {
	from := min(int(r.Msg.GetFrom()), len(s.tasks))
	to := len(s.tasks)
	if n := int(r.Msg.GetLimit()); n > 0 {
		to = min(to, from+n)
	}
	return reply(s, "ListTasks", &droverv1.ListTasksResponse{Tasks: s.tasks[from:to], Total: int32(len(s.tasks))})
}

func (s *scripted) StopJob(context.Context, *connect.Request[droverv1.StopJobRequest]) (*connect.Response[droverv1.StopJobResponse], error) {
	return reply(s, "StopJob", &droverv1.StopJobResponse{})
}

func (s *scripted) SetLevel(_ context.Context, r *connect.Request[droverv1.SetLevelRequest]) (*connect.Response[droverv1.SetLevelResponse], error) {
	if err := s.levels[r.Msg.GetTask()]; err != nil {
		return nil, errors.Join(s.count("SetLevel"), err)
	}
	return reply(s, "SetLevel", &droverv1.SetLevelResponse{})
}

func (s *scripted) SubmitJob(context.Context, *connect.Request[droverv1.SubmitJobRequest]) (*connect.Response[droverv1.SubmitJobResponse], error) {
	return reply(s, "SubmitJob", &droverv1.SubmitJobResponse{Job: 8})
}

func (s *scripted) GetSchedule(context.Context, *connect.Request[droverv1.GetScheduleRequest]) (*connect.Response[droverv1.GetScheduleResponse], error) {
	return reply(s, "GetSchedule", s.plan)
}

func (s *scripted) ListPastSamples(_ context.Context, r *connect.Request[droverv1.ListPastSamplesRequest]) (*connect.Response[droverv1.ListPastSamplesResponse], error) {
	if r.Msg.GetTenant() == "" && r.Msg.GetSinceMs() > time.Now().Add(-10*time.Minute).UnixMilli() {
		return reply(s, "ListPastSamples", &droverv1.ListPastSamplesResponse{Samples: s.lately})
	}
	if r.Msg.GetTenant() == "" {
		return reply(s, "ListPastSamples", &droverv1.ListPastSamplesResponse{Samples: []*droverv1.PastSample{{AtMs: 1, TasksRunning: 4}, {AtMs: 60_001, CycleMs: 2}}})
	}
	return reply(s, "ListPastSamples", &droverv1.ListPastSamplesResponse{Samples: []*droverv1.PastSample{{AtMs: 1, Share: 0.5, FairShare: 0.25}}})
}

func (s *scripted) ListPastJobs(_ context.Context, r *connect.Request[droverv1.ListPastJobsRequest]) (*connect.Response[droverv1.ListPastJobsResponse], error) {
	s.mu.Lock()
	s.askedPast = append(s.askedPast, r.Msg)
	s.mu.Unlock()
	if r.Msg.GetPage() != "" {
		return reply(s, "ListPastJobs", &droverv1.ListPastJobsResponse{})
	}
	j := &droverv1.JobSummary{Job: 3, Name: r.Msg.GetNamePrefix() + " of " + fmt.Sprint(r.Msg.GetStates()) + r.Msg.GetUser(), EndedMs: 5}
	if r.Msg.GetUntilMs() > 0 {
		j.Message = fmt.Sprint("from ", r.Msg.GetSinceMs(), " until ", r.Msg.GetUntilMs())
	}
	return reply(s, "ListPastJobs", &droverv1.ListPastJobsResponse{Jobs: []*droverv1.JobSummary{j}, NextPage: "ab"})
}

func (s *scripted) Usage(context.Context, *connect.Request[droverv1.UsageRequest]) (*connect.Response[droverv1.UsageResponse], error) {
	return reply(s, "Usage", &droverv1.UsageResponse{Rows: []*droverv1.UsageRow{{Tenant: "default", CpuHours: 12.5}}})
}

func (s *scripted) GetScheduler(context.Context, *connect.Request[droverv1.GetSchedulerRequest]) (*connect.Response[droverv1.GetSchedulerResponse], error) {
	return reply(s, "GetScheduler", &droverv1.GetSchedulerResponse{Name: hostile, Params: map[string]string{hostile: hostile}, Pending: []*droverv1.PendingSum{{Reason: hostile, Tasks: 1}}})
}

func (s *scripted) Calibration(context.Context, *connect.Request[droverv1.CalibrationRequest]) (*connect.Response[droverv1.CalibrationResponse], error) {
	return reply(s, "Calibration", &droverv1.CalibrationResponse{Jobs: 1, Bins: []*droverv1.CalibrationBin{{From: 0.9, To: 1, Jobs: 1, Quoted: 0.95, OnTime: 1, Low: 0.2, High: 1}}})
}
