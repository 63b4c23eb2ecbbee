//go:debug tlsmlkem=0
//go:debug randseednop=0

package simcluster

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestMain has a process run one goroutine at a time: those of a simulation hand work to each other all
// the time, and waking another thread for each costs more than it gains. Several processes use several
// processors. Garbage is worth its memory here, some 250 MB of a process: a simulation is short.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	if own := debug.SetGCPercent(800); own < 0 || own > 800 { // GOGC asks for more
		debug.SetGCPercent(own)
	}
	code := m.Run()
	if authority.dir != "" {
		_ = os.RemoveAll(authority.dir)
	}
	os.Exit(code)
}
