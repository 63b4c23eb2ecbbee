package estimate

import (
	"math"
	"time"
)

// guaranteeQuantile is the probability with which all tasks of a stage end within the bound
// that a guarantee is made with.
const guaranteeQuantile = 0.999

// UpperRunTime returns the run time that none of n tasks with a prediction exceeds with
// probability guaranteeQuantile, 0 if the errors are not known but assumed. A task's error is
// that of its stage plus its own. If both are normal, n of them stay below with that
// probability or a higher one. O(known errors).
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

// upper returns the mean, and how far above it the value is that is exceeded with probability
// p: that of the normal distribution with the known deviation, the latter widened for the
// fewness of the values, but at least the largest value known.
func (q Quantiles) upper(p float64) (mean, above float64) {
	if len(q) == 0 {
		return 0, 0
	}
	n, squares := float64(len(q)), 0.0
	for _, v := range q {
		mean += v / n
	}
	for _, v := range q {
		squares += (v - mean) * (v - mean)
	}
	deviation := math.Sqrt(squares / max(1, n-1))
	z := math.Sqrt2 * math.Erfinv(1-2*p)
	z += (z*z*z + z) / (4 * max(1, n-1)) // Student's t, first order of Cornish and Fisher
	return mean, max(q[len(q)-1]-mean, z*deviation*math.Sqrt(1+1/n))
}
