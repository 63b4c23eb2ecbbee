package main

import (
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// How much the heap may grow between collections, in percent of what lives.
const (
	// devGCPercent is for drover dev: with the small heap of one user's jobs the default spends
	// a sixth of the processor on collecting.
	devGCPercent = 400
	// coordinatorGCPercent is for a coordinator: it allocates for each call and log entry, and
	// collects for a quarter of its time with the default while many jobs are submitted.
	coordinatorGCPercent = 200
)

// setGCPercent sets how much the heap may grow between collections, in percent, unless the
// environment variable GOGC does. Near three quarters of the machine's memory it grows less, unless
// GOMEMLIMIT says otherwise.
func setGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
	var info unix.Sysinfo_t
	if os.Getenv("GOMEMLIMIT") == "" && unix.Sysinfo(&info) == nil {
		debug.SetMemoryLimit(int64(uint64(info.Totalram) * uint64(info.Unit) / 4 * 3))
	}
}
