package predict

import (
	"math"
	"slices"
)

// knots is the number of quantiles in a Distribution: 0, 1/32, ... 1.
const knots = 33

// distribution is the empirical distribution of log(run time/estimate) of one source.
// It is immutable.
type distribution struct {
	records int  // number of errors it is made of
	assumed bool // too few errors: a log-normal with an assumed, wide spread
	logs    [knots]float64
}

// logQuantile returns the p-quantile of log(run time/estimate), p clamped to [0, 1],
// linear between 32nds.
func (d *distribution) logQuantile(p float64) float64 {
	at := p * (knots - 1)
	if !(at > 0) {
		return d.logs[0]
	}
	i := int(at)
	if i >= knots-1 {
		return d.logs[knots-1]
	}
	return d.logs[i] + (at-float64(i))*(d.logs[i+1]-d.logs[i])
}

// assumedDistribution returns a log-normal distribution, cut at its 1% and 99%
// quantiles.
func assumedDistribution(sigma float64) *distribution {
	d := &distribution{assumed: true}
	for i := range d.logs {
		p := min(max(float64(i)/(knots-1), 0.01), 0.99)
		d.logs[i] = sigma * math.Sqrt2 * math.Erfinv(2*p-1)
	}
	return d
}

// measuredDistribution returns the distribution of a sorted, non-empty list of errors.
func measuredDistribution(sorted []float64) *distribution {
	d := &distribution{records: len(sorted)}
	for i := range d.logs {
		at := float64(i) / (knots - 1) * float64(len(sorted)-1)
		k := min(int(at), len(sorted)-1)
		d.logs[i] = sorted[k]
		if k+1 < len(sorted) {
			d.logs[i] += (at - float64(k)) * (sorted[k+1] - sorted[k])
		}
		if i > 0 {
			d.logs[i] = max(d.logs[i], d.logs[i-1]) // against rounding
		}
	}
	return d
}

// Sizes of an errorLog.
const (
	maxErrors    = 512 // latest errors retained
	minErrors    = 16  // fewer are not trusted
	refreshEvery = 16  // new errors between two computations of the quantiles
)

// errorLog retains the latest errors of one source and their distribution.
type errorLog struct {
	logs    []float64
	next    int
	stale   int
	scratch []float64
	dist    *distribution
}

// add records one error.
func (l *errorLog) add(log float64) {
	if len(l.logs) < maxErrors {
		l.logs = append(l.logs, log)
	} else {
		l.logs[l.next] = log
		l.next = (l.next + 1) % maxErrors
	}
	if l.stale++; len(l.logs) >= minErrors && (l.dist.assumed || l.stale >= refreshEvery) {
		l.scratch = append(l.scratch[:0], l.logs...)
		slices.Sort(l.scratch)
		l.dist, l.stale = measuredDistribution(l.scratch), 0
	}
}

// Estimate is a predicted run time.
type Estimate struct {
	Seconds float64       // predicted run time, above 0
	Source  Source        // source of the prediction
	errors  *distribution // errors of that source so far
}

// Quantile returns the p-quantile of the run time, in seconds; for p drawn uniformly
// from [0, 1) it is a sample of the predicted run time.
func (e Estimate) Quantile(p float64) float64 {
	return e.Seconds * math.Exp(e.errors.logQuantile(p))
}
