package node

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
)

// containerLister shares one List call of the engine among attempts that query
// their containers at the same time. The call is no caller's own: one who leaves, as
// a stranger may who asks for the node's health, ends it for none of the others.
type containerLister struct {
	driver   runtime.Driver
	life     context.Context // of the calls
	end      context.CancelFunc
	inFlight singleflight.Group
	failed   chan struct{} // a list has failed; capacity 1

	mu           sync.Mutex
	err          error     // of the last List; the engine's state for health checks
	failingSince time.Time // time of the first failed List since the last success
	answeredAt   time.Time // end of the last List
}

const (
	listLimit     = 20 * time.Second
	engineRecheck = time.Second // how soon an engine that has failed is queried again
)

func newContainerLister(d runtime.Driver) *containerLister {
	l := &containerLister{driver: d, failed: make(chan struct{}, 1)}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// close ends the call in progress and waits for it.
func (l *containerLister) close() error {
	l.end()
	<-l.inFlight.DoChan("", func() (any, error) { return nil, context.Canceled })
	return nil
}

// list returns the containers by id. Callers share the map and must not modify it.
func (l *containerLister) list(ctx context.Context) (map[string]runtime.Status, error) {
	answer := l.inFlight.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(l.life, listLimit)
		defer cancel()
		all, err := l.driver.List(ctx)
		by := make(map[string]runtime.Status, len(all))
		for _, s := range all {
			by[s.ID] = s
		}
		l.mu.Lock()
		l.answeredAt = time.Now()
		if err != nil && l.err == nil {
			l.failingSince = l.answeredAt
		}
		l.err = err
		l.mu.Unlock()
		if err != nil {
			select {
			case l.failed <- struct{}{}:
			default:
			}
		}
		return by, err
	})
	select {
	case r := <-answer:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(map[string]runtime.Status), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// works returns an error unless the engine answers, or did within a second: however often
// strangers ask, the engine is asked seldom.
func (l *containerLister) works(ctx context.Context) error {
	l.mu.Lock()
	lately := l.err == nil && time.Since(l.answeredAt) < time.Second
	l.mu.Unlock()
	if lately {
		return nil
	}
	_, err := l.list(ctx)
	return err
}

// watch queries an engine that has failed until it answers again, so that problem knows. It
// returns when ctx ends.
func (l *containerLister) watch(ctx context.Context) error {
	for {
		select {
		case <-l.failed:
		case <-ctx.Done():
			return nil
		}
		for l.problem(0) != "" {
			if !sleep.For(ctx, engineRecheck) {
				return nil
			}
			_, _ = l.list(ctx) // problem has the error
		}
	}
}

// problem returns the engine's error if List has failed for at least that long,
// otherwise "".
func (l *containerLister) problem(least time.Duration) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || time.Since(l.failingSince) < least {
		return ""
	}
	return "container engine " + l.driver.Name() + ": " + l.err.Error()
}
