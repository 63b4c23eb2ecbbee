package trace

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

const swimLines = "job0\t1\t1\t268435457\t1073741825\t100\tpath1\t\t\njob1\t2\t1\t0\t0\t7\n"

func TestReadSwimWithAndWithoutPaths(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte(swimLines)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]string{"plain": swimLines, "gzip": zipped.String()} {
		r, err := decompress(strings.NewReader(in))
		if err != nil {
			t.Fatal(err)
		}
		s, err := ReadSwim(r, Options{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		w := s.Workload(DefaultSwimRule)
		if s.Lines != 2 || s.jobs[0].path != "path1" || s.jobs[1].path != "" {
			t.Errorf("%s: %+v", name, s)
		}
		if g := w.Jobs[0].Stages; len(g) != 2 || g[0].Tasks != 3 || g[1].Tasks != 2 || g[0].FileID == 0 {
			t.Errorf("%s: first job %+v", name, g)
		}
		if g := w.Jobs[1].Stages; len(g) != 1 || g[0].Tasks != 1 || g[0].OutputBytes != 7 || w.Jobs[1].Submit != 2*time.Second {
			t.Errorf("%s: second job %+v", name, w.Jobs[1])
		}
	}
}

const swfLines = "; MaxProcs: 100\n; Note: x\n1 5 -1 30 4 -1 -1 4 20 -1 -1 7 -1 -1 -1 -1 -1 -1\n2 6 -1 0 4 -1 -1 4 20 -1 -1 7 -1 -1 -1 -1 -1 -1\n3 6 -1 9 -1 -1 -1 8 -1 -1 -1 8 -1 -1 -1 -1 -1 -1\n"

func TestSWFRequestedTimesAreBounds(t *testing.T) {
	s, err := ReadSWF(strings.NewReader(swfLines), Options{Name: "x.swf"})
	if err != nil {
		t.Fatal(err)
	}
	w := s.Workload(SWFRule{TenantPerUser: true})
	if s.processors != 100 || s.Skipped != 1 || len(w.Jobs) != 2 || len(w.Tenants) != 2 {
		t.Fatalf("%+v", s)
	}
	a, b := w.Jobs[0], w.Jobs[1]
	if a.Bound != 20*time.Second || a.Stages[0].Work != 20*time.Second || a.Stages[0].Demand[scheduler.CPU] != 4000 || a.Submit != 5*time.Second {
		t.Errorf("first %+v", a)
	}
	if b.Bound != 0 || b.Stages[0].Demand[scheduler.CPU] != 8000 || b.Stages[0].Work != 9*time.Second {
		t.Errorf("second %+v", b)
	}
	if p, err := s.PoolNode(SWFRule{}); err != nil || p[0].Capacity[scheduler.CPU] != 100_000 {
		t.Errorf("%v %v", p, err)
	}
}

// historyLines is a line as a coordinator writes it, with fields that this package does not know.
const historyLines = `{"version":1,"cluster":"c","job":7,"name":"wc","tenant":"alice","priority":"high","state":"succeeded","submit_ms":1000,"start_ms":1500,"finish_ms":9000,"counters":{"x":1},"stages":[` +
	`{"name":"map","kind":"map","cpu":1000,"memory":1073741824,"io":1000000,"disk":5,"tasks":[` +
	`{"input_bytes":100,"hosts":["n2","n9","n1"],"attempts":[{"node":"n1","state":"lost","place_ms":1500,"end_ms":1700},{"node":"n2","state":"succeeded","cause":"","locality":"node","place_ms":1700,"end_ms":4700,"run_ms":2500,"cpu_ms":5}]}]},` +
	`{"name":"reduce","kind":"reduce","after":[0],"cpu":500,"memory":1,"io":0,"disk":0,"tasks":[{"attempts":[{"node":"n1","state":"succeeded","place_ms":5000,"end_ms":9000}]}]}]}` + "\n" +
	`{"version":1,"job":8,"name":"x","tenant":"","priority":"low","state":"stopped","submit_ms":400,"deadline_ms":9400,"stages":[{"name":"main","kind":"group","cpu":1,"memory":1,"io":0,"disk":0,"tasks":[{"attempts":[{"node":"n1","state":"stopped","place_ms":500,"end_ms":700}]}]}]}` + "\n" +
	`{"version":1,"job":9,"name":"none","state":"failed","submit_ms":3,"stages":[]}` + "\n"

func TestHistoryIsReplayed(t *testing.T) {
	h, err := ReadHistory(strings.NewReader(historyLines), Options{Name: "h.jsonl"})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(h.NodeNames(), []string{"n1", "n2", "n9"}) || h.Skipped != 1 {
		t.Errorf("%v, %d skipped", h.NodeNames(), h.Skipped)
	}
	nodes := []engine.Node{{NodeSpec: scheduler.NodeSpec{Name: "n1"}}, {NodeSpec: scheduler.NodeSpec{Name: "n2"}}}
	w := h.Workload(HistoryRule{Nodes: nodes})
	if len(w.Jobs) != 2 || w.Jobs[0].Name != "x" || w.Jobs[0].Submit != 0 || w.Jobs[0].Deadline != 9*time.Second {
		t.Fatalf("%+v", w.Jobs)
	}
	j := w.Jobs[1]
	if j.Submit != 600*time.Millisecond || j.Priority != scheduler.PriorityHigh || w.Tenants[j.Tenant].Name != "alice" {
		t.Errorf("%+v", j)
	}
	m := j.Stages[0]
	if m.WorkPerTask[0] != 2500*time.Millisecond || m.StartDelays != nil || !reflect.DeepEqual(m.Inputs.Nodes, []scheduler.NodeID{1, 0}) || m.Inputs.Bytes[0] != 100 || m.Disk != 5 {
		t.Errorf("map %+v inputs %+v", m, m.Inputs)
	}
	if r := j.Stages[1]; r.WorkPerTask[0] != 4*time.Second || r.Inputs != nil || r.Kind != scheduler.KindReduce {
		t.Errorf("reduce %+v", r)
	}
}

// Projects belong to tenants, and get jobs as a coordinator's.
func TestHistoryProjectsBelongToTenants(t *testing.T) {
	text := ""
	for i, tenant := range []string{"a", "b", "a"} {
		text += fmt.Sprintf(`{"version":1,"job":%d,"tenant":%q,"project":"nightly","submit_ms":%d,"stages":[{"kind":"group","tasks":[{"attempts":[{"state":"succeeded","place_ms":1,"end_ms":2}]}]}]}`+"\n", i+1, tenant, 1000*i)
	}
	h, err := ReadHistory(strings.NewReader(text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := h.Workload(HistoryRule{})
	want := []engine.Project{{Name: "nightly", Tenant: 0, Open: true}, {Name: "nightly", Tenant: 1, Open: true}}
	if !reflect.DeepEqual(w.Projects, want) || w.Jobs[0].Project != 1 || w.Jobs[1].Project != 2 || w.Jobs[2].Project != 1 {
		t.Errorf("projects %+v of the jobs %+v", w.Projects, w.Jobs)
	}
}

// A map of packed files has the bytes that each node stored of it; one without has all of them on each.
func TestHistoryHostBytesAreReplayed(t *testing.T) {
	const line = `{"version":1,"job":1,"submit_ms":1000,"stages":[{"name":"map","kind":"map","cpu":1000,"tasks":[` +
		`{"input_bytes":100,"hosts":["n2","gone","n1"],"host_bytes":[90,70,40],"attempts":[{"state":"succeeded","place_ms":1000,"end_ms":2000}]},` +
		`{"input_bytes":60,"hosts":["n1"],"attempts":[{"state":"succeeded","place_ms":1000,"end_ms":2000}]}]}]}` + "\n"
	h, err := ReadHistory(strings.NewReader(line), Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := h.Workload(HistoryRule{Nodes: []engine.Node{{NodeSpec: scheduler.NodeSpec{Name: "n1"}}, {NodeSpec: scheduler.NodeSpec{Name: "n2"}}}})
	want := &scheduler.Inputs{Bytes: []int64{100, 60}, Start: []int32{0, 2, 3}, Nodes: []scheduler.NodeID{1, 0, 0}, Local: []int64{90, 40, 60}}
	if got := w.Jobs[0].Stages[0].Inputs; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, wrong := range []string{"[90,70]", "[101,70,40]", "[90,-1,40]"} {
		if _, err := ReadHistory(strings.NewReader(strings.Replace(line, "[90,70,40]", wrong, 1)), Options{}); err == nil || !strings.Contains(err.Error(), "task 0: 3 hosts") {
			t.Errorf("%s: error %v", wrong, err)
		}
	}
}

// A start delay in the history is replayed. An unknown run time counts from placement to end, which
// includes the start.
func TestHistoryStartDelaysAreReplayed(t *testing.T) {
	const line = `{"version":1,"job":1,"submit_ms":1000,"stages":[{"name":"main","kind":"group","cpu":1000,"tasks":[` +
		`{"attempts":[{"state":"lost","place_ms":1000,"end_ms":2000,"starting_ms":700},{"state":"succeeded","place_ms":3000,"end_ms":9000,"starting_ms":2000,"run_ms":3500}]},` +
		`{"attempts":[{"state":"failed","place_ms":1000,"end_ms":5000,"starting_ms":900}]},{}]}]}` + "\n"
	h, err := ReadHistory(strings.NewReader(line), Options{Name: "h.jsonl"})
	if err != nil {
		t.Fatal(err)
	}
	g := h.Workload(HistoryRule{}).Jobs[0].Stages[0]
	want := engine.Stage{Name: "main", Kind: scheduler.KindGroup, Tasks: 2, Demand: scheduler.Resources{1000, 0, 0},
		WorkPerTask: []time.Duration{3500 * time.Millisecond, 4 * time.Second}, StartDelays: []time.Duration{2 * time.Second, 0}}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("got  %+v\nwant %+v", g, want)
	}
}

func TestBadLinesAreNamed(t *testing.T) {
	read := map[string]func(string, Options) (Count, error){
		"swim": func(s string, o Options) (Count, error) {
			t, err := ReadSwim(strings.NewReader(s), o)
			if err != nil {
				return Count{}, err
			}
			return t.Count, nil
		},
		"swf": func(s string, o Options) (Count, error) {
			t, err := ReadSWF(strings.NewReader(s), o)
			if err != nil {
				return Count{}, err
			}
			return t.Count, nil
		},
		"jsonl": func(s string, o Options) (Count, error) {
			t, err := ReadHistory(strings.NewReader(s), o)
			if err != nil {
				return Count{}, err
			}
			return t.Count, nil
		},
	}
	for name, c := range map[string]struct{ format, text, want string }{
		"too few fields":             {"swim", swimLines + "job2\t3\t1\t5\n", "f:3: 4 fields: expected 6 or 7"},
		"a negative size":            {"swim", "job2\t3\t1\t-5\t0\t0\n", `f:1: the input is "-5": expected a number from 0`},
		"not a number":               {"swim", "job2\tx\t1\t5\t0\t0\n", `f:1: the submit time is "x"`},
		"NaN":                        {"swim", "job2\tNaN\t1\t5\t0\t0\n", `f:1: the submit time is "NaN"`},
		"17 fields":                  {"swf", "1 5 -1 30 4 -1 -1 4 20 -1 -1 7 -1 -1 -1 -1 -1\n", "f:1: 17 fields: expected the 18"},
		"a word instead of a number": {"swf", "1 5 -1 30 4 -1 -1 4 20 -1 -1 u -1 -1 -1 -1 -1 -1\n", `f:1: field 12 is "u"`},
		"not JSON":                   {"jsonl", "{\n", "f:1: expected a JSON object"},
		"another version":            {"jsonl", `{"version":2}`, "f:1: version is 2: this program reads version 1"},
		"two objects on a line":      {"jsonl", `{"version":1,"stages":[]} {}`, "f:1: expected one JSON object"},
		"an unknown kind":            {"jsonl", `{"version":1,"job":3,"stages":[{"kind":"mapp"}]}`, `f:1: job 3 stage 0: kind is "mapp"`},
		"a stage before itself":      {"jsonl", `{"version":1,"job":3,"stages":[{"kind":"map","after":[0],"tasks":[{}]}]}`, "f:1: job 3 stage 0: after has stage 0"},
		"a negative demand":          {"jsonl", `{"version":1,"job":3,"stages":[{"kind":"map","cpu":-1,"tasks":[{}]}]}`, "f:1: job 3 stage 0: cpu is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := read[c.format](c.text, Options{Name: "f"}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%v, want %s…", err, c.want)
			}
			n, err := read[c.format](c.text, Options{Name: "f", SkipBad: true})
			if err != nil || n.Bad != 1 || !strings.HasPrefix(n.FirstBad, c.want) {
				t.Errorf("with SkipBad: %+v, %v", n, err)
			}
		})
	}
}

func TestGeneratorsAreDeterministic(t *testing.T) {
	for _, g := range Generators() {
		t.Run(g.Name, func(t *testing.T) {
			a, err := Generate(g.Name, nil, 5)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := Generate(g.Name, nil, 5)
			c, _ := Generate(g.Name, nil, 6)
			if !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, c) {
				t.Error("seed 5 twice and seed 6 once")
			}
			if _, err := Generate(g.Name, map[string]string{"no": "1"}, 5); err == nil {
				t.Error("an unknown parameter is accepted")
			}
		})
	}
}

func FuzzReaders(f *testing.F) {
	for _, s := range []string{swimLines, swfLines, historyLines, "", "\x1f\x8b", "\t\t\t\t\t\t\n"} {
		f.Add([]byte(s))
	}
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		for _, skip := range []bool{false, true} {
			o := Options{Name: "f", SkipBad: skip}
			if s, err := ReadSwim(bytes.NewReader(b), o); err == nil {
				checkWorkload(t, s.Workload(DefaultSwimRule))
				s.FluidJobs(LASMQRule)
			}
			if s, err := ReadSWF(bytes.NewReader(b), o); err == nil {
				checkWorkload(t, s.Workload(SWFRule{TenantPerUser: true}))
			}
			if h, err := ReadHistory(bytes.NewReader(b), o); err == nil {
				checkWorkload(t, h.Workload(HistoryRule{}))
			}
		}
	})
}

// checkWorkload checks that no value is negative and that jobs are sorted.
func checkWorkload(t *testing.T, w *Workload) {
	for i, j := range w.Jobs {
		if j.Submit < 0 || j.Bound < 0 || (i > 0 && j.Submit < w.Jobs[i-1].Submit) {
			t.Fatalf("job %d: %+v", i, j)
		}
		if checkNames(j.Name, w.Tenants[j.Tenant].Name) != nil || j.Deadline != 0 && j.Deadline <= j.Submit {
			t.Fatalf("the State refuses job %d: %+v", i, j)
		}
		for _, g := range j.Stages {
			if checkNames(g.Name) != nil || g.Tasks < 1 || g.Work < 0 || g.InputBytes < 0 || g.ShuffleBytes < 0 || g.OutputBytes < 0 || g.Demand.Check() != nil && g.Demand[0] >= 0 {
				t.Fatalf("job %d stage %+v", i, g)
			}
		}
	}
}
