package node

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func newTestMailbox() *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), inbox: make(chan func()), seen: &droverv1.SeenAttempt{Phase: running}}
}

// A loop that parks misses no change: either it sees the change, or the one who made it starts a loop.
func TestParkedLoopMissesNothing(t *testing.T) {
	m := newTestMailbox()
	const changes = 2000
	var made, seen atomic.Int64 // changes
	var wg sync.WaitGroup
	done := make(chan struct{})
	var looping sync.Mutex // one loop at a time, as in attempt.startLoop
	loop := func() {
		wg.Go(func() {
			looping.Lock()
			defer looping.Unlock()
			for {
				if seen.Store(made.Load()); seen.Load() == changes {
					close(done)
					return
				}
				if m.park() {
					return
				}
				m.sleep(t.Context(), 0)
			}
		})
	}
	loop()
	for range changes {
		made.Add(1)
		if m.notify() {
			loop()
		}
	}
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Errorf("%d of %d changes were seen", seen.Load(), changes)
	}
	wg.Wait()
}

func TestMailboxPublish(t *testing.T) {
	m := newTestMailbox()
	for name, c := range map[string]struct {
		next            *droverv1.SeenAttempt
		changed, atOnce bool
	}{
		"the same":     {&droverv1.SeenAttempt{Phase: running}, false, false},
		"more time":    {&droverv1.SeenAttempt{Phase: running, RunningMs: 5}, true, false},
		"another end":  {&droverv1.SeenAttempt{Phase: failed}, true, true},
		"a new status": {&droverv1.SeenAttempt{Phase: running, Status: "s"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			m.publish(&droverv1.SeenAttempt{Phase: running}, nil)
			d := &servableDump{}
			if changed, atOnce := m.publish(c.next, d); changed != c.changed || atOnce != c.atOnce {
				t.Errorf("changed %v, at once %v", changed, atOnce)
			}
			if m.servedDump() != d {
				t.Error("the dump is not served")
			}
			if alive := m.isAlive(); alive != (c.next.GetPhase() == running) {
				t.Errorf("alive %v", alive)
			}
		})
	}
}

// An attempt that must go keeps the spec by which it is removed.
func TestMailboxKeepsSpec(t *testing.T) {
	m := newTestMailbox()
	spec := &droverv1.TaskSpec{JobName: "j", Image: &droverv1.ImageRef{Digest: "d"}}
	m.want(&droverv1.WantedAttempt{Spec: spec})
	m.want(&droverv1.WantedAttempt{})
	m.want(nil)
	if w, s := m.wantedAndSpec(); w != nil || s != spec {
		t.Errorf("wanted %v, spec %v", w, s)
	}
	if m.liveImage().GetDigest() != "d" {
		t.Error("a live attempt needs its image")
	}
}

// Calls run in the loop, during its pauses too; those of a loop that ended are dropped.
func TestMailboxCalls(t *testing.T) {
	m := newTestMailbox()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	ran := 0 // without a lock: this goroutine is the loop
	wg.Go(func() {
		m.post(ctx, func() { ran++ })
		m.post(ctx, func() { ran++ })
		m.notify()
	})
	m.sleep(ctx, 0)
	m.pause(ctx)
	wg.Wait()
	if ran != 2 {
		t.Errorf("%d calls ran", ran)
	}
	cancel()
	m.post(ctx, func() { t.Error("a call after the end") })
	m.sleep(t.Context(), time.Millisecond)
}
