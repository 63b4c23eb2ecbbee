package ui

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of shared answers.
const (
	shareLeast  = 500 * time.Millisecond // an answer is shared for at least that long
	shareFactor = 50                     // or for that many times what all answers cost that pages ask for
	shareMost   = 30 * time.Second
	shareForget = 2 * time.Second  // an answer that is old for that long is asked for no more
	sharedLimit = 30 * time.Second // of one call
)

// shared keeps answers of the API, and what was made of them, for a moment, so that
// many pages of one reader cost one call, and so that all pages together take at most
// a fiftieth of one processor, however many are open.
type shared struct {
	mu      sync.Mutex
	answers map[string]*answer
}

type answer struct {
	done   chan struct{} // closed when value, err, took, cost and until are set
	before time.Duration // what the call before took; 0: there was none
	value  any
	err    error
	took   time.Duration // 0 after an error
	cost   time.Duration // the lesser of took and before
	until  time.Time
}

func newShared() *shared { return &shared{answers: map[string]*answer{}} }

// get returns the answer under a key, calling fn if there is none that is
// fresh. One call is made at a time for a key; it outlives ctx, for others wait
// for it.
func (s *shared) get(ctx context.Context, key string, fn func(context.Context) (any, error)) (any, error) {
	s.mu.Lock()
	a, before := s.answers[key], time.Duration(0)
	if a != nil && a.isStale() {
		a, before = nil, a.took
	}
	if a == nil {
		a = &answer{done: make(chan struct{}), before: before}
		delete(s.answers, key)
		others := s.sweep()
		s.answers[key] = a
		go a.fill(context.WithoutCancel(ctx), others, fn) // ends at sharedLimit
	}
	s.mu.Unlock()
	if asks, ok := ctx.Value(nestedKey{}).(*atomic.Int64); ok {
		began := time.Now()
		defer func() { asks.Add(int64(time.Since(began))) }()
	}
	select {
	case <-a.done:
		return a.value, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// nestedKey is the key of how long an answer waited for others, in nanoseconds, which
// is not its own cost.
type nestedKey struct{}

// isStale reports whether the answer has come and is too old.
func (a *answer) isStale() bool {
	select {
	case <-a.done:
		return time.Now().After(a.until)
	default:
		return false
	}
}

// fill calls fn. others is what the other answers cost that pages ask for. A call takes long
// because it costs much or because it waited, for a new leader for instance; only what takes long
// twice is shared for long, or pages would show for half a minute what was true before the leader
// changed.
func (a *answer) fill(ctx context.Context, others time.Duration, fn func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(ctx, sharedLimit)
	defer cancel()
	began, nested := time.Now(), &atomic.Int64{}
	a.value, a.err = protect(context.WithValue(ctx, nestedKey{}, nested), fn)
	now := time.Now()
	a.took = now.Sub(began) - time.Duration(nested.Load())
	a.cost = min(a.took, a.before)
	a.until = now.Add(min(max(shareLeast, shareFactor*(a.cost+others)), shareMost))
	if a.err != nil {
		a.took, a.cost, a.until = 0, 0, now.Add(shareLeast)
	}
	close(a.done)
}

// protect calls fn. That a page has an error of its own must not end the
// coordinator that serves it.
func protect(ctx context.Context, fn func(context.Context) (any, error)) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the page has an error of its own: %v", p)
		}
	}()
	return fn(ctx)
}

// drop forgets what a reader was told: something was changed for them.
func (s *shared) drop(reader string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.answers {
		if len(k) > len(reader) && k[:len(reader)] == reader && k[len(reader)] == 0 {
			delete(s.answers, k)
		}
	}
}

// sweep removes the answers that are asked for no more, and returns what the others
// cost together. The caller holds mu.
func (s *shared) sweep() (cost time.Duration) {
	for k, a := range s.answers {
		select {
		case <-a.done:
			if time.Since(a.until) > shareForget {
				delete(s.answers, k)
				continue
			}
			cost += a.cost
		default:
		}
	}
	return cost
}
