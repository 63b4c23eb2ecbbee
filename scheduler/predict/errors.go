package predict

import (
	"math"
	"slices"
)

// knots is the number of quantiles that a Distribution keeps: 0, 1/32, ... 1.
const knots = 33

// Distribution is the empirical distribution of log(run time/estimate) of one
// source: what to multiply an estimate by. It is immutable.
type Distribution struct {
	Records int  // errors behind it
	Assumed bool // too few records: a log-normal with a wide assumed spread
	logs    [knots]float64
}

// LogQuantile is the p-quantile of log(run time/estimate), p clamped to [0, 1],
// linear between 32nds.
func (d *Distribution) LogQuantile(p float64) float64 {
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

// share is the inverse of LogQuantile.
func (d *Distribution) share(log float64) float64 {
	i, _ := slices.BinarySearch(d.logs[:], log)
	switch {
	case i == 0:
		return 0
	case i == knots:
		return 1
	}
	lo, hi := d.logs[i-1], d.logs[i]
	return (float64(i-1) + (log-lo)/(hi-lo)) / (knots - 1)
}

// Spread is half the distance of the 16% and 84% quantiles: the standard
// deviation of the logarithm, if it is normal.
func (d *Distribution) Spread() float64 { return (d.LogQuantile(0.84) - d.LogQuantile(0.16)) / 2 }

// assumed is a log-normal distribution, cut at its 1% and 99% quantiles.
func assumed(sigma float64) *Distribution {
	d := &Distribution{Assumed: true}
	for i := range d.logs {
		p := min(max(float64(i)/(knots-1), 0.01), 0.99)
		d.logs[i] = sigma * math.Sqrt2 * math.Erfinv(2*p-1)
	}
	return d
}

// measured is the distribution of a sorted, non-empty list of errors.
func measured(sorted []float64) *Distribution {
	d := &Distribution{Records: len(sorted)}
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

// Sizes of the record of errors of one source.
const (
	errorRecords = 512 // latest errors kept
	errorMin     = 16  // fewer are not trusted
	errorRefresh = 16  // records between two computations of the quantiles
)

// errorLog keeps the latest errors of one source and their distribution.
type errorLog struct {
	logs    []float64
	next    int
	stale   int
	scratch []float64
	dist    *Distribution
}

// add records one error.
func (l *errorLog) add(log float64) {
	if len(l.logs) < errorRecords {
		l.logs = append(l.logs, log)
	} else {
		l.logs[l.next] = log
		l.next = (l.next + 1) % errorRecords
	}
	if l.stale++; len(l.logs) >= errorMin && (l.dist.Assumed || l.stale >= errorRefresh) {
		l.scratch = append(l.scratch[:0], l.logs...)
		slices.Sort(l.scratch)
		l.dist, l.stale = measured(l.scratch), 0
	}
}

// Estimate is a predicted run time. It is a plain value.
type Estimate struct {
	Seconds float64       // predicted run time, over 0
	Source  Source        // where it comes from
	Errors  *Distribution // how wrong that source has been
}

// Quantile is the p-quantile of the run time, in seconds; with p drawn
// uniformly from [0, 1) it is a sample of the predicted run time.
func (e Estimate) Quantile(p float64) float64 {
	return e.Seconds * math.Exp(e.Errors.LogQuantile(p))
}

// Remaining is the predicted remaining run time in seconds of a task that has
// run for elapsed seconds, 3DSF eq. 8, and 0 where the estimate is used up (see
// RemainingQuantile for what then).
func (e Estimate) Remaining(elapsed float64) float64 { return max(0, e.Seconds-elapsed) }

// RemainingQuantile is the p-quantile of the remaining run time in seconds,
// given that the task has run for elapsed seconds and not ended: unlike eq. 8
// it never says 0 of a task that overruns. Of one that has run longer than any
// error on record allows it says p times what it has run.
func (e Estimate) RemainingQuantile(elapsed, p float64) float64 {
	if !(elapsed > 0) {
		return e.Quantile(p)
	}
	past := e.Errors.share(math.Log(elapsed / e.Seconds))
	if past >= 1 {
		return p * elapsed
	}
	return max(0, e.Quantile(past+p*(1-past))-elapsed)
}
