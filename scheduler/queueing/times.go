package queueing

import (
	"fmt"
	"math"
)

// waitRate returns theta = n mu - lambda, the rate of the exponential wait of the jobs
// that wait.
func (q *Queue) waitRate() float64 { return q.slack * q.mu }

// meanService returns 1/mu, in seconds (3DSF eq. 17).
func (q *Queue) meanService() float64 { return 1 / q.mu }

// MeanWait returns the mean wait of all jobs, in seconds (3DSF eq. 18; PDSonQueue eq. 5
// lacks its n): C/(n mu - lambda).
func (q *Queue) MeanWait() float64 { return q.c / q.waitRate() }

// meanWaitIfWaiting returns the mean wait of the jobs that wait at all, in seconds:
// 1/(n mu - lambda).
func (q *Queue) meanWaitIfWaiting() float64 { return 1 / q.waitRate() }

// varWait returns the variance of the wait, in seconds squared: C (2 - C)/theta^2.
func (q *Queue) varWait() float64 {
	w := q.meanWaitIfWaiting()
	return q.c * (1 + q.oneMinusC) * w * w
}

// meanSojourn returns the mean time from arrival to end, in seconds (3DSF eq. 18).
func (q *Queue) meanSojourn() float64 { return q.MeanWait() + q.meanService() }

// WaitTail returns P(W > x) for x seconds (3DSF eq. 27, supplement eq. 11), with the
// correct exponent: C e^(-(n mu - lambda) x). It is 1 for x < 0.
func (q *Queue) WaitTail(x float64) float64 {
	if x < 0 {
		return 1
	}
	return math.Exp(q.logC - q.waitRate()*x)
}

// waitCDF returns P(W <= x) for x seconds (3DSF eq. 28, supplement eq. 12), without
// cancellation. It has a jump of noWait at 0.
func (q *Queue) waitCDF(x float64) float64 {
	if x < 0 {
		return 0
	}
	return q.oneMinusC - q.c*math.Expm1(-q.waitRate()*x)
}

// waitDensity returns the density of the wait at x > 0 seconds, per second (3DSF eq.
// 25-26, supplement eq. 10). It does not include the probability noWait of no wait at
// all.
func (q *Queue) waitDensity(x float64) float64 {
	if x < 0 {
		return 0
	}
	return q.waitRate() * q.WaitTail(x)
}

// waitTailGiven returns P(W > x) of a job that finds k >= 0 jobs in the system: 0 below
// n, else the tail of the Erlang distribution with k-n+1 steps of rate n mu, the terms
// of 3DSF eq. 25. Cost: O(sqrt k).
func (q *Queue) waitTailGiven(k int, x float64) float64 {
	switch {
	case x < 0:
		return 1
	case k < q.n:
		return 0
	}
	return poissonCDF(float64(k-q.n), float64(q.n)*q.mu*x)
}

// waitQuantile returns the least x, in seconds, with P(W <= x) >= p, for p in [0, 1).
// Errors: errInput.
func (q *Queue) waitQuantile(p float64) (float64, error) {
	if err := checkShare(p); err != nil {
		return 0, err
	}
	if p <= q.oneMinusC {
		return 0, nil
	}
	if u := (p - q.oneMinusC) / q.c; u < 0.5 {
		return -math.Log1p(-u) / q.waitRate(), nil
	}
	return (q.logC - math.Log1p(-p)) / q.waitRate(), nil
}

func checkShare(p float64) error {
	if !(p >= 0 && p < 1) {
		return fmt.Errorf("%w: probability %g is not in [0, 1)", errInput, p)
	}
	return nil
}

// overlap is the integral over u in [0, y] of e^(-s u) e^(-(y-u)): both
// exponentials of eq. 30 in one, with s = n - rho1 and y = mu x. It is
// symmetric in the rates 1 and s, never negative, and y e^-y at s = 1, which is
// the limit that the printed eq. 30-33 lack.
func overlap(s, y float64) float64 {
	slow, gap := math.Min(1, s), math.Abs(s-1)
	if gap*y < 1e-8 { // (1 - e^-gy)/g -> y (1 - gy/2)
		return math.Exp(-slow*y) * y * (1 - gap*y/2)
	}
	return math.Exp(-slow*y) * -math.Expm1(-gap*y) / gap
}

// sojournTail returns P(S > x) for x seconds (3DSF eq. 32, supplement eq. 16): e^(-mu
// x) + C times the overlap of service and wait; finite where n - 1 = lambda/mu, and
// without overflow where lambda/mu > n - 1.
func (q *Queue) sojournTail(x float64) float64 {
	if x < 0 {
		return 1
	}
	y := q.mu * x
	return math.Exp(-y) + q.c*overlap(q.slack, y)
}

// sojournDensity returns the density of the sojourn time at x seconds, per second (3DSF
// eq. 29-31, supplement eq. 13-15, with (n - rho1) where the supplement prints (n - 1 -
// rho1)).
func (q *Queue) sojournDensity(x float64) float64 {
	if x < 0 {
		return 0
	}
	y := q.mu * x
	return q.mu * (q.oneMinusC*math.Exp(-y) + q.c*q.slack*overlap(q.slack, y))
}

// sojournCDF returns P(S <= x) for x seconds (3DSF eq. 33, supplement eq. 17), with
// full relative accuracy also for small x.
func (q *Queue) sojournCDF(x float64) float64 {
	if x < 0 {
		return 0
	}
	y := q.mu * x
	return -q.oneMinusC*math.Expm1(-y) + q.c*sumCDF(q.slack, y)
}

// sumCDF returns P(A + B <= y) for independent exponentials of rates 1 and s. Small
// arguments use the power series, whose j-th coefficient is the complete homogeneous
// polynomial of degree j in the two rates.
func sumCDF(s, y float64) float64 {
	slow, fast := math.Min(1, s), math.Max(1, s)
	if fast*y > 0.5 {
		return -math.Expm1(-slow*y) - slow*overlap(s, y)
	}
	sum, term, poly, power := 0.0, s*y*y/2, 1.0, 1.0
	for j := 0; j < 40; j++ {
		next := sum + term*poly
		if next == sum {
			break
		}
		sum = next
		power *= s
		poly += power
		term *= -y / float64(j+3)
	}
	return sum
}

// SojournQuantile returns the x, in seconds, with P(S <= x) = p, for p in [0, 1), to
// about 1e-12 relative. Errors: errInput. Cost: about 50 evaluations of the
// distribution, at most 380.
func (q *Queue) SojournQuantile(p float64) (float64, error) {
	if err := checkShare(p); err != nil {
		return 0, err
	}
	if p == 0 {
		return 0, nil
	}
	below := func(x float64) bool { return q.sojournCDF(x) < p }
	if p > 0.5 {
		below = func(x float64) bool { return q.sojournTail(x) > 1-p }
	}
	lo, hi := 0.0, q.meanService()
	for i := 0; i < 200 && below(hi); i++ {
		lo, hi = hi, hi*2
	}
	for i := 0; i < 100 && lo == 0; i++ { // down to the magnitude of the result
		if mid := hi / 1024; below(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	for i := 0; i < 80 && hi-lo > 1e-14*hi; i++ {
		if mid := lo + (hi-lo)/2; below(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo + (hi-lo)/2, nil
}
