package predict

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

func mustPredictor(t testing.TB, c Config) *Predictor {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// fedPredictor returns a predictor that has observed n tasks of a workload.
func fedPredictor(t testing.TB, w workload, c Config, seed uint64, n int) *Predictor {
	t.Helper()
	p := mustPredictor(t, c)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		task, s := w.draw(r, i)
		if err := p.Observe(task, s); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func trainModel(t testing.TB, p *Predictor) *trainedModel {
	t.Helper()
	for range 1_000_000 {
		switch p.Train(1024) {
		case Evaluated:
			return p.model
		case Idle:
			t.Fatal("no round began")
		}
	}
	t.Fatal("the round does not end")
	return nil
}

// TestBeatsRidge checks that on every workload the network wins on the held-out tasks
// and on tasks drawn afterwards.
func TestBeatsRidge(t *testing.T) {
	for _, w := range workloads {
		t.Run(w.name, func(t *testing.T) {
			const seed = 20261121
			t.Logf("seed %d", seed)
			n := 10_000
			if testing.Short() {
				n = 4000
			}
			p := fedPredictor(t, w, DefaultConfig(seed), seed, n)
			m := trainModel(t, p)
			t.Logf("root mean square of log errors on %d held out: network %.3f, ridge %.3f, fallback %.3f", m.report.heldOut,
				math.Sqrt(m.report.networkError), math.Sqrt(m.report.ridgeError), math.Sqrt(m.report.fallbackError))
			if m.report.use != MLP {
				t.Fatalf("in use: %v, %+v", m.report.use, m.report)
			}
			// New tasks, which also check the intervals of the estimates.
			r := rand.New(rand.NewPCG(seed, 2))
			var net, line float64
			inside, later := 0, 2000
			for i := range later {
				task, s := w.draw(r, n+i)
				tasks, out := []Task{task}, make([]Estimate, 1)
				if err := p.Predict(tasks, out); err != nil {
					t.Fatal(err)
				}
				a, b := math.Log(s/out[0].Seconds), math.Log(s/m.predictRidge(p.ws, &tasks[0].Features))
				net, line = net+a*a, line+b*b
				if out[0].Source != MLP || out[0].errors.assumed {
					t.Fatalf("estimate %+v", out[0])
				}
				if s >= out[0].Quantile(0.05) && s <= out[0].Quantile(0.95) {
					inside++
				}
				if err := p.Observe(tasks[0], s); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("on later tasks: network %.3f, ridge %.3f; %.1f%% inside the 90%% interval", math.Sqrt(net/float64(later)), math.Sqrt(line/float64(later)), 100*float64(inside)/float64(later))
			if net >= line || inside < later*84/100 || inside > later*96/100 {
				t.Errorf("network %g, ridge %g, %d of %d inside", net, line, inside, later)
			}
		})
	}
}

// TestRidgeWins checks that the ridge regression wins where run time is a product of
// powers, so that the network has nothing to gain, and that pure noise leaves the
// fallback in use.
func TestRidgeWins(t *testing.T) {
	const seed = 5
	law := workload{"power law", func(r *rand.Rand, i int) (Task, float64) {
		t := Task{Stage: fmt.Sprint(i), Tenant: "t"}
		demand(&t, 0, mib*noise(r, 1), 1000*noise(r, 0.5), gib, 10*mib*noise(r, 0.5))
		f := &t.Features
		return t, 10 * math.Pow((1+f.of(InputBytes))/mib, 0.9) * 1000 / (1 + f.of(CPU)) * noise(r, 0.3)
	}}
	pure := workload{"noise", func(r *rand.Rand, i int) (Task, float64) {
		t := Task{Stage: "one", Tenant: "t"}
		demand(&t, 0, mib, 1000, gib, mib)
		return t, 10 * noise(r, 0.3)
	}}
	for _, c := range []struct {
		w     workload
		never Source
		is    Source
	}{{law, MLP, Ridge}, {pure, MLP, 0}} {
		p := fedPredictor(t, c.w, DefaultConfig(seed), seed, 2000)
		if m := trainModel(t, p); m.report.use == c.never || m.report.use != c.is && c.is != 0 {
			t.Errorf("%s: in use %v, %+v", c.w.name, m.report.use, m.report)
		}
	}
}

// TestDeterministic checks that the same seed and tasks give the same model however the
// work is split, and another seed does not.
func TestDeterministic(t *testing.T) {
	train := func(seed uint64, budget int) *trainedModel {
		c := DefaultConfig(seed)
		c.epochs = 3
		p := fedPredictor(t, workloads[0], c, 7, 1500)
		for range 100_000 {
			if p.Train(budget) == Evaluated {
				return p.model
			}
		}
		t.Fatal("no end")
		return nil
	}
	a := train(1, 64)
	if !reflect.DeepEqual(a, train(1, 1_000_000)) {
		t.Error("splitting the work changed the model")
	}
	if reflect.DeepEqual(a, train(2, 64)) {
		t.Error("the seed changed nothing")
	}
}

// TestTrainIsBounded counts the task visits of a call.
func TestTrainIsBounded(t *testing.T) {
	c := DefaultConfig(1)
	p := fedPredictor(t, workloads[0], c, 7, 1000)
	calls := 1
	for p.Train(640) == Fitting {
		calls++
	}
	if want := 20 * 800 / 640; calls < want || calls > 20*(800/640+1)+1 {
		t.Errorf("%d calls of 640 for 20 epochs of 800 tasks", calls)
	}
	if p.Train(640) != Idle {
		t.Error("a round began without new tasks")
	}
	if mustPredictor(t, c).Train(10) != Idle {
		t.Error("a round began without history")
	}
}

// TestGradient compares backpropagation with finite differences.
func TestGradient(t *testing.T) {
	for _, slope := range []float64{0, 0.1, 1} {
		r := rand.New(rand.NewPCG(3, 3))
		n, g, b := newNetwork(slope), newNetwork(0), newBuffers()
		n.randomise(r)
		const rows = 5
		in, want := make([]float32, rows*featureCount), make([]float32, rows)
		for i := range in {
			in[i] = float32(r.NormFloat64())
		}
		loss := func() (sum float64) {
			copy(b.activations[0], in)
			n.forward(b, rows)
			for k := range want {
				d := float64(b.activations[3][k] - want[k])
				b.gradients[3][k] = float32(2 * d)
				sum += d * d
			}
			return sum
		}
		loss()
		n.backward(g, b, rows)
		for l := range n.layers {
			for _, pair := range [][2][]float32{{n.layers[l].w, g.layers[l].w}, {n.layers[l].b, g.layers[l].b}} {
				for range 20 {
					i := r.IntN(len(pair[0]))
					const h = 1e-3
					at := pair[0][i]
					pair[0][i] = at + h
					up := loss()
					pair[0][i] = at - h
					down := loss()
					pair[0][i] = at
					if numeric := (up - down) / (2 * h); math.Abs(numeric-float64(pair[1][i])) > 0.03*(1+math.Abs(numeric)) {
						t.Errorf("slope %g, layer %d, weight %d: %g by differences, %g by backpropagation", slope, l, i, numeric, pair[1][i])
					}
				}
			}
		}
	}
}

// TestReLU checks 3DSF eq. 4 as printed.
func TestReLU(t *testing.T) {
	for _, a := range []float64{0, 0.01, 0.5, 1} {
		for _, x := range []float64{-3, -0.5, 0, 0.25, 8} {
			want := (1+a)/2*x + (1-a)/2*math.Abs(x)
			if got := float64(relu(float32(x), float32(a))); math.Abs(got-want) > 1e-6 {
				t.Errorf("f(%g) with slope %g is %g, want %g", x, a, got, want)
			}
		}
	}
}

// TestMultiply compares the blocked product with the plain one.
func TestMultiply(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		rows, cols, k := 1+r.IntN(9), 1+r.IntN(9), 1+r.IntN(9)
		a, b, out := make([]float32, rows*k), make([]float32, cols*k), make([]float32, rows*cols)
		for i := range a {
			a[i] = float32(r.IntN(9) - 4)
		}
		for i := range b {
			b[i] = float32(r.IntN(9) - 4)
		}
		multiply(out, a, b, rows, cols, k)
		for i := range rows {
			for j := range cols {
				var want float32
				for x := range k {
					want += a[i*k+x] * b[j*k+x]
				}
				if out[i*cols+j] != want {
					t.Fatalf("%dx%dx%d at %d, %d: %g, want %g", rows, cols, k, i, j, out[i*cols+j], want)
				}
			}
		}
	}
}

// TestFallback goes down the chain of sources.
func TestFallback(t *testing.T) {
	c := DefaultConfig(1)
	c.classSeconds = map[string]float64{"short": 5}
	p := mustPredictor(t, c)
	task := func(stage, tenant, class string, input float64) Task {
		t := Task{Stage: stage, Tenant: tenant, Class: class}
		t.Features.Set(InputBytes, input)
		return t
	}
	for range 3 {
		if err := p.Observe(task("even", "a", "", mib), 10); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		if err := p.Observe(task("line", "b", "", float64(i*mib)), 2+float64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Observe(task("single", "c", "", mib), 77); err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		name    string
		task    Task
		seconds float64
		source  Source
	}{
		{"mean of three tasks of the stage", task("even", "a", "", mib), 10, StageMean},
		{"a line over input size", task("line", "b", "", 10.5*mib), 12.5, StageRegression},
		{"a line no farther than four times what was seen", task("line", "b", "", 1e6*mib), 84, StageRegression},
		{"a new stage of a known tenant", task("new", "a", "", mib), 10, TenantMean},
		{"one record is no history", task("single", "c", "", mib), 60, ClassDefault},
		{"a known class", task("new", "new", "short", mib), 5, ClassDefault},
		{"nothing known", task("new", "new", "new", mib), 60, ClassDefault},
	} {
		out := make([]Estimate, 1)
		tasks := []Task{w.task}
		if err := p.Predict(tasks, out); err != nil {
			t.Fatal(err)
		}
		if e := out[0]; math.Abs(e.Seconds-w.seconds) > 1e-6 || e.Source != w.source || tasks[0].Features.of(StageSeconds) != e.Seconds {
			t.Errorf("%s: got %g s from %v, want %g from %v", w.name, e.Seconds, e.Source, w.seconds, w.source)
		}
	}
}

// TestInvalidInputIsRefused checks the class of each error, and that nothing is learnt.
func TestInvalidInputIsRefused(t *testing.T) {
	p := mustPredictor(t, DefaultConfig(1))
	for _, s := range []float64{0, -1, math.NaN(), math.Inf(1), maxSeconds * 2} {
		if err := p.Observe(Task{}, s); !errors.Is(err, errRunTime) {
			t.Errorf("run time %g: %v", s, err)
		}
	}
	for _, v := range []float64{-1, math.NaN(), math.Inf(1), 1e19} {
		var bad Task
		bad.Features.Set(DiskIO, v)
		if err := p.Observe(bad, 1); !errors.Is(err, errFeature) {
			t.Errorf("feature %g: %v", v, err)
		}
		if err := p.Predict([]Task{bad}, make([]Estimate, 1)); !errors.Is(err, errFeature) {
			t.Errorf("feature %g: %v", v, err)
		}
	}
	if err := p.Predict(make([]Task, 2), make([]Estimate, 1)); !errors.Is(err, errConfig) {
		t.Errorf("short output: %v", err)
	}
	if len(p.history) != 0 || len(p.stages.entries) != 0 {
		t.Error("invalid input was learnt")
	}
	for name, damage := range map[string]func(*Config){
		"slope": func(c *Config) { c.slope = math.NaN() }, "epochs": func(c *Config) { c.epochs = 0 },
		"history": func(c *Config) { c.history = 1 }, "minimum": func(c *Config) { c.minHistory = c.history + 1 },
		"retrain": func(c *Config) { c.retrainEvery = 0 }, "penalty": func(c *Config) { c.ridgePenalty = 0 },
		"default": func(c *Config) { c.defaultSeconds = 0 }, "stages": func(c *Config) { c.MaxStages = 0 },
		"class": func(c *Config) { c.classSeconds = map[string]float64{"x": -1} },
	} {
		c := DefaultConfig(1)
		damage(&c)
		if _, err := New(c); !errors.Is(err, errConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostileHistory trains on extremes: equal tasks, and the limits.
func TestHostileHistory(t *testing.T) {
	for _, extreme := range []bool{false, true} {
		p := mustPredictor(t, DefaultConfig(1))
		for i := range 600 {
			task, s := Task{Stage: "s"}, 5.0
			if extreme {
				for f := range task.Features {
					task.Features[f] = maxFeature(Feature(f+1)) * float64((i>>f)&1)
				}
				s = []float64{1e-9, maxSeconds}[i%2]
			}
			if err := p.Observe(task, s); err != nil {
				t.Fatal(err)
			}
		}
		trainModel(t, p)
		out, tasks := make([]Estimate, 1), make([]Task, 1)
		if err := p.Predict(tasks, out); err != nil || !(out[0].Seconds > 0) || math.IsInf(out[0].Quantile(1), 0) {
			t.Errorf("estimate %+v, %v", out[0], err)
		}
	}
}

func TestTablesAreBounded(t *testing.T) {
	c := DefaultConfig(1)
	c.MaxStages, c.MaxTenants, c.history, c.minHistory = 10, 5, 100, 50
	p := mustPredictor(t, c)
	for i := range 1000 {
		if err := p.Observe(Task{Stage: fmt.Sprint(i), Tenant: fmt.Sprint(i)}, 1); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.stages.entries) != 10 || len(p.tenants.entries) != 5 || len(p.history) != 100 {
		t.Errorf("%d stages, %d tenants, %d tasks", len(p.stages.entries), len(p.tenants.entries), len(p.history))
	}
}

// TestDistribution checks quantiles.
func TestDistribution(t *testing.T) {
	// half the distance between the 16% and 84% quantiles: the standard deviation if it is normal
	spread := func(d *distribution) float64 { return (d.logQuantile(0.84) - d.logQuantile(0.16)) / 2 }
	l := errorLog{dist: assumedDistribution(1)}
	r := rand.New(rand.NewPCG(1, 1))
	for range 512 {
		l.add(0.5 * r.NormFloat64())
	}
	if s := spread(l.dist); s < 0.42 || s > 0.58 || l.dist.assumed {
		t.Errorf("spread %g", s)
	}
	e := Estimate{100, MLP, l.dist}
	last := 0.0
	for p := 0.0; p <= 1; p += 0.01 {
		if q := e.Quantile(p); q < last {
			t.Fatalf("quantile %g is %g, below %g", p, q, last)
		} else {
			last = q
		}
	}
	if s := spread(assumedDistribution(1)); math.Abs(s-1) > 0.05 {
		t.Errorf("assumed spread %g", s)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		InputBytes.String(): "input_bytes", Slowdown.String(): "slowdown", Feature(0).String(): "feature(0)", Feature(9).String(): "feature(9)",
		ClassDefault.String(): "class default", MLP.String(): "mlp", Source(0).String(): "source(0)",
		Idle.String(): "idle", Fitting.String(): "fitting", Evaluated.String(): "evaluated", Phase(0).String(): "phase(0)",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	var s SlowdownTracker
	for range 100 {
		s.Observe(20, 10)
	}
	s.Observe(math.NaN(), 1)
	s.Observe(1, 0)
	if v := s.Value(); math.Abs(v-2) > 0.01 {
		t.Errorf("slowdown %g", v)
	}
}

// BenchmarkTrain trains on 10,000 tasks with 8 features for 20 epochs.
func BenchmarkTrain(b *testing.B) {
	c := DefaultConfig(1)
	c.history, c.epochs = 12_500, 20 // four fifths are trained on
	p := fedPredictor(b, workloads[0], c, 7, c.history)
	b.ReportAllocs()
	for b.Loop() {
		r := newRound(p.history, &c, 1)
		if len(r.y) != 10_000 {
			b.Fatal(len(r.y))
		}
		r.train(math.MaxInt)
	}
}

func BenchmarkPredict(b *testing.B) {
	p := fedPredictor(b, workloads[0], DefaultConfig(1), 7, 2000)
	trainModel(b, p)
	r := rand.New(rand.NewPCG(1, 2))
	tasks, out := make([]Task, 1000), make([]Estimate, 1000)
	for i := range tasks {
		tasks[i], _ = workloads[0].draw(r, i)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Predict(tasks, out); err != nil {
			b.Fatal(err)
		}
	}
	if out[0].Source != MLP {
		b.Fatal(out[0].Source)
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "tasks/s")
}

func BenchmarkObserve(b *testing.B) {
	p := fedPredictor(b, workloads[0], DefaultConfig(1), 7, 2000)
	trainModel(b, p)
	task, s := workloads[0].draw(rand.New(rand.NewPCG(1, 2)), 0)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Observe(task, s); err != nil {
			b.Fatal(err)
		}
	}
}
