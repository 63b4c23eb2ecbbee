package coordinator

import (
	"math"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/internal/pki/pkimetrics"
)

// metrics are the coordinator's Prometheus metrics. No label is a job or task.
type metrics struct {
	cycles     prometheus.Histogram
	actions    prometheus.Counter
	dropped    prometheus.Counter
	rebuilds   prometheus.Counter
	violated   prometheus.Counter
	calls      *prometheus.HistogramVec
	jobsEnded  *prometheus.CounterVec
	jobSeconds *prometheus.HistogramVec
	refused    *prometheus.CounterVec

	totals schedulerCounts
}

// schedulerTotals are counts since the start of the program.
type schedulerTotals struct{ cycles, nanos, actions, dropped int64 }

// schedulerCounts are the schedulerTotals so far, and the longest cycle since the last sample.
type schedulerCounts struct{ cycles, nanos, actions, dropped, longest atomic.Int64 }

func (c *schedulerCounts) read() schedulerTotals {
	return schedulerTotals{c.cycles.Load(), c.nanos.Load(), c.actions.Load(), c.dropped.Load()}
}

// takeLongest returns the longest cycle since the last call.
func (c *schedulerCounts) takeLongest() time.Duration { return time.Duration(c.longest.Swap(0)) }

// observe counts a cycle. Only one goroutine calls it at a time.
func (c *schedulerCounts) observe(d time.Duration, actions, dropped int) {
	c.cycles.Add(1)
	c.nanos.Add(int64(d))
	c.actions.Add(int64(actions - dropped))
	c.dropped.Add(int64(dropped))
	if int64(d) > c.longest.Load() {
		c.longest.Store(int64(d))
	}
}

func newMetrics(c *core) *metrics {
	m := &metrics{
		cycles:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "drover_cycle_seconds", Help: "Time of a scheduling cycle, its commit included.", Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 12)}),
		actions:    prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_actions_total", Help: "Scheduler actions that were applied."}),
		dropped:    prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_actions_dropped_total", Help: "Scheduler actions dropped as stale."}),
		rebuilds:   prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_state_rebuilds_total", Help: "Rebuilds of the scheduler's state after a drift: should stay 0."}),
		violated:   prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_guarantees_violated_total", Help: "Guarantees of jobs and projects that were violated since this server leads."}),
		calls:      prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "drover_api_seconds", Help: "Time of unary API calls.", Buckets: prometheus.ExponentialBuckets(0.0005, 3, 10)}, []string{"method", "code"}),
		jobsEnded:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_jobs_ended_total", Help: "Jobs that ended since this server leads, by state."}, []string{"state"}),
		jobSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "drover_job_seconds", Help: "Time of jobs from submission to end, by state.", Buckets: prometheus.ExponentialBuckets(0.1, 3, 12)}, []string{"state"}),
		refused:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_api_refused_total", Help: "Calls refused before their request was read, by reason: " + strings.Join(refusalReasons, ", ") + "."}, []string{"method", "reason"}),
	}
	gauge := func(name, help string, of func(*facts.Facts) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() (v float64) {
			if c.replica != nil {
				c.view(func(f *facts.Facts) { v = of(f) })
			}
			return v
		})
	}
	c.cfg.Metrics.MustRegister(m.cycles, m.actions, m.dropped, m.rebuilds, m.violated, m.calls, m.jobsEnded, m.jobSeconds, m.refused,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_history_bytes", Help: "Bytes of the history in use."}, func() float64 {
			if c.past == nil {
				return 0
			}
			used, _, _ := c.past.Size() // an error leaves 0
			return float64(used)
		}),
		gauge("drover_log_index", "Index of the last entry applied.", func(f *facts.Facts) float64 { return float64(f.Index()) }),
		gauge("drover_jobs_live", "Jobs that have not ended.", func(f *facts.Facts) float64 { _, n := f.JobCount(); return float64(n) }),
		gauge("drover_nodes_up", "Nodes that are up.", func(f *facts.Facts) float64 { return countNodes(f, func(n *facts.Node) bool { return n.Up }) }),
		gauge("drover_nodes_draining", "Nodes that are draining or quarantined.", func(f *facts.Facts) float64 {
			return countNodes(f, func(n *facts.Node) bool { return n.Up && n.Draining })
		}),
		gauge("drover_attempts_live", "Attempts that occupy a node.", func(f *facts.Facts) float64 {
			n := 0
			for _, x := range f.Nodes() {
				n += int(x.Attempts)
			}
			return float64(n)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_blob_bytes", Help: "Bytes in the blob store."}, func() float64 {
			if c.blobs == nil {
				return 0
			}
			used, _ := c.blobs.Used()
			return float64(used)
		}),
		gauge("drover_log_ahead_seconds", "How far the log's time is ahead of the clock; above a minute the clock was ahead once.", func(f *facts.Facts) float64 {
			return f.Clock().Ahead(c.now().UnixNano()).Seconds()
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_data_free_bytes", Help: "Bytes free on the disk of the data folder."}, func() float64 {
			free, _, err := c.cfg.diskSpace()
			if err != nil {
				return math.NaN()
			}
			return float64(free)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_data_reserve_bytes", Help: "With less free, no job and no file is accepted."}, func() float64 {
			return float64(c.disk.reserve())
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_leading", Help: "1 while this server leads."}, func() float64 {
			if c.leadership.leads() {
				return 1
			}
			return 0
		}))
	if c.cfg.Certificate != nil {
		c.cfg.Metrics.MustRegister(pkimetrics.Expiry(c.cfg.Certificate))
	}
	for name, p := range c.pools.named() {
		c.cfg.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_api_in_use", Help: "Occupied units of the API's limits, by pool.",
			ConstLabels: prometheus.Labels{"pool": name}}, func() float64 { return float64(p.inUse()) }))
	}
	return m
}

func countNodes(f *facts.Facts, is func(*facts.Node) bool) (n float64) {
	for _, x := range f.Nodes() {
		if is(x) {
			n++
		}
	}
	return n
}

func (m *metrics) observeCycle(d time.Duration, actions, dropped int) {
	m.cycles.Observe(d.Seconds())
	m.actions.Add(float64(actions))
	m.dropped.Add(float64(dropped))
	m.totals.observe(d, actions, dropped)
}

func (m *metrics) observeCall(procedure string, d time.Duration, err error) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(wire.Error(err)).String()
	}
	m.calls.WithLabelValues(path.Base(procedure), code).Observe(d.Seconds())
}

func (m *metrics) observeRefusal(procedure string, err error) {
	m.refused.WithLabelValues(path.Base(procedure), refusalReason(err)).Inc()
}

func (m *metrics) observeJobEnd(j *facts.Job) {
	m.jobsEnded.WithLabelValues(apitext.JobState(j.State)).Inc()
	m.jobSeconds.WithLabelValues(apitext.JobState(j.State)).Observe(time.Duration(j.Ended - j.Submitted).Seconds())
}
