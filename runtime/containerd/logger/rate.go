package logger

import (
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// burstTime is how much of the rate may be written at once.
	burstTime = 250 * time.Millisecond
	// waitSlice bounds how late the end of a wait is noticed.
	waitSlice = 50 * time.Millisecond
)

// rateLimit is a token bucket for all streams of a container: it says how long to wait before more
// may be read. Unread data stays in the pipe, so that a program that writes too fast is the one
// that waits. A nil rateLimit has no limit.
type rateLimit struct {
	perSecond int64
	lifted    atomic.Bool // the logger is to end: the content of the pipes is written at once

	mu    sync.Mutex    // guards spent
	spent time.Duration // since start, what was written is paid for until then
	start time.Time
}

// newRateLimit returns the limit of a container that may write so many bytes per
// second; 0: none.
func newRateLimit(perSecond int64, now time.Time) *rateLimit {
	if perSecond <= 0 {
		return nil
	}
	return &rateLimit{perSecond: perSecond, start: now}
}

// take counts n bytes that were written and returns how long to wait before the
// next ones.
func (l *rateLimit) take(n int, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := now.Sub(l.start)
	cost := time.Duration(math.Ceil(float64(n) / float64(l.perSecond) * float64(time.Second)))
	l.spent = max(l.spent, since-burstTime) + cost
	return max(0, l.spent-since)
}

// lift ends the limit, and every wait for it.
func (l *rateLimit) lift() {
	if l != nil {
		l.lifted.Store(true)
	}
}

// pause counts n bytes that were written and waits for the next ones. It returns at once when
// nobody writes to the pipe any more: then its content is the last.
func (l *rateLimit) pause(from *os.File, n int) {
	if l == nil {
		return
	}
	for until := time.Now().Add(l.take(n, time.Now())); !l.lifted.Load(); {
		left := time.Until(until)
		if left <= 0 || hungUp(from, min(left, waitSlice)) {
			return
		}
	}
}

// hungUp waits for a time, or until the pipe has no writers, and reports whether it has
// none. A file that cannot be polled is waited for.
func hungUp(from *os.File, wait time.Duration) (hup bool) {
	raw, err := from.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			fds := []unix.PollFd{{Fd: int32(fd)}} // hang-ups are reported unasked
			ms := int((wait + time.Millisecond - 1) / time.Millisecond)
			n, e := unix.Poll(fds, ms)
			hup = e == nil && n > 0 && fds[0].Revents&unix.POLLHUP != 0
		})
	}
	if err != nil {
		time.Sleep(wait)
	}
	return hup
}
