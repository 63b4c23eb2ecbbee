package coordinator

import (
	"path"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
)

// metrics are the coordinator's Prometheus metrics. No job or task is a label.
type metrics struct {
	cycles  prometheus.Histogram
	actions prometheus.Counter
	dropped prometheus.Counter
	drifts  prometheus.Counter
	calls   *prometheus.HistogramVec
	jobsEnd *prometheus.CounterVec
	jobTime *prometheus.HistogramVec
}

func newMetrics(c *core) *metrics {
	m := &metrics{
		cycles:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "drover_cycle_seconds", Help: "Time of a scheduling cycle, its commit included.", Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 12)}),
		actions: prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_actions_total", Help: "Actions of schedulers that became facts."}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_actions_dropped_total", Help: "Actions that had gone stale when they reached the log."}),
		drifts:  prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_state_rebuilds_total", Help: "Times the scheduler's state had to be built anew: should stay 0."}),
		calls:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "drover_api_seconds", Help: "Time of unary API calls.", Buckets: prometheus.ExponentialBuckets(0.0005, 3, 10)}, []string{"method", "code"}),
		jobsEnd: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_jobs_ended_total", Help: "Jobs that ended since this server leads, by state."}, []string{"state"}),
		jobTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "drover_job_seconds", Help: "Time of jobs from submission to end, by state.", Buckets: prometheus.ExponentialBuckets(0.1, 3, 12)}, []string{"state"}),
	}
	gauge := func(name, help string, of func(*facts.Facts) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() (v float64) {
			if c.replica != nil {
				c.view(func(f *facts.Facts) { v = of(f) })
			}
			return v
		})
	}
	c.cfg.Metrics.MustRegister(m.cycles, m.actions, m.dropped, m.drifts, m.calls, m.jobsEnd, m.jobTime,
		gauge("drover_log_index", "Index of the last entry applied.", func(f *facts.Facts) float64 { return float64(f.Index()) }),
		gauge("drover_jobs_live", "Jobs that have not ended.", func(f *facts.Facts) float64 { _, n := f.JobCount(); return float64(n) }),
		gauge("drover_nodes_up", "Nodes that are up.", func(f *facts.Facts) float64 { return countNodes(f, func(n *facts.Node) bool { return n.Up }) }),
		gauge("drover_nodes_draining", "Nodes that take no new work.", func(f *facts.Facts) float64 {
			return countNodes(f, func(n *facts.Node) bool { return n.Up && n.Draining })
		}),
		gauge("drover_attempts_live", "Attempts that hold something.", func(f *facts.Facts) float64 {
			n := 0
			for _, x := range f.Nodes() {
				n += int(x.Attempts)
			}
			return float64(n)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_blob_bytes", Help: "Bytes in the store of files."}, func() float64 {
			if c.blobs == nil {
				return 0
			}
			used, _ := c.blobs.Used()
			return float64(used)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_leading", Help: "1 while this server leads."}, func() float64 {
			if c.leading.Load() {
				return 1
			}
			return 0
		}))
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

func (m *metrics) cycle(d time.Duration, actions, dropped int) {
	m.cycles.Observe(d.Seconds())
	m.actions.Add(float64(actions))
	m.dropped.Add(float64(dropped))
}

func (m *metrics) call(procedure string, d time.Duration, err error) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(wire.Error(err)).String()
	}
	m.calls.WithLabelValues(path.Base(procedure), code).Observe(d.Seconds())
}

func (m *metrics) ended(j *facts.Job) {
	m.jobsEnd.WithLabelValues(stateText(j.State)).Inc()
	m.jobTime.WithLabelValues(stateText(j.State)).Observe(time.Duration(j.Ended - j.Submitted).Seconds())
}
