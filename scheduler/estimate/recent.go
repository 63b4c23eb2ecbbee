package estimate

import "time"

const maxRecent = 512 // the number of ended tasks whose run times are kept

// recentMean returns the mean run time of the latest ended tasks of all tenants in seconds, 1/mu of the M/M/n model (3DSF
// 7.1), for tasks of which nothing else is known, and whether enough have ended to trust it. O(maxRecent).
func (b *Estimator) recentMean() (float64, bool) {
	if len(b.recent.Values) < minErrors {
		return 0, false
	}
	sum := 0.0
	for _, s := range b.recent.Values {
		sum += s
	}
	return sum / float64(len(b.recent.Values)), true
}

// MeanRunTime returns the mean run time of the latest 512 ended tasks of all tenants, and whether enough have ended to
// trust it. It is the run time to assume for a task with a prediction from source None; ErrorsBySource(None) has the
// errors of that assumption. O(maxRecent).
func (b *Estimator) MeanRunTime() (time.Duration, bool) {
	mean, ok := b.recentMean()
	return toDuration(mean), ok
}
