package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// A level that was not reached is an error, after what was measured of the others is shown and saved.
func TestBenchSuspendFailsWithALevel(t *testing.T) {
	at := func(level, target droverv1.Level, note string) *droverv1.TaskAttempt {
		return &droverv1.TaskAttempt{Node: "n1", Level: &droverv1.LevelStatus{Level: level, Target: target, RequestedMs: 5, SinceMs: 12},
			Seen: &droverv1.SeenAttempt{Level: level, Phase: droverv1.Phase_PHASE_RUNNING, LevelNote: note}}
	}
	running := at(droverv1.Level_LEVEL_RUNNING, 0, "")
	f := &fakeCoordinator{nodes: []*droverv1.NodeStatus{{Info: &droverv1.NodeInfo{Name: "n1"}}},
		attempts: []*droverv1.TaskAttempt{running, at(droverv1.Level_LEVEL_FROZEN, 0, ""), running, at(droverv1.Level_LEVEL_FROZEN, 0, "swap is full")}}
	file := filepath.Join(t.TempDir(), "results")
	out, err := f.run(t, t.Context(), "bench", "suspend", "-levels", "frozen,swapped", "-rounds", "1", "-deep-rounds", "1", "-save", file, "j", "s/0")
	if code := exitCode(err); code != exitRefused || err == nil || !strings.Contains(err.Error(), "swapped: the task stays frozen: swap is full") {
		t.Errorf("exit code %d, %v", code, err)
	}
	if !strings.Contains(out, "7ms") || !strings.Contains(out, "swap is full") {
		t.Errorf("it printed\n%s", out)
	}
	if b, err := os.ReadFile(file); err != nil || strings.Count(string(b), "\n") != 2 {
		t.Errorf("it saved %q, %v", b, err)
	}
}
