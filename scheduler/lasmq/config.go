package lasmq

import (
	"math"
	"time"

	"github.com/drover-run/drover/internal/enum"
	"github.com/drover-run/drover/scheduler"
)

// MaxQueues bounds the number of queues.
const MaxQueues = 64

// Order is the order in which one queue serves its jobs (section 3.3).
type Order uint8

// The orders. Ties go to the earlier submission, then the lower id.
const (
	// OrderRemaining: fewest containers of all remaining tasks of all stages,
	// including running ones. The paper's design (Fig. 3, cases 3 and 4).
	OrderRemaining Order = iota + 1
	// OrderFIFO: by submission (Fig. 3, cases 1 and 2).
	OrderFIFO
)

// String returns the name used by the policy's parameter.
func (o Order) String() string {
	return enum.Name("order", o, []string{OrderRemaining: "remaining", OrderFIFO: "fifo"})
}

// Config configures the queues.
type Config struct {
	// Queues is k, 1 to MaxQueues. First is alpha_1 in container-seconds, Step is p > 1: alpha_(i+1) = p alpha_i.
	Queues int
	First  float64
	Step   float64
	// Decay is each queue's weight over that of the queue before, in (0, 1]. The
	// paper gives no weights; 0.1 reproduces its section 5.4.
	Decay float64
	Order Order
	// StageAware counts the service that the whole stage is expected to need, for a stage of which
	// at least the part awareFrom (0.1 in the paper) is done.
	StageAware bool
	awareFrom  float64
	// Horizon is for how long a started task is assumed to use its containers when queues are
	// compared. If it is at least the longest task, deficits stay within one such task.
	Horizon time.Duration
	// Unit is the size of one container.
	Unit scheduler.Resources

	thresholds []float64 // of an Index: threshold(i) for each i, which it needs for every job in every cycle
}

// Default returns the paper's configuration (10 queues, alpha_1 = 100, step 10, 1 vcore, 2 GB), with 1 GB/s of disk I/O.
func Default() Config {
	return Config{Queues: 10, First: 100, Step: 10, Decay: 0.1, Order: OrderRemaining, StageAware: true, awareFrom: 0.1,
		Horizon: time.Minute, Unit: scheduler.Resources{1000, 2 << 30, 1e9}}
}

// threshold returns alpha_i in container-seconds, i from 1. The last queue has none (+Inf).
func (c *Config) threshold(i int) float64 {
	switch {
	case i >= c.Queues:
		return math.Inf(1)
	case i <= len(c.thresholds):
		return c.thresholds[i-1]
	default:
		return c.First * math.Pow(c.Step, float64(i-1))
	}
}

// queueFor returns the queue, from 1, of a job in queue from (1 for a new job) with this service: it is demoted while
// service > alpha_i, strictly, and never promoted (Alg. 1 lines 5-8). O(queues passed).
func (c *Config) queueFor(from int, service float64) int {
	queue, _ := c.queueAt(&serviceAt{base: service}, from, 0)
	return queue
}

// weight returns the weight of queue i, from 1: Decay^(i-1), but never 0, so that a share of weights is a number.
func (c *Config) weight(i int) float64 { return max(math.Pow(c.Decay, float64(i-1)), 1e-100) }

// Containers returns the size of a demand in containers: the maximum over the resources of demand/unit.
func (c *Config) Containers(d scheduler.Resources) float64 { return d.DominantShare(c.Unit) }

// serviceAt is the service of a job as a function of time: base at time at, growing at rate per second from then on.
type serviceAt struct {
	base, rate float64 // container-seconds, and container-seconds per second
	at         scheduler.Time
}

// measured is what the queues need to know about a job.
type measured struct {
	service   serviceAt // valid while nothing starts, ends or reports
	remaining float64   // containers of the remaining tasks, including running ones (section 3.3)
	running   microContainers
}

// measure measures a job. Its service (section 3.2) is, over its stages, the time of their tasks x containers. With
// stage awareness, that time is divided by the part done for a stage of which at least awareFrom is done. O(stages).
func (c *Config) measure(j *scheduler.Job) measured {
	var m measured
	f := &m.service
	for _, g := range j.Begun() {
		f.at = max(f.at, g.CountedUntil())
	}
	for _, g := range j.Stages {
		containers, factor := c.Containers(g.Spec.Demand), 1.0
		if done := g.Progress(); c.StageAware && g.Done < g.Spec.Tasks && done >= c.awareFrom*float64(g.Spec.Tasks) && done > 0 {
			factor = max(1, float64(g.Spec.Tasks)/done)
		}
		f.base += containers * factor * g.TaskTime(f.at).Seconds()
		f.rate += containers * factor * float64(g.Running)
		m.remaining += containers * float64(g.Remaining())
		m.running += micro(containers) * microContainers(g.Running)
	}
	return m
}

// exceeds returns the first time at which the service is above a threshold, Never if it does not get
// there. It depends only on the service, so that every caller gets the same time, whenever it asks.
func (f *serviceAt) exceeds(threshold float64) scheduler.Time {
	if f.base > threshold {
		return f.at
	}
	left := (threshold - f.base) / f.rate * 1e9
	if f.rate <= 0 || !(left < float64(scheduler.Never-f.at)-1) {
		return scheduler.Never
	}
	return f.at + 1 + scheduler.Time(left)
}

// queueAt returns the queue of a job of this service that was in queue from (1 for a
// new job), and when it will be demoted next if nothing changes. O(queues passed).
func (c *Config) queueAt(f *serviceAt, from int, now scheduler.Time) (queue int, demoteAt scheduler.Time) {
	for queue = min(max(from, 1), c.Queues); queue < c.Queues; queue++ {
		if demoteAt = f.exceeds(c.threshold(queue)); demoteAt > now {
			return queue, demoteAt
		}
	}
	return queue, scheduler.Never
}

// Service returns the service of a job in container-seconds (section 3.2). O(stages).
func (c *Config) Service(j *scheduler.Job, now scheduler.Time) float64 {
	f := c.measure(j).service
	return f.base + f.rate*max(0, now.Sub(f.at)).Seconds()
}

// RunningContainers returns the containers of a job's running tasks.
func (c *Config) RunningContainers(j *scheduler.Job) float64 { return c.measure(j).running.float() }

// microContainers counts containers in millionths: its sums do not depend on their order, unlike those of floats.
type microContainers int64

const maxMicro = 1e12 // bounds the containers of one task, so that sums do not overflow

func micro(containers float64) microContainers {
	return microContainers(math.Round(min(containers*1e6, maxMicro)))
}

func (m microContainers) float() float64 { return float64(m) / 1e6 }
