package runtime

import (
	"context"
	"time"
)

type traceKey struct{}

// WithTrace has f hear how long each part of a driver's verb took under the
// context. f is called by the goroutine that calls the verb.
func WithTrace(ctx context.Context, f func(part string, took time.Duration)) context.Context {
	return context.WithValue(ctx, traceKey{}, f)
}

// Part begins a part of a verb; what it gives ends it. Without WithTrace both do
// nothing.
//
//	defer runtime.Part(ctx, "criu dump")()
func Part(ctx context.Context, name string) (done func()) {
	f, ok := ctx.Value(traceKey{}).(func(string, time.Duration))
	if !ok {
		return func() {}
	}
	began := time.Now()
	return func() { f(name, time.Since(began)) }
}

// Took reports a part of a verb that was measured elsewhere, such as in a
// goroutine beside the one that calls the verb.
func Took(ctx context.Context, name string, took time.Duration) {
	if f, ok := ctx.Value(traceKey{}).(func(string, time.Duration)); ok {
		f(name, took)
	}
}
