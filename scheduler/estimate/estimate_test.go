package estimate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/estimate"
)

func task(job scheduler.JobID, name string, tasks int32, run time.Duration) *estimate.Task {
	return &estimate.Task{Stage: estimate.Stage{ID: scheduler.StageID{Job: job}, Tenant: "t", Job: name, Name: "main", Kind: scheduler.KindGroup, Tasks: tasks}, Run: run}
}

func TestPredictionsComeFromTheNearestThatIsKnown(t *testing.T) {
	b := estimate.New(1)
	ask := func(job scheduler.JobID, name string, bound time.Duration) estimate.Prediction {
		s := task(job, name, 4, 0).Stage
		s.Bound = bound
		return b.Stage(&s)
	}
	want := func(what string, got estimate.Prediction, run time.Duration, source estimate.Source) {
		t.Helper()
		if got.Source != source || math.Abs((got.Run-run).Seconds()) > 0.001 {
			t.Errorf("%s: %v from %v, want %v from %v", what, got.Run, got.Source, run, source)
		}
	}
	want("nothing is known", ask(1, "a", 0), 0, estimate.None)
	want("a bound is known", ask(1, "a", time.Minute), time.Minute, estimate.Bound)
	for range 4 {
		b.Observe(task(1, "a", 4, 10*time.Second))
	}
	want("the name is known", ask(2, "a", 0), 10*time.Second, estimate.History)
	want("but not above the bound", ask(2, "a", 5*time.Second), 5*time.Second, estimate.History)
	want("the tenant is known", ask(3, "b", 0), 10*time.Second, estimate.Tenant)
	b.Begin(scheduler.StageID{Job: 2}, ask(2, "a", 0))
	b.Observe(task(2, "a", 4, 50*time.Second))
	want("its own tasks count beside three of history", ask(2, "a", 0), 20*time.Second, estimate.Own)
	running := task(2, "a", 4, 0).Stage
	running.Running = 4
	want("and those that run as predicted", b.Stage(&running), 15*time.Second, estimate.Own)
}

// What is drawn from a Book's errors is distributed as the run times are: both
// the part that a stage's tasks share and that of each, though the tasks that
// end first are the short ones.
func TestErrorsAreTakenApart(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	b := estimate.New(1)
	const drift, noise, tasks = 0.25, 0.4, 10
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
	s := b.Spread(estimate.History)
	if s.Assumed {
		t.Fatal("400 stages are enough to know errors")
	}
	for what, x := range map[string]struct {
		q    estimate.Quantiles
		want float64
	}{"stage": {s.Stage, drift}, "task": {s.Task, noise}} {
		sd := (math.Log(x.q.At(0.8413)) - math.Log(x.q.At(0.1587))) / 2
		if math.Abs(sd-x.want) > 0.15*x.want {
			t.Errorf("deviation of a %s: %.3f, want %.3f", what, sd, x.want)
		}
	}
	if m := b.Spread(estimate.Own).Stage.At(0.5); math.Abs(math.Log(m)+noise*noise/2) > 0.03 {
		t.Errorf("a mean is above the median by %.3f, want %.3f", -math.Log(m), noise*noise/2)
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
			for b.Step(500) {
			}
			s := task(job+1, string(rune('a'+job%20)), 5, 0).Stage
			out = append(out, b.Stage(&s).Run)
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

func TestTheWayOfRemoteDataIsMeasuredBySiblings(t *testing.T) {
	b := estimate.New(1)
	if _, ok := b.Bandwidth(); ok {
		t.Fatal("nothing was measured")
	}
	for i := range 12 {
		x := task(1, "a", 50, 10*time.Second)
		x.Kind, x.Input = scheduler.KindMap, 100<<20
		if i >= 3 { // two seconds more for 100 MiB
			x.Remote, x.Run = 3, 12*time.Second
		}
		b.Observe(x)
	}
	if got, ok := b.Bandwidth(); !ok || math.Abs(float64(got)-50*(1<<20)) > 1<<20 {
		t.Errorf("%d bytes/s, want 50 MiB/s (%v)", got, ok)
	}
}

func TestSourcesAreReadBack(t *testing.T) {
	for s := estimate.None; s <= estimate.Own; s++ {
		if estimate.ParseSource(s.String()) != s {
			t.Errorf("%v is read as %v", s, estimate.ParseSource(s.String()))
		}
	}
}

// A map stage that only the model knows is predicted for the share of its reads
// that will come from elsewhere, as measured.
func TestAMapStageIsPredictedAtTheDistanceOfThoseBefore(t *testing.T) {
	const local, remote = 10 * time.Second, 30 * time.Second
	predicted := func(remoteOf func(i int) bool) time.Duration {
		t.Helper()
		b := estimate.New(1)
		of := func(job int) *estimate.Task { // jobs of two tasks that no mean is known of; the more cores, the longer
			x := task(scheduler.JobID(job), fmt.Sprint("job ", job), 2, 0)
			x.Kind, x.Input, x.Demand[scheduler.CPU] = scheduler.KindMap, 64<<20, int64(job%6+1)*1000
			return x
		}
		for i := range 1200 {
			x := of(i / 2)
			if x.Run = local; remoteOf(i) {
				x.Remote, x.Run = 3, remote
			}
			x.Run = time.Duration(float64(x.Run) * math.Exp(0.4*float64(i/2%6)))
			b.Observe(x)
		}
		for b.Step(1000) {
		}
		s := of(600).Stage // of one core
		p := b.Stage(&s)
		if p.Source != estimate.Model {
			t.Fatalf("the prediction comes from %v", p.Source)
		}
		return p.Run
	}
	for name, c := range map[string]struct {
		remoteOf func(int) bool
		want     time.Duration
	}{
		// What one remote task of 64 showed the model of distance is in all three.
		"nearly all at their data":     {func(i int) bool { return i%64 == 0 }, local},
		"half of them away from it":    {func(i int) bool { return i%2 == 0 }, (local + remote) / 2},
		"nearly all of them away":      {func(i int) bool { return i%64 != 0 }, remote},
		"lately at it, away before it": {func(i int) bool { return i < 60 }, local},
	} {
		if got := predicted(c.remoteOf); math.Abs((got - c.want).Seconds()) > 0.25*c.want.Seconds() {
			t.Errorf("%s: %v, want about %v", name, got, c.want)
		}
	}
}
