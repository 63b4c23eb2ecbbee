// Package shared finds the data that tests of the simulator compare with:
// traces and the answers of other programs. They are not part of the product;
// where they are absent the tests that want them skip.
package shared

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Path gives the path of a file below ../shared/data beside the repository.
func Path(t testing.TB, name string) string {
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
		t.Skipf("no %s beside the repository: the comparison with other programs is skipped", filepath.Join("shared", "data", name))
	}
	return p
}

// Rows gives the fields of each line of a file that is no comment.
func Rows(t testing.TB, name string) [][]string {
	t.Helper()
	f, err := trace.Open(Path(t, name))
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
