package reproduce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// toyExperiment returns an experiment whose value is the seed plus a parameter.
func toyExperiment(ran *int) Experiment {
	return Experiment{Name: "toy/one", Paper: "Toy", Seeds: 3, Assumes: []string{"a"}, Run: func(e *Env, seed uint64) (*Sample, error) {
		*ran++
		s := &Sample{}
		s.setClaim("x", float64(seed)+e.Cal.get("a"))
		s.setClaim("none", math.NaN())
		s.addGrade("time", composedPolicy, 2)
		s.addGrade("time", "fifo", 1)
		s.addGrade("time", "ideal", 0.5)
		return s, nil
	}}
}

func toyRunner(ran *int, store *Store) *Runner {
	low, high := 0.0, 100.0
	cal := &Calibration{Parameters: map[string]Parameter{"a": {Value: 10, Low: 5, High: 20, Why: "a toy"}}}
	return &Runner{Env: &Env{Cal: cal}, Experiments: []Experiment{toyExperiment(ran)}, Sensitivity: 2, Parallel: 1, Store: store, Claims: []Claim{
		{ID: "toy/one/x", Experiment: "toy/one", Kind: Value, Low: &low, High: &high, Weight: 1},
		{ID: "toy/one/none", Experiment: "toy/one", Kind: Ratio, PaperValue: 2, Weight: 1}}}
}

func TestStoredSamplesAreReused(t *testing.T) {
	dir := t.TempDir()
	ran := 0
	for _, c := range []struct {
		build  string
		others bool
		runs   int
		made   string
	}{{"one", false, 7, "one"}, {"one", false, 0, "one"}, {"two", true, 0, "one"}, {"two", false, 7, "two"}} {
		store, err := OpenStore(dir, c.build, "v-"+c.build)
		if err != nil {
			t.Fatal(err)
		}
		store.AcceptOtherBuilds = c.others
		store.now = func() time.Time { return time.Date(2026, 1, 31, 23, 59, 59, 0, time.UTC) }
		ran = 0
		r := toyRunner(&ran, store)
		var last Progress
		r.OnProgress = func(p Progress) { last = p }
		outs, err := r.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if ran != c.runs || last.Done != 7 || last.Total != 7 || last.FromStore != 7-c.runs || last.Finished != "toy/one" {
			t.Errorf("build %s: %d units ran, want %d; %+v", c.build, ran, c.runs, last)
		}
		if v := outs[0].Verdicts[0]; v.Ours.Mean != 12 || v.Ours.N != 3 || !v.Reproduced {
			t.Errorf("build %s: %+v", c.build, v)
		}
		if want := fmt.Sprintf("3 seeds by v-%s on 2026-01-31", c.made); outs[0].Made != want {
			t.Errorf("build %s: made %q, want %q", c.build, outs[0].Made, want)
		}
		if v := outs[0].Verdicts[1]; v.Missing == "" {
			t.Errorf("NaN is taken for a value: %+v", v)
		}
		if s := outs[0].Sensitivity; len(s) != 4 || s[0].Mean != 6.5 || s[1].Mean != 21.5 || !s[1].High || s[0].Verdict != "reproduced" {
			t.Errorf("sensitivity %+v", s)
		}
	}
}

// TestSamplesOfOtherValuesAreNotReused: a sample is remade when any value of the calibration has changed, also one that the
// experiment reads and does not list as an assumption.
func TestSamplesOfOtherValuesAreNotReused(t *testing.T) {
	store, err := OpenStore(t.TempDir(), "one", "v1")
	if err != nil {
		t.Fatal(err)
	}
	store.AcceptOtherBuilds = true
	for _, c := range []struct {
		value float64
		runs  int
	}{{1, 3}, {1, 0}, {2, 3}} {
		ran := 0
		r := toyRunner(&ran, store)
		r.Sensitivity = 0
		r.Env.Cal.Parameters["b"] = Parameter{Value: c.value}
		r.Experiments[0].Run = func(e *Env, seed uint64) (*Sample, error) {
			ran++
			s := &Sample{}
			s.setClaim("x", e.Cal.get("a")+e.Cal.get("b"))
			return s, nil
		}
		outs, err := r.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if v := outs[0].Verdicts[0]; ran != c.runs || v.Ours.Mean != 10+c.value {
			t.Errorf("with the value %v: %d units ran, want %d; the mean is %v", c.value, ran, c.runs, v.Ours.Mean)
		}
	}
}

// TestStoredOnlySimulatesNothing: the stored samples of an interrupted run can be reported; the
// rest is not run.
func TestStoredOnlySimulatesNothing(t *testing.T) {
	store, err := OpenStore(t.TempDir(), "one", "v1")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	r := toyRunner(&ran, store)
	r.StoredOnly = true
	for _, want := range []struct {
		n       int
		missing string
	}{{0, errNotStored.Error()}, {2, ""}} {
		outs, err := r.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if v := outs[0].Verdicts[0]; v.Ours.N != want.n || v.Missing != want.missing || len(outs[0].Sensitivity) != 0 || ran != 0 {
			t.Errorf("%d values, missing %q, %d shifts, %d simulated; want %+v", v.Ours.N, v.Missing, len(outs[0].Sensitivity), ran, want)
		}
		some := toyRunner(&ran, store)
		some.Seeds, some.Sensitivity = 2, 0
		if _, err := some.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		ran = 0
	}
}

// TestDocsAreWrittenBetweenTheirLines: the page and the README have the report's numbers; a partial
// report is refused.
func TestDocsAreWrittenBetweenTheirLines(t *testing.T) {
	root := t.TempDir()
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if err := os.MkdirAll(filepath.Join(root, "docs/explanation"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(root, "README.md"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	claims, err := LoadClaims()
	if err != nil {
		t.Fatal(err)
	}
	cal, err := LoadCalibration()
	if err != nil {
		t.Fatal(err)
	}
	o := &Outcome{Experiment: Experiment{Name: "x"}}
	for _, c := range claims {
		o.Verdicts = append(o.Verdicts, evaluateClaim(c, []float64{c.PaperValue}, true))
	}
	o.Verdicts[0].Reproduced = false
	r := NewReport([]*Outcome{o}, &Env{Cal: cal}, "drover sim reproduce")
	write("before\n")
	if err := r.WriteDocs(root); err == nil || !strings.Contains(err.Error(), "no lines") {
		t.Errorf("a README without the lines: %v", err)
	}
	write("before\n" + readmeBegin + "old\n" + readmeEnd + "after\n")
	if err := r.WriteDocs(root); err != nil {
		t.Fatal(err)
	}
	if got, want := read("README.md"), "before\n"+readmeBegin+r.readmeText()+readmeEnd+"after\n"; got != want {
		t.Errorf("README %q, want %q", got, want)
	}
	if page := read(docsPage); !strings.Contains(page, r.Summary()) || strings.Contains(page, "![") || !strings.Contains(r.readmeText(), fmt.Sprint(len(claims), " claims")) {
		t.Errorf("page %.300s", page)
	}
	r.Outcomes[0].Verdicts = o.Verdicts[1:]
	if err := NewReport(r.Outcomes, &Env{Cal: cal}, "").WriteDocs(root); err == nil || !strings.Contains(err.Error(), "is for all 124 claims") {
		t.Errorf("a partial report: %v", err)
	}
}

// TestReadmeHasTheNumbersOfThePage: both are written by the same command.
func TestReadmeHasTheNumbersOfThePage(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile("../../../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	cal, err := LoadCalibration()
	if err != nil {
		t.Fatal(err)
	}
	page, text := read(docsPage), read(readme)
	if !strings.Contains(page, cal.Hash) {
		t.Errorf("%s has results of another calibration: run drover sim reproduce -docs", docsPage)
	}
	_, text, _ = strings.Cut(text, readmeBegin)
	text, _, _ = strings.Cut(text, readmeEnd)
	var s, f Score
	if _, err := fmt.Sscanf(strings.ReplaceAll(text, "\n", " "), "Of %d claims of the papers, evaluated by `drover sim reproduce`, %d have the paper's sign and %d are reproduced; of the %d distinct facts behind them %d and %d.",
		&s.Claims, &s.Signs, &s.Reproduced, &f.Claims, &f.Signs, &f.Reproduced); err != nil {
		t.Fatalf("%s: %q: %v", readme, text, err)
	}
	for _, part := range []string{fmt.Sprintf("%d claims: %d (", s.Claims, s.Signs), fmt.Sprintf(", %d (", s.Reproduced),
		fmt.Sprintf("%d distinct facts: %d (", f.Claims, f.Signs), fmt.Sprintf(", %d (", f.Reproduced)} {
		if !strings.Contains(page, part) {
			t.Errorf("%s lacks %q, which the README says", docsPage, part)
		}
	}
}

func TestCancelledRunReturnsItsCause(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	ran := 0
	if _, err := toyRunner(&ran, nil).Run(ctx); !errors.Is(err, context.Canceled) || ran != 0 {
		t.Errorf("%v, %d ran", err, ran)
	}
}

// The best specialist does not know true sizes; 3dsf is flagged if it is more than 5% worse.
func TestTableNamesBestSpecialist(t *testing.T) {
	grades := func(higher bool, us, fifo, fair float64) TableRow {
		return tableRow("w", Metric{Name: "m", HigherIsBetter: higher}, map[string][]float64{composedPolicy: {us, us}, "fifo": {fifo, fifo}, "fair": {fair, fair}, "ideal": {0.1, 0.1}})
	}
	for name, c := range map[string]struct {
		row   TableRow
		best  string
		worse float64
		flag  bool
	}{
		"lower is better":            {grades(false, 12, 10, 11), "fifo", 0.2, true},
		"a little worse":             {grades(false, 10.4, 10, 11), "fifo", 0.04, false},
		"better than all":            {grades(false, 9, 10, 11), "fifo", -0.1, false},
		"higher is better":           {grades(true, 0.8, 0.9, 1), "fair", 0.2, true},
		"higher and better than all": {grades(true, 1, 0.9, 0.8), "fifo", -1.0 / 9, false},
	} {
		if c.row.Best != c.best || math.Abs(c.row.Worse.Mean-c.worse) > 1e-9 || c.row.Flag != c.flag {
			t.Errorf("%s: %+v", name, c.row)
		}
	}
	if got := schedulersOf([]TableRow{grades(true, 1, 1, 1)}); !slices.Equal(got, []string{"3dsf", "fifo", "fair", "ideal"}) {
		t.Errorf("columns %v", got)
	}
}

// Two jobs of 8 tasks on 8 containers: each baseline of LAS_MQ gives them its shares and leaves the
// rest idle.
func TestRigidBaselinesLeaveContainersIdle(t *testing.T) {
	for name, want := range map[string][2]int32{rigidFIFO: {2, 0}, rigidEqu: {2, 4}, rigidFair: {2, 2}, rigidLAS: {2, 6}} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 10)).AddTenants("a", "b")
		w.State.Tenant(0).Spec.Weight = 3
		a := w.Submit("a", 2, schedtest.R(1, 2, 0))
		b := w.Submit("b", 20, schedtest.R(1, 2, 0))
		p, err := newRigid(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Cycle(p)
		if got := [2]int32{w.State.Job(a).Stages[0].Running, w.State.Job(b).Stages[0].Running}; got != want {
			t.Errorf("%s: %v tasks run, want %v", name, got, want)
		}
		w.Start().Advance(time.Second)
		if d := p.Decide(w.State, w.Now, 100); !d.Empty() {
			t.Errorf("%s: nothing changed and it decides: %v", name, d.Actions)
		}
	}
	if _, err := newRigid("rigid nothing"); err == nil {
		t.Error("an unknown baseline is accepted")
	}
}

// A reduce of two containers is not starved by maps of one.
func TestRigidBaselinesReserveANode(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 10)).AddTenants("a")
	p, err := newRigid(rigidEqu)
	if err != nil {
		t.Fatal(err)
	}
	small := w.Submit("a", 1, schedtest.R(1, 2, 0))
	w.Cycle(p)
	large := w.Submit("a", 1, schedtest.R(1, 4, 0))
	w.Submit("a", 5, schedtest.R(1, 2, 0))
	w.Start().Cycle(p)
	w.End(w.Attempts()[0], scheduler.OutcomeSucceeded)
	w.Cycle(p)
	if w.State.Job(large).Stages[0].Running != 1 {
		t.Errorf("after job %d the large task does not run", small)
	}
}

func TestEveryWhyNamesAClaim(t *testing.T) {
	claims, err := LoadClaims()
	if err != nil {
		t.Fatal(err)
	}
	shared := map[string]bool{} // the texts of 3DSF and PDSonQueue serve several experiments
	for _, c := range claims {
		shared[c.ID[strings.LastIndex(c.ID, "/")+1:]] = true
	}
	for _, e := range experiments() {
		for key, why := range e.Why {
			if key != "" && !shared[key] {
				t.Errorf("%s explains %q, which is no claim", e.Name, key)
			}
			if why == "" {
				t.Errorf("%s: no text for %q", e.Name, key)
			}
		}
	}
	for _, e := range experiments() {
		if len(e.Metrics) == 0 && !slices.ContainsFunc(claims, func(c Claim) bool { return c.Experiment == e.Name }) {
			t.Errorf("%s measures nothing: %s", e.Name, fmt.Sprint(e.Metrics))
		}
	}
}
