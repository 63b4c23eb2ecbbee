package estimate

import (
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler/predict"
)

const (
	maxStageErrors = 512
	maxTaskErrors  = 2048
	minErrors      = 16 // fewer errors are not trusted
)

// errorHistory retains the latest errors of first predictions in two parts. Both are recorded when
// a stage is complete: while it runs, its finished tasks are the shortest ones.
type errorHistory struct {
	stageErrors [Sources + 1]predict.Ring[completedStage] // by source of the first prediction
	taskErrors  predict.Ring[float64]                     // log(run time / stage's mean), scaled to the spread of a large stage
}

// completedStage compares the tasks of a complete stage with its first prediction.
type completedStage struct {
	n        int
	mean     float64 // of log(run time / prediction)
	variance float64 // of the same, 0 with one task
}

// maxStageLogs limits the stored run times of a stage: when full, every second one is dropped, then every fourth and so on.
const maxStageLogs = 256

func (o *stageRecord) add(run float64) {
	log := math.Log(run)
	if o.count%o.logStride() == 0 {
		if len(o.logs) == maxStageLogs {
			for i := range maxStageLogs / 2 {
				o.logs[i] = o.logs[2*i]
			}
			o.logs = o.logs[:maxStageLogs/2]
			o.thinned++
		}
		if o.count%o.logStride() == 0 {
			o.logs = append(o.logs, log)
		}
	}
	o.count++
	o.seconds += run
}

func (o *stageRecord) logStride() int { return 1 << o.thinned }

func (e *errorHistory) recordCompleted(o *stageRecord) {
	n := float64(len(o.logs))
	mean, squares := meanAndSquares(o.logs)
	for _, v := range o.logs {
		if n > 1 {
			e.taskErrors.Add((v-mean)*math.Sqrt(n/(n-1)), maxTaskErrors)
		}
	}
	if o.first.Source != None {
		l := completedStage{n: len(o.logs), mean: mean - math.Log(o.first.RunTime.Seconds())}
		if n > 1 {
			l.variance = squares / (n - 1)
		}
		e.stageErrors[o.first.Source].Add(l, maxStageErrors)
	}
	o.logs = nil
}

// meanAndSquares returns the mean of some values, and the sum of the squares of their distances
// from it.
func meanAndSquares(of []float64) (mean, squares float64) {
	for _, v := range of {
		mean += v / float64(len(of))
	}
	for _, v := range of {
		squares += (v - mean) * (v - mean)
	}
	return mean, squares
}

// ErrorQuantiles is the error of the predictions of one source, as distributions of log(run time /
// prediction).
type ErrorQuantiles struct {
	Assumed bool // assumed, because too few errors are known
	Stage   Quantiles
	Task    Quantiles
}

// Quantiles is a distribution given by its values at equidistant probabilities, ascending. It stores every
// known value, because the longest of many tasks depends on the tail. The empty distribution is constantly 0.
type Quantiles []float64

// Factor returns the factor exp(v) for the value v at probability u, 0 to 1.
func (q Quantiles) Factor(u float64) float64 {
	switch len(q) {
	case 0:
		return 1
	case 1:
		return math.Exp(q[0])
	}
	at := min(max(u, 0), 1) * float64(len(q)-1)
	i := min(int(at), len(q)-2)
	return math.Exp(q[i] + (at-float64(i))*(q[i+1]-q[i]))
}

// assumedStage is the assumed deviation of the stage errors of a source with too few known errors,
// and assumedTask that of task errors. Both are deliberately wide guesses.
var assumedStage = [Sources + 1]float64{None: 1.5, Tenant: 1, Model: 0.3, History: 0.3}

const assumedTask = 0.3

// Normal returns the normal distribution, without its last 0.2% on either side.
func Normal(mean, sigma float64) Quantiles {
	if sigma == 0 {
		return Quantiles{mean}
	}
	return quantilesOf(func(p float64) float64 { return mean + float64(sigma*math.Sqrt2*math.Erfinv(2*p-1)) })
}

// quantilesOf returns a distribution given its value at each probability, without the last 0.2% on
// either side.
func quantilesOf(at func(p float64) float64) Quantiles {
	q := make(Quantiles, 257)
	for i := range q {
		q[i] = at(min(max(float64(i)/float64(len(q)-1), 0.002), 0.998))
	}
	return q
}

// ErrorsBySource returns the errors of the predictions of a source. O(n log n) in the recorded errors.
func (b *Estimator) ErrorsBySource(s Source) ErrorQuantiles {
	e := &b.errors
	out := ErrorQuantiles{}
	if len(e.taskErrors.Values) >= minErrors {
		out.Task = slices.Sorted(slices.Values(e.taskErrors.Values))
	} else {
		out.Task, out.Assumed = Normal(0, assumedTask), true
	}
	switch s {
	case None:
		if _, known := b.recentMean(); known { // of log(x) for x exponential with mean 1, as M/M/n has run times
			out.Stage, out.Assumed = quantilesOf(func(p float64) float64 { return math.Log(-math.Log1p(-p)) }), true
			return out
		}
	case OwnTasks: // the prediction is a mean of run times, while errors of tasks are relative to the mean of logarithms
		factor := 0.0
		for _, v := range out.Task {
			factor += math.Exp(v) / float64(len(out.Task))
		}
		out.Stage = Quantiles{-math.Log(factor)}
		return out
	case RuntimeBound: // anything below the bound
		const steps = 64
		for i := range steps + 1 {
			out.Stage = append(out.Stage, math.Log(0.1+0.9*float64(i)/steps))
		}
		out.Task, out.Assumed = nil, true
		return out
	}
	var means []float64
	within, weight := 0.0, 0.0
	for _, l := range e.stageErrors[s].Values {
		means = append(means, l.mean)
		within += l.variance * float64(l.n-1)
		weight += float64(l.n - 1)
	}
	if len(means) < minErrors {
		out.Stage, out.Assumed = Normal(0, assumedStage[s]), true
		return out
	}
	removeSamplingNoise(means, e.stageErrors[s].Values, within, weight)
	slices.Sort(means)
	out.Stage = means
	if weight == 0 && len(e.taskErrors.Values) < minErrors {
		out.Task, out.Assumed = nil, false // contained in the stage part
	}
	return out
}

// removeSamplingNoise reduces the variance of the stages' means by the part that comes from
// averaging few tasks: that part is drawn again for each task.
func removeSamplingNoise(means []float64, of []completedStage, within, weight float64) {
	if weight == 0 {
		return // every stage has one task: the two parts cannot be separated
	}
	centre, noise := 0.0, 0.0
	for i, m := range means {
		centre += m / float64(len(means))
		noise += within / weight / float64(of[i].n) / float64(len(means))
	}
	between := 0.0
	for _, m := range means {
		between += (m - centre) * (m - centre) / float64(len(means))
	}
	f := 0.0
	if between > noise {
		f = math.Sqrt((between - noise) / between)
	}
	for i, m := range means {
		means[i] = centre + f*(m-centre)
	}
}

const guaranteeQuantile = 0.999 // probability that all tasks of a stage end within a guarantee's bound

// UpperRunTime returns the run time that none of n tasks with a prediction exceeds with probability
// guaranteeQuantile, 0 if the errors are only assumed. A task's error is that of its stage plus its
// own. If both are normal, all n stay below with at least that probability. O(known errors).
func (q ErrorQuantiles) UpperRunTime(prediction time.Duration, n int) time.Duration {
	if q.Assumed || prediction <= 0 || n <= 0 {
		return 0
	}
	each := (1 - guaranteeQuantile) / float64(n)
	stage, stageAbove := q.Stage.upper(each)
	task, taskAbove := q.Task.upper(each)
	v := math.Exp(stage+task+math.Hypot(stageAbove, taskAbove)) * float64(prediction)
	if !(v < math.MaxInt64/4) {
		return 0
	}
	return time.Duration(math.Ceil(v))
}

// upper returns the mean, and how far above it a value is with probability p: by the normal distribution
// with the known deviation, widened if there are few values, but at least the largest known value.
func (q Quantiles) upper(p float64) (mean, above float64) {
	if len(q) == 0 {
		return 0, 0
	}
	n := float64(len(q))
	mean, squares := meanAndSquares(q)
	deviation := math.Sqrt(squares / max(1, n-1))
	z := math.Sqrt2 * math.Erfinv(1-2*p)
	z += (z*z*z + z) / (4 * max(1, n-1)) // Student's t, first order of Cornish and Fisher
	return mean, max(q[len(q)-1]-mean, z*deviation*math.Sqrt(1+1/n))
}
