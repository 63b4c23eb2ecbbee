package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// Pauses of a retrier. All of them together take at most about half a minute.
const (
	firstPause  = 250 * time.Millisecond
	longPause   = 8 * time.Second
	maxAttempts = 8
)

// retrier repeats calls that an overloaded coordinator refused, with growing
// pauses of random length. It repeats nothing else: the coordinator refuses an
// overload before it acts.
type retrier struct {
	pause func(context.Context, time.Duration) error
}

func newRetrier() *retrier { return &retrier{pause: sleepContext} }

// sleepContext waits for d, or returns the context's error.
func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// do calls fn until it returns no overload, ctx ends or maxAttempts are made. It
// returns the last error of fn.
func (r *retrier) do(ctx context.Context, fn func() error) error {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		err := fn()
		if (!wire.IsOverload(err) && !errors.Is(err, fault.Overloaded)) || attempt == maxAttempts {
			return err
		}
		if r.pause(ctx, pause/2+rand.N(pause)) != nil {
			return err
		}
		pause = min(2*pause, longPause)
	}
}

// WrapUnary implements connect.Interceptor.
func (r *retrier) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		err = r.do(ctx, func() error {
			res, err = next(ctx, req)
			return err
		})
		return res, err
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (r *retrier) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// WrapStreamingClient repeats streams with one request message. Those with more
// (PutBlob, Exec) cannot be repeated here: part of the request is gone.
func (r *retrier) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if spec.StreamType != connect.StreamTypeServer {
			return conn
		}
		return &repeatedStream{StreamingClientConn: conn, r: r, ctx: ctx, open: func() connect.StreamingClientConn { return next(ctx, spec) }}
	}
}

// repeatedStream opens its stream again while the coordinator refuses it as
// overloaded.
type repeatedStream struct {
	connect.StreamingClientConn
	r       *retrier
	ctx     context.Context
	open    func() connect.StreamingClientConn
	request any
	begun   bool // a message or a final error was received
}

// Send implements connect.StreamingClientConn.
func (s *repeatedStream) Send(m any) error {
	s.request = m
	return s.StreamingClientConn.Send(m)
}

// Receive implements connect.StreamingClientConn.
func (s *repeatedStream) Receive(m any) error {
	if s.begun {
		return s.StreamingClientConn.Receive(m)
	}
	first := true
	err := s.r.do(s.ctx, func() error {
		if !first {
			if err := s.reopen(); err != nil {
				return err
			}
		}
		first = false
		return s.StreamingClientConn.Receive(m)
	})
	s.begun = true
	return err
}

func (s *repeatedStream) reopen() error {
	header := s.RequestHeader().Clone()
	_ = s.StreamingClientConn.CloseResponse() // refused: nothing more comes
	s.StreamingClientConn = s.open()
	copyHeader(s.RequestHeader(), header)
	if err := s.StreamingClientConn.Send(s.request); err != nil {
		return err
	}
	return s.StreamingClientConn.CloseRequest()
}

func copyHeader(to, from http.Header) {
	for k, v := range from {
		to[k] = v
	}
}
