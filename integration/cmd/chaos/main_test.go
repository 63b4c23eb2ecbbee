package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/integration/chaos"
)

// TestRunsAreSummed adds the runs of two logs to a ledger, one of a run that failed.
func TestRunsAreSummed(t *testing.T) {
	dir := t.TempDir()
	ledger := filepath.Join(dir, "chaos.jsonl")
	var out bytes.Buffer
	for _, line := range []string{
		`{"seed": 18446744073709551615, "faults": {"HDFS: stands still": 2, "machine: cut off": 1}, "at_once": {"commit": 1}, "accepted": 7, "ended": 7, "outputs": 3, "logs": 6, "seconds": 60, "median_seconds": 18.5}`,
		`{"seed": 4, "faults": {"machine: cut off": 1}, "accepted": 4, "ended": 1, "seconds": 20, "failure": "see the log"}`,
	} {
		log := filepath.Join(dir, "log")
		if err := os.WriteFile(log, []byte("=== RUN   TestChaos\n    chaos_test.go:9: "+chaos.RunPrefix+line+"\n--- PASS: TestChaos\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		if err := run(ledger, log, "0123456789ab", &out); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"4 faults in 2 runs, of which 1 failed; 20.0 s for a fault", "11 jobs accepted, 8 ended well", "machine: cut off", "18446744073709551615", "failed: see the log"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	if _, err := parseRun([]byte("PASS\n")); err == nil {
		t.Error("a log without a run was taken for one")
	}
}
