package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The reference explains each counter by the name in -json and by the text of the table.
func TestCountersAreInTheReference(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(docsRoot, "docs", "reference", "job-file.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n### Counters\n")
	section, _, _ = strings.Cut(section, "\n### ")
	for _, c := range harnessCounters {
		if !strings.Contains(section, "`"+c.key+"`") || !strings.Contains(section, c.text) {
			t.Errorf("docs/reference/job-file.md explains no counter %s (%s)", c.key, c.text)
		}
	}
}
