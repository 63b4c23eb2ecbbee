package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
)

// silentLog is a coordinator that accepts calls for its log and never answers one.
type silentLog struct {
	droverv1connect.UnimplementedDebugServiceHandler
}

func (silentLog) Monitor(ctx context.Context, _ *connect.Request[droverv1.MonitorRequest], _ *connect.ServerStream[droverv1.LogRecord]) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestLogOfDebugArchiveEndsWithItsLimit has the item for a daemon's log end with the
// context of the item: the command's own context has no limit.
func TestLogOfDebugArchiveEndsWithItsLimit(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewDebugServiceHandler(silentLog{}))
	server := httptest.NewServer(mux)
	defer server.Close()
	cl := &client{debug: droverv1connect.NewDebugServiceClient(server.Client(), server.URL), ctx: t.Context()}
	log := (&debugArchive{}).daemon(debugDaemon{folder: "coordinators/c1", cl: cl})[0]
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := log.get(ctx, io.Discard); err == nil {
		t.Fatalf("%s was had from a daemon that does not answer", log.name)
	}
}
