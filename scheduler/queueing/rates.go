package queueing

import (
	"fmt"
	"math"
	"time"
)

// Window bounds the history that a rate is estimated from: by age and by number
// of records, whichever is the smaller.
type Window struct {
	Age     time.Duration // records older than this are not used; over 0
	Records int           // at most so many arrivals and so many ends; 2 to MaxRecords
}

// MaxRecords bounds Window.Records; an Estimator keeps 32 bytes a record.
const MaxRecords = 1 << 20

// Rates are estimates of the two parameters of the model. The standard error
// of each, relative, is 1/sqrt(number of its records).
type Rates struct {
	Lambda   float64 // arrivals per second
	Mu       float64 // ends per second of one busy server: 1/mean service time
	Arrivals int     // records behind Lambda
	Ends     int     // records behind Mu
}

// Estimator learns lambda and mu of one class of jobs from its history, as 3DSF
// 7.1 assumes ("we have had some historical data"). Instants are offsets from
// any fixed origin; the caller's clock is the only one. It is not safe for
// concurrent use. An Observe costs O(1), and nothing is allocated after
// NewEstimator.
//
// Service times of jobs that still run are not in the estimate, so for a window
// not much longer than a job Mu comes out too high.
type Estimator struct {
	window   Window
	start    time.Duration
	arrivals ring
	ends     ring
	services []time.Duration // beside ends, slot by slot
}

// ring holds the latest instants, oldest first from head.
type ring struct {
	at      []time.Duration
	head, n int
	dropped bool // an instant was pushed out by number, not by age
}

func (r *ring) slot(i int) int { return (r.head + i) % len(r.at) }

func (r *ring) last() time.Duration { return r.at[r.slot(r.n-1)] }

// push adds an instant, over the oldest if full, and returns its slot.
func (r *ring) push(at time.Duration) int {
	if r.n == len(r.at) {
		r.head, r.n, r.dropped = r.slot(1), r.n-1, true
	}
	s := r.slot(r.n)
	r.at[s] = at
	r.n++
	return s
}

// firstFrom is the index of the oldest instant at or after from. O(log n).
func (r *ring) firstFrom(from time.Duration) int {
	lo, hi := 0, r.n
	for lo < hi {
		if mid := (lo + hi) / 2; r.at[r.slot(mid)] < from {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// NewEstimator starts an estimator that has seen nothing before start.
// Errors: ErrInput for a window without age or records.
func NewEstimator(w Window, start time.Duration) (*Estimator, error) {
	if w.Age <= 0 {
		return nil, fmt.Errorf("%w: window of age %v, want more than 0", ErrInput, w.Age)
	}
	if w.Records < 2 || w.Records > MaxRecords {
		return nil, fmt.Errorf("%w: window of %d records, want 2 to %d", ErrInput, w.Records, MaxRecords)
	}
	return &Estimator{
		window: w, start: start,
		arrivals: ring{at: make([]time.Duration, w.Records)},
		ends:     ring{at: make([]time.Duration, w.Records)},
		services: make([]time.Duration, w.Records),
	}, nil
}

// Arrived records that a job arrived at the instant at. An instant before the
// latest arrival or before the start is ErrRecord and changes nothing.
func (e *Estimator) Arrived(at time.Duration) error {
	if err := e.inOrder("arrival", &e.arrivals, at); err != nil {
		return err
	}
	e.arrivals.push(at)
	return nil
}

// Ended records that a job ended at the instant at after running for service
// (without its wait, without suspended time). A service time of zero or less,
// and an instant before the latest end or before the start, is ErrRecord and
// changes nothing.
func (e *Estimator) Ended(at, service time.Duration) error {
	if service <= 0 {
		return fmt.Errorf("%w: service time %v of the job that ended at %v is not over 0", ErrRecord, service, at)
	}
	if err := e.inOrder("end", &e.ends, at); err != nil {
		return err
	}
	e.services[e.ends.push(at)] = service
	return nil
}

func (e *Estimator) inOrder(what string, r *ring, at time.Duration) error {
	if at < e.start {
		return fmt.Errorf("%w: %s at %v, before the start at %v", ErrRecord, what, at, e.start)
	}
	if r.n > 0 && at < r.last() {
		return fmt.Errorf("%w: %s at %v, before the latest at %v", ErrRecord, what, at, r.last())
	}
	return nil
}

// Rates estimates both rates at the instant now. Lambda is arrivals over the
// observed part of the window; where the window is cut by the number of
// records, arrivals after the oldest one over the time since it. Mu is ends
// over the sum of their service times. Both are maximum likelihood.
//
// Errors: ErrHistory with fewer than two arrivals or ends in the window (one
// record says nothing of a rate), or when they are all of one instant;
// ErrRecord for a now before the latest record.
// Cost: O(ends in the window).
func (e *Estimator) Rates(now time.Duration) (Rates, error) {
	for _, r := range []*ring{&e.arrivals, &e.ends} {
		if r.n > 0 && now < r.last() {
			return Rates{}, fmt.Errorf("%w: asked at %v, before the latest record at %v", ErrRecord, now, r.last())
		}
	}
	from := e.start
	if now-e.window.Age > from {
		from = now - e.window.Age
	}
	arrivals, observed := e.arrivalsFrom(from, now)
	ends, busy := e.endsFrom(from)
	if arrivals < 2 || ends < 2 {
		return Rates{Arrivals: arrivals, Ends: ends}, fmt.Errorf("%w: %d arrivals and %d ends in the last %v, want 2 of each",
			ErrHistory, arrivals, ends, e.window.Age)
	}
	if observed <= 0 {
		return Rates{Arrivals: arrivals, Ends: ends}, fmt.Errorf("%w: %d arrivals in no time", ErrHistory, arrivals)
	}
	return Rates{
		Lambda: float64(arrivals) / observed, Mu: float64(ends) / busy,
		Arrivals: arrivals, Ends: ends,
	}, nil
}

// arrivalsFrom counts the arrivals since from and the seconds that they took.
func (e *Estimator) arrivalsFrom(from, now time.Duration) (count int, seconds float64) {
	r := &e.arrivals
	first := r.firstFrom(from)
	count = r.n - first
	if first == 0 && r.dropped && count > 0 { // cut by number: start the clock at the oldest one
		return count - 1, (now - r.at[r.slot(0)]).Seconds()
	}
	return count, (now - from).Seconds()
}

// endsFrom counts the ends since from and sums their service times in seconds.
func (e *Estimator) endsFrom(from time.Duration) (count int, seconds float64) {
	r := &e.ends
	for i := r.firstFrom(from); i < r.n; i++ {
		count++
		seconds += e.services[r.slot(i)].Seconds()
	}
	return count, seconds
}

// Queue is the model of n servers with these rates. Errors as New.
func (r Rates) Queue(n int) (*Queue, error) { return New(n, r.Lambda, r.Mu) }

// Servers is the least number of servers with load at most rho (over 0, under
// 1). Errors: ErrInput.
func (r Rates) Servers(rho float64) (int, error) {
	if !(rho > 0 && rho < 1) {
		return 0, fmt.Errorf("%w: load %g is not in (0, 1)", ErrInput, rho)
	}
	need := math.Ceil(r.Lambda / (r.Mu * rho))
	if !(need <= MaxServers) {
		return 0, fmt.Errorf("%w: %g servers needed, at most %d", ErrInput, need, MaxServers)
	}
	return max(1, int(need)), nil
}
