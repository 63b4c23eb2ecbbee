package node

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
)

// Without a second process the guard has its lease alone, and registering tasks does nothing.
func TestExclusiveGuardWithoutWatchdog(t *testing.T) {
	now := time.Duration(0)
	g, err := newExclusiveGuard(&Config{Data: t.TempDir(), Log: slog.New(slog.DiscardHandler), SinceBoot: func() time.Duration { return now }}, "", newAttemptTable(store.Identity{}, 0))
	if err != nil {
		t.Fatal(err)
	}
	spec := &droverv1.TaskSpec{Exclusive: true}
	if err := g.add(t.Context(), "1.0.0.1.1", spec); !errors.Is(err, errNoLease) {
		t.Errorf("without a lease: %v", err)
	}
	g.remove("1.0.0.1.1", spec)
	for _, step := range []struct {
		at   time.Duration
		ms   int64
		back bool
	}{{0, 10_000, true}, {time.Second, 10_000, false}, {20 * time.Second, 10_000, true}, {21 * time.Second, 0, false}} {
		now = step.at
		if back := g.renew(now, step.ms); back != step.back {
			t.Errorf("at %v with %d ms: back %v", step.at, step.ms, back)
		}
	}
	if left := g.lease.remaining(); left != 20*time.Second+6600*time.Millisecond-now {
		t.Errorf("%v are left", left)
	}
}

// A watchdog that takes long to start takes nothing of the daemon's own lease: no report waits for it.
func TestRenewalDoesNotWaitForAWatchdog(t *testing.T) {
	now := time.Duration(0)
	g, err := newExclusiveGuard(&Config{
		Data: t.TempDir(), Log: slog.New(slog.DiscardHandler), SinceBoot: func() time.Duration { return now },
		Enforcer: &watchdogKernel{dir: t.TempDir()}, Helper: []string{"/none"},
	}, "/none", nil)
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("all were killed")
	g.watchdog.Start = func(context.Context) error { return gone }
	if err := g.add(t.Context(), "1.0.0.1.1", &droverv1.TaskSpec{Exclusive: true}); !errors.Is(err, gone) {
		t.Fatalf("a task without a watchdog: %v", err)
	}
	var ended atomic.Bool
	starts, release := make(chan time.Duration, 10), make(chan struct{})
	g.watchdog.Start = func(ctx context.Context) error {
		starts <- g.lease.remaining()
		select {
		case <-release:
		case <-ctx.Done():
		}
		ended.Store(true)
		return gone
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- g.keepWatchdog(ctx) }()
	if !g.renew(0, 10_000) || ended.Load() {
		t.Error("the renewal waited for the start, or gave no lease")
	}
	if left := <-starts; left != 6600*time.Millisecond {
		t.Errorf("%v were left of the lease when a watchdog was started", left)
	}
	g.renew(5*time.Second, 10_000)
	if left := g.lease.remaining(); left != 11600*time.Millisecond || ended.Load() {
		t.Errorf("%v are left while a watchdog starts", left)
	}
	release <- struct{}{}
	<-starts // the renewal meanwhile
	cancel()
	if err := <-kept; err != nil {
		t.Error(err)
	}
}
