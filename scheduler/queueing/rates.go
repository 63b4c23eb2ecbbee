package queueing

import (
	"fmt"
	"math"
	"time"
)

// Window limits the history from which a rate is estimated, by age and by number of
// records, whichever is smaller.
type Window struct {
	Age     time.Duration // records older than this are not used; above 0
	Records int           // largest number of arrivals and of ends; 2 to maxRecords
}

// maxRecords limits Window.Records; an Estimator needs 32 bytes per record.
const maxRecords = 1 << 20

// Rates holds estimates of the two parameters of the model. The relative standard error
// of each is 1/sqrt(number of its records).
type Rates struct {
	Lambda   float64 // arrivals per second
	Mu       float64 // ends per second of one busy server: 1/mean service time
	arrivals int     // records that Lambda is estimated from
	ends     int     // records that Mu is estimated from
}

// Estimator estimates lambda and mu of one class of jobs from its history, as 3DSF 7.1
// assumes ("we have had some historical data"). Times are offsets from any fixed
// origin, given by the caller. It is not safe for concurrent use. Arrived and Ended
// cost O(1); nothing is allocated after NewEstimator.
//
// Service times of running jobs are not in the estimate, so for a window not much
// longer than a job Mu is too high.
type Estimator struct {
	window   Window
	start    time.Duration
	arrivals ring
	ends     ring
	services []time.Duration // parallel to ends, by slot
}

// ring holds the latest times, oldest first from head.
type ring struct {
	at      []time.Duration
	head, n int
	dropped bool // a time was evicted by number, not by age
}

func (r *ring) slot(i int) int { return (r.head + i) % len(r.at) }

func (r *ring) last() time.Duration { return r.at[r.slot(r.n-1)] }

// push adds a time, evicting the oldest if full, and returns its slot.
func (r *ring) push(at time.Duration) int {
	if r.n == len(r.at) {
		r.head, r.n, r.dropped = r.slot(1), r.n-1, true
	}
	s := r.slot(r.n)
	r.at[s] = at
	r.n++
	return s
}

// firstFrom returns the index of the oldest time at or after from. O(log n).
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

// NewEstimator returns an estimator whose history begins at start. Errors: errInput for
// a window without age or records.
func NewEstimator(w Window, start time.Duration) (*Estimator, error) {
	if w.Age <= 0 {
		return nil, fmt.Errorf("%w: window of age %v, want more than 0", errInput, w.Age)
	}
	if w.Records < 2 || w.Records > maxRecords {
		return nil, fmt.Errorf("%w: window of %d records, want 2 to %d", errInput, w.Records, maxRecords)
	}
	return &Estimator{
		window: w, start: start,
		arrivals: ring{at: make([]time.Duration, w.Records)},
		ends:     ring{at: make([]time.Duration, w.Records)},
		services: make([]time.Duration, w.Records),
	}, nil
}

// Arrived records that a job arrived at time at. For a time before the latest arrival
// or before the start it returns errRecord and changes nothing.
func (e *Estimator) Arrived(at time.Duration) error {
	if err := e.inOrder("arrival", &e.arrivals, at); err != nil {
		return err
	}
	e.arrivals.push(at)
	return nil
}

// Ended records that a job ended at time at after running for service (without waiting
// and suspended time). For a service time of zero or less, and for a time before the
// latest end or before the start, it returns errRecord and changes nothing.
func (e *Estimator) Ended(at, service time.Duration) error {
	if service <= 0 {
		return fmt.Errorf("%w: service time %v of the job that ended at %v is not above 0", errRecord, service, at)
	}
	if err := e.inOrder("end", &e.ends, at); err != nil {
		return err
	}
	e.services[e.ends.push(at)] = service
	return nil
}

func (e *Estimator) inOrder(what string, r *ring, at time.Duration) error {
	if at < e.start {
		return fmt.Errorf("%w: %s at %v, before the start at %v", errRecord, what, at, e.start)
	}
	if r.n > 0 && at < r.last() {
		return fmt.Errorf("%w: %s at %v, before the latest at %v", errRecord, what, at, r.last())
	}
	return nil
}

// Rates estimates both rates at time now. Lambda is the number of arrivals over the
// observed part of the window; if the number of records cuts the window, it is the
// number of arrivals after the oldest one over the time since that. Mu is the number of
// ends over the sum of their service times. Both are maximum likelihood estimates.
//
// Errors: errHistory with fewer than two arrivals or ends in the window (one record
// does not determine a rate), or if all are at the same time; errRecord for a now
// before the latest record. Cost: O(ends in the window).
func (e *Estimator) Rates(now time.Duration) (Rates, error) {
	for _, r := range []*ring{&e.arrivals, &e.ends} {
		if r.n > 0 && now < r.last() {
			return Rates{}, fmt.Errorf("%w: rates at %v, before the latest record at %v", errRecord, now, r.last())
		}
	}
	from := e.start
	if now-e.window.Age > from {
		from = now - e.window.Age
	}
	arrivals, observed := e.arrivalsFrom(from, now)
	ends, busy := e.endsFrom(from)
	if arrivals < 2 || ends < 2 {
		return Rates{arrivals: arrivals, ends: ends}, fmt.Errorf("%w: %d arrivals and %d ends in the last %v, want 2 of each",
			errHistory, arrivals, ends, e.window.Age)
	}
	if observed <= 0 {
		return Rates{arrivals: arrivals, ends: ends}, fmt.Errorf("%w: %d arrivals at the same time", errHistory, arrivals)
	}
	return Rates{
		Lambda: float64(arrivals) / observed, Mu: float64(ends) / busy,
		arrivals: arrivals, ends: ends,
	}, nil
}

// arrivalsFrom returns the number of arrivals since from and the seconds in which they
// arrived.
func (e *Estimator) arrivalsFrom(from, now time.Duration) (count int, seconds float64) {
	r := &e.arrivals
	first := r.firstFrom(from)
	count = r.n - first
	if first == 0 && r.dropped && count > 0 { // cut by number: count the time from the oldest one
		return count - 1, (now - r.at[r.slot(0)]).Seconds()
	}
	return count, (now - from).Seconds()
}

// endsFrom returns the number of ends since from and the sum of their service times in
// seconds.
func (e *Estimator) endsFrom(from time.Duration) (count int, seconds float64) {
	r := &e.ends
	for i := r.firstFrom(from); i < r.n; i++ {
		count++
		seconds += e.services[r.slot(i)].Seconds()
	}
	return count, seconds
}

// Queue returns the model of n servers with these rates. Errors as New.
func (r Rates) Queue(n int) (*Queue, error) { return New(n, r.Lambda, r.Mu) }

// servers returns the least number of servers with load at most rho (above 0, below 1).
// Errors: errInput.
func (r Rates) servers(rho float64) (int, error) {
	if !(rho > 0 && rho < 1) {
		return 0, fmt.Errorf("%w: load %g is not in (0, 1)", errInput, rho)
	}
	need := math.Ceil(r.Lambda / (r.Mu * rho))
	if !(need <= maxServers) {
		return 0, fmt.Errorf("%w: %g servers needed, at most %d", errInput, need, maxServers)
	}
	return max(1, int(need)), nil
}
