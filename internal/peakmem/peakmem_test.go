package peakmem

import (
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ballast makes this process larger than the programs that it starts.
func ballast(t *testing.T) {
	b := make([]byte, 300<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	t.Cleanup(func() { runtime.KeepAlive(b) })
}

// run runs a shell script that ends once its standard input does, and returns its measured peak and
// its ru_maxrss. Its input ends when until returns true.
func run(t *testing.T, script string, until func(*Meter) bool) (peak, maxRSS int64) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := New(cmd.Process.Pid, HighWaterMark("self"))
	ended := make(chan struct{})
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		m.Run(ended)
	}()
	limit := time.Now().Add(30 * time.Second)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for ; !until(m); <-poll.C {
		if time.Now().After(limit) {
			t.Fatalf("the sampled peak is %d MiB", m.sampled.Load()>>20)
		}
	}
	in.Close()
	err = unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	close(ended)
	<-sampled
	if err != nil || cmd.Wait() != nil {
		t.Fatal(err, cmd.ProcessState)
	}
	maxRSS = cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	return m.Peak(maxRSS), maxRSS
}

// A program that a large process starts is charged only its own memory and that of the programs
// that it starts.
func TestPeakIsThatOfTheProgram(t *testing.T) {
	ballast(t)
	seen := func(at int64) func(*Meter) bool { return func(m *Meter) bool { return m.sampled.Load() >= at } }
	for name, c := range map[string]struct {
		script   string
		until    func(*Meter) bool
		min, max int64
	}{
		"a small one":          {"cat", seen(1), 1, 64 << 20},
		"one with large child": {"(x=$(head -c 30000000 /dev/zero | tr '\\0' a); cat; echo ${#x}); true", seen(28 << 20), 28 << 20, 200 << 20},
		"a very quick one":     {"true", func(*Meter) bool { return true }, 0, 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			peak, maxRSS := run(t, c.script, c.until)
			if peak < c.min || peak > c.max {
				t.Errorf("peak %d MiB, %d to %d wanted", peak>>20, c.min>>20, c.max>>20)
			}
			if maxRSS < 250<<20 {
				t.Errorf("ru_maxrss %d MiB: the kernel counts differently here", maxRSS>>20)
			}
		})
	}
}

// The kernel knows the peak of a program that is larger than its starter, sampled or not.
func TestPeakAboveWhatWasInherited(t *testing.T) {
	m := New(1, 10<<20)
	if got := m.Peak(11 << 20); got != 11<<20 {
		t.Errorf("above: %d", got)
	}
	if got := m.Peak(10 << 20); got != 0 {
		t.Errorf("not above, without a sample: %d", got)
	}
	m.sampled.Store(2 << 20)
	if got := m.Peak(10 << 20); got != 2<<20 {
		t.Errorf("not above, sampled: %d", got)
	}
}

func TestHighWaterMark(t *testing.T) {
	ballast(t)
	if own := HighWaterMark("self"); own < 300<<20 {
		t.Errorf("own high-water mark %d MiB", own>>20)
	}
	out, err := exec.Command("sh", "-c", "grep -c VmHWM /proc/$$/status").Output()
	if err != nil || strings.TrimSpace(string(out)) != "1" {
		t.Errorf("%q %v", out, err)
	}
	for _, none := range []string{"none", "../../etc", ""} {
		if got := HighWaterMark(none); got != 0 {
			t.Errorf("of %q: %d", none, got)
		}
	}
}
