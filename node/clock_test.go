package node

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The node's monotonic time is the kernel's: what an earlier daemon stored remains comparable.
func TestMonotonicIsTheKernels(t *testing.T) {
	const inexact = time.Millisecond // the two clocks are read one after the other
	kernel := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
	for range 3 {
		before := kernel()
		c := newClock(nil, nil)
		after := kernel()
		for range 100 {
			low := kernel()
			got := c.Monotonic()
			if high := kernel(); got < low-(after-before)-inexact || got > high+(after-before)+inexact {
				t.Fatalf("%v is not between %v and %v", got, low, high)
			}
		}
	}
}
