package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
)

// fakeCoordinator answers as a coordinator would in states that are hard to bring about.
type fakeCoordinator struct {
	droverv1connect.UnimplementedClientServiceHandler
	droverv1connect.UnimplementedHistoryServiceHandler
	droverv1connect.UnimplementedOperatorServiceHandler
	noOperator string // who asks, if he is no operator
	several    bool   // it is given to the command as two coordinators, so that lost calls are repeated

	mu          sync.Mutex
	requests    []*droverv1.SetLevelRequest
	attempts    []*droverv1.TaskAttempt // of task s/0, one after another; the last one stays
	asked       func(n int)             // is called when its tasks are listed for the n-th time
	listed      int
	events      []*droverv1.Event
	eventsAsked *droverv1.EventsRequest
	tenants     []*droverv1.Tenant     // applied
	nodes       []*droverv1.NodeStatus // it lists none if nil

	watched   []*droverv1.GetJobResponse  // what is seen of a job, in order
	watchErr  error                       // how the stream ends after that
	watchHook func(context.Context) error // instead of watchErr
	kill      func() error                // cuts off all its connections
	restart   func() error                // serves again after that
	watches   []string                    // the jobs that were asked for
	list      *droverv1.ListJobsResponse
	pages     []*droverv1.ListPastJobsResponse
	past      []*droverv1.ListPastJobsRequest
	usage     *droverv1.UsageRequest
	usageSums *droverv1.UsageResponse // none if nil
	unknown   *droverv1.ListUnknownRunsResponse
	decided   []*droverv1.DecideUnknownRunRequest
	planned   []*droverv1.PlanJobRequest
	present   *droverv1.GetJobResponse
	stops     []*droverv1.StopJobRequest
	tasks     int32 // of stage s of its job 7, if it has no attempts; three are returned at once
	noLogs    int32 // so many of them, the first ones, have no logs on their nodes
	listings  []*droverv1.ListTasksRequest
	logsHook  func(context.Context) error // how the log of a task ends
	execHook  func()                      // is called when a command runs in a task

	eventsHook  func(context.Context) error // how the stream of events ends
	serversHook func(context.Context) (*droverv1.ListServersResponse, error)
	printed     io.Writer      // gets what the command prints, too
	said        io.Writer      // and what it prints on standard error
	commands    []*cli.Command // more commands
}

// GetJob implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) GetJob(ctx context.Context, r *connect.Request[droverv1.GetJobRequest]) (*connect.Response[droverv1.GetJobResponse], error) {
	if f.present == nil {
		return f.UnimplementedClientServiceHandler.GetJob(ctx, r)
	}
	return connect.NewResponse(f.present), nil
}

// ListNodes implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) ListNodes(ctx context.Context, r *connect.Request[droverv1.ListNodesRequest]) (*connect.Response[droverv1.ListNodesResponse], error) {
	if f.nodes == nil {
		return f.UnimplementedClientServiceHandler.ListNodes(ctx, r)
	}
	return connect.NewResponse(&droverv1.ListNodesResponse{Nodes: f.nodes}), nil
}

// StopJob implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) StopJob(_ context.Context, r *connect.Request[droverv1.StopJobRequest]) (*connect.Response[droverv1.StopJobResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stops = append(f.stops, r.Msg)
	return connect.NewResponse(&droverv1.StopJobResponse{}), nil
}

// Logs implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) Logs(ctx context.Context, r *connect.Request[droverv1.LogsRequest], st *connect.ServerStream[droverv1.LogsResponse]) error {
	if r.Msg.Key.Task < f.noLogs {
		return connect.NewError(connect.CodeNotFound, errors.New("attempt 7.0.0.1.1 is not on node n1"))
	}
	if err := st.Send(&droverv1.LogsResponse{Data: fmt.Appendf(nil, "of task %d\n", r.Msg.Key.Task)}); err != nil || f.logsHook == nil {
		return err
	}
	return f.logsHook(ctx)
}

// Exec implements droverv1connect.ClientServiceHandler: a command that says that it runs, until its caller is gone.
func (f *fakeCoordinator) Exec(ctx context.Context, st *connect.BidiStream[droverv1.ExecRequest, droverv1.ExecResponse]) error {
	if f.execHook == nil {
		return f.UnimplementedClientServiceHandler.Exec(ctx, st)
	}
	if err := st.Send(&droverv1.ExecResponse{Stdout: []byte("it runs\n")}); err != nil {
		return err
	}
	f.execHook()
	<-ctx.Done()
	return ctx.Err()
}

// PlanJob implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) PlanJob(_ context.Context, r *connect.Request[droverv1.PlanJobRequest]) (*connect.Response[droverv1.PlanJobResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.planned = append(f.planned, r.Msg)
	return connect.NewResponse(&droverv1.PlanJobResponse{Quote: &droverv1.Quote{}}), nil
}

// SetLevel implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) SetLevel(_ context.Context, r *connect.Request[droverv1.SetLevelRequest]) (*connect.Response[droverv1.SetLevelResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r.Msg)
	return connect.NewResponse(&droverv1.SetLevelResponse{Key: &droverv1.AttemptKey{Job: 1, Attempt: 1}}), nil
}

// ListTasks implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) ListTasks(_ context.Context, r *connect.Request[droverv1.ListTasksRequest]) (*connect.Response[droverv1.ListTasksResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listings = append(f.listings, r.Msg)
	if len(f.attempts) == 0 {
		res, most := &droverv1.ListTasksResponse{Total: f.tasks}, int32(3)
		if n := r.Msg.Limit; n > 0 {
			most = min(most, n)
		}
		for i := r.Msg.From; i < min(f.tasks, r.Msg.From+most); i++ {
			a := &droverv1.TaskAttempt{Key: &droverv1.AttemptKey{Job: 7, Task: i, Attempt: 1}, Node: "n1", Seen: &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING},
				Level: &droverv1.LevelStatus{Level: droverv1.Level_LEVEL_FROZEN}}
			res.Tasks = append(res.Tasks, &droverv1.TaskStatus{Stage: "s", Task: i, State: "running", Attempts: []*droverv1.TaskAttempt{a}})
		}
		return connect.NewResponse(res), nil
	}
	a := f.attempts[min(f.listed, len(f.attempts)-1)]
	if f.listed++; f.asked != nil {
		f.asked(f.listed)
	}
	a.Key = &droverv1.AttemptKey{Job: 1, Attempt: 1}
	return connect.NewResponse(&droverv1.ListTasksResponse{Tasks: []*droverv1.TaskStatus{{Stage: "s", Attempts: []*droverv1.TaskAttempt{a}}}}), nil
}

// Events implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) Events(ctx context.Context, r *connect.Request[droverv1.EventsRequest], st *connect.ServerStream[droverv1.Event]) error {
	f.eventsAsked = r.Msg
	for _, e := range f.events {
		if after := r.Msg.GetAfter(); after != "" && e.Position <= after {
			continue
		}
		if err := st.Send(e); err != nil {
			return err
		}
	}
	if f.eventsHook != nil {
		return f.eventsHook(ctx)
	}
	return nil
}

// ApplyTenants implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) ApplyTenants(_ context.Context, r *connect.Request[droverv1.ApplyTenantsRequest]) (*connect.Response[droverv1.ApplyTenantsResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tenants = r.Msg.Tenants
	return connect.NewResponse(&droverv1.ApplyTenantsResponse{Changed: int32(len(f.tenants))}), nil
}

// WatchJob implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) WatchJob(ctx context.Context, q *connect.Request[droverv1.GetJobRequest], st *connect.ServerStream[droverv1.GetJobResponse]) error {
	f.watches = append(f.watches, q.Msg.Job)
	for _, r := range f.watched {
		if err := st.Send(r); err != nil {
			return err
		}
	}
	if f.watchHook != nil {
		return f.watchHook(ctx)
	}
	return f.watchErr
}

// ListJobs implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) ListJobs(context.Context, *connect.Request[droverv1.ListJobsRequest]) (*connect.Response[droverv1.ListJobsResponse], error) {
	return connect.NewResponse(f.list), nil
}

// ListPastJobs implements droverv1connect.HistoryServiceHandler.
func (f *fakeCoordinator) ListPastJobs(_ context.Context, r *connect.Request[droverv1.ListPastJobsRequest]) (*connect.Response[droverv1.ListPastJobsResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.past = append(f.past, r.Msg)
	if len(f.past) > len(f.pages) {
		return connect.NewResponse(&droverv1.ListPastJobsResponse{}), nil
	}
	return connect.NewResponse(f.pages[len(f.past)-1]), nil
}

// Usage implements droverv1connect.HistoryServiceHandler.
func (f *fakeCoordinator) Usage(_ context.Context, r *connect.Request[droverv1.UsageRequest]) (*connect.Response[droverv1.UsageResponse], error) {
	f.usage = r.Msg
	return connect.NewResponse(cmp.Or(f.usageSums, &droverv1.UsageResponse{})), nil
}

// ListServers implements droverv1connect.OperatorServiceHandler.
func (f *fakeCoordinator) ListServers(ctx context.Context, r *connect.Request[droverv1.ListServersRequest]) (*connect.Response[droverv1.ListServersResponse], error) {
	if f.noOperator != "" {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New(f.noOperator+" may not list servers"))
	}
	if f.serversHook == nil {
		return f.UnimplementedOperatorServiceHandler.ListServers(ctx, r)
	}
	res, err := f.serversHook(ctx)
	return connect.NewResponse(res), err
}

// AddServer implements droverv1connect.OperatorServiceHandler.
func (f *fakeCoordinator) AddServer(context.Context, *connect.Request[droverv1.AddServerRequest]) (*connect.Response[droverv1.AddServerResponse], error) {
	return connect.NewResponse(&droverv1.AddServerResponse{}), nil
}

// RemoveServer implements droverv1connect.OperatorServiceHandler.
func (f *fakeCoordinator) RemoveServer(context.Context, *connect.Request[droverv1.RemoveServerRequest]) (*connect.Response[droverv1.RemoveServerResponse], error) {
	return nil, connect.NewError(connect.CodePermissionDenied, errors.New(f.noOperator+" may not remove servers"))
}

// ListUnknownRuns implements droverv1connect.OperatorServiceHandler.
func (f *fakeCoordinator) ListUnknownRuns(context.Context, *connect.Request[droverv1.ListUnknownRunsRequest]) (*connect.Response[droverv1.ListUnknownRunsResponse], error) {
	return connect.NewResponse(f.unknown), nil
}

// DecideUnknownRun implements droverv1connect.OperatorServiceHandler.
func (f *fakeCoordinator) DecideUnknownRun(_ context.Context, r *connect.Request[droverv1.DecideUnknownRunRequest]) (*connect.Response[droverv1.DecideUnknownRunResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decided = append(f.decided, r.Msg)
	return connect.NewResponse(&droverv1.DecideUnknownRunResponse{}), nil
}

// run serves f on a socket and runs a command line there.
func (f *fakeCoordinator) run(t *testing.T, ctx context.Context, args ...string) (stdout string, err error) {
	t.Helper()
	stdout, _, err = f.runBoth(t, ctx, args...)
	return stdout, err
}

// runBoth is run, with standard error.
func (f *fakeCoordinator) runBoth(t *testing.T, ctx context.Context, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(f))
	mux.Handle(droverv1connect.NewHistoryServiceHandler(f))
	mux.Handle(droverv1connect.NewOperatorServiceHandler(f))
	var server atomic.Pointer[http.Server]
	var running sync.WaitGroup
	f.restart = func() error {
		l, err := net.Listen("unix", filepath.Join(dir, "s"))
		if err != nil {
			return err
		}
		s := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
		s.Protocols.SetUnencryptedHTTP2(true)
		server.Store(s)
		running.Go(func() { _ = s.Serve(l) }) // until it is closed
		return nil
	}
	f.kill = func() error { return server.Load().Close() }
	if err := f.restart(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.kill(); running.Wait() }()
	var out, errs bytes.Buffer
	address := "unix://" + filepath.Join(dir, "s")
	if f.several {
		address += "," + address
	}
	var to io.Writer = &out
	if f.printed != nil {
		to = io.MultiWriter(&out, f.printed)
	}
	var said io.Writer = &errs
	if f.said != nil {
		said = io.MultiWriter(&errs, f.said)
	}
	app := newApp(strings.NewReader(""), to, said)
	app.Commands = append(app.Commands, f.commands...)
	err = app.RunContext(ctx, append([]string{"drover", "-address", address}, args...))
	return out.String(), errs.String(), err
}
