package node

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/drover-run/drover/runtime"
)

// listing shares one List of the engine among the attempts that wonder about
// their containers at the same time.
type listing struct {
	driver runtime.Driver
	flight singleflight.Group

	mu    sync.Mutex
	err   error     // of the last List: the engine's state for health checks
	since time.Time // of the first List of those that failed since one went well
}

const listLimit = 20 * time.Second

// get lists the containers by id. The map is shared: it is not changed.
func (l *listing) get(ctx context.Context) (map[string]runtime.Status, error) {
	v, err, _ := l.flight.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(ctx, listLimit)
		defer cancel()
		all, err := l.driver.List(ctx)
		by := make(map[string]runtime.Status, len(all))
		for _, s := range all {
			by[s.ID] = s
		}
		l.mu.Lock()
		if err != nil && l.err == nil {
			l.since = time.Now()
		}
		l.err = err
		l.mu.Unlock()
		return by, err
	})
	if err != nil {
		return nil, err
	}
	return v.(map[string]runtime.Status), nil
}

// problem says what has been wrong with the engine for at least that long, or
// "".
func (l *listing) problem(least time.Duration) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || time.Since(l.since) < least {
		return ""
	}
	return "container engine " + l.driver.Name() + ": " + l.err.Error()
}
