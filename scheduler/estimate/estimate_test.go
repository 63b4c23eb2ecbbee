package estimate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/estimate"
)

func task(job scheduler.JobID, name string, tasks int32, run time.Duration) *estimate.Task {
	return &estimate.Task{Stage: estimate.Stage{ID: scheduler.StageID{Job: job}, Tenant: "t", Job: name, Name: "main", Kind: scheduler.KindGroup, Tasks: tasks}, RunTime: run}
}

func TestPredictionsUseTheBestSource(t *testing.T) {
	b := estimate.New(1)
	predictFor := func(job scheduler.JobID, name string, bound time.Duration) estimate.Prediction {
		s := task(job, name, 4, 0).Stage
		s.RuntimeBound = bound
		return b.Predict(&s)
	}
	want := func(what string, got estimate.Prediction, run time.Duration, source estimate.Source) {
		t.Helper()
		if got.Source != source || math.Abs((got.RunTime-run).Seconds()) > 0.001 {
			t.Errorf("%s: %v from %v, want %v from %v", what, got.RunTime, got.Source, run, source)
		}
	}
	want("no source", predictFor(1, "a", 0), 0, estimate.None)
	want("a bound", predictFor(1, "a", time.Minute), time.Minute, estimate.RuntimeBound)
	for range 4 {
		b.Observe(task(1, "a", 4, 10*time.Second))
	}
	want("history by name", predictFor(2, "a", 0), 10*time.Second, estimate.History)
	want("history, limited by the bound", predictFor(2, "a", 5*time.Second), 5*time.Second, estimate.History)
	want("the tenant", predictFor(3, "b", 0), 10*time.Second, estimate.Tenant)
	b.RecordFirstPrediction(scheduler.StageID{Job: 2}, predictFor(2, "a", 0))
	b.Observe(task(2, "a", 4, 50*time.Second))
	want("own tasks count beside three of history", predictFor(2, "a", 0), 20*time.Second, estimate.OwnTasks)
	running := task(2, "a", 4, 0).Stage
	running.Running = 4
	want("running tasks count as predicted", b.Predict(&running), 15*time.Second, estimate.OwnTasks)
	b.RecordFirstPrediction(scheduler.StageID{Job: 4}, estimate.Prediction{RunTime: time.Hour, Source: estimate.RuntimeBound})
	b.Observe(task(4, "c", 16, time.Minute))
	running = task(4, "c", 16, 0).Stage
	running.Running = 8
	want("a bound is only the longest time: own tasks count alone", b.Predict(&running), time.Minute, estimate.OwnTasks)
}

// Samples of an Estimator's errors are distributed like the run times: both the part
// that a stage's tasks share and that of each task, although the first tasks to end are
// the shortest.
func TestErrorsAreSplitIntoStageAndTask(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 0))
	// The mean of 16 estimators: one has a few hundred errors, whose deviation is 6% off.
	const estimators, drift, noise, tasks = 16, 0.25, 0.4, 10
	var stage, each, above float64
	for range estimators {
		b := estimate.New(1)
		for job := scheduler.JobID(1); job <= 400; job++ {
			shared := drift * r.NormFloat64()
			runs := make([]float64, tasks)
			for i := range runs {
				runs[i] = math.Exp(shared + noise*r.NormFloat64())
			}
			slices.Sort(runs)
			for _, x := range runs {
				b.Observe(task(job, "a", tasks, time.Duration(x*20*float64(time.Second))))
			}
		}
		s := b.ErrorsBySource(estimate.History)
		if s.Assumed {
			t.Fatal("errors of 400 stages are still assumed")
		}
		deviation := func(q estimate.Quantiles) float64 {
			return (math.Log(q.Factor(0.8413)) - math.Log(q.Factor(0.1587))) / 2
		}
		stage, each = stage+deviation(s.Stage)/estimators, each+deviation(s.Task)/estimators
		above -= math.Log(b.ErrorsBySource(estimate.OwnTasks).Stage.Factor(0.5)) / estimators
	}
	for what, x := range map[string]struct{ got, want, off float64 }{
		"the deviation of a stage":           {stage, drift, 0.15 * drift},
		"the deviation of a task":            {each, noise, 0.15 * noise},
		"how far a mean is above the median": {above, noise * noise / 2, 0.03},
	} {
		if math.Abs(x.got-x.want) > x.off {
			t.Errorf("%s: %.3f, want %.3f", what, x.got, x.want)
		}
	}
}

func TestEqualTasksGiveEqualPredictions(t *testing.T) {
	predict := func() (out []time.Duration) {
		r := rand.New(rand.NewPCG(7, 0))
		b := estimate.New(1)
		for job := scheduler.JobID(1); job < 300; job++ {
			for range 5 {
				b.Observe(task(job, string(rune('a'+job%20)), 5, time.Duration(r.IntN(1e10)+1)))
			}
			for b.Train(500) {
			}
			s := task(job+1, string(rune('a'+job%20)), 5, 0).Stage
			out = append(out, b.Predict(&s).RunTime)
		}
		return out
	}
	a, b := predict(), predict()
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("prediction %d: %v and %v", i, a[i], b[i])
		}
	}
}

func TestBandwidthIsMeasuredBySiblings(t *testing.T) {
	b := estimate.New(1)
	if _, ok := b.Bandwidth(); ok {
		t.Fatal("a bandwidth without measurements")
	}
	for i := range 12 {
		x := task(1, "a", 50, 10*time.Second)
		x.Kind, x.InputBytes = scheduler.KindMap, 100<<20
		if i >= 3 { // two seconds more for 100 MiB
			x.DataDistance, x.RunTime = 3, 12*time.Second
		}
		b.Observe(x)
	}
	if got, ok := b.Bandwidth(); !ok || math.Abs(float64(got)-50*(1<<20)) > 1<<20 {
		t.Errorf("%d bytes/s, want 50 MiB/s (%v)", got, ok)
	}
}

func TestParseSourceInvertsString(t *testing.T) {
	for s := estimate.None; s <= estimate.OwnTasks; s++ {
		if estimate.ParseSource(s.String()) != s {
			t.Errorf("%v is read as %v", s, estimate.ParseSource(s.String()))
		}
	}
}

// A map stage known only to the model is predicted with the measured share of remote
// reads.
func TestMapStagesUseRecentDistances(t *testing.T) {
	const local, remote = 10 * time.Second, 30 * time.Second
	predicted := func(remoteOf func(i int) bool) time.Duration {
		t.Helper()
		b := estimate.New(1)
		of := func(job int) *estimate.Task { // jobs of two tasks without a mean; more cores take longer
			x := task(scheduler.JobID(job), fmt.Sprint("job ", job), 2, 0)
			x.Kind, x.InputBytes, x.Demand[scheduler.CPU] = scheduler.KindMap, 64<<20, int64(job%6+1)*1000
			return x
		}
		for i := range 1200 {
			x := of(i / 2)
			if x.RunTime = local; remoteOf(i) {
				x.DataDistance, x.RunTime = 3, remote
			}
			x.RunTime = time.Duration(float64(x.RunTime) * math.Exp(0.4*float64(i/2%6)))
			b.Observe(x)
		}
		for b.Train(1000) {
		}
		s := of(600).Stage // with one core
		p := b.Predict(&s)
		if p.Source != estimate.Model {
			t.Fatalf("the prediction comes from %v", p.Source)
		}
		return p.RunTime
	}
	for name, c := range map[string]struct {
		remoteOf func(int) bool
		want     time.Duration
	}{
		// All cases have at least one remote task in 64, from which the model learns
		// the effect of distance.
		"nearly all at their data":     {func(i int) bool { return i%64 == 0 }, local},
		"half away from their data":    {func(i int) bool { return i%2 == 0 }, (local + remote) / 2},
		"nearly all away from it":      {func(i int) bool { return i%64 != 0 }, remote},
		"recently at it, earlier away": {func(i int) bool { return i < 60 }, local},
	} {
		if got := predicted(c.remoteOf); math.Abs((got - c.want).Seconds()) > 0.25*c.want.Seconds() {
			t.Errorf("%s: %v, want about %v", name, got, c.want)
		}
	}
}

// A trained model speaks for stages and tenants that have run, better than their history; of the first job of a new tenant
// nothing is known with it either, but its bound.
func TestModelDoesNotSpeakForTheUnknown(t *testing.T) {
	b := estimate.New(1)
	of := func(job int, tenant string) *estimate.Task {
		x := task(scheduler.JobID(job), fmt.Sprint("job ", job%40), 2, 0)
		x.Tenant, x.Demand[scheduler.CPU] = tenant, int64(1+job*7%13)*1000
		x.RunTime = time.Duration(x.Demand[scheduler.CPU]) * 10 * time.Millisecond
		return x
	}
	for i := range 1200 {
		b.Observe(of(i/2, "t"))
	}
	for b.Train(1000) {
	}
	bounded := of(700, "new").Stage
	bounded.RuntimeBound = time.Hour
	for what, c := range map[string]struct {
		of   estimate.Stage
		want estimate.Source
	}{
		"a stage with a history":   {of(701, "t").Stage, estimate.Model},
		"a new stage of a tenant":  {func() estimate.Stage { x := of(702, "t").Stage; x.Job = "new"; return x }(), estimate.Model},
		"a new tenant":             {of(703, "new").Stage, estimate.None},
		"a new tenant with bounds": {bounded, estimate.RuntimeBound},
	} {
		if got := b.Predict(&c.of); got.Source != c.want {
			t.Errorf("%s: %v from %v, want it from %v", what, got.RunTime, got.Source, c.want)
		}
	}
	if estimate.Model < estimate.History {
		t.Error("the model is used before the history, and counts as weaker")
	}
}

// A task without history is assumed to run as the ended tasks of all tenants did.
func TestMeanRunTime(t *testing.T) {
	b := estimate.New(1)
	if _, known := b.MeanRunTime(); known {
		t.Error("known before any task ended")
	}
	before := b.ErrorsBySource(estimate.None).Stage.Factor(0.999)
	for i := range 1000 {
		run := 2 * time.Hour // forgotten: only the latest 512 count
		if i >= 400 {
			run = time.Duration(1+i%3) * time.Second
		}
		b.Observe(&estimate.Task{Stage: estimate.Stage{ID: scheduler.StageID{Job: scheduler.JobID(i)}, Tenant: "a", Job: "j", Name: "n", Tasks: 1}, RunTime: run})
	}
	if mean, known := b.MeanRunTime(); !known || mean < 1990*time.Millisecond || mean > 2010*time.Millisecond {
		t.Errorf("%v, %v, want about 2 s", mean, known)
	}
	of := b.ErrorsBySource(estimate.None).Stage
	if median := of.Factor(0.5); math.Abs(median-math.Ln2) > 0.01 || of.Factor(0.999) > before {
		t.Errorf("median factor %v, want ln 2", median)
	}
}
