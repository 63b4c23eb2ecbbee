package trace

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fuzztest"
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

// largestMachine is the machine whose parts the demands of two formats are.
var largestMachine = scheduler.Resources{96000, 400 << 30, 0}

func TestReadAlibaba(t *testing.T) {
	h, err := ReadAlibaba(openSample(t, "alibaba_batch_task.csv"), Options{Name: "f"}, largestMachine)
	if err != nil {
		t.Fatal(err)
	}
	w := h.Workload(HistoryRule{})
	if len(w.Jobs) != 3 || h.Lines != 6 || h.Skipped != 1 || h.Bad != 0 {
		t.Fatalf("%d jobs of %d lines, %d skipped (a task that never started), %d bad", len(w.Jobs), h.Lines, h.Skipped, h.Bad)
	}
	a, b, c := &w.Jobs[0], &w.Jobs[1], &w.Jobs[2]
	if a.Name != "j_1" || a.Submit != 0 || b.Name != "j_2" || b.Submit != 20*time.Second || c.Name != "j_3" || c.Submit != 40*time.Second {
		t.Errorf("jobs %+v, %+v, %+v", a, b, c)
	}
	type stage struct {
		name   string
		after  []int32
		tasks  int32
		run    time.Duration
		demand scheduler.Resources
	}
	for i, want := range []stage{
		{"M1", nil, 4, 30 * time.Second, scheduler.Resources{500, 2 << 30, 0}},
		{"J2_1", []int32{0}, 2, 18 * time.Second, scheduler.Resources{1000, 1 << 30, 0}},
		{"R3_2", []int32{1}, 1, 20 * time.Second, scheduler.Resources{1000, 4 << 30, 0}},
	} {
		g := &a.Stages[i]
		if got := (stage{g.Name, g.After, g.Tasks, g.WorkPerTask[0], g.Demand}); !reflect.DeepEqual(got, want) {
			t.Errorf("stage %d: %+v, want %+v", i, got, want)
		}
	}
	if g := &c.Stages[0]; len(c.Stages) != 1 || g.Name != "R2_1" || len(g.After) != 0 || g.Tasks != 3 {
		t.Errorf("a task waits for one that never ran: %+v", c.Stages)
	}
}

func TestAlibabaNames(t *testing.T) {
	for name, want := range map[string][]int{"M1": {1}, "R4_2": {4, 2}, "J5_3_4": {5, 3, 4}, "M2_Stg5": {2}, "task_Nzg3": {0}, "MergeTask": {0}, "M1_1": {1}, "_3": {0}, "7_1": {0}} {
		n, after := parseAlibabaName(name)
		if got := append([]int{n}, after...); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestReadGoogle(t *testing.T) {
	h, err := ReadGoogle(openSample(t, "google_2019.jsonl"), Options{Name: "f"}, largestMachine)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(openSample(t, "google_2019.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Reverse(lines)
	back, err := ReadGoogle(strings.NewReader(strings.Join(lines, "\n")), Options{Name: "f"}, largestMachine)
	if err != nil || !reflect.DeepEqual(h, back) {
		t.Errorf("in the opposite order of lines: %+v, %v", back, err)
	}
	w := h.Workload(HistoryRule{})
	if len(w.Jobs) != 2 || h.Lines != 16 || h.Skipped != 2 || h.Bad != 0 {
		t.Fatalf("%d jobs of %d lines, %d skipped (an alloc set, a task that outlives the trace), %d bad", len(w.Jobs), h.Lines, h.Skipped, h.Bad)
	}
	a, b := &w.Jobs[0], &w.Jobs[1]
	if g := &a.Stages[0]; a.Name != "c1" || w.Tenants[a.Tenant].Name != "u1" || a.Priority != scheduler.PriorityHigh || a.Submit != 0 ||
		!slices.Equal(g.WorkPerTask, []time.Duration{20500 * time.Millisecond, 20 * time.Second}) || g.Demand != (scheduler.Resources{24000, 50 << 30, 0}) {
		t.Errorf("job 1: %+v: a task takes as long as its attempt that finished", a)
	}
	if g := &b.Stages[0]; b.Name != "collection-12" || w.Tenants[b.Tenant].Name != "free" || b.Priority == scheduler.PriorityHigh || b.Submit != 3*time.Second ||
		len(b.Stages) != 1 || !slices.Equal(g.WorkPerTask, []time.Duration{5 * time.Second}) || g.Demand != (scheduler.Resources{48000, 25 << 30, 0}) {
		t.Errorf("job 2: %+v", b)
	}
}

// FuzzReadSlurm, FuzzReadRumen, FuzzReadAlibaba and FuzzReadGoogle: no text makes an importer fail but
// with an error, or gives a workload with impossible values.
func fuzzImport(f *testing.F, sample string, read func(r io.Reader, o Options) (*History, error)) {
	text, err := os.ReadFile("testdata/" + sample)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(""))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		for _, skip := range []bool{false, true} {
			if h, err := read(bytes.NewReader(b), Options{Name: "f", SkipBad: skip, maxTasks: 20_000}); err == nil {
				checkWorkload(t, h.Workload(HistoryRule{}))
			}
		}
	})
}

func FuzzReadSlurm(f *testing.F) { fuzzImport(f, "sacct.txt", ReadSlurm) }
func FuzzReadRumen(f *testing.F) { fuzzImport(f, "rumen.json", ReadRumen) }
func FuzzReadAlibaba(f *testing.F) {
	fuzzImport(f, "alibaba_batch_task.csv", func(r io.Reader, o Options) (*History, error) { return ReadAlibaba(r, o, largestMachine) })
}
func FuzzReadGoogle(f *testing.F) {
	fuzzImport(f, "google_2019.jsonl", func(r io.Reader, o Options) (*History, error) { return ReadGoogle(r, o, largestMachine) })
}

func TestBadImportsAreNamed(t *testing.T) {
	slurm := func(s string) error { _, err := ReadSlurm(strings.NewReader(s), Options{Name: "f"}); return err }
	alibaba := func(s string) error {
		_, err := ReadAlibaba(strings.NewReader(s), Options{Name: "f"}, scheduler.Resources{96000, 1 << 30, 0})
		return err
	}
	google := func(s string) error {
		_, err := ReadGoogle(strings.NewReader(s), Options{Name: "f"}, scheduler.Resources{96000, 1 << 30, 0})
		return err
	}
	swim := func(s string) error { _, err := ReadSwim(strings.NewReader(s), Options{Name: "f"}); return err }
	history := func(s string) error {
		_, err := ReadHistory(strings.NewReader(`{"version":1,"job":1,`+s+"}"), Options{Name: "f"})
		return err
	}
	rumen := func(s string) error { _, err := ReadRumen(strings.NewReader(s), Options{Name: "f"}); return err }
	tooMany := func() error {
		const s = "M1,3,j_1,1,Terminated,1,2,100,0.5\n"
		_, err := ReadAlibaba(strings.NewReader(s+s), Options{Name: "f", maxTasks: 5}, largestMachine)
		return err
	}
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
		"too many tasks":      {tooMany(), "f:2: 3 tasks: with those before, more than 5 in one file"},
		"eight fields":        {alibaba("M1,1,j_1,1,Terminated,1,2,100\n"), "f:1: 8 fields: expected the 9 of batch_task.csv"},
		"a bad plan":          {alibaba("M1,1,j_1,1,Terminated,1,2,much,1\n"), `f:1: plan_cpu is "much": expected a number`},
		"a name of no text":   {slurm("JobID|JobName|Submit|Start|Elapsed|NCPUS\n1|\xff|2026-01-05T08:00:00|2026-01-05T08:00:00|1:00|1\n"), "f:2: job 1: the name \"\\xff-1\" is not valid UTF-8"},
		"a tenant of no text": {slurm("JobID|Account|Submit|Start|Elapsed|NCPUS\n1|\xff|2026-01-05T08:00:00|2026-01-05T08:00:00|1:00|1\n"), "is not valid UTF-8"},
		"a node of no text":   {slurm("JobID|NodeList|Submit|Start|Elapsed|NCPUS\n1|\xff|2026-01-05T08:00:00|2026-01-05T08:00:00|1:00|1\n"), "is not valid UTF-8"},
		"a task of no text":   {alibaba("\xff,1,j_1,1,Terminated,1,2,100,1\n"), "is not valid UTF-8"},
		"a long SWIM name":    {swim(strings.Repeat("x", 5000) + "\t0\t0\t1\t0\t0\n"), "f:1: a name of 5000 bytes: at most 4096"},
		"a long project":      {history(`"deadline_ms":5,"project":"` + strings.Repeat("x", 5000) + `"`), "f:1: job 1: a name of 5000 bytes"},
		"a missed deadline":   {history(`"submit_ms":5,"deadline_ms":4`), "f:1: job 1: deadline_ms is 4, before submit_ms, which is 5"},
		"an end before":       {alibaba("M1,1,j_1,1,Terminated,5,2,100,1\n"), "f:1: end_time 2 is before start_time 5"},
		"memory above all":    {alibaba("M1,1,j_1,1,Terminated,1,2,100,101\n"), `f:1: plan_mem is "101": expected a number from 0 to 100`},
		"a circle":            {alibaba("M1_2,1,j_1,1,Terminated,1,2,100,1\nM2_1,1,j_1,1,Terminated,1,2,100,1\n"), "f: job j_1: its tasks wait for each other"},
		"no type":             {google(`{"time":"1"}`), "f:1: type is absent or none of SUBMIT, QUEUE"},
		"an unknown type":     {google(`{"time":"1","type":"11"}`), "f:1: type is absent or none of SUBMIT, QUEUE"},
		"a time of words":     {google(`{"time":"soon","type":"0"}`), `f:1: expected a JSON object of one event: "soon": expected a whole number`},
		"a negative time":     {google(`{"time":"-1","type":"0"}`), "f:1: time is -1: expected microseconds"},
		"too many instances":  {google(`{"time":"1","type":"0","instance_index":"10000000"}`), "f:1: instance_index is 10000000: expected 0 to 9999999"},
		"too large a request": {google(`{"time":"1","type":"0","resource_request":{"cpus":1.5}}`), "f:1: resource_request is 1.5 cpus and 0 memory: expected fractions"},
		"a task without time": {rumen(`{"jobID":"j1","submitTime":5,"mapTasks":[{"taskID":"m0"}]}`), "f: object 1 (j1): task m0 has no attempt with startTime"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want …%s…", name, c.err, c.want)
		}
	}
}
