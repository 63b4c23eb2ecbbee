package queueing

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
)

// simulated simulates an M/M/n queue, first come first served, customer by customer:
// each takes the server that is free first. It returns waits, services and the number
// of customers found in the system.
func simulated(seed uint64, n, jobs int, lambda, mu float64) (wait, service []float64, found []int) {
	r := rand.New(rand.NewPCG(seed, 7))
	free := make(times, n)
	var leaving times // departures of the jobs in the system
	var now float64
	for i := 0; i < jobs+20_000; i++ {
		now += r.ExpFloat64() / lambda
		for len(leaving) > 0 && leaving[0] <= now {
			heap.Pop(&leaving)
		}
		start := math.Max(now, free[0])
		s := r.ExpFloat64() / mu
		free[0] = start + s
		heap.Fix(&free, 0)
		if i >= 20_000 { // after the warm-up
			wait, service, found = append(wait, start-now), append(service, s), append(found, len(leaving))
		}
		heap.Push(&leaving, start+s)
	}
	return wait, service, found
}

type times []float64

func (h times) Len() int           { return len(h) }
func (h times) Less(i, j int) bool { return h[i] < h[j] }
func (h times) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *times) Push(x any)        { *h = append(*h, x.(float64)) }
func (h *times) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// batchMean returns the mean of f over 0..n-1 and its standard error from 40 batches
// (successive customers are correlated).
func batchMean(n int, f func(i int) float64) (mean, stderr float64) {
	const batches = 40
	var means [batches]float64
	for b := range means {
		lo, hi := b*n/batches, (b+1)*n/batches
		for i := lo; i < hi; i++ {
			means[b] += f(i) / float64(hi-lo)
		}
		mean += means[b] / batches
	}
	for _, m := range means {
		stderr += (m - mean) * (m - mean)
	}
	return mean, math.Sqrt(stderr / batches / (batches - 1))
}

func indicator(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// integral is Simpson's rule over [0, hi].
func integral(f func(float64) float64, hi float64) float64 {
	const steps = 200_000
	h := hi / steps
	sum := f(0) + f(hi)
	for i := 1; i < steps; i++ {
		sum += float64(2+2*(i%2)) * f(float64(i)*h)
	}
	return sum * h / 3
}

// limit is how many standard errors from 40 batches a right value may be off: one seed in a million is outside (Student's t
// with 39 degrees of freedom).
const limit = 5.8

func factorial(n int) float64 { return math.Gamma(float64(n + 1)) }

// TestMisprints simulates n 5, lambda 4, mu 1 (n 6 where 5 is singular) and shows for
// each misprint that the corrected formula is within the limit of the
// simulation and the printed one is not.
func TestMisprints(t *testing.T) {
	const lambda, mu, x = 4.0, 1.0, 1.0
	const jobs = 800_000
	seed := seed.New(t)
	q := mustNew(t, 5, lambda, mu)
	n, rho, rho1, c := 5.0, 0.8, 4.0, q.ErlangC()
	wait, _, found := simulated(seed, 5, jobs, lambda, mu)
	queueWhenBusy := func() (mean, stderr float64) {
		var queue []float64
		for _, k := range found {
			if k >= 5 {
				queue = append(queue, float64(k-5))
			}
		}
		return batchMean(len(queue), func(i int) float64 { return queue[i] })
	}
	ifBusy, ifBusyErr := queueWhenBusy()
	seen := func(f func(i int) float64) [2]float64 {
		m, e := batchMean(jobs, f)
		return [2]float64{m, e}
	}
	for _, m := range []struct {
		name           string
		right, printed float64
		simulated      [2]float64
	}{
		{"3DSF eq. 27, supplement eq. 11: P(W > 1)", q.WaitTail(x), c * math.Exp(-mu*(n-rho/n)*x),
			seen(func(i int) float64 { return indicator(wait[i] > x) })},
		{"3DSF eq. 28, supplement eq. 12: P(W <= 1)", q.waitCDF(x), 1 - c*math.Exp(-mu*(n-rho/n)*x),
			seen(func(i int) float64 { return indicator(wait[i] <= x) })},
		{"PDSonQueue eq. 5: mean wait", q.MeanWait(), math.Pow(rho1, n) * q.p0() / (mu * factorial(5) * (1 - rho) * (1 - rho)),
			seen(func(i int) float64 { return wait[i] })},
		{"3DSF eq. 21: mean number in service", q.meanInService(), rho,
			seen(func(i int) float64 { return math.Min(5, float64(found[i])) })},
		{"3DSF eq. 24: mean queue", q.meanQueue(), c * rho / (n - rho),
			seen(func(i int) float64 { return math.Max(0, float64(found[i])-5) })},
		{"3DSF eq. 23, supplement eq. 9: mean queue if busy", q.meanQueueIfBusy(), rho / (n - rho), [2]float64{ifBusy, ifBusyErr}},
		{"3DSF eq. 23, prose: mean queue if busy", q.meanQueueIfBusy(), 1 / (1 - rho), [2]float64{ifBusy, ifBusyErr}},
		{"supplement eq. 1: p_(n+1)", q.p(6), math.Pow(rho1, 6) / factorial(6) * q.p0(),
			seen(func(i int) float64 { return indicator(found[i] == 6) })},
	} {
		t.Run(m.name, func(t *testing.T) {
			mean, stderr := m.simulated[0], m.simulated[1]
			if math.Abs(m.right-mean) > limit*stderr {
				t.Errorf("corrected %.6g, simulated %.6g +- %.2g", m.right, mean, stderr)
			}
			if math.Abs(m.printed-mean) < limit*stderr {
				t.Errorf("the printed formula's %.6g agrees with the simulated %.6g +- %.2g", m.printed, mean, stderr)
			}
		})
	}
}

// TestMisprintValues pins values of the formulas as printed.
func TestMisprintValues(t *testing.T) {
	q := mustNew(t, 5, 4, 1)
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"3DSF eq. 27 as printed", q.ErlangC() * math.Exp(-(5 - 0.8/5)), 0.004},
		{"PDSonQueue eq. 5 as printed", math.Pow(4, 5) * q.p0() / (120 * 0.04), 2.771},
		{"supplement eq. 1 as printed", math.Pow(4, 6) / 720 * q.p0(), 0.0739},
		{"supplement eq. 1, right", q.p(6), 0.0887},
	} {
		if math.Abs(c.got-c.want) > 6e-4 {
			t.Errorf("%s: %.6g, want %g", c.name, c.got, c.want)
		}
	}
}

// TestMisprintSingular checks that 3DSF eq. 31-33 as printed are not a number at n - 1
// = lambda/mu, and that the limit agrees with simulation.
func TestMisprintSingular(t *testing.T) {
	q := mustNew(t, 5, 4, 1)
	d := 5.0 - 1 - 4
	printed := math.Exp(-1) * (1 + q.ErlangC()*(1-math.Exp(-d))/d)
	if !math.IsNaN(printed) {
		t.Errorf("printed eq. 32 gives %g", printed)
	}
	seed := seed.New(t)
	wait, service, _ := simulated(seed, 5, 800_000, 4, 1)
	for _, x := range []float64{0.3, 1, 4} {
		mean, stderr := batchMean(len(wait), func(i int) float64 { return indicator(wait[i]+service[i] > x) })
		if math.Abs(q.sojournTail(x)-mean) > limit*stderr {
			t.Errorf("P(S > %g) = %.6g, simulated %.6g +- %.2g", x, q.sojournTail(x), mean, stderr)
		}
	}
}

// TestMisprintDensity checks that supplement eq. 15 as printed is no density at n 6,
// lambda 4, and that 3DSF eq. 31 is one, the derivative of eq. 32.
func TestMisprintDensity(t *testing.T) {
	q := mustNew(t, 6, 4, 1)
	d := 6.0 - 1 - 4
	printed := func(x float64) float64 {
		return math.Exp(-x) * (1 + q.ErlangC()*(1-d*math.Exp(-d*x))/d)
	}
	if got := integral(printed, 60); math.Abs(got-1.142) > 1e-3 {
		t.Errorf("the printed density integrates to %.6g, the guide says 1.142", got)
	}
	if got := integral(q.sojournDensity, 60); math.Abs(got-1) > 1e-9 {
		t.Errorf("the density integrates to %.12g", got)
	}
	if got := integral(q.waitDensity, 60); math.Abs(got-q.ErlangC()) > 1e-9 {
		t.Errorf("the density of the wait integrates to %.12g, want C = %.12g", got, q.ErlangC())
	}
	if got := integral(q.sojournTail, 60); math.Abs(got-q.meanSojourn()) > 1e-9 {
		t.Errorf("the sojourn tail integrates to %.12g, want the mean %.12g", got, q.meanSojourn())
	}
	seed := seed.New(t)
	wait, service, _ := simulated(seed, 6, 400_000, 4, 1)
	sojourn := make([]float64, len(wait))
	for i := range wait {
		sojourn[i] = wait[i] + service[i]
	}
	mean, stderr := batchMean(len(sojourn), func(i int) float64 { return indicator(sojourn[i] > 0.2 && sojourn[i] <= 0.4) })
	right := q.sojournCDF(0.4) - q.sojournCDF(0.2)
	wrong := integral(printed, 0.4) - integral(printed, 0.2)
	if math.Abs(right-mean) > limit*stderr || math.Abs(wrong-mean) < limit*stderr {
		t.Errorf("P(0.2 < S <= 0.4): corrected %.6g, printed %.6g, simulated %.6g +- %.2g", right, wrong, mean, stderr)
	}
	for _, p := range []float64{0.1, 0.5, 0.9} {
		x, err := q.SojournQuantile(p)
		if err != nil {
			t.Fatal(err)
		}
		if share, stderr := batchMean(len(sojourn), func(i int) float64 { return indicator(sojourn[i] <= x) }); math.Abs(share-p) > limit*stderr {
			t.Errorf("quantile %g: %g, at or below which the simulation has %.6g +- %.2g", p, x, share, stderr)
		}
	}
}
