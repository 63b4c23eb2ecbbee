package ui

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Limits of shared answers.
const (
	shareLeast   = 500 * time.Millisecond // an answer is shared for at least that long
	shareFactor  = 20                     // or for that many times what it cost
	shareMost    = 30 * time.Second
	shareForget  = time.Minute
	sharedLimit  = 30 * time.Second // of one call
	sharedSweeps = 256              // answers kept before old ones are removed
)

// shared keeps answers of the API for a moment, so that many pages of one
// reader cost one call, and so that calls take at most a twentieth of the time.
type shared struct {
	mu      sync.Mutex
	answers map[string]*answer
}

type answer struct {
	done  chan struct{} // closed when value, err and until are set
	value any
	err   error
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
		s.sweep()
		s.answers[key] = a
		go a.fill(context.WithoutCancel(ctx), fn) // ends at sharedLimit
	}
	s.mu.Unlock()
	select {
	case <-a.done:
		return a.value, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// isStale reports whether the answer has come and is too old.
func (a *answer) isStale() bool {
	select {
	case <-a.done:
		return time.Now().After(a.until)
	default:
		return false
	}
}

func (a *answer) fill(ctx context.Context, fn func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(ctx, sharedLimit)
	defer cancel()
	began := time.Now()
	a.value, a.err = protect(ctx, fn)
	now := time.Now()
	a.until = now.Add(min(max(shareLeast, shareFactor*now.Sub(began)), shareMost))
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

// sweep removes old answers if there are many. The caller holds mu.
func (s *shared) sweep() {
	if len(s.answers) < sharedSweeps {
		return
	}
	for k, a := range s.answers {
		select {
		case <-a.done:
			if time.Since(a.until) > 0 {
				delete(s.answers, k)
			}
		default:
		}
	}
}
