package node

import (
	"context"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// mailbox is what the loop of an attempt shares with other goroutines: the wanted state, the last
// report, calls to run in the loop, and whether the loop runs at all. Everything else of an attempt
// belongs to the loop. Messages in it are replaced, never modified, so that they may be read
// without the lock.
//
// No change is lost: a change sets wake and then ends the rest, and an attempt rests only while
// wake is not set, both under mu.
type mailbox struct {
	wake  chan struct{} // something under mu changed; capacity 1
	inbox chan func()   // calls posted by watchers and helpers

	mu      sync.Mutex
	resting bool                    // the attempt rests and has no loop
	wanted  *droverv1.WantedAttempt // nil: not wanted
	spec    *droverv1.TaskSpec      // the last known; nil if the attempt is unknown to the coordinator
	seen    *droverv1.SeenAttempt   // what is reported
	dump    *servableDump           // what other nodes may fetch; nil without one
}

// want replaces the wanted state; nil means that the attempt must be removed. The
// last known spec stays.
func (m *mailbox) want(w *droverv1.WantedAttempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = w
	if w.GetSpec() != nil {
		m.spec = w.GetSpec()
	}
}

// wantedAndSpec returns the wanted state and the last known spec.
func (m *mailbox) wantedAndSpec() (*droverv1.WantedAttempt, *droverv1.TaskSpec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wanted, m.spec
}

// snapshot returns the current report of the attempt.
func (m *mailbox) snapshot() *droverv1.SeenAttempt {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// publish replaces the report, and the dump that other nodes may fetch. It reports whether anything
// in the report changed, and whether that must be sent at once.
func (m *mailbox) publish(next *droverv1.SeenAttempt, dump *servableDump) (changed, atOnce bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed, atOnce = compareReports(m.seen, next)
	if changed {
		m.seen = next
	}
	m.dump = dump
	return changed, atOnce
}

// servedDump returns the dump that other nodes may fetch, or nil.
func (m *mailbox) servedDump() *servableDump {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dump
}

// isAlive reports whether the attempt's last report is not its end.
func (m *mailbox) isAlive() bool {
	switch m.snapshot().GetPhase() {
	case droverv1.Phase_PHASE_PREPARING, droverv1.Phase_PHASE_RUNNING:
		return true
	default:
		return false
	}
}

// liveImage returns the image of an attempt that has not ended, otherwise nil.
func (m *mailbox) liveImage() *droverv1.ImageRef {
	if !m.isAlive() {
		return nil
	}
	_, spec := m.wantedAndSpec()
	return spec.GetImage()
}

// notify makes the loop run again; it never blocks. It returns true if the attempt rested: the
// caller must then start its loop.
func (m *mailbox) notify() (rested bool) {
	select {
	case m.wake <- struct{}{}:
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rested, m.resting = m.resting, false
	return rested
}

// tryRest makes the attempt rest, without a loop, if nothing has changed since its loop last
// looked. Otherwise it returns false.
func (m *mailbox) tryRest() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.wake) > 0 { // left for the loop to take
		return false
	}
	m.resting = true
	return true
}

// post hands f to the loop, or drops it when ctx ends.
func (m *mailbox) post(ctx context.Context, f func()) {
	select {
	case m.inbox <- f:
	case <-ctx.Done():
	}
}

// sleep waits for a change or a posted call, for d (0: no limit) or for the end of
// ctx.
func (m *mailbox) sleep(ctx context.Context, d time.Duration) {
	var after <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-ctx.Done():
	case <-m.wake:
	case f := <-m.inbox:
		f()
	case <-after:
	}
}

// pause runs posted calls for the duration d, or until ctx ends or the wanted state changes.
func (m *mailbox) pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			return
		case f := <-m.inbox:
			f()
		}
	}
}
