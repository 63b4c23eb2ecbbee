package ui

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// source asks the API for one reader. Its answers are shared: nobody changes
// them.
type source struct {
	api    droverv1connect.ClientServiceClient
	past   droverv1connect.HistoryServiceClient
	shared *shared
	reader string
	rights string // readers of the same rights get the same answers, but for what names the caller
	asof   string // version of the page that the data of a picture are for: they are no older; "" for a page
	ctx    context.Context
}

// ask makes a unary call, or returns the shared answer of an equal one. who is
// the reader, or their rights if the answer does not depend on more.
func ask[Req, Res any](s *source, who, name string, req *Req, call func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)) (*Res, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(any(req).(proto.Message))
	if err != nil {
		return nil, err
	}
	v, err := s.shared.get(s.ctx, who+"\x00"+name+"\x00"+string(text), func(ctx context.Context) (any, error) {
		res, err := call(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, classify(err)
		}
		return res.Msg, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*Res), nil
}

// classify gives an error of a call its class. A connection that failed is
// Unavailable.
func classify(err error) error {
	if connect.CodeOf(err) == connect.CodeUnavailable && fault.Class(wire.FromError(err)) == nil {
		return fault.New(fault.Unavailable, "the coordinator does not answer: %w", err)
	}
	return wire.FromError(err)
}

func (s *source) status() (*droverv1.StatusResponse, error) {
	return ask(s, s.reader, "status", &droverv1.StatusRequest{}, s.api.Status)
}

func (s *source) nodes() ([]*droverv1.NodeStatus, error) {
	res, err := ask(s, s.rights, "nodes", &droverv1.ListNodesRequest{}, s.api.ListNodes)
	return res.GetNodes(), err
}

func (s *source) jobs(q *droverv1.ListJobsRequest) (*droverv1.ListJobsResponse, error) {
	return ask(s, s.reader, "jobs", q, s.api.ListJobs)
}

func (s *source) job(name string) (*droverv1.GetJobResponse, error) {
	return ask(s, s.reader, "job"+s.asof, &droverv1.GetJobRequest{Job: name}, s.api.GetJob)
}

func (s *source) tasks(q *droverv1.ListTasksRequest) (*droverv1.ListTasksResponse, error) {
	return ask(s, s.reader, "tasks"+s.asof, q, s.api.ListTasks)
}

func (s *source) schedule(q *droverv1.GetScheduleRequest) (*droverv1.GetScheduleResponse, error) {
	return ask(s, s.rights, "schedule", q, s.api.GetSchedule)
}

func (s *source) tenants() ([]*droverv1.TenantStatus, error) {
	res, err := ask(s, s.reader, "tenants", &droverv1.ListTenantsRequest{}, s.api.ListTenants)
	return res.GetTenants(), err
}

func (s *source) scheduler() (*droverv1.GetSchedulerResponse, error) {
	return ask(s, s.rights, "scheduler", &droverv1.GetSchedulerRequest{}, s.api.GetScheduler)
}

// samples returns samples of a tenant, "" for the cluster, oldest first.
func (s *source) samples(tenant string, sinceMS int64) ([]*droverv1.PastSample, error) {
	res, err := ask(s, s.rights, "samples", &droverv1.ListPastSamplesRequest{Tenant: tenant, SinceMs: sinceMS, Limit: maxPoints}, s.past.ListPastSamples)
	return res.GetSamples(), err
}

func (s *source) pastJobs(q *droverv1.ListPastJobsRequest) (*droverv1.ListPastJobsResponse, error) {
	return ask(s, s.reader, "past jobs", q, s.past.ListPastJobs)
}

func (s *source) usage(q *droverv1.UsageRequest) (*droverv1.UsageResponse, error) {
	return ask(s, s.rights, "usage", q, s.past.Usage)
}

func (s *source) calibration() (*droverv1.CalibrationResponse, error) {
	return ask(s, s.rights, "calibration", &droverv1.CalibrationRequest{}, s.api.Calibration)
}

// events returns the last events, oldest first.
func (s *source) events(q *droverv1.EventsRequest) ([]*droverv1.Event, error) {
	key := fmt.Sprintf("%s\x00events\x00%s\x00%d\x00%d", s.rights, q.GetJob(), q.GetSinceMs(), q.GetLimit())
	v, err := s.shared.get(s.ctx, key, func(ctx context.Context) (any, error) {
		st, err := s.api.Events(ctx, connect.NewRequest(q))
		if err != nil {
			return nil, classify(err)
		}
		var out []*droverv1.Event
		for st.Receive() {
			out = append(out, proto.CloneOf(st.Msg()))
		}
		if err := st.Err(); err != nil {
			return nil, classify(err)
		}
		return out, st.Close()
	})
	if err != nil {
		return nil, err
	}
	return v.([]*droverv1.Event), nil
}
