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
	for _, want := range []string{"Schedule of fifo", "Schedule of fair", "mean response", `id="data1"`, `id="jobs1"`, "Waterfall", "each tenant occupied", "What tasks waited for", "no free cpu", "tasks waiting", "longest response first", "succeeded"} {
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

// What the file shows costs no other schedule: reasons are asked for, and change nothing.
func TestSimulationAsHTMLChangesNoNumber(t *testing.T) {
	rate := regexp.MustCompile(`"events_per_s[^}]*}`)
	for _, scheduler := range []string{"3dsf", "las_mq", "two_tier", "easy"} {
		args := []string{"run", "-workload", "poisson", "-format", "generate", "-rule", "jobs=40", "-rule", "interval_s=2", "-rule", "task_s=30", "-scheduler", scheduler, "-nodes", "3", "-json"}
		plain, stderr, err := runSim(t, args...)
		if err != nil {
			t.Fatal(err, stderr)
		}
		shown, stderr, err := runSim(t, append(args, "-html", filepath.Join(t.TempDir(), "plan.html"))...)
		if err != nil {
			t.Fatal(err, stderr)
		}
		if a, b := rate.ReplaceAllString(plain, ""), rate.ReplaceAllString(shown, ""); a != b {
			t.Errorf("%s: with -html\n%s\nwithout\n%s", scheduler, b, a)
		}
	}
}
