//go:build exact

package simcluster

import (
	"reflect"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for go:linkname
)

// simulationSeed is the runtime's own, which runtimePatches add to it.
//
//go:linkname simulationSeed runtime.simulationSeed
var simulationSeed uint64

// choices is a number that changes with each choice of the runtime: that of the cases of a select, or of the timers of
// an instant.
//
//go:linkname choices runtime.simulationState
func choices() uint64

// beginExact has the runtime decide by the seed from the next bubble on. The garbage of a simulation is collected
// after it: a collection puts goroutines behind others.
func beginExact(seed uint64) (end func()) {
	simulationSeed = seed*2 + 1 // 0 is none
	percent := debug.SetGCPercent(-1)
	return func() {
		simulationSeed = 0
		debug.SetGCPercent(percent)
		runtime.GC()
	}
}

// TestChoicesIgnoreAddresses compares a select of two timers whose channels have addresses in the order of their
// creation with one of two timers in the opposite order: both make equally many choices.
func TestChoicesIgnoreAddresses(t *testing.T) {
	defer beginExact(1)()
	synctest.Test(t, func(t *testing.T) {
		timers := func() (all []*time.Timer) {
			for range 1000 {
				all = append(all, time.NewTimer(time.Hour))
			}
			return all
		}
		address := func(timer *time.Timer) uintptr { return reflect.ValueOf(timer.C).Pointer() }
		freed := timers()
		older := timers()
		runtime.KeepAlive(freed)
		runtime.GC() // younger timers take the lower addresses of freed
		younger := timers()

		var same, opposite uint64
		for i := range 999 {
			if same == 0 && address(older[i]) < address(older[i+1]) {
				same = choicesOfSelect(older[i], older[i+1])
			}
			if opposite == 0 && address(older[i]) > address(younger[i]) {
				opposite = choicesOfSelect(older[i], younger[i])
			}
		}
		if same == 0 || opposite == 0 {
			t.Fatal("found no timers with addresses in the order of their creation, or none in the opposite order")
		}
		if same != opposite {
			t.Errorf("the choices advance by %#x and %#x: their number follows the addresses of channels", same, opposite)
		}
	})
}

// choicesOfSelect returns by how much the state of the choices advances in a select of two timers. The first was in a
// select before, so that its entry is still in the heap of timers, to be cleaned away.
func choicesOfSelect(first, second *time.Timer) uint64 {
	end := make(chan struct{})
	go func() { end <- struct{}{} }()
	select {
	case <-first.C:
	case <-end:
	}
	before := choices()
	go func() { end <- struct{}{} }()
	select {
	case <-first.C:
	case <-second.C:
	case <-end:
	}
	return choices() - before
}
