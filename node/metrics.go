package node

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/task"
)

// metrics are the node's metrics; no job or task is ever a label.
type metrics struct {
	steps         *prometheus.CounterVec
	stepSeconds   *prometheus.HistogramVec
	attemptsEnded *prometheus.CounterVec
	reports       *prometheus.CounterVec
	requests      *prometheus.CounterVec
	sessions      prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, d *daemon) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "drover", Subsystem: "node", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, f func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "drover", Subsystem: "node", Name: name, Help: help}, f)
	}
	m := &metrics{
		steps: counter("steps_total", "Steps of attempts, by step and result.", "step", "result"),
		stepSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "drover", Subsystem: "node", Name: "step_seconds",
			Help: "Time of a step.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10)}, []string{"step"}),
		attemptsEnded: counter("attempts_ended_total", "Attempts that ended, by cause.", "cause"),
		reports:       counter("reports_total", "Reports to the coordinator, by result.", "result"),
		requests:      counter("requests_total", "Requests of the coordinator, by kind and result.", "kind", "result"),
		sessions: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "drover", Subsystem: "node", Name: "sessions_total",
			Help: "Sessions with the coordinator that were started."}),
	}
	reg.MustRegister(m.steps, m.stepSeconds, m.attemptsEnded, m.reports, m.requests, m.sessions,
		gauge("attempts", "Attempts with anything left on this node.", func() float64 { return float64(d.attempts.count()) }),
		gauge("blob_cache_bytes", "Bytes of cached files and images.", func() float64 { return float64(d.blobs.Bytes()) }))
	return m
}

func resultLabel(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

func (m *metrics) observeStep(do task.Do, err error, took time.Duration) {
	m.steps.WithLabelValues(do.String(), resultLabel(err)).Inc()
	m.stepSeconds.WithLabelValues(do.String()).Observe(took.Seconds())
}

func (m *metrics) observeEnd(end *droverv1.SeenAttempt) {
	cause := "none"
	if end.GetPhase() == droverv1.Phase_PHASE_FAILED {
		cause = end.GetCause().String()
	}
	m.attemptsEnded.WithLabelValues(cause).Inc()
}

// shuffleMetrics counts the requests for map outputs of this node: a shuffle.Counter.
type shuffleMetrics struct {
	bytes    prometheus.Counter
	requests *prometheus.CounterVec
}

func newShuffleMetrics(reg prometheus.Registerer) shuffleMetrics {
	m := shuffleMetrics{
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "drover", Subsystem: "shuffle", Name: "served_bytes_total",
			Help: "Bytes of map outputs that were served."}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "drover", Subsystem: "shuffle", Name: "requests_total",
			Help: "Requests for partitions, by status."}, []string{"status"}),
	}
	reg.MustRegister(m.bytes, m.requests)
	return m
}

// CountRequest implements shuffle.Counter.
func (m shuffleMetrics) CountRequest(status int) {
	m.requests.WithLabelValues(strconv.Itoa(status)).Inc()
}

// CountBytes implements shuffle.Counter.
func (m shuffleMetrics) CountBytes(n int64) { m.bytes.Add(float64(n)) }
