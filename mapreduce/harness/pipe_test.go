package harness

import (
	"errors"
	"os"
	"testing"
	"time"
)

// The wait for pipes after the program's end is not shortened by time in which the task could not
// wait: it may have been frozen, or moved to a machine with another clock.
func TestExpiringPipeCountsOnlyWaiting(t *testing.T) {
	own, child, err := newPipe(false)
	check(t, err)
	defer own.Close()
	defer child.Close()
	const limit = 200 * time.Millisecond
	own.expireIn(limit)
	time.Sleep(limit + limit/2) // simulates a freeze
	written := make(chan error, 1)
	go func() {
		time.Sleep(limit / 4) // Read must wait for this
		_, err := child.Write([]byte("late"))
		written <- err
	}()
	b := make([]byte, 10)
	n, err := own.Read(b)
	if err != nil || string(b[:n]) != "late" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	check(t, <-written)
	if _, err := own.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the limit: %v", err)
	}
}
