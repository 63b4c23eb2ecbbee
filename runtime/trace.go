package runtime

import (
	"context"
	"time"
)

type traceKey struct{}

// WithTrace returns a context under which f is called with the duration of each
// part of a driver's method, by the goroutine that calls the method.
func WithTrace(ctx context.Context, f func(part string, took time.Duration)) context.Context {
	return context.WithValue(ctx, traceKey{}, f)
}

// StartPart starts timing a part of a method; the returned function ends it.
// Without WithTrace both do nothing.
//
//	defer runtime.StartPart(ctx, "criu dump")()
func StartPart(ctx context.Context, name string) (done func()) {
	f, ok := ctx.Value(traceKey{}).(func(string, time.Duration))
	if !ok {
		return func() {}
	}
	began := time.Now()
	return func() { f(name, time.Since(began)) }
}

// RecordPart reports a part that was timed elsewhere, such as in another
// goroutine.
func RecordPart(ctx context.Context, name string, took time.Duration) {
	if f, ok := ctx.Value(traceKey{}).(func(string, time.Duration)); ok {
		f(name, took)
	}
}
