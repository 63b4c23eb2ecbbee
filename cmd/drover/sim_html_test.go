package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// One file has the schedules of all schedulers compared, and refers to nothing
// else.
func TestSimulationAsHTML(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.html")
	if _, stderr, err := runSim(t, "compare", "-workload", "poisson", "-format", "generate", "-rule", "jobs=8", "-rule", "interval_s=2", "-rule", "task_s=10",
		"-scheduler", "fifo", "-scheduler", "fair", "-nodes", "3", "-html", file); err != nil {
		t.Fatal(err, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{"Schedule of fifo", "Schedule of fair", "mean response", `id="data1"`, `id="jobs1"`, "Waterfall", "each tenant occupied", "succeeded"} {
		if !strings.Contains(text, want) {
			t.Errorf("the file lacks %q", want)
		}
	}
	if found := regexp.MustCompile(`(?i)(src|href)="[^#]`).FindString(text); found != "" {
		t.Errorf("the file refers to another: %s", found)
	}
	if _, _, err := runSim(t, "run", "-workload", "poisson", "-format", "generate", "-model", "fluid", "-scheduler", "ps", "-html", file); err == nil || !strings.Contains(err.Error(), "no attempts") {
		t.Errorf("fluid: %v", err)
	}
}
