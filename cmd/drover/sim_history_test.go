package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/run"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Neither package may import the other, so only this test keeps their formats compatible.
func TestSimulatorReadsCoordinatorHistory(t *testing.T) {
	dir := t.TempDir()
	w, err := history.Open(dir, 0, 0)
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

// TestReplayedInputFollowsTheSimulatedNodes: plan and size replay a history on other machines than those that it
// names. Input is local only on a machine with the name of its host.
func TestReplayedInputFollowsTheSimulatedNodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h.jsonl")
	var text strings.Builder
	for i := range 12 {
		fmt.Fprintf(&text, `{"version":1,"job":%d,"submit_ms":%d,"stages":[{"name":"map","kind":"map","cpu":1000,"tasks":[`+
			`{"input_bytes":1000000,"hosts":["n%d"],"attempts":[{"state":"succeeded","node":"n%d","place_ms":1000,"end_ms":11000}]}]}]}`+"\n", i+1, 1000+1000*i, 7+i%3, 7+i%3)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, add := range []string{"-1", "2"} {
		if _, _, err := runSim(t, "plan", "-workload", path, "-format", "jsonl", "-scheduler", "fifo", "-add-nodes", add); err != nil {
			t.Errorf("plan -add-nodes %s: %v", add, err)
		}
	}
	stdout, _, err := runSim(t, "size", "-workload", path, "-format", "jsonl", "-scheduler", "fifo", "-response", "30s", "-json")
	var sizing run.Sizing
	if err != nil || json.Unmarshal([]byte(stdout), &sizing) != nil || sizing.Nodes != 1 {
		t.Errorf("size: %+v, %v", sizing, err)
	}
	source := run.Source{Format: "jsonl", File: path}
	l, err := source.Load(nil, run.NodeGroup{Count: 1, CPU: "8", Memory: "1GiB", RackSize: 1})
	if err != nil || len(l.Nodes) != 3 {
		t.Fatalf("%d nodes, %v", len(l.Nodes), err)
	}
	w, err := l.Workload(1, []engine.Node{{NodeSpec: scheduler.NodeSpec{Name: "other"}}, l.Nodes[2]})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]scheduler.NodeID{nil, nil, {1}} {
		if in := w.Jobs[i].Stages[0].Inputs; !slices.Equal(in.Nodes, want) || in.Bytes[0] != 1000000 {
			t.Errorf("job %d, with input on %s: %+v, want it on the nodes %v", i+1, l.Nodes[i].Name, in, want)
		}
	}
}
