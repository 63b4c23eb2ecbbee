package queueing

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
)

const s = time.Second

func mustEstimator(t testing.TB, w Window, start time.Duration) *Estimator {
	t.Helper()
	e, err := NewEstimator(w, start)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestRates(t *testing.T) {
	type end struct{ at, service time.Duration }
	for _, c := range []struct {
		name     string
		window   Window
		arrivals []time.Duration
		ends     []end
		now      time.Duration
		want     Rates
		err      error
	}{
		{"four arrivals in eight seconds, mean service two", Window{100 * s, 10}, []time.Duration{1 * s, 2 * s, 5 * s, 8 * s},
			[]end{{3 * s, 1 * s}, {6 * s, 3 * s}}, 8 * s, Rates{0.5, 0.5, 4, 2}, nil},
		{"a silent time since counts", Window{100 * s, 10}, []time.Duration{1 * s, 2 * s},
			[]end{{3 * s, 1 * s}, {6 * s, 3 * s}}, 40 * s, Rates{0.05, 0.5, 2, 2}, nil},
		{"the old is outside the window of time", Window{10 * s, 10}, []time.Duration{1 * s, 11 * s, 13 * s, 20 * s},
			[]end{{2 * s, 9 * s}, {12 * s, 1 * s}, {20 * s, 3 * s}}, 20 * s, Rates{0.3, 0.5, 3, 2}, nil},
		{"cut by number the clock starts at the oldest retained", Window{1000 * s, 3}, []time.Duration{1 * s, 100 * s, 104 * s, 108 * s},
			[]end{{1 * s, 9 * s}, {12 * s, 2 * s}, {20 * s, 2 * s}, {21 * s, 2 * s}}, 108 * s, Rates{0.25, 0.5, 2, 3}, nil},
		{"nothing", Window{10 * s, 10}, nil, nil, 5 * s, Rates{}, errHistory},
		{"one record", Window{10 * s, 10}, []time.Duration{1 * s}, []end{{2 * s, 1 * s}}, 5 * s, Rates{arrivals: 1, ends: 1}, errHistory},
		{"all old", Window{10 * s, 10}, []time.Duration{1 * s, 2 * s}, []end{{2 * s, 1 * s}, {3 * s, 1 * s}}, 50 * s, Rates{}, errHistory},
		{"all at the start", Window{10 * s, 10}, []time.Duration{0, 0}, []end{{0, 1 * s}, {0, 1 * s}}, 0, Rates{arrivals: 2, ends: 2}, errHistory},
		{"a time in the past", Window{10 * s, 10}, []time.Duration{1 * s, 5 * s}, nil, 2 * s, Rates{}, errRecord},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := mustEstimator(t, c.window, 0)
			for _, at := range c.arrivals {
				if err := e.Arrived(at); err != nil {
					t.Fatal(err)
				}
			}
			for _, x := range c.ends {
				if err := e.Ended(x.at, x.service); err != nil {
					t.Fatal(err)
				}
			}
			got, err := e.Rates(c.now)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if math.Abs(got.Lambda-c.want.Lambda) > 1e-12 || math.Abs(got.Mu-c.want.Mu) > 1e-12 ||
				got.arrivals != c.want.arrivals || got.ends != c.want.ends {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestInvalidRecordsChangeNothing feeds an estimator invalid records between valid
// ones.
func TestInvalidRecordsChangeNothing(t *testing.T) {
	clean, dirty := mustEstimator(t, Window{100 * s, 4}, s), mustEstimator(t, Window{100 * s, 4}, s)
	refuse := func(err error) {
		t.Helper()
		if !errors.Is(err, errRecord) {
			t.Errorf("got %v, want ErrRecord", err)
		}
	}
	for i := time.Duration(1); i < 10; i++ {
		for _, e := range []*Estimator{clean, dirty} {
			if err := errors.Join(e.Arrived(i*s), e.Ended(i*s, 2*s)); err != nil {
				t.Fatal(err)
			}
		}
		refuse(dirty.Arrived(i*s - 1))
		refuse(dirty.Arrived(-5 * s))
		refuse(dirty.Ended(i*s-1, s))
		refuse(dirty.Ended(i*s, 0))
		refuse(dirty.Ended(i*s, math.MinInt64))
		refuse(dirty.Ended(math.MinInt64, s))
	}
	a, errA := clean.Rates(10 * s)
	b, errB := dirty.Rates(10 * s)
	if a != b || errA != nil || errB != nil {
		t.Errorf("clean %+v %v, dirty %+v %v", a, errA, b, errB)
	}
	for _, w := range []Window{{0, 10}, {-s, 10}, {s, 1}, {s, 0}, {s, maxRecords + 1}} {
		if _, err := NewEstimator(w, 0); !errors.Is(err, errInput) {
			t.Errorf("window %+v: %v", w, err)
		}
	}
}

// TestEstimatesConverge draws a Poisson stream and estimates its rates, in both kinds
// of window, within five standard errors.
func TestEstimatesConverge(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 3))
	const lambda, mu = 4.0, 0.25
	for _, w := range []Window{{Age: 1000 * s, Records: maxRecords}, {Age: 1 << 60, Records: 4000}} {
		e := mustEstimator(t, w, 0)
		var now time.Duration
		for range 20_000 {
			now += time.Duration(r.ExpFloat64() / lambda * 1e9)
			service := max(1, time.Duration(r.ExpFloat64()/mu*1e9))
			if err := errors.Join(e.Arrived(now), e.Ended(now, service)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := e.Rates(now)
		if err != nil || math.Abs(got.Lambda/lambda-1) > 5/math.Sqrt(float64(got.arrivals)) ||
			math.Abs(got.Mu/mu-1) > 5/math.Sqrt(float64(got.ends)) {
			t.Errorf("window %+v: got %+v, %v", w, got, err)
		}
		n, err := got.servers(0.8)
		if err != nil || n < 18 || n > 22 {
			t.Errorf("%d servers for load 0.8, %v", n, err)
		}
		if q, err := got.Queue(n); err != nil || q.rho() > 0.8 {
			t.Errorf("queue %v, %v", q, err)
		}
	}
	for _, rho := range []float64{0, 1, -1, math.NaN()} {
		if _, err := (Rates{Lambda: 1, Mu: 1}).servers(rho); !errors.Is(err, errInput) {
			t.Errorf("servers for load %g: %v", rho, err)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	e := mustEstimator(b, Window{Age: time.Hour, Records: 1000}, 0)
	var now time.Duration
	b.ReportAllocs()
	for b.Loop() {
		now += s
		if err := e.Arrived(now); err != nil {
			b.Fatal(err)
		}
	}
}
