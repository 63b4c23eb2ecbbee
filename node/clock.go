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

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) Monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("node: the machine has no monotonic clock: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// testClock has the monotonic time of Config.SinceBoot.
type testClock struct{ sinceBoot func() time.Duration }

func (testClock) Now() time.Time { return time.Now() }

func (c testClock) Monotonic() time.Duration { return c.sinceBoot() }

// newClock returns the machine's clock, or that of a test.
func newClock(sinceBoot func() time.Duration) clock {
	if sinceBoot == nil {
		return realClock{}
	}
	return testClock{sinceBoot}
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
