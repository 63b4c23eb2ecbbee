package queueing

import (
	"fmt"
	"math"
)

// Limits of the parameters that New and newSlack take.
const (
	maxServers = 1_000_000_000 // servers; keeps every series bounded
	minRate    = 1e-100        // per second
	maxRate    = 1e100         // per second
)

// Queue is an M/M/n queue in steady state. It is immutable; every method costs
// O(1) unless it says otherwise.
type Queue struct {
	n         int
	mu        float64 // service rate of one server, per second
	load      float64 // rho1 = lambda/mu, servers
	slack     float64 // n - rho1 without cancellation, servers
	logZ      float64 // log of the sum over k of p_k e^-rho1 / p_0
	logC      float64 // log of Erlang C
	c         float64 // Erlang C
	oneMinusC float64 // 1 - c without cancellation
}

// New returns the queue of n servers (1 to maxServers) with the arrival rate lambda (0
// or minRate to maxRate, per second) and the service rate mu of one server (minRate to
// maxRate, per second). The slack n mu - lambda is rounded once, so a load close to 1
// keeps the accuracy of the rates themselves. Errors: errInput, errUnstable. Cost:
// O(sqrt n) at load near 1, less below.
func New(n int, lambda, mu float64) (*Queue, error) {
	if err := checkServers(n); err != nil {
		return nil, err
	}
	if err := checkRate("service rate mu", mu); err != nil {
		return nil, err
	}
	if lambda != 0 {
		if err := checkRate("arrival rate lambda", lambda); err != nil {
			return nil, err
		}
	}
	spare := math.FMA(float64(n), mu, -lambda)
	if spare <= 0 {
		return nil, fmt.Errorf("%w: lambda %g >= n mu = %d x %g; add servers or refuse jobs", errUnstable, lambda, n, mu)
	}
	return build(n, mu, lambda/mu, spare/mu), nil
}

// newSlack returns the queue of n servers with service rate mu (as in New) and idle
// share 1 - rho (above 0, at most 1), for a caller that knows the idle share more
// exactly than lambda. Errors: errInput, errUnstable. Cost as New.
func newSlack(n int, mu, idle float64) (*Queue, error) {
	if err := checkServers(n); err != nil {
		return nil, err
	}
	if err := checkRate("service rate mu", mu); err != nil {
		return nil, err
	}
	switch {
	case math.IsNaN(idle) || idle > 1:
		return nil, fmt.Errorf("%w: idle share %g is not in (0, 1]", errInput, idle)
	case idle <= 0:
		return nil, fmt.Errorf("%w: idle share %g; add servers or refuse jobs", errUnstable, idle)
	case idle < 1e-300:
		return nil, fmt.Errorf("%w: idle share %g is below 1e-300", errInput, idle)
	}
	return build(n, mu, float64(n)*(1-idle), float64(n)*idle), nil
}

func checkServers(n int) error {
	if n < 1 || n > maxServers {
		return fmt.Errorf("%w: %d servers, want 1 to %d", errInput, n, maxServers)
	}
	return nil
}

func checkRate(name string, rate float64) error {
	if !(rate >= minRate && rate <= maxRate) { // also refuses NaN
		return fmt.Errorf("%w: %s is %g per second, want %g to %g", errInput, name, rate, minRate, maxRate)
	}
	return nil
}

// build computes Erlang C through Erlang B:
//
//	B = Pois(n) / P(X <= n), X Poisson of mean rho1
//	C = B / ((1 - rho) + rho B),  1 - C = (1 - rho)(1 - B) / ((1 - rho) + rho B)
//
// where P(X <= n) = 1 - P(X > n) loses nothing, as P(X > n) < 1/2 for rho1 < n.
func build(n int, mu, load, slack float64) *Queue {
	q := &Queue{n: n, mu: mu, load: load, slack: slack}
	servers := float64(n)
	logAtN := logPoisson(servers, load, slack)
	atN := math.Exp(logAtN)
	upTo := 1 - atN*upperRatio(servers, load)
	b := atN / upTo
	idle, rho := slack/servers, load/servers
	d := idle + rho*b
	q.c = b / d
	q.oneMinusC = idle * (1 - b) / d
	q.logC = logAtN - math.Log(upTo) - math.Log(d)
	if q.oneMinusC < 0.5 {
		q.logC = math.Log1p(-q.oneMinusC)
	}
	q.logZ = math.Log(upTo + atN*load/slack)
	return q
}

// rho returns lambda/(n mu), the share of time for which a server is busy.
func (q *Queue) rho() float64 { return q.load / float64(q.n) }

// idleShare returns 1 - rho, without cancellation.
func (q *Queue) idleShare() float64 { return q.slack / float64(q.n) }

// logRho returns log(rho), accurate at both ends.
func (q *Queue) logRho() float64 {
	if idle := q.idleShare(); idle < 0.5 {
		return math.Log1p(-idle)
	}
	return math.Log(q.rho())
}

// logP returns the logarithm of P(k): -Inf for k < 0, and for k > 0 without arrivals.
func (q *Queue) logP(k int) float64 {
	if k < 0 {
		return math.Inf(-1)
	}
	at := min(k, q.n)
	diff := q.slack - float64(q.n-at)
	if float64(at) < q.load/2 { // far below the load the plain difference is exact enough
		diff = float64(at) - q.load
	}
	lp := logPoisson(float64(at), q.load, diff) - q.logZ
	if k > q.n {
		lp += float64(k-q.n) * q.logRho()
	}
	return lp
}

// p returns p_k, the probability of k jobs in the system (3DSF eq. 9-10, supplement eq.
// 1-2, with p_(n+1) = rho1^(n+1) p_0/(n! n) where the supplement prints (n+1)!).
func (q *Queue) p(k int) float64 { return math.Exp(q.logP(k)) }

// p0 returns p_0, the probability of an empty system (3DSF after eq. 10, supplement eq.
// 3). It underflows to 0 for loads above about 700; logP(0) does not.
func (q *Queue) p0() float64 { return q.p(0) }

// ErlangC returns C(n, rho1), the probability that an arriving job must wait (3DSF eq.
// 19-20).
func (q *Queue) ErlangC() float64 { return q.c }

// logErlangC returns log C(n, rho1), finite where C underflows.
func (q *Queue) logErlangC() float64 { return q.logC }

// noWait returns 1 - C(n, rho1), without cancellation.
func (q *Queue) noWait() float64 { return q.oneMinusC }

// meanQueue returns the mean number of waiting jobs (3DSF eq. 12; eq. 24 is the same
// with rho1 for rho): C rho/(1 - rho).
func (q *Queue) meanQueue() float64 { return q.c * q.load / q.slack }

// meanQueueIfBusy returns the mean number of waiting jobs while all servers are busy
// (3DSF eq. 23, supplement eq. 9, with rho1 for rho): rho/(1 - rho), which is one less
// than the 1/(1 - rho) of the prose.
func (q *Queue) meanQueueIfBusy() float64 { return q.load / q.slack }

// varQueue returns the variance of the number of waiting jobs (3DSF eq. 14-15,
// supplement eq. 4-5), written C rho (1 + rho (1 - C))/(1 - rho)^2.
func (q *Queue) varQueue() float64 {
	return q.meanQueue() * (1 + q.rho()*q.oneMinusC) / q.idleShare()
}

// meanInService returns the mean number of busy servers (3DSF eq. 13; eq. 21 prints
// rho): rho1.
func (q *Queue) meanInService() float64 { return q.load }

// varInService returns the variance of the number of busy servers: rho1 (1 - C). It is
// not in the papers; it follows from k p_k = rho1 p_(k-1).
func (q *Queue) varInService() float64 { return q.load * q.oneMinusC }

// meanInSystem returns the mean number of jobs in the system (3DSF eq. 11, 16).
func (q *Queue) meanInSystem() float64 { return q.meanQueue() + q.load }

// varInSystem returns the variance of the number of jobs in the system: the variance of
// the queue plus rho1 (1 + C). It is not in the papers.
func (q *Queue) varInSystem() float64 { return q.varQueue() + q.load*(1+q.c) }
