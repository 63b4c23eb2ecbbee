package node

import (
	"context"
	"sync"
	"time"

	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
)

// containerLister shares one List call of the engine among attempts that query their containers at
// the same time. A caller joins only a call that has not begun: a call in progress may already have
// read the container's state. A caller that leaves, such as a stranger that requests the node's
// health, does not end the call for the others.
type containerLister struct {
	driver runtime.Driver
	life   context.Context // of the calls
	end    context.CancelFunc
	calls  sync.WaitGroup // added to under mu while life lasts
	turn   chan struct{}  // capacity 1: held during a call
	failed chan struct{}  // a list has failed; capacity 1

	mu           sync.Mutex
	next         *engineList // waits for its turn; nil: there is none
	err          error       // of the last List; the engine's state for health checks
	failingSince time.Time   // time of the first failed List since the last success
	answeredAt   time.Time   // end of the last List
}

const (
	listLimit     = 20 * time.Second
	engineRecheck = time.Second // how soon an engine that has failed is queried again
)

func newContainerLister(d runtime.Driver) *containerLister {
	l := &containerLister{driver: d, turn: make(chan struct{}, 1), failed: make(chan struct{}, 1)}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// engineList is one List call; its result may be read once done is closed.
type engineList struct {
	done chan struct{}
	byID map[string]runtime.Status
	err  error
}

// close ends the calls and waits for them. Later ones fail.
func (l *containerLister) close() error {
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
	l.calls.Wait()
	return nil
}

// list returns the containers by id, as the engine has them after the call of list.
// Callers share the map and must not modify it.
func (l *containerLister) list(ctx context.Context) (map[string]runtime.Status, error) {
	joined, err := l.join()
	if err != nil {
		return nil, err
	}
	select {
	case <-joined.done:
		return joined.byID, joined.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// join returns the call that begins next.
func (l *containerLister) join() (*engineList, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.life.Err(); err != nil {
		return nil, err
	}
	if l.next == nil {
		p := &engineList{done: make(chan struct{})}
		l.next = p
		l.calls.Go(func() { l.perform(p) })
	}
	return l.next, nil
}

// perform waits for its turn and lists the containers.
func (l *containerLister) perform(p *engineList) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	defer close(p.done)
	l.mu.Lock()
	l.next = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.life, listLimit)
	defer cancel()
	all, err := l.driver.List(ctx)
	l.record(err)
	if p.err = err; err != nil {
		return
	}
	p.byID = make(map[string]runtime.Status, len(all))
	for _, s := range all {
		p.byID[s.ID] = s
	}
}

// record records whether the engine has answered.
func (l *containerLister) record(err error) {
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
}

// works returns an error unless the engine answers now, or has answered within a second: strangers
// can cause few queries, however often they ask.
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
