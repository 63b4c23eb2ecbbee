package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/internal/record"
)

// The summary of a folder has the figures of its pages and the targets that it is given, and a
// second one, which finds the first beside the pages, is equal.
func TestSummarizeAFolder(t *testing.T) {
	dir := t.TempDir()
	page := record.Page(record.Measurement{Command: "x", At: time.Unix(0, 0), Commit: "abc", Output: "measurement  value\nstart  2 s\n"})
	if err := os.WriteFile(filepath.Join(dir, "dev.md"), []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	const targets = "== dev\nmeasurement  value  target  note\nstart  -  1 s  not measured\n"
	var first string
	for range 2 {
		if err := summarize(dir, "bench", strings.NewReader(targets)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "summary.md"))
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(text)
		}
		if !strings.Contains(first, "| [dev](dev.md) | start | 2 s | | | 1 s | **MISSED** |") || string(text) != first {
			t.Errorf("the summary is\n%s", text)
		}
	}
	if rows, err := record.ReadLedger[record.Row](filepath.Join(dir, "summary.jsonl")); err != nil || len(rows) != 1 || rows[0].Target != 1 {
		t.Errorf("the file for programs has %+v, %v", rows, err)
	}
}
