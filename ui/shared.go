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
	done  chan struct{} // closed when value, err, cost and until are set
	value any
	err   error
	cost  time.Duration
	until time.Time
}

func newShared() *shared { return &shared{answers: map[string]*answer{}} }

// get returns the answer under a key, calling fn if there is none that is
// fresh. One call is made at a time for a key; it outlives ctx, for others wait
// for it.
func (s *shared) get(ctx context.Context, key string, fn func(context.Context) (any, error)) (any, error) {
	s.mu.Lock()
	a := s.answers[key]
	if a != nil && a.isStale() {
		a = nil
	}
	if a == nil {
		a = &answer{done: make(chan struct{})}
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

// fill calls fn. others is what the other answers cost that pages ask for.
func (a *answer) fill(ctx context.Context, others time.Duration, fn func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(ctx, sharedLimit)
	defer cancel()
	began, nested := time.Now(), &atomic.Int64{}
	a.value, a.err = protect(context.WithValue(ctx, nestedKey{}, nested), fn)
	now := time.Now()
	a.cost = now.Sub(began) - time.Duration(nested.Load())
	a.until = now.Add(min(max(shareLeast, shareFactor*(a.cost+others)), shareMost))
	if a.err != nil {
		a.until = now.Add(shareLeast)
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
