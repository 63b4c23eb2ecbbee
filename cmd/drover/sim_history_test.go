package main

import (
	"os"
	"testing"
	"time"

	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Neither package may import the other, so only this test keeps their formats compatible.
func TestSimulatorReadsCoordinatorHistory(t *testing.T) {
	dir := t.TempDir()
	w, err := history.Open(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	attempt := history.Attempt{Node: "n1", State: "succeeded", PlaceMS: 2000, EndMS: 9000, StartingMS: 1500, RunMS: 5000}
	err = w.Append([]history.Job{{Job: 1, Name: "a", Tenant: "t", Priority: "low", State: "succeeded", SubmitMS: 1000, FinishMS: 9000, DeadlineMS: 11000,
		Stages: []history.Stage{{Name: "main", Kind: "group", CPU: 500, Memory: 1 << 20, Tasks: []history.Task{{Attempts: []history.Attempt{attempt}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := history.Files(dir)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := trace.ReadHistory(f, trace.Options{Name: files[0]})
	if err != nil {
		t.Fatal(err)
	}
	j := h.Workload(trace.HistoryRule{}).Jobs[0]
	g := j.Stages[0]
	if j.Name != "a" || j.Deadline != 10*time.Second || g.StartDelays[0] != 1500*time.Millisecond || g.WorkPerTask[0] != 5*time.Second || g.Demand[0] != 500 || g.Demand[1] != 1<<20 {
		t.Errorf("%+v", j)
	}
}
