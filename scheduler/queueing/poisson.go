package queueing

import "math"

// maxTerms limits every series. A Poisson tail of mean m is summed in about 9 sqrt(m)
// terms; maxServers keeps that below the limit.
const maxTerms = 1 << 20

const halfLog2Pi = 0.91893853320467274178032973640562

// stirlingError is log(k!) - log(sqrt(2 pi k) (k/e)^k) for k >= 1.
func stirlingError(k float64) float64 {
	if k < 16 {
		lg, _ := math.Lgamma(k + 1)
		return lg - (k+0.5)*math.Log(k) + k - halfLog2Pi
	}
	q := 1 / (k * k)
	return (1.0/12 - (1.0/360-(1.0/1260-(1.0/1680-q/1188)*q)*q)*q) / k
}

// deviance is k log(k/m) + m - k, given diff = k - m without cancellation.
// Near diff = 0 it is a series in diff/(k+m) (Loader 2000, function bd0).
func deviance(k, m, diff float64) float64 {
	if math.Abs(diff) >= 0.1*(k+m) {
		return k*math.Log(k/m) - diff
	}
	v := diff / (k + m)
	sum, term := diff*v, 2*k*v
	for j := 1; j < 64; j++ {
		term *= v * v
		next := sum + term/float64(2*j+1)
		if next == sum {
			break
		}
		sum = next
	}
	return sum
}

// logPoisson is the logarithm of m^k e^-m / k!; diff must be k - m.
// The error is a few 1e-16 of its size.
func logPoisson(k, m, diff float64) float64 {
	switch {
	case m == 0 && k == 0:
		return 0
	case m == 0:
		return math.Inf(-1)
	case k == 0:
		return -m
	}
	return -stirlingError(k) - deviance(k, m, diff) - halfLog2Pi - 0.5*math.Log(k)
}

// upperRatio is P(X > k)/P(X = k) for X Poisson of mean m: the sum over j >= 1 of m^j /
// ((k+1)...(k+j)). It requires m <= k + 1.
func upperRatio(k, m float64) float64 {
	sum, term := 0.0, 1.0
	for j := 1; j < maxTerms; j++ {
		term *= m / (k + float64(j))
		sum += term
		if term <= 1e-18*sum {
			break
		}
	}
	return sum
}

// lowerRatio is P(X < k)/P(X = k) for X Poisson of mean m: the sum over j >= 1 of
// k(k-1)...(k-j+1) / m^j. It requires k <= m.
func lowerRatio(k, m float64) float64 {
	sum, term := 0.0, 1.0
	for j := 0; j < maxTerms && float64(j) < k; j++ {
		term *= (k - float64(j)) / m
		sum += term
		if term <= 1e-18*sum {
			break
		}
	}
	return sum
}

// poissonCDF is P(X <= k) for X Poisson of mean m, with full relative accuracy
// in the lower tail.
func poissonCDF(k, m float64) float64 {
	p := math.Exp(logPoisson(k, m, k-m))
	if k < m {
		return p * (1 + lowerRatio(k, m))
	}
	return 1 - p*upperRatio(k, m)
}
