package node

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clock is the node's time: wall-clock time for users, and monotonic time of the
// machine, which continues across restarts of the daemon, for measurements.
type clock interface {
	Now() time.Time
	Monotonic() time.Duration // since the machine booted
}

// realClock reads the kernel's monotonic clock once. Package time continues it: it reads the same
// clock without a system call, but counts from the start of the process.
type realClock struct {
	start     time.Time
	sinceBoot time.Duration // at start
}

func newRealClock() realClock {
	var ts unix.Timespec
	start := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("node: the machine has no monotonic clock: " + err.Error())
	}
	return realClock{start, time.Duration(ts.Nano())}
}

func (realClock) Now() time.Time { return time.Now() }

func (c realClock) Monotonic() time.Duration { return c.sinceBoot + time.Since(c.start) }

// testClock has the times of Config.Now and Config.SinceBoot.
type testClock struct {
	now       func() time.Time
	sinceBoot func() time.Duration
}

func (c testClock) Now() time.Time { return c.now() }

func (c testClock) Monotonic() time.Duration { return c.sinceBoot() }

// newClock returns the machine's clock, or that of a test.
func newClock(now func() time.Time, sinceBoot func() time.Duration) clock {
	if sinceBoot == nil {
		return newRealClock()
	}
	if now == nil {
		now = time.Now
	}
	return testClock{now, sinceBoot}
}

// bootID identifies the current boot of the machine; "" if the kernel does not
// provide it.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// machineID identifies the installation of this machine, across boots; "" if it has no id, or none
// yet. Machines made from one image may have the same.
func machineID() string {
	b, err := os.ReadFile("/etc/machine-id")
	id := strings.TrimSpace(string(b))
	if err != nil || id == "uninitialized" {
		return ""
	}
	return id
}
