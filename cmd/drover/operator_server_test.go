package main

import (
	"context"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// TestServerAddEnds: the exit code says whether the server votes, and on Ctrl-C that what was requested goes on.
func TestServerAddEnds(t *testing.T) {
	servers := func(voter bool) *droverv1.ListServersResponse {
		return &droverv1.ListServersResponse{Servers: []*droverv1.Server{{Id: "c1", Voter: true}, {Id: "c2", Voter: voter}}}
	}
	for name, c := range map[string]struct {
		flags string
		hook  func(ctx context.Context, interrupt func()) (*droverv1.ListServersResponse, error)
		code  int
		text  string // of the error, or of what is printed if there is none
	}{
		"it votes": {"", func(context.Context, func()) (*droverv1.ListServersResponse, error) { return servers(true), nil }, exitOK, "server c2 is added and votes"},
		"it does not, in time": {"-timeout 1ms", func(context.Context, func()) (*droverv1.ListServersResponse, error) { return servers(false), nil },
			exitUnavailable, "server c2 is added, and does not vote after 1ms"},
		"nobody waits": {"-timeout 0s", nil, exitOK, "server c2 is added; it votes when"},
		"interrupted between two looks": {"", func(_ context.Context, interrupt func()) (*droverv1.ListServersResponse, error) {
			interrupt()
			return servers(false), nil
		}, exitDetached, "interrupted; server c2 is added and catches up"},
		"interrupted in a look": {"", func(ctx context.Context, interrupt func()) (*droverv1.ListServersResponse, error) {
			interrupt()
			<-ctx.Done()
			return nil, ctx.Err()
		}, exitDetached, "interrupted; server c2 is added and catches up"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := &fakeCoordinator{}
			if c.hook != nil {
				f.serversHook = func(ctx context.Context) (*droverv1.ListServersResponse, error) { return c.hook(ctx, cancel) }
			}
			text, err := f.run(t, ctx, append(append([]string{"operator", "server", "add"}, strings.Fields(c.flags)...), "c2", "h:1")...)
			if err != nil {
				text = err.Error()
			}
			if exitCode(err) != c.code || !strings.HasPrefix(text, c.text) {
				t.Errorf("exit code %d, want %d: %s", exitCode(err), c.code, text)
			}
		})
	}
}
