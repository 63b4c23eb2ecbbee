package integration

import (
	"os/exec"
	"strings"
	"testing"
)

// measuredCoordinator is what the part coordinator of bench.sh prints, cut to what matters here.
const measuredCoordinator = `register ...
SERVERS  NODES  SYNC  PAGES  NODES AT HALF A CORE  PLACEMENTS/S  SUBMISSIONS/S  P50 MS  P99 MS  AT A RATE/S  P50 MS  P99 MS  RSS      FAILOVER MS
1        1000   ext4  0      10228                 28973         3900           35      150     1999         3       78      391 MiB  -
SERVERS  NODES  SYNC  PAGES  NODES AT HALF A CORE  PLACEMENTS/S  SUBMISSIONS/S  P50 MS  P99 MS  AT A RATE/S  P50 MS  P99 MS  RSS      FAILOVER MS
1        1000   no    0      90                    95            97             35      150     1999         3       990     391 MiB  -
SERVERS  NODES  SYNC  PAGES  NODES AT HALF A CORE  PLACEMENTS/S  SUBMISSIONS/S  P50 MS  P99 MS  AT A RATE/S  P50 MS  P99 MS  RSS      FAILOVER MS
3        1000   ext4  0      5770                  17174         2128           35      150     1999         3       281     391 MiB  1314
SERVERS  NODES  SYNC  PAGES  NODES AT HALF A CORE  PLACEMENTS/S  SUBMISSIONS/S  P50 MS  P99 MS  AT A RATE/S  P50 MS  P99 MS  RSS      FAILOVER MS
1        1000   ext4  0      9376                  27973         3800           35      150     1999         3       44      391 MiB  -
SERVERS  NODES  SYNC  PAGES  NODES AT HALF A CORE  PLACEMENTS/S  SUBMISSIONS/S  P50 MS  P99 MS  AT A RATE/S  P50 MS  P99 MS  RSS      FAILOVER MS
3        1000   ext4  0      4169                  19182         2230           35      150     1999         3       221     391 MiB  2307
servers=1,sync=no,pages=0: 1.034 times as many placements as with one coordinator, median of 3, 1.022 to 1.063
servers=3,sync=ext4,pages=0: 0.625 times as many placements as with one coordinator, median of 3, 0.593 to 0.683
goos: linux
BenchmarkRestart-2   	       3	2193215108 ns/op	         2.177 s-ready
PASS
BenchmarkSnapshotPause-2   	       3	  39272698 ns/op	         6.510 entry-ms	        13.41 pause-ms
PASS
`

// targets returns what a function of targets.sh prints of a measurement, and its error if a target is missed.
func targets(function, measured string) (string, error) {
	cmd := exec.Command("bash", "-uo", "pipefail", "-c", ". ./targets.sh; "+function)
	cmd.Stdin = strings.NewReader(measured)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A target that is missed, or a figure that is not there, makes the part fail and is named.
func TestTargetsOfTheCoordinator(t *testing.T) {
	const placement, reports, submission, p99 = "a placement", "CPU for the reports", "a durable submission", "99 of 100"
	const failover, ratio, restart, snapshot = "death of the leader", "placements of one", "restart with", "longest stop"
	for name, c := range map[string]struct {
		old, with string
		row       string // of the target that is not met
		cells     []string
	}{
		"all are met":                   {"goos", "goos", "", nil},
		"few placements":                {"973 ", " ", placement, []string{"3.64e+04 us", "MISSED", "median of 2"}},
		"many reports":                  {"10228", "109", reports, []string{"MISSED"}},
		"few submissions":               {"3900", "50", submission, []string{"519 us", "MISSED"}},
		"slow submissions":              {"78    ", "178   ", p99, []string{"111 ms", "MISSED"}},
		"a slow failover":               {" 2307", " 3307", failover, []string{"3.31 s", "MISSED", "longest of 2"}},
		"no failover":                   {"FAILOVER MS", "P99 MS", failover, []string{"not measured"}},
		"three coordinators are slow":   {"0.625 times", "0.480 times", ratio, []string{"2.08 times", "MISSED"}},
		"no run of three":               {"servers=3,", "servers=5,", ratio, []string{"not measured"}},
		"a slow restart":                {"2.177 s-ready", "3.1 s-ready", restart, []string{"3.1 s", "MISSED"}},
		"no restart":                    {"BenchmarkRestart-2", "BenchmarkRest-2", restart, []string{"not measured"}},
		"a snapshot that stops Apply":   {"13.41 pause-ms", "61 pause-ms", snapshot, []string{"61 ms", "MISSED"}},
		"an entry that stops Apply":     {"6.510 entry-ms", "50.1 entry-ms", snapshot, []string{"50.1 ms", "MISSED"}},
		"neither of the two is printed": {"BenchmarkSnapshotPause", "BenchmarkSnapshot", snapshot, []string{"not measured"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := targets("coordinator_targets", strings.ReplaceAll(measuredCoordinator, c.old, c.with))
			if (err == nil) != (c.row == "") {
				t.Errorf("%v\n%s", err, out)
			}
			rows := 0
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "measurement ") {
					continue
				}
				rows++
				missed := c.row != "" && strings.HasPrefix(line, c.row)
				if strings.Contains(line, "  met ") == missed {
					t.Errorf("missed %v: %s", missed, line)
				}
				for _, cell := range c.cells {
					if missed && !strings.Contains(line, cell) {
						t.Errorf("no %q: %s", cell, line)
					}
				}
			}
			if rows != 8 {
				t.Errorf("%d targets:\n%s", rows, out)
			}
		})
	}
}

// A step of the part clone that is slow, or was not reached, makes the part fail and is named.
func TestTargetsOfTheClone(t *testing.T) {
	const measured = "make run, empty caches: 201.4 s\nword count of 32 maps, empty caches: 25.1 s\nmake run: 48.8 s\n" +
		"word count of 32 maps: 21.66 s\nmake check, first: 400.0 s\nmake check: 41.0 s\nmake test: 1500 s\n"
	for name, c := range map[string]struct{ old, with, row, status string }{
		"all are met":     {"", "", "", ""},
		"cold is slow":    {"201.4", "301", "make run, empty caches", "MISSED"},
		"warm is slow":    {"48.8", "90.1", "make run ", "MISSED"},
		"a slow job":      {"21.66", "76", "word count", "MISSED"},
		"checks are slow": {"41.0", "61", "make check", "MISSED"},
		"tests are slow":  {"1500", "1501", "make test", "MISSED"},
		"tests failed":    {"make test: 1500 s", "make test failed: see x", "make test", "not measured"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := targets("clone_targets", strings.Replace(measured, c.old, c.with, 1))
			rows := strings.Split(strings.TrimSpace(out), "\n")[1:]
			if len(rows) != 5 || (err == nil) != (c.row == "") {
				t.Errorf("%v\n%s", err, out)
			}
			for _, row := range rows {
				want := " met "
				if c.row != "" && strings.HasPrefix(row, c.row) {
					want = c.status
				}
				if !strings.Contains(row, want) {
					t.Errorf("want %s: %s", want, row)
				}
			}
		})
	}
}

// A slow placement, much memory, or another table makes the part million fail.
func TestTargetsOfAMillionTasks(t *testing.T) {
	const measured = "NODES   TENANTS  TASKS    FEATURES  PLANNING  POLICY  PLACEMENTS/S  MIN    MAX    RSS      LOCAL\n" +
		"10000   1000     1000000  all       no        3dsf    20            20     20     9.5 GiB  0.966\n" +
		"100000  1000     1000000  all       no        3dsf    40100         40000  41000  680 MiB  0.966\n"
	for name, c := range map[string]struct{ old, with, missed string }{
		"all are met":   {"", "", ""},
		"slow":          {"40100", "39900", "25.1 us    25 us     MISSED"},
		"much memory":   {"680 MiB", "4.5 GiB", "4.61e+03 MiB  4096 MiB  MISSED"},
		"other nodes":   {"100000 ", "99999  ", "not measured"},
		"fewer waiting": {"100000  1000     1000000", "100000  1000     20000  ", "not measured"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := targets("million_targets", strings.Replace(measured, c.old, c.with, 1))
			if (err == nil) != (c.missed == "") || !strings.Contains(out, c.missed) || strings.Count(out, "\n") != 3 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
