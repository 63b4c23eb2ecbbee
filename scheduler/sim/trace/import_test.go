package trace

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
)

func openSample(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestReadSlurm(t *testing.T) {
	h, err := ReadSlurm(openSample(t, "sacct.txt"), Options{Name: "sacct.txt"})
	if err != nil {
		t.Fatal(err)
	}
	w := h.Workload(HistoryRule{})
	if len(w.Jobs) != 4 || h.Skipped != 4 || h.Bad != 0 {
		t.Fatalf("%d jobs, %d lines skipped (the header, two steps, a job that never ran), %d bad", len(w.Jobs), h.Skipped, h.Bad)
	}
	var tenants []string
	for _, x := range w.Tenants {
		tenants = append(tenants, x.Name)
	}
	if !slices.Equal(tenants, []string{"genomics", "physics"}) {
		t.Errorf("tenants %v", tenants)
	}
	for i, want := range []struct {
		name          string
		submit, bound time.Duration
		tasks         int32
		run           time.Duration
		demand        scheduler.Resources
	}{
		{"align-1001", 0, 30 * time.Minute, 1, 10 * time.Minute, scheduler.Resources{4000, 8 << 30, 0}},
		{"sweep-1002_1", time.Minute, 36 * time.Hour, 2, 24 * time.Hour, scheduler.Resources{32000, 32 * 2000 << 20, 0}},
		{"fit-1003", 200 * time.Second, 630 * time.Second, 1, 630 * time.Second, scheduler.Resources{1000, 4 << 30, 0}}, // killed after its limit
		{"idle-1004", 5 * time.Minute, 0, 1, time.Minute, scheduler.Resources{2000, 0, 0}},
	} {
		j := &w.Jobs[i]
		g := &j.Stages[0]
		if j.Name != want.name || j.Submit != want.submit || j.Bound != want.bound || g.Tasks != want.tasks || g.WorkPerTask[0] != want.run || g.Demand != want.demand {
			t.Errorf("job %d: %+v, want %+v", i, j, want)
		}
	}
	if got := h.NodeNames(); !slices.Equal(got, []string{"node01", "node02"}) {
		t.Errorf("nodes %v", got)
	}
}

func TestReadRumen(t *testing.T) {
	h, err := ReadRumen(openSample(t, "rumen.json"), Options{Name: "rumen.json"})
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Jobs) != 2 || h.Skipped != 1 || h.Lines != 3 || !slices.Equal(h.NodeNames(), []string{"host1", "host2", "host3"}) {
		t.Fatalf("%d jobs of %d, %d skipped, nodes %v", len(h.Jobs), h.Lines, h.Skipped, h.NodeNames())
	}
	w := h.Workload(HistoryRule{})
	a, b := &w.Jobs[0], &w.Jobs[1]
	m, r := &a.Stages[0], &a.Stages[1]
	if a.Name != "wordcount" || w.Tenants[a.Tenant].Name != "research" || m.Kind != scheduler.KindMap || r.Kind != scheduler.KindReduce || !slices.Equal(r.After, []int32{0}) {
		t.Errorf("job 1: %+v", a)
	}
	if !slices.Equal(m.WorkPerTask, []time.Duration{17 * time.Second, 12 * time.Second}) || !slices.Equal(r.WorkPerTask, []time.Duration{35 * time.Second}) {
		t.Errorf("times %v and %v: of the attempt that succeeded, else of the task", m.WorkPerTask, r.WorkPerTask)
	}
	if m.Demand != (scheduler.Resources{1000, 2 << 30, 0}) || r.Demand != (scheduler.Resources{1000, 4 << 30, 0}) || !slices.Equal(m.Inputs.Bytes, []int64{134217728, 67108864}) {
		t.Errorf("demands %v, %v, input %v", m.Demand, r.Demand, m.Inputs.Bytes)
	}
	if b.Name != "job_1769000000000_0002" || w.Tenants[b.Tenant].Name != "ben" || b.Priority != scheduler.PriorityHigh || b.Submit != 10*time.Second || b.Stages[0].Demand[scheduler.Memory] != 1<<30 {
		t.Errorf("job 2: %+v", b)
	}
}

func TestBadImportsAreNamed(t *testing.T) {
	slurm := func(s string) error { _, err := ReadSlurm(strings.NewReader(s), Options{Name: "f"}); return err }
	rumen := func(s string) error { _, err := ReadRumen(strings.NewReader(s), Options{Name: "f"}); return err }
	const header = "JobID|Submit|Start|Elapsed|NCPUS|ReqMem|Timelimit\n"
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no processors":       {slurm("JobID|Submit|Start|Elapsed\n"), "f:1: the header has no column AllocCPUS or NCPUS: print it with sacct -P"},
		"too few fields":      {slurm(header + "1|2026-01-05T08:00:00\n"), "f:2: 2 fields: expected the 7 of the header"},
		"no time":             {slurm(header + "1|yesterday|2026-01-05T08:00:00|1:00|1||\n"), `f:2: job 1: Submit is "yesterday"`},
		"a bad start":         {slurm(header + "1|2026-01-05T08:00:00|today|1:00|1||\n"), `f:2: job 1: Start: "today": expected a time`},
		"a bad duration":      {slurm(header + "1|2026-01-05T08:00:00|2026-01-05T08:00:00|long|1||\n"), `f:2: job 1: Elapsed is "long": expected [days-]hours`},
		"a bad memory":        {slurm(header + "1|2026-01-05T08:00:00|2026-01-05T08:00:00|1:00|1|lots|\n"), `f:2: job 1: ReqMem is "lots": expected memory as 4G`},
		"negative processors": {slurm(header + "1|2026-01-05T08:00:00|2026-01-05T08:00:00|1:00|-4||\n"), `f:2: job 1: AllocCPUS is "-4"`},
		"broken JSON":         {rumen(`{"jobID":`), "f: object 1, byte"},
		"no submission":       {rumen(`{"jobID":"j1","mapTasks":[{}]}`), "f: object 1 (j1): submitTime is 0: expected Unix milliseconds"},
		"a task without time": {rumen(`{"jobID":"j1","submitTime":5,"mapTasks":[{"taskID":"m0"}]}`), "f: object 1 (j1): task m0 has no attempt with startTime"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want …%s…", name, c.err, c.want)
		}
	}
}
