package engine_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler/queueing"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/internal/shared"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

func kthWorkload(t testing.TB, proves string) (*trace.Workload, []engine.Node) {
	t.Helper()
	f, err := trace.Open(shared.Path(t, "swf/KTH-SP2.swf.gz", proves))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	swf, err := trace.ReadSWF(f, trace.Options{Name: "KTH-SP2.swf"})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := swf.PoolNode(trace.SWFRule{})
	if err != nil {
		t.Fatal(err)
	}
	return swf.Workload(trace.SWFRule{}), pool
}

// Every start of KTH-SP2 equals that of pyss, and so do the means.
func TestKTHSP2EqualsPyss(t *testing.T) {
	for _, c := range []struct {
		name, policy, wait, slowdown string
		params                       []string
	}{
		{"fcfs", "fifo", "353776.4091", "6814.973310", []string{"strict", "true"}},
		{"easy", "easy", "6836.8721", "92.576540", nil},
		{"conservative", "conservative", "7310.5512", "88.997275", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			proves := "that under " + c.policy + " each of the 28,481 jobs of KTH-SP2 starts when pyss, an independent simulator, starts it"
			w, pool := kthWorkload(t, proves)
			r := mustSimulate(t, engine.Config{Nodes: pool, Tenants: w.Tenants, Jobs: w.Jobs, Policy: policy(t, c.policy, c.params...), CycleEachEvent: true})
			rows := shared.Rows(t, "swf/KTH-SP2."+c.name+"-starts.txt.gz", proves)
			if len(rows) != len(r.Jobs) {
				t.Fatalf("%d starts for %d jobs", len(rows), len(r.Jobs))
			}
			wait, slow := 0.0, 0.0
			for i, row := range rows {
				want, err := strconv.ParseFloat(row[2], 64)
				if err != nil {
					t.Fatal(err)
				}
				j := &r.Jobs[i]
				if got := j.Start.Seconds(); got != want || w.Jobs[i].Name != "swf-"+row[0] {
					t.Fatalf("%s starts at %v, pyss says job %s at %v", w.Jobs[i].Name, got, row[0], want)
				}
				ran := (j.Finish - j.Start).Seconds()
				wait += j.Wait().Seconds()
				slow += max(1, (j.Wait().Seconds()+ran)/max(ran, 10))
			}
			n := float64(len(rows))
			if got := fmt.Sprintf("%.4f", wait/n); got != c.wait {
				t.Errorf("mean wait %s, want %s", got, c.wait)
			}
			if got := fmt.Sprintf("%.6f", slow/n); got != c.slowdown {
				t.Errorf("mean bounded slowdown %s, want %s", got, c.slowdown)
			}
		})
	}
}

// On a single node, drf with node reservation is EASY: of 28,481 starts 9 differ from the
// independent simulator. All go back to one time at which two tasks end: between the two events a
// later task that fits starts before an earlier one that needs both.
func TestKTHSP2ReservingTheNodeIsEASY(t *testing.T) {
	const proves = "that drf with node reservation is EASY backfilling on one node, but for 9 of the 28,481 starts of KTH-SP2"
	w, pool := kthWorkload(t, proves)
	r := mustSimulate(t, engine.Config{Nodes: pool, Tenants: w.Tenants, Jobs: w.Jobs, Policy: policy(t, "drf", "reserve", "true"), CycleEachEvent: true})
	others := 0
	for i, row := range shared.Rows(t, "swf/KTH-SP2.easy-starts.txt.gz", proves) {
		want, err := strconv.ParseFloat(row[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		if r.Jobs[i].Start.Seconds() != want {
			others++
		}
	}
	if others > 9 {
		t.Errorf("%d starts differ from EASY", others)
	}
}

// M/M/n under fifo: the mean wait and P(W > x) lie within the 99% interval over seeds.
func TestMultiServerWaitMatchesErlang(t *testing.T) {
	const servers, lambda, mu, runs = 5, 4.0, 1.0, 12
	n := 20_000
	if testing.Short() {
		n = 4000
	}
	q, err := queueing.New(servers, lambda, mu)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []float64{-1, 0, 1} { // the mean, then tails
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			want := q.MeanWait()
			if x >= 0 {
				want = q.WaitTail(x)
			}
			var sum, squares float64
			for seed := range uint64(runs) {
				got := simulateMMN(t, seed, servers, lambda, mu, n, x)
				sum, squares = sum+got, squares+got*got
			}
			mean := sum / runs
			half := 3.11 * math.Sqrt((squares/runs-mean*mean)/(runs-1)) // t, 11 degrees, 99%
			if math.Abs(mean-want) > half {
				t.Errorf("%.4f ± %.4f, theory %.4f", mean, half, want)
			}
		})
	}
}

// simulateMMN returns the mean wait, or for x >= 0 the fraction of jobs that wait longer than x.
func simulateMMN(t *testing.T, seed uint64, servers int, lambda, mu float64, n int, x float64) float64 {
	rng := rand.New(rand.NewPCG(seed, 3))
	c := engine.Config{Nodes: nodes(1, 1, schedtest.R(float64(servers), 8, 0)), Policy: policy(t, "fifo")}
	at := 0.0
	for range n {
		at += rng.ExpFloat64() / lambda
		c.Jobs = append(c.Jobs, singleStageJob(time.Duration(at*1e9), 1, schedtest.R(1, 0, 0), time.Duration(rng.ExpFloat64()/mu*1e9)))
	}
	r := mustSimulate(t, c)
	sum := 0.0
	for i := range r.Jobs[n/10:] { // without the warm-up
		w := r.Jobs[n/10+i].Wait().Seconds()
		switch {
		case x < 0:
			sum += w
		case w > x:
			sum++
		}
	}
	return sum / float64(n-n/10)
}
