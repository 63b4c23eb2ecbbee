// Package shared finds the reference data of the simulator's tests: traces and the results of other
// programs. They are not part of the product; tests that need them skip if they are absent.
package shared

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Path returns the path of a file below ../shared/data beside the repository. If it does not exist, it
// skips the test and says what the test would prove with it: a sentence that begins with "that".
func Path(t testing.TB, name, proves string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	p := filepath.Join(dir, "..", "shared", "data", name)
	if _, err := os.Stat(p); err != nil {
		t.Skipf("not proved here: %s. The reference data %s is no part of the repository; lay it beside it to run this test", proves, filepath.Join("..", "shared", "data", name))
	}
	return p
}

// Rows returns the fields of each line of a file that is not a comment. proves is as for Path.
func Rows(t testing.TB, name, proves string) [][]string {
	t.Helper()
	f, err := trace.Open(Path(t, name, proves))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows [][]string
	s := bufio.NewScanner(f)
	for s.Scan() {
		if line := s.Text(); !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
			rows = append(rows, strings.Fields(line))
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}
