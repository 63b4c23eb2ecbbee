package node

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clock is the node's time: the wall for what users read, the machine's
// monotonic clock for what is measured, since that goes on when the daemon is
// started again.
type clock interface {
	Now() time.Time
	Mono() time.Duration // since the machine started
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) Mono() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("node: the machine has no monotonic clock: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// bootID tells one start of the machine from the next; "" where the kernel
// does not say.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
