//go:build !exact

package simcluster

// beginExact does nothing: the runtime is Go's own.
func beginExact(uint64) (end func()) { return func() {} }

// choices has nothing to say of Go's own runtime.
func choices() uint64 { return 0 }
