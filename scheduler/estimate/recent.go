package estimate

import (
	"math"
	"time"

	"github.com/drover-run/drover/scheduler/predict"
)

// maxRecent is the number of ended tasks whose run times a recentRuns keeps.
const maxRecent = 512

// recentRuns holds the run times of the latest ended tasks of all tenants: 1/mu of the M/M/n model
// (3DSF 7.1), for tasks of which nothing else is known.
type recentRuns struct {
	seconds []float64 // a ring once it is full
	next    int
}

func (r *recentRuns) add(seconds float64) {
	r.seconds = predict.PushRing(r.seconds, &r.next, maxRecent, seconds)
}

// mean returns the mean run time in seconds, and whether enough tasks have ended to trust it. O(maxRecent).
func (r *recentRuns) mean() (float64, bool) {
	if len(r.seconds) < minErrors {
		return 0, false
	}
	sum := 0.0
	for _, s := range r.seconds {
		sum += s
	}
	return sum / float64(len(r.seconds)), true
}

// MeanRunTime returns the mean run time of the latest 512 ended tasks of all tenants, and whether
// enough have ended to trust it. It is the run time to assume for a task with a prediction from
// source None; ErrorsBySource(None) has the errors of that assumption. O(1).
func (b *Estimator) MeanRunTime() (time.Duration, bool) {
	mean, ok := b.recent.mean()
	return toDuration(mean), ok
}

// exponentialQuantiles is the distribution of log(x) for x exponential with mean 1, as M/M/n has run times.
func exponentialQuantiles() Quantiles {
	return quantilesOf(func(p float64) float64 { return math.Log(-math.Log1p(-p)) })
}
