// Package peakmem measures the peak memory of a program that this process
// starts.
//
// The kernel's ru_maxrss is not that value. It starts with the high-water mark of the forking
// process, whose memory the child shares until the exec. For a program that a large daemon starts,
// it is the daemon's. VmHWM in /proc covers only the memory after the exec, but disappears when the
// process ends, so this package samples it.
package peakmem

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Pauses between two samples; each pause is twice the one before.
const (
	firstSample = 10 * time.Millisecond
	maxSample   = 500 * time.Millisecond
)

// maxProcesses is how many processes of a program one sample looks at.
const maxProcesses = 256

// HighWaterMark returns VmHWM of a process, "self" or its number, in bytes; 0 if
// it is unknown.
func HighWaterMark(process string) int64 {
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

// Meter measures one program: its first process and all descendants. The peak is the peak of the
// largest process, as with ru_maxrss.
type Meter struct {
	pid       int
	inherited int64
	sampled   atomic.Int64
}

// New returns a meter of the program whose first process is pid. inherited is the high-water mark,
// in bytes, of the process that started it: the program's ru_maxrss may start with that value.
func New(pid int, inherited int64) *Meter { return &Meter{pid: pid, inherited: inherited} }

// Run samples until ended is closed. Close it before the process is reaped if its number may soon
// be reused.
func (m *Meter) Run(ended <-chan struct{}) {
	for pause := firstSample; ; pause = min(2*pause, maxSample) {
		timer := time.NewTimer(pause)
		select {
		case <-ended:
			timer.Stop()
			return
		case <-timer.C:
			m.sampled.Store(max(m.sampled.Load(), m.sample()))
		}
	}
}

// sample returns the largest high-water mark of the program's processes now.
func (m *Meter) sample() (peak int64) {
	processes := []string{strconv.Itoa(m.pid)}
	for i := 0; i < len(processes) && i < maxProcesses; i++ {
		peak = max(peak, HighWaterMark(processes[i]))
		processes = append(processes, children(processes[i])...)
	}
	return peak
}

// children returns the live processes that any thread of a process started.
func children(process string) (out []string) {
	files, err := filepath.Glob("/proc/" + process + "/task/*/children")
	if err != nil {
		return nil
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil { // the thread may have ended
			out = append(out, strings.Fields(string(text))...)
		}
	}
	return out
}

// Peak returns the program's peak in bytes, given its ru_maxrss. It is 0 (unknown) for a program
// that stayed below the inherited value and ended before the first sample.
func (m *Meter) Peak(maxRSS int64) int64 {
	if maxRSS > m.inherited {
		return maxRSS // the program's own peak, since it exceeds the inherited value
	}
	return m.sampled.Load()
}
