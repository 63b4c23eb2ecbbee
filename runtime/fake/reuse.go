package fake

import (
	"context"
	"time"

	"github.com/drover-run/drover/runtime"
)

// shared is what containers with one Reuse key run in, one after another.
type shared struct {
	key       string
	busy      bool
	idleSince time.Time
}

// takeLocked gives a container of a Reuse key something to run in.
func (e *Engine) takeLocked(b *container) {
	if b.spec.Reuse == "" {
		return
	}
	for s := range e.shared {
		if s.key == b.spec.Reuse && !s.busy {
			s.busy, b.shared = true, s
			return
		}
	}
	b.shared = &shared{key: b.spec.Reuse, busy: true}
	e.shared[b.shared] = true
	e.opened++
}

// returnLocked is called when a container has stopped. Its shared container is used again only if
// the program ended by itself with code 0.
func (e *Engine) returnLocked(b *container) {
	switch {
	case b.shared == nil:
	case b.exitCode == 0 && !b.killed:
		b.shared.busy, b.shared.idleSince = false, e.now()
	default:
		delete(e.shared, b.shared)
	}
}

// CloseIdle implements runtime.Reuser.
func (d *Driver) CloseIdle(ctx context.Context, idle time.Duration) error {
	answer, err := d.e.beginCall(ctx, CloseIdle)
	if err != nil {
		return err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	for s := range d.e.shared {
		if !s.busy && d.e.now().Sub(s.idleSince) >= idle {
			delete(d.e.shared, s)
		}
	}
	return answer(nil)
}

var _ runtime.Reuser = (*Driver)(nil)

// Shared returns how many times the engine has made something for containers with a Reuse
// key to run in, and how many of these are left.
func (e *Engine) Shared() (opened, left int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.opened, len(e.shared)
}
