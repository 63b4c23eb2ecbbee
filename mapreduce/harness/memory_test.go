package harness

import (
	"fmt"
	"os"
	"runtime"
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
		script   string // ended by a pause in which the meter sees the program
		min, max int64
	}{
		"a small one":  {"cat; sleep %g", 1, 64 << 20},
		"a large one":  {"cat; x=$(head -c 300000000 /dev/zero | tr '\\0' a); sleep %g", 280 << 20, 1 << 30},
		"a very quick": {"true %g", 0, 64 << 20},
	} {
		for pause := 0.5; ; pause *= 2 { // it lives longer until the meter has seen it
			s := j.mapSpec(0, mapreduce.Program{Argv: []string{"sh", "-c", fmt.Sprintf(c.script, pause)}}, 0)
			j.writeInput(&s, "a\n")
			r := j.runOK(s)
			check(t, os.RemoveAll(s.Input.File))
			check(t, os.RemoveAll(s.Input.File+mapreduce.JournalSuffix))
			if r.UserPeakRSS < c.min && pause < 10 {
				continue
			}
			if r.UserPeakRSS < c.min || r.UserPeakRSS > c.max {
				t.Errorf("%s: peak %d MiB", name, r.UserPeakRSS>>20)
			}
			break
		}
	}
	runtime.KeepAlive(ballast)
}
