//go:build exact

package simcluster

import (
	"runtime"
	"runtime/debug"
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
