package queueing

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
)

func mustNew(t testing.TB, n int, lambda, mu float64) *Queue {
	t.Helper()
	q, err := New(n, lambda, mu)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestExactAnswers checks values of the papers' corrected formulas, and two values of
// large systems to 40 digits.
func TestExactAnswers(t *testing.T) {
	five, six := mustNew(t, 5, 4, 1), mustNew(t, 6, 4, 1)
	large := func(idle float64) float64 {
		q, err := newSlack(100_000, 1, idle)
		if err != nil {
			t.Fatal(err)
		}
		return q.ErlangC()
	}
	for _, c := range []struct {
		name      string
		got, want float64
		digits    float64
	}{
		{"3DSF 7.2.1, p0 for n 5, lambda 4, mu 1", five.p0(), 0.012987, 1e-6},
		{"3DSF eq. 20, Erlang C", five.ErlangC(), 0.554113, 1e-6},
		{"3DSF eq. 12, mean queue", five.meanQueue(), 2.216450, 1e-6},
		{"3DSF eq. 18, mean wait", five.MeanWait(), 0.554113, 1e-6},
		{"3DSF eq. 27, P(W > 1)", five.WaitTail(1), 0.203847, 1e-6},
		{"3DSF eq. 32, P(S > 1) for n 6", six.sojournTail(1), 0.434099, 1e-6},
		{"3DSF eq. 32, singular case n - 1 = lambda/mu, P(S > 1)", five.sojournTail(1), 0.571726, 1e-6},
		{"3DSF eq. 15, variance of the queue", five.varQueue(), 15.0354, 1e-4},
		{"3DSF eq. 20, C of 1e5 servers at rho 1 - 1e-3", large(1e-3), 0.6579935118, 1e-10},
		{"3DSF eq. 20, C of 1e5 servers at rho 1 - 1e-9", large(1e-9), 0.9999996040003, 1e-13},
	} {
		t.Run(c.name, func(t *testing.T) {
			if math.Abs(c.got-c.want) > c.digits {
				t.Errorf("got %.14g, want %.14g", c.got, c.want)
			}
		})
	}
}

// worstDifference compares every quantity with the judge and returns the worst relative
// difference and its name.
func worstDifference(q *Queue, j *judge) (worst float64, where string) {
	see := func(name string, got float64, want *big.Float) {
		if r := relative(got, want); !(r <= worst) {
			worst, where = r, name
		}
	}
	one, n := num(1), num(float64(j.n))
	rho := sub(one, j.idle)
	notC := sub(one, j.c)
	queue := quo(mul(j.c, rho), j.idle)
	varQueue := mul(queue, sub(quo(add(one, rho), j.idle), queue)) // eq. 15 as printed
	theta := j.theta()
	for _, k := range []int{0, 1, j.n / 2, j.n - 1, j.n, j.n + 1, j.n + 50} {
		see(fmt.Sprint("P ", k), q.p(k), j.pk(k))
	}
	see("LogP 0", q.logP(0), bigLog(j.p[0]))
	see("C", q.ErlangC(), j.c)
	see("LogC", q.logErlangC(), bigLog(j.c))
	see("1-C", q.noWait(), notC)
	see("rho", q.rho(), rho)
	see("1-rho", q.idleShare(), j.idle)
	see("mean queue", q.meanQueue(), queue)
	see("mean queue if busy", q.meanQueueIfBusy(), quo(rho, j.idle))
	see("var queue", q.varQueue(), varQueue)
	see("in service", q.meanInService(), j.rho1)
	see("var in service", q.varInService(), mul(j.rho1, notC))
	see("in system", q.meanInSystem(), add(queue, j.rho1))
	see("var in system", q.varInSystem(), add(varQueue, mul(j.rho1, add(one, j.c))))
	see("mean wait", q.MeanWait(), quo(queue, j.lambda))
	see("mean wait if waiting", q.meanWaitIfWaiting(), quo(one, theta))
	see("var wait", q.varWait(), quo(mul(j.c, sub(num(2), j.c)), mul(theta, theta)))
	see("mean sojourn", q.meanSojourn(), add(quo(queue, j.lambda), quo(one, j.mu)))
	mu, _ := j.mu.Float64()
	th, _ := mul(n, mul(j.idle, j.mu)).Float64()
	for _, x := range []float64{1e-9 / mu, 0.01 / mu, 0.5 / mu, 1 / mu, 30 / mu, 0.3 / th, 5 / th} {
		at := func(s string) string { return fmt.Sprintf("%s at %g", s, x) }
		wait, sojourn := j.waitTail(x), j.sojournTail(x)
		see(at("wait tail"), q.WaitTail(x), wait)
		see(at("wait CDF"), q.waitCDF(x), sub(one, wait))
		see(at("wait density"), q.waitDensity(x), mul(theta, wait))
		see(at("sojourn tail"), q.sojournTail(x), sojourn)
		see(at("sojourn CDF"), q.sojournCDF(x), sub(one, sojourn))
		see(at("sojourn density"), q.sojournDensity(x), j.sojournDensity(x))
	}
	return worst, where
}

// TestAgainstJudge compares all quantities with 96-digit sums over the whole documented
// range. The documented accuracy is 1e-6; the limit here is what is reached.
func TestAgainstJudge(t *testing.T) {
	const bound = 1e-11
	var worst float64
	for _, n := range []int{1, 2, 3, 5, 6, 17, 100, 1000, 10_000, 100_000} {
		if testing.Short() && n > 10_000 {
			continue
		}
		idles := []float64{1, 0.999, 0.5, 0.1, 1e-3, 1e-6, 1e-9}
		if n == 100_000 {
			idles = []float64{0.5, 1e-3, 1e-9}
		}
		for _, idle := range idles {
			q, err := newSlack(n, 2.5, idle)
			if err != nil {
				t.Fatal(err)
			}
			if idle == 1 { // no arrivals at all
				if q.p0() != 1 || q.ErlangC() != 0 || q.MeanWait() != 0 || q.p(1) != 0 {
					t.Errorf("n %d without arrivals: p0 %g, C %g", n, q.p0(), q.ErlangC())
				}
				continue
			}
			lambda := mul(num(2.5), mul(num(float64(n)), sub(num(1), num(idle))))
			diff, where := worstDifference(q, newJudge(n, lambda, num(2.5)))
			worst = math.Max(worst, diff)
			if diff > bound {
				t.Errorf("n %d, 1-rho %g: %s is off by %.3g relative", n, idle, where, diff)
			}
		}
	}
	t.Logf("worst relative difference %.3g", worst)
}

// TestNewAgainstJudge gives the judge the rates themselves, as exact binary numbers.
func TestNewAgainstJudge(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 150 {
		n := 1 + r.IntN(400)
		mu := math.Exp(20 * (r.Float64() - 0.5))
		idle := math.Exp(-21 * r.Float64())
		lambda := float64(n) * mu * (1 - idle)
		q, err := New(n, lambda, mu)
		if errors.Is(err, errUnstable) || lambda == 0 {
			continue
		}
		if diff, where := worstDifference(q, newJudge(n, num(lambda), num(mu))); diff > 1e-10 {
			t.Errorf("n %d, lambda %v, mu %v: %s is off by %.3g relative", n, lambda, mu, where, diff)
		}
	}
}

// TestNearSingularPoint evaluates points around n - 1 = lambda/mu (3DSF eq. 31-33),
// where the printed formulas are 0/0.
func TestNearSingularPoint(t *testing.T) {
	for _, n := range []int{2, 5, 100} {
		for _, off := range []float64{0, 1e-16, -1e-15, 1e-12, -1e-9, 1e-8, 1e-7, -1e-5, 1e-3, -0.1} {
			lambda := float64(n-1) + off
			q := mustNew(t, n, lambda, 1)
			if diff, where := worstDifference(q, newJudge(n, num(lambda), num(1))); diff > 1e-11 {
				t.Errorf("n %d, lambda n-1%+g: %s is off by %.3g relative", n, off, where, diff)
			}
		}
	}
}

// TestBruteForceMoments sums the distribution of the number of jobs.
func TestBruteForceMoments(t *testing.T) {
	for _, c := range []struct {
		n   int
		rho float64
	}{{1, 0.5}, {2, 0.9}, {5, 0.8}, {6, 2.0 / 3}, {40, 0.95}} {
		q := mustNew(t, c.n, c.rho*float64(c.n), 1)
		var all, mean, square, queue, queue2, busy, busy2 float64
		for k := 0; k < 5000; k++ {
			p, f := q.p(k), float64(k)
			w, s := math.Max(0, f-float64(c.n)), math.Min(f, float64(c.n))
			all += p
			mean, square = mean+p*f, square+p*f*f
			queue, queue2 = queue+p*w, queue2+p*w*w
			busy, busy2 = busy+p*s, busy2+p*s*s
		}
		for _, m := range []struct {
			name      string
			got, want float64
		}{
			{"sum of p", 1, all},
			{"MeanInSystem", q.meanInSystem(), mean},
			{"VarInSystem", q.varInSystem(), square - mean*mean},
			{"MeanQueue", q.meanQueue(), queue},
			{"VarQueue", q.varQueue(), queue2 - queue*queue},
			{"MeanInService", q.meanInService(), busy},
			{"VarInService", q.varInService(), busy2 - busy*busy},
		} {
			if math.Abs(m.got-m.want) > 1e-9*(1+m.want) {
				t.Errorf("n %d, rho %g: %s = %.12g, the sum gives %.12g", c.n, c.rho, m.name, m.got, m.want)
			}
		}
	}
}

// TestWaitGivenState mixes the conditional tails of eq. 25 to eq. 27.
func TestWaitGivenState(t *testing.T) {
	q := mustNew(t, 5, 4, 1)
	for _, x := range []float64{0, 0.1, 1, 3, 20} {
		var sum float64
		for k := 0; k < 700; k++ {
			sum += q.p(k) * q.waitTailGiven(k, x)
		}
		if want := q.WaitTail(x); math.Abs(sum-want) > 1e-12 {
			t.Errorf("P(W > %g) by states %.14g, by eq. 27 %.14g", x, sum, want)
		}
	}
}

func TestQuantiles(t *testing.T) {
	for _, q := range []*Queue{mustNew(t, 1, 0.9, 1), mustNew(t, 5, 4, 1), mustNew(t, 6, 4, 1), mustNew(t, 1000, 9.99, 0.01), mustNew(t, 100, 3, 7), mustNew(t, 3, 0, 1)} {
		for _, p := range []float64{0, 1e-12, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-12} {
			x, err := q.SojournQuantile(p)
			if err != nil || math.Abs(q.sojournCDF(x)-p) > 1e-12*p {
				t.Errorf("n %d: sojourn quantile of %g is %g, its CDF %g, %v", q.n, p, x, q.sojournCDF(x), err)
			}
			w, err := q.waitQuantile(p)
			if got := q.waitCDF(w); err != nil || got < p-1e-12 || (w > 0 && math.Abs(got-p) > 1e-12) {
				t.Errorf("n %d: wait quantile of %g is %g, its CDF %g, %v", q.n, p, w, got, err)
			}
		}
	}
	q := mustNew(t, 5, 4, 1)
	for _, p := range []float64{-0.1, 1, 2, math.NaN()} {
		if _, err := q.waitQuantile(p); !errors.Is(err, errInput) {
			t.Errorf("wait quantile of %g: %v", p, err)
		}
		if _, err := q.SojournQuantile(p); !errors.Is(err, errInput) {
			t.Errorf("sojourn quantile of %g: %v", p, err)
		}
	}
}

func TestBadParameters(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		name       string
		n          int
		lambda, mu float64
		want       error
	}{
		{"no server", 0, 1, 1, errInput},
		{"negative servers", -3, 1, 1, errInput},
		{"more servers than bounded work allows", maxServers + 1, 1, 1, errInput},
		{"negative arrivals", 1, -1, 1, errInput},
		{"arrivals not a number", 1, nan, 1, errInput},
		{"infinite arrivals", 1, inf, 1, errInput},
		{"no service", 1, 1, 0, errInput},
		{"negative service", 1, 1, -1, errInput},
		{"service not a number", 1, 1, nan, errInput},
		{"infinite service", 1, 1, inf, errInput},
		{"denormal service", 1, 1e-320, 1e-320, errInput},
		{"load exactly 1", 4, 4, 1, errUnstable},
		{"load over 1", 4, 5, 1, errUnstable},
		{"load far over 1", 1, 1e100, 1e-100, errUnstable},
		{"the smallest load there is", 1, 1e-100, 1e100, nil},
		{"no arrivals", 3, 0, 1, nil},
		{"one ulp below full", 3, math.Nextafter(3, 0), 1, nil},
		{"the most servers", maxServers, maxServers - 10000, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, err := New(c.n, c.lambda, c.mu)
			if !errors.Is(err, c.want) || (err == nil) != (q != nil) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if q != nil && !(q.ErlangC() >= 0 && q.ErlangC() <= 1 && q.MeanWait() >= 0 && q.sojournTail(1) <= 1) {
				t.Errorf("C %g, wait %g", q.ErlangC(), q.MeanWait())
			}
		})
	}
	for _, idle := range []float64{nan, -1, 0, 1.1, 1e-310} {
		if _, err := newSlack(3, 1, idle); err == nil {
			t.Errorf("idle share %g was accepted", idle)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{5, 1000, 100_000} {
		b.Run(fmt.Sprint("servers=", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := newSlack(n, 1, 1e-6); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSojournTail(b *testing.B) {
	q := mustNew(b, 100, 95, 1)
	for b.Loop() {
		q.sojournTail(1.5)
	}
}

func BenchmarkSojournQuantile(b *testing.B) {
	q := mustNew(b, 100, 95, 1)
	for b.Loop() {
		if _, err := q.SojournQuantile(0.99); err != nil {
			b.Fatal(err)
		}
	}
}
