package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
)

// fakeCoordinator answers as a coordinator would in states that are hard to bring about.
type fakeCoordinator struct {
	droverv1connect.UnimplementedClientServiceHandler

	mu       sync.Mutex
	requests []*droverv1.SetLevelRequest
	attempts []*droverv1.TaskAttempt // of task s/0, one after another; the last one stays
	asked    func(n int)             // is called when its tasks are listed for the n-th time
	listed   int
	events   []*droverv1.Event
	tenants  []*droverv1.Tenant // applied
}

// SetLevel implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) SetLevel(_ context.Context, r *connect.Request[droverv1.SetLevelRequest]) (*connect.Response[droverv1.SetLevelResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r.Msg)
	return connect.NewResponse(&droverv1.SetLevelResponse{Key: &droverv1.AttemptKey{Job: 1, Attempt: 1}}), nil
}

// ListTasks implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) ListTasks(context.Context, *connect.Request[droverv1.ListTasksRequest]) (*connect.Response[droverv1.ListTasksResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.attempts[min(f.listed, len(f.attempts)-1)]
	if f.listed++; f.asked != nil {
		f.asked(f.listed)
	}
	a.Key = &droverv1.AttemptKey{Job: 1, Attempt: 1}
	return connect.NewResponse(&droverv1.ListTasksResponse{Tasks: []*droverv1.TaskStatus{{Stage: "s", Attempts: []*droverv1.TaskAttempt{a}}}}), nil
}

// Events implements droverv1connect.ClientServiceHandler.
func (f *fakeCoordinator) Events(_ context.Context, _ *connect.Request[droverv1.EventsRequest], st *connect.ServerStream[droverv1.Event]) error {
	for _, e := range f.events {
		if err := st.Send(e); err != nil {
			return err
		}
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

// run serves f on a socket and runs a command line there.
func (f *fakeCoordinator) run(t *testing.T, ctx context.Context, args ...string) (stdout string, err error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(f))
	s := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { _ = s.Close(); <-served }()
	var out, errs bytes.Buffer
	err = newApp(strings.NewReader(""), &out, &errs).RunContext(ctx, append([]string{"drover", "-address", "unix://" + filepath.Join(dir, "s")}, args...))
	return out.String(), err
}
