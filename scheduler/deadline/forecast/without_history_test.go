package forecast

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/queueing"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A queue of jobs of one task each on servers of one slot, and what was quoted for them
// before anything like them had run.
type fifoQueue struct {
	t       *testing.T
	world   *schedtest.World
	random  *rand.Rand
	service func() time.Duration
	rates   *queueing.Estimator
	waiting []queuedJob
	running []queuedJob
	free    []scheduler.NodeID
	ended   int
}

type queuedJob struct {
	id       scheduler.JobID
	attempt  *scheduler.Attempt
	run      time.Duration
	ends     scheduler.Time
	from     scheduler.Time // submission
	quantile map[string][]time.Duration
}

const queueServers = 8

// The estimates.
const (
	model         = "M/M/n"
	fixedGuess    = "simulated, a minute each"
	simulatedMean = "simulated, mean of the ended tasks"
)

// The quantiles of the sojourn that are compared.
var quotedShares = []float64{0.5, 0.8, 0.9, 0.95}

func newFIFOQueue(t *testing.T, r *rand.Rand, service func() time.Duration) *fifoQueue {
	w := schedtest.New(t).AddNodes(queueServers, schedtest.R(1, 100, 100)).AddTenants("a")
	rates, err := queueing.NewEstimator(queueing.Window{Age: 1000 * time.Hour, Records: 500}, time.Duration(w.Now))
	if err != nil {
		t.Fatal(err)
	}
	f := &fifoQueue{t: t, world: w, random: r, service: service, rates: rates}
	for i := range scheduler.NodeID(queueServers) {
		f.free = append(f.free, i)
	}
	return f
}

// quote returns the quantiles by each of the estimates.
func (f *fifoQueue) quote() map[string][]time.Duration {
	rates, err := f.rates.Rates(time.Duration(f.world.Now))
	if err != nil {
		f.t.Fatal(err)
	}
	rates.Lambda = min(rates.Lambda, 0.98*rates.Mu*queueServers) // the model has no answer above
	q, err := rates.Queue(queueServers)
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[string][]time.Duration{}
	for _, p := range quotedShares {
		x, err := q.SojournQuantile(p)
		if err != nil {
			f.t.Fatal(err)
		}
		out[model] = append(out[model], time.Duration(x*1e9))
	}
	job := scheduler.JobSpec{ID: 1 << 40, Tenant: f.world.Tenant("a").Spec.ID, Priority: scheduler.PriorityLow, Submitted: f.world.Now}
	guess := func(of time.Duration, residual Residual) (list []time.Duration) {
		times := quote(f.t, f.world, Query{Job: job, Stages: oneStage(1, 0), Seed: f.random.Uint64(), Samples: 200, UnknownRunTime: of, Errors: sameErrors(residual)})
		for _, p := range quotedShares {
			list = append(list, times.EndQuantile(p).Sub(f.world.Now))
		}
		return list
	}
	out[fixedGuess] = guess(time.Minute, func(u float64) float64 { return math.Exp(1.5 * math.Sqrt2 * math.Erfinv(2*u-1)) })
	out[simulatedMean] = guess(time.Duration(1e9/rates.Mu), func(u float64) float64 { return -math.Log1p(-u) })
	return out
}

func (f *fifoQueue) submit(quoted bool) {
	j := queuedJob{run: f.service(), from: f.world.Now}
	if err := f.rates.Arrived(time.Duration(f.world.Now)); err != nil {
		f.t.Fatal(err)
	}
	if quoted {
		j.quantile = f.quote()
	}
	j.id = f.world.Submit("a", 1, schedtest.R(1, 1, 1))
	f.waiting = append(f.waiting, j)
	f.place()
}

func (f *fifoQueue) place() {
	for len(f.free) > 0 && len(f.waiting) > 0 {
		j := f.waiting[0]
		j.attempt = f.world.Place(scheduler.TaskID{Job: j.id}, f.free[0])
		j.ends = f.world.Now.Add(j.run)
		f.waiting, f.free = f.waiting[1:], f.free[1:]
		f.running = append(f.running, j)
		slices.SortFunc(f.running, func(a, b queuedJob) int { return cmp.Compare(a.ends, b.ends) })
		f.world.Start()
	}
}

// endFirst ends the attempt that ends first, and returns its job.
func (f *fifoQueue) endFirst() queuedJob {
	j := f.running[0]
	f.running = f.running[1:]
	f.world.Now = j.ends
	f.free = append(f.free, j.attempt.Node)
	f.world.End(j.attempt, scheduler.OutcomeSucceeded)
	if err := f.rates.Ended(time.Duration(f.world.Now), j.run); err != nil {
		f.t.Fatal(err)
	}
	if err := f.world.State.Events().EndJob(j.id); err != nil {
		f.t.Fatal(err)
	}
	f.ended++
	f.place()
	return j
}

// pinball is the loss of quantile p for what came: least in the mean for the true quantile.
func pinball(p float64, quoted, came time.Duration) float64 {
	d := (came - quoted).Seconds()
	return max(p*d, (p-1)*d)
}

// losses runs the queue at load rho until that many quoted jobs have ended, and returns the mean
// loss of each estimate, in seconds.
func (f *fifoQueue) losses(mean time.Duration, rho float64, quotes int) map[string]float64 {
	const warmUp = 200
	sum, count := map[string]float64{}, 0.0
	next := f.world.Now
	arrivals := 0
	for done := 0; done < quotes; {
		if len(f.running) > 0 && f.running[0].ends <= next {
			j := f.endFirst()
			for name, list := range j.quantile {
				for i, p := range quotedShares {
					sum[name] += pinball(p, list[i], f.world.Now.Sub(j.from)) / float64(len(quotedShares))
				}
			}
			if j.quantile != nil {
				done++
				count++
			}
			continue
		}
		f.world.Now = next
		f.submit(f.ended >= warmUp && arrivals%5 == 0)
		arrivals++
		next = next.Add(time.Duration(f.random.ExpFloat64() * float64(mean) / (rho * queueServers)))
	}
	for name := range sum {
		sum[name] /= count
	}
	return sum
}

// How to quote for a job without history: by the sojourn time of M/M/n, or by a simulation of the
// present jobs in which the job runs for a fixed guess, or for the mean of all ended tasks,
// exponentially distributed as in M/M/n.
func TestQuoteWithoutHistory(t *testing.T) {
	const mean = 20 * time.Second
	quotes := 600
	if testing.Short() {
		quotes = 150
	}
	for name, service := range map[string]func(r *rand.Rand) float64{
		"exponential": func(r *rand.Rand) float64 { return r.ExpFloat64() },
		"lognormal":   func(r *rand.Rand) float64 { return math.Exp(r.NormFloat64() - 0.5) },
		"constant":    func(*rand.Rand) float64 { return 1 },
	} {
		t.Run(name, func(t *testing.T) {
			for _, rho := range []float64{0.6, 0.9} {
				r := rand.New(rand.NewPCG(seed.New(t), 1))
				f := newFIFOQueue(t, r, func() time.Duration {
					return max(time.Millisecond, time.Duration(service(r)*float64(mean)))
				})
				loss := f.losses(mean, rho, quotes)
				t.Logf("load %.1f, mean pinball loss in seconds: %v", rho, loss)
				if loss[simulatedMean] > 1.5*loss[model] || loss[fixedGuess] < 2*loss[simulatedMean] {
					t.Errorf("load %.1f: a simulation with the mean run time is not the best estimate any more: %v", rho, loss)
				}
			}
		})
	}
}
