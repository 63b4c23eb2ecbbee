package harness

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// ru_maxrss of a process begins with the high-water mark of the memory of the one
// that forked it: that memory is shared until the exec, and the kernel counts it.
// For a task of `drover dev` that is the daemon's. VmHWM in /proc belongs to the
// memory after the exec alone, but is gone once the process has ended.

// Pauses between two samples of a program's high-water mark.
const (
	firstSample = 10 * time.Millisecond
	maxSample   = 500 * time.Millisecond
)

// highWaterMark returns VmHWM of a process ("self" or a number) in bytes, 0 if it
// is unknown.
func highWaterMark(process string) int64 {
	f, err := os.Open("/proc/" + process + "/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if rest, ok := strings.CutPrefix(in.Text(), "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// peakMeter measures the peak memory of one program.
type peakMeter struct {
	pid     int
	starter int64 // high-water mark of the harness just after the exec
	sampled atomic.Int64
}

// newPeakMeter is called just after the program has started.
func newPeakMeter(pid int) *peakMeter {
	return &peakMeter{pid: pid, starter: highWaterMark("self")}
}

// run samples until ended is closed.
func (m *peakMeter) run(ended <-chan struct{}) {
	for pause := firstSample; ; pause = min(2*pause, maxSample) {
		timer := time.NewTimer(pause)
		select {
		case <-ended:
			timer.Stop()
			return
		case <-timer.C:
			m.sampled.Store(max(m.sampled.Load(), highWaterMark(fmt.Sprint(m.pid))))
		}
	}
}

// peak returns the program's peak in bytes, given its ru_maxrss. A program that
// stayed below the harness and ended before the first sample has no known peak, 0.
func (m *peakMeter) peak(maxRSS int64) int64 {
	if maxRSS > m.starter {
		return maxRSS // its own: what it inherited was less
	}
	return m.sampled.Load()
}
