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
// their containers at the same time.
type containerLister struct {
	driver   runtime.Driver
	inFlight singleflight.Group
	failed   chan struct{} // a list has failed; capacity 1

	mu           sync.Mutex
	err          error     // of the last List; the engine's state for health checks
	failingSince time.Time // time of the first failed List since the last success
}

const (
	listLimit     = 20 * time.Second
	engineRecheck = time.Second // how soon an engine that has failed is queried again
)

// list returns the containers by id. Callers share the map and must not modify it.
func (l *containerLister) list(ctx context.Context) (map[string]runtime.Status, error) {
	v, err, _ := l.inFlight.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(ctx, listLimit)
		defer cancel()
		all, err := l.driver.List(ctx)
		by := make(map[string]runtime.Status, len(all))
		for _, s := range all {
			by[s.ID] = s
		}
		l.mu.Lock()
		if err != nil && l.err == nil {
			l.failingSince = time.Now()
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
	if err != nil {
		return nil, err
	}
	return v.(map[string]runtime.Status), nil
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
