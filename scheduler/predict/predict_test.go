package predict

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// fedPredictor returns a predictor that has observed n tasks of a workload.
func fedPredictor(t testing.TB, w workload, c Config, seed uint64, n int) *Predictor {
	t.Helper()
	p := New(c)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		task, s := w.draw(r, i)
		p.Observe(task, s)
	}
	return p
}

func trainModel(t testing.TB, p *Predictor) *trainedModel {
	t.Helper()
	for range 1_000_000 {
		if !p.Train(1024) {
			if p.model == nil {
				t.Fatal("no round began")
			}
			return p.model
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
			if m.use != MLP {
				t.Fatalf("in use: %v", m.use)
			}
			r := rand.New(rand.NewPCG(seed, 2))
			var net, line float64
			const later = 2000
			for i := range later {
				task, s := w.draw(r, n+i)
				out := p.Predict(&task)
				a, b := math.Log(s/out.Seconds), math.Log(s/m.predictRidge(p.buffers, &task.Features))
				net, line = net+a*a, line+b*b
				if out.Source != MLP {
					t.Fatalf("estimate %+v", out)
				}
				p.Observe(task, s)
			}
			t.Logf("root mean square of log errors: network %.3f, ridge %.3f", math.Sqrt(net/later), math.Sqrt(line/later))
			if net >= line {
				t.Errorf("network %g, ridge %g", net, line)
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
		return t, 10 * math.Pow((1+f[InputBytes])/mib, 0.9) * 1000 / (1 + f[CPU]) * noise(r, 0.3)
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
		if m := trainModel(t, p); m.use == c.never || m.use != c.is && c.is != 0 {
			t.Errorf("%s: in use %v", c.w.name, m.use)
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
			if !p.Train(budget) {
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
	for p.Train(640) {
		calls++
	}
	if want := 20 * 800 / 640; calls < want || calls > 20*(800/640+1)+1 {
		t.Errorf("%d calls of 640 for 20 epochs of 800 tasks", calls)
	}
	if p.Train(640) || p.rounds != 1 {
		t.Error("a round began without new tasks")
	}
	if New(c).Train(10) {
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

// TestFallback goes down the chain of sources.
func TestFallback(t *testing.T) {
	p := New(DefaultConfig(1))
	task := func(stage, tenant string, input float64) Task {
		t := Task{Stage: stage, Tenant: tenant}
		t.Features[InputBytes] = input
		return t
	}
	for range 3 {
		p.Observe(task("even", "a", mib), 10)
	}
	for i := range 20 {
		p.Observe(task("line", "b", float64(i*mib)), 2+float64(i))
	}
	p.Observe(task("single", "c", mib), 77)
	for _, w := range []struct {
		name    string
		task    Task
		seconds float64
		source  Source
	}{
		{"mean of three tasks of the stage", task("even", "a", mib), 10, StageMean},
		{"a line over input size", task("line", "b", 10.5*mib), 12.5, StageRegression},
		{"a line no farther than four times what was seen", task("line", "b", 1e6*mib), 84, StageRegression},
		{"a new stage of a known tenant", task("new", "a", mib), 10, TenantMean},
		{"one record is no history", task("single", "c", mib), 60, Default},
		{"nothing known", task("new", "new", mib), 60, Default},
	} {
		e := p.Predict(&w.task)
		if math.Abs(e.Seconds-w.seconds) > 1e-6 || e.Source != w.source || w.task.Features[stageSeconds] != e.Seconds {
			t.Errorf("%s: got %g s from %v, want %g from %v", w.name, e.Seconds, e.Source, w.seconds, w.source)
		}
	}
}

// TestHostileHistory trains on extremes: equal tasks, and the limits.
func TestHostileHistory(t *testing.T) {
	for _, extreme := range []bool{false, true} {
		p := New(DefaultConfig(1))
		for i := range 600 {
			task, s := Task{Stage: "s"}, 5.0
			if extreme {
				for f := range task.Features {
					task.Features[f] = 1e18 * float64((i>>f)&1)
				}
				s = []float64{1e-9, maxSeconds}[i%2]
			}
			p.Observe(task, s)
		}
		trainModel(t, p)
		if e := p.Predict(&Task{}); !(e.Seconds > 0) || math.IsInf(e.Seconds, 0) {
			t.Errorf("estimate %+v", e)
		}
	}
}

func TestTablesAreBounded(t *testing.T) {
	c := DefaultConfig(1)
	c.maxStages, c.maxTenants, c.history, c.minHistory = 10, 5, 100, 50
	p := New(c)
	for i := range 1000 {
		p.Observe(Task{Stage: fmt.Sprint(i), Tenant: fmt.Sprint(i)}, 1)
	}
	if len(p.stages.entries) != 10 || len(p.tenants.entries) != 5 || len(p.history.Values) != 100 {
		t.Errorf("%d stages, %d tenants, %d tasks", len(p.stages.entries), len(p.tenants.entries), len(p.history.Values))
	}
}

// A stage whose run times step up is followed within the tasks of its history, by its mean and its regression, however long it
// has run as before.
func TestStagesFollowAStep(t *testing.T) {
	for name, c := range map[string]struct {
		input  func(i int) float64
		source Source
	}{
		"mean":       {func(int) float64 { return mib }, StageMean},
		"regression": {func(i int) float64 { return float64(1+i%8) * mib }, StageRegression},
	} {
		p := New(DefaultConfig(1))
		observe := func(n int, factor float64) {
			for i := range n {
				x := Task{Stage: "s", Tenant: "t"}
				x.Features[InputBytes] = c.input(i)
				p.Observe(x, factor*c.input(i)/mib)
			}
		}
		x := Task{Stage: "s", Tenant: "t"}
		x.Features[InputBytes] = c.input(3)
		observe(20*stageHistory, 10)
		before := p.Predict(&x)
		observe(stageHistory, 100)
		after := p.Predict(&x)
		if before.Source != c.source || math.Abs(before.Seconds/(10*c.input(3)/mib)-1) > 0.01 || after.Seconds < 5*before.Seconds {
			t.Errorf("%s: %g s from %v, and %g s from %v once tasks take ten times as long", name, before.Seconds, before.Source, after.Seconds, after.Source)
		}
	}
}

// A stage whose tasks keep ending keeps its history, however many other stages come.
func TestStagesInUseAreKept(t *testing.T) {
	c := DefaultConfig(1)
	c.maxStages = 10
	p := New(c)
	for i := range 100 {
		if i%5 == 0 {
			p.Observe(Task{Stage: "mine", Tenant: "a"}, 7)
		}
		p.Observe(Task{Stage: fmt.Sprint(i), Tenant: "b"}, 1)
		if i%5 == 4 { // predictions are no use
			p.Predict(&Task{Stage: fmt.Sprint(i - 4)})
		}
	}
	if e := p.Predict(&Task{Stage: "mine", Tenant: "a"}); e.Source != StageMean || e.Seconds != 7 || len(p.stages.entries) != 10 || p.stages.used.Len() != 10 {
		t.Errorf("%g s from %v, %d and %d stages", e.Seconds, e.Source, len(p.stages.entries), p.stages.used.Len())
	}
	if p.stages.Get("90") != nil || p.stages.Get("99") == nil {
		t.Error("an early stage that was only predicted is kept, or the latest is not")
	}
}

func TestSlowdown(t *testing.T) {
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
		r := newRound(p.history.Values, &c, 1)
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
	tasks := make([]Task, 1000)
	for i := range tasks {
		tasks[i], _ = workloads[0].draw(r, i)
	}
	b.ReportAllocs()
	for b.Loop() {
		for i := range tasks {
			if out := p.Predict(&tasks[i]); out.Source != MLP {
				b.Fatal(out)
			}
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "tasks/s")
}

func BenchmarkObserve(b *testing.B) {
	p := fedPredictor(b, workloads[0], DefaultConfig(1), 7, 2000)
	trainModel(b, p)
	task, s := workloads[0].draw(rand.New(rand.NewPCG(1, 2)), 0)
	b.ReportAllocs()
	for b.Loop() {
		p.Observe(task, s)
	}
}
