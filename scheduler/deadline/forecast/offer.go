package forecast

import (
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Limits of the search for a deadline. It makes about ten quotes, most of few samples.
const (
	offerSamples = 50                        // of a quote of the search; the result is verified with all samples
	offerSteps   = 4                         // of each part of the search
	offerMargin  = 5 * time.Second           // for the submission with the deadline, which comes later
	farDeadline  = 10 * 365 * 24 * time.Hour // one that every job meets which ends
)

// EarliestDeadline returns an early deadline, after that of the query, which the job meets with probability p in samples in
// which it has that deadline, and would meet if it were submitted offerMargin later; Never if none is found. The deadline
// of a job changes when it ends: an infeasible one leaves the lane, and with a late one it waits for others. The result is a
// multiple of step. Errors are those of Quote, whose cost it has a few times.
func (f *Forecaster) EarliestDeadline(s *scheduler.State, q Query, now scheduler.Time, p float64, step time.Duration) (scheduler.Time, error) {
	x := offerSearch{f, s, q, now, p, min(q.Samples, offerSamples), nil}
	refused := q.Job.Deadline
	far := x.quote(now.Add(farDeadline), x.few)
	if x.err != nil || far.EndQuantile(p) == scheduler.Never {
		return scheduler.Never, x.err
	}
	low, high := refused, roundUp(max(far.EndQuantile(p), refused+1).Add(offerMargin), step)
	for n := 0; n < offerSteps && !x.holds(high); n++ {
		high = x.later(high)
	}
	if soon := roundUp(now.Add(far.lengthQuantile(p)+offerMargin), step); soon > low && soon < high { // it starts at once
		if x.holds(soon) {
			high = soon
		} else {
			low = soon
		}
	}
	for range offerSteps {
		left, right := float64(max(1, low.Sub(now))), float64(high.Sub(now))
		mid := roundUp(now.Add(time.Duration(math.Sqrt(left*right))), step)
		if mid <= low || mid >= high {
			break
		}
		if x.holds(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	for range offerSteps {
		if high < scheduler.Never && x.quote(high, q.Samples).ProbabilityBy(high) >= p && x.err == nil {
			return high, nil
		}
		high = roundUp(x.later(high), step)
	}
	return scheduler.Never, x.err
}

// offerSearch is a search for a deadline.
type offerSearch struct {
	f   *Forecaster
	s   *scheduler.State
	q   Query
	now scheduler.Time
	p   float64
	few int // samples
	err error
}

// quote returns the quote of the job with a deadline. After the first error, which x.err keeps, it makes no more, and
// returns an empty one.
func (x *offerSearch) quote(deadline scheduler.Time, samples int) *Quote {
	if x.err != nil {
		return &Quote{}
	}
	x.q.Job.Deadline, x.q.Samples = deadline, samples
	var out *Quote
	if out, x.err = x.f.Quote(x.s, x.q, x.now); x.err != nil {
		return &Quote{}
	}
	return out
}

// holds reports whether the job meets a deadline, and would with offerMargin less.
func (x *offerSearch) holds(deadline scheduler.Time) bool {
	sooner := deadline.Add(-offerMargin)
	return x.quote(sooner, x.few).ProbabilityBy(sooner) >= x.p
}

// later returns a deadline that leaves half as much time again.
func (x *offerSearch) later(deadline scheduler.Time) scheduler.Time {
	return deadline.Add(deadline.Sub(x.now) / 2)
}

func roundUp(t scheduler.Time, step time.Duration) scheduler.Time {
	return (t + scheduler.Time(step) - 1) / scheduler.Time(step) * scheduler.Time(step)
}
