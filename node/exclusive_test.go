package node

import (
	"log/slog"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Without a second process the guard has its lease alone, and registering tasks does nothing.
func TestExclusiveGuardWithoutWatchdog(t *testing.T) {
	now := time.Duration(0)
	g, err := newExclusiveGuard(&Config{Data: t.TempDir(), Log: slog.New(slog.DiscardHandler), SinceBoot: func() time.Duration { return now }}, "")
	if err != nil {
		t.Fatal(err)
	}
	spec := &droverv1.TaskSpec{Exclusive: true}
	if err := g.add(t.Context(), "1.0.0.1.1", spec); err != nil {
		t.Error(err)
	}
	g.remove("1.0.0.1.1", spec)
	for _, step := range []struct {
		at   time.Duration
		ms   int64
		back bool
	}{{0, 10_000, true}, {time.Second, 10_000, false}, {20 * time.Second, 10_000, true}, {21 * time.Second, 0, false}} {
		now = step.at
		if back := g.renew(t.Context(), now, step.ms); back != step.back {
			t.Errorf("at %v with %d ms: back %v", step.at, step.ms, back)
		}
	}
	if left := g.lease.remaining(); left != 20*time.Second+6600*time.Millisecond-now {
		t.Errorf("%v are left", left)
	}
}
