package run

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// overloadedSetup returns a mix of long regular jobs and short jobs with deadlines on too few
// machines.
func overloadedSetup(t *testing.T, policy string) *Setup {
	t.Helper()
	nodes, err := (&Cluster{Nodes: []NodeGroup{{Count: 2, CPU: "8", Memory: "16GiB"}}}).Build()
	if err != nil {
		t.Fatal(err)
	}
	m := DefaultModels()
	m.MemoryUsedFraction = 0.3
	return &Setup{Nodes: nodes, Scheduler: policy, Models: m, Workload: func(seed uint64, _ []engine.Node) (*trace.Workload, error) {
		return trace.Generate("benchmark", map[string]string{"jobs": "120", "span_s": "600", "job_s": "60", "input_gb": "1"}, seed)
	}}
}

// A cost that is refused is refused before the others are simulated.
func TestBadCostsAreRefusedFirst(t *testing.T) {
	s := overloadedSetup(t, "pdsonqueue")
	s.Workload = func(uint64, []engine.Node) (*trace.Workload, error) {
		t.Error("it simulates")
		return &trace.Workload{}, nil
	}
	if _, err := s.StudyLevels(t.Context(), []float64{1, 2e6}, Seeds(1, 1), 1, nil); err == nil || !strings.Contains(err.Error(), "cost 2e+06: must be above 0") {
		t.Errorf("error %v", err)
	}
}

func TestKillLosesWorkAndSuspendDoesNot(t *testing.T) {
	s := overloadedSetup(t, "pdsonqueue")
	study, err := s.StudyLevels(context.Background(), []float64{0.01, 1}, Seeds(1, 2), 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(study.Cells) != 2*len(preemptModes) || len(study.Wins) != 2*len(levelMetrics) {
		t.Fatalf("%d cells, %d wins", len(study.Cells), len(study.Wins))
	}
	for _, c := range study.Cells {
		lost := c.Numbers["work_lost_cpu_s"].Mean
		if (c.Mode == ModeKill) != (lost > 0) {
			t.Errorf("%s at cost %v loses %v CPU-s", c.Mode, c.Cost, lost)
		}
	}
	for _, w := range study.Wins {
		if w.Metric == "work_lost_cpu_s" && (w.Mode == ModeKill || !w.Significant && len(w.Tied) == 0) {
			t.Errorf("work lost at cost %v: %+v", w.Cost, w)
		}
	}
	if s.Nodes[0].Levels != scheduler.AllLevels || s.Params["preempt"] != "" {
		t.Error("the original setup has changed")
	}
	dir := filepath.Join(t.TempDir(), "new")
	if err := WriteLevels(dir, study); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"levels.json", "levels.md", "work_lost_cpu_s.svg", "deadline_rate.png", "mean_response_s.svg"} {
		if st, err := os.Stat(filepath.Join(dir, f)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", f, err)
		}
	}
	if md := study.Markdown(); strings.Count(md, "| 0.01 |") != len(levelMetrics) || !strings.Contains(md, "**") {
		t.Errorf("no table:\n%s", md)
	}
}

func TestScaleSuspendCostMultipliesTimes(t *testing.T) {
	for _, l := range []scheduler.Level{scheduler.LevelFrozen, scheduler.LevelSwapped, scheduler.LevelCheckpointed} {
		const mem = 1 << 30
		was := measuredSuspendSpeed.Suspend(l, mem) + measuredSuspendSpeed.Resume(l, mem)
		now := scaleSuspendCost(measuredSuspendSpeed, 7).Suspend(l, mem) + scaleSuspendCost(measuredSuspendSpeed, 7).Resume(l, mem)
		if d := now - 7*was; d > time.Millisecond || d < -time.Millisecond {
			t.Errorf("%v: %v, seven times the cost is %v", l, was, now)
		}
	}
}

// Equal seeds write equal bytes with one and with two simulations at a time; only events_per_s
// depends on the machine.
func TestSameSeedsWriteSameBytes(t *testing.T) {
	written := func(parallel int) string {
		s := overloadedSetup(t, "3dsf")
		s.MaxTaskExecutions = MaxGanttTasks
		outs, err := s.SimulateSeeds(context.Background(), Seeds(3, 4), parallel, nil)
		if err != nil {
			t.Fatal(err)
		}
		sum := s.Summary(outs, map[string]string{"nodes": "2"})
		if sum.EventsPerS <= 0 {
			t.Error("events_per_s is missing")
		}
		sum.EventsPerS = 0
		dir := t.TempDir()
		if err := WriteResults(dir, sum, outs[0]); err != nil {
			t.Fatal(err)
		}
		var all bytes.Buffer
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.WriteString(filepath.Base(f))
			all.Write(raw)
		}
		for _, o := range outs {
			if err := report.WriteJobs(&all, &o.Config, o.Result); err != nil {
				t.Fatal(err)
			}
		}
		return all.String()
	}
	one, two := written(1), written(2)
	if one != two || !reflect.DeepEqual(one, written(2)) {
		t.Error("one simulation at a time and two at a time write different bytes")
	}
}
