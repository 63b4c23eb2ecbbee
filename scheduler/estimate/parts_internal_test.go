package estimate

import (
	"math"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/predict"
)

// The means of stages of few tasks differ by chance alone: the part of their variance that does is taken out.
func TestSamplingNoiseIsRemoved(t *testing.T) {
	for what, c := range map[string]struct {
		means          []float64
		tasks          []int // of each stage
		within, weight float64
		want           []float64
	}{
		// 8 within a stage are 8/2 and 8/4 of the means of two and four tasks, 3 on average, of the 4 between them.
		"a quarter of the variance is between stages": {[]float64{0, 4}, []int{2, 4}, 32, 4, []float64{1, 3}},
		"less than chance alone makes":                {[]float64{1, 3}, []int{2, 4}, 32, 4, []float64{2, 2}},
		"one task each: not to be told":               {[]float64{0, 4}, []int{1, 1}, 0, 0, []float64{0, 4}},
	} {
		of := make([]completedStage, len(c.tasks))
		for i, n := range c.tasks {
			of[i].n = n
		}
		removeSamplingNoise(c.means, of, c.within, c.weight)
		for i, m := range c.means {
			if math.Abs(m-c.want[i]) > 1e-9 {
				t.Errorf("%s: %v, want %v", what, c.means, c.want)
				break
			}
		}
	}
}

// With one deviation above the mean (p 0.1587, z 1), two values widen the normal distribution by Student's t of one degree of
// freedom, z + (z^3 + z)/4 = 1.5, and by sqrt(1 + 1/2) for their mean being one of two.
func TestUpperValues(t *testing.T) {
	const one = 0.15865525393145707 // of the normal distribution is more than one deviation above the mean
	for what, c := range map[string]struct {
		q           Quantiles
		p           float64
		mean, above float64
	}{
		"nothing known":         {nil, one, 0, 0},
		"one value":             {Quantiles{3}, one, 3, 0},
		"two values":            {Quantiles{2, 4}, one, 3, 1.5 * math.Sqrt2 * math.Sqrt(1.5)},
		"three values":          {Quantiles{2, 3, 4}, one, 3, 1.25 * math.Sqrt(4./3)},
		"at least the largest":  {Quantiles{2, 4}, 0.5, 3, 1},
		"of skewed values, too": {Quantiles{0, 0, 0, 8}, 0.5, 2, 6},
	} {
		if mean, above := c.q.upper(c.p); math.Abs(mean-c.mean) > 1e-9 || math.Abs(above-c.above) > 1e-9 {
			t.Errorf("%s: %v and %v above, want %v and %v", what, mean, above, c.mean, c.above)
		}
	}
}

// The features of a task for the model: its stage, its distance from its data, and its node's earlier slowness.
func TestFeaturesOfTasks(t *testing.T) {
	b := New(1)
	x := &Task{Stage: Stage{ID: scheduler.StageID{Job: 1}, Tenant: "t", Job: "j", Name: "n", Kind: scheduler.KindReduce, Tasks: 3,
		Demand: scheduler.Resources{1000, 2 << 30, 3 << 20}, InputBytes: 5 << 20, DataDistance: 2}, Node: 7, RunTime: 20 * time.Second}
	for i, slowdown := range []float64{1, math.Pow(2, 0.1), math.Pow(2, 0.19)} { // each task takes twice as long, and counts a tenth
		got := b.predictorTaskOf(x, x.RunTime.Seconds(), 10*time.Second).Features
		var want predict.Features
		for f, v := range map[int]float64{predict.InputBytes: 5 << 20, predict.CPU: 1000, predict.Memory: 2 << 30, predict.DiskIO: 3 << 20,
			predict.StageKind: 1, predict.Distance: 2, predict.Slowdown: slowdown} {
			want[f] = v
		}
		if got != want {
			t.Errorf("task %d: %+v, want %+v", i, got, want)
		}
	}
}

// A task that runs again, since its output was lost, is no further error of its stage.
func TestStageIsCompleteOnce(t *testing.T) {
	b := New(1)
	x := &Task{Stage: Stage{ID: scheduler.StageID{Job: 1}, Tenant: "t", Job: "j", Name: "n", Kind: scheduler.KindGroup, Tasks: 2}, RunTime: time.Second}
	b.RecordFirstPrediction(x.ID, Prediction{RunTime: time.Second, Source: History})
	for i, want := range []int{0, 1, 1, 1} {
		b.Observe(x)
		if got := len(b.errors.stageErrors[History].Values); got != want {
			t.Errorf("%d tasks: %d errors, want %d", i+1, got, want)
		}
	}
}
