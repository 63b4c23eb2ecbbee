package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/drover-run/drover/mapreduce"
)

// A program that a large process starts is charged its own memory.
func TestPeakMemoryIsThatOfTheProgram(t *testing.T) {
	ballast := make([]byte, 300<<20)
	for i := 0; i < len(ballast); i += 4096 {
		ballast[i] = 1
	}
	j := newTestJob(t, t.TempDir())
	for name, c := range map[string]struct {
		script   string
		min, max int64
	}{
		"a small one":  {"cat; sleep 0.1", 1, 64 << 20},
		"a large one":  {"cat; x=$(head -c 300000000 /dev/zero | tr '\\0' a); sleep 0.5", 280 << 20, 1 << 30},
		"a very quick": {"true", 0, 64 << 20},
	} {
		s := j.mapSpec(0, mapreduce.Program{Argv: []string{"sh", "-c", c.script}}, 0)
		j.writeInput(&s, "a\n")
		r := j.runOK(s)
		if r.UserPeakRSS < c.min || r.UserPeakRSS > c.max {
			t.Errorf("%s: peak %d MiB", name, r.UserPeakRSS>>20)
		}
		check(t, os.RemoveAll(s.Input.File))
		check(t, os.RemoveAll(s.Input.File+mapreduce.JournalSuffix))
	}
	// The same for a harness that a large daemon starts.
	cmd := exec.Command("sh", "-c", "grep VmHWM /proc/$$/status")
	out, err := cmd.Output()
	check(t, err)
	kib, err := strconv.ParseInt(strings.Fields(string(out))[1], 10, 64)
	check(t, err)
	if inherited := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss; kib > 64<<10 || inherited < 250<<10 {
		t.Errorf("high-water mark %d KiB, ru_maxrss %d KiB: the kernel counts differently here", kib, inherited)
	}
	if own := highWaterMark("self"); own < 300<<20 {
		t.Errorf("own high-water mark %d MiB", own>>20)
	}
	if got := highWaterMark(filepath.Join("none", "such")); got != 0 {
		t.Errorf("of no process: %d", got)
	}
	runtime.KeepAlive(ballast)
}
