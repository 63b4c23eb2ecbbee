// Package traces exports the way of jobs through Drover as OpenTelemetry traces: one trace for each
// job, with its submission, the decisions that placed its attempts, and each attempt's wait, start,
// fetch, run and commit.
//
// Spans are made after the fact, from what the log says, with its times. The number of a job, stage,
// task and attempt gives the ids of its spans, so that whichever coordinator leads adds to the same
// trace, and nothing is remembered between the start of an attempt and its end.
package traces

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
)

// Limits of the exporter.
const (
	maxTasks     = 1000    // of a stage with spans; beyond, only attempts that failed have them
	maxQueued    = 1 << 16 // spans that wait; then new ones are dropped
	batchSpans   = 2048
	batchPause   = time.Second
	exportLimit  = 10 * time.Second // of one request, and of the last one at the end
	complainOnce = time.Minute      // at most one line in the log in this time
)

// Tracer makes the spans of one coordinator. A nil Tracer makes none. Its methods do not block, and
// can be called at any time from any goroutine.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	made     prometheus.Counter
}

// Open returns a Tracer that sends to the OTLP/HTTP endpoint, a URL such as
// http://collector:4318, or nil for an empty one. The standard environment variables
// OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE, _COMPRESSION and _TIMEOUT, OTEL_RESOURCE_ATTRIBUTES and
// OTEL_TRACES_SAMPLER (traceidratio: the share of jobs in OTEL_TRACES_SAMPLER_ARG) are honoured.
// server names this coordinator. Nothing is sent before there is a span.
func Open(endpoint, server string, log *slog.Logger, metrics prometheus.Registerer) (*Tracer, error) {
	if endpoint == "" {
		return nil, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fault.New(fault.Invalid, "endpoint %q of traces: want a URL such as http://collector:4318", endpoint)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	out, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(u.String()))
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", u.Redacted(), err)
	}
	return open(out, u.Redacted(), server, log, metrics)
}

func open(out sdk.SpanExporter, endpoint, server string, log *slog.Logger, metrics prometheus.Registerer) (*Tracer, error) {
	res, err := resource.New(context.Background(), resource.WithHost(), resource.WithFromEnv(),
		resource.WithAttributes(attribute.String("service.name", "drover-coordinator"), attribute.String("service.instance.id", server), attribute.String("service.version", version.Version)))
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe this program in traces: %w", err)
	}
	spans := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_trace_spans_total",
		Help: "Spans of traces: made, exported, and failed to be exported. Those that were made and are in neither of the others wait, or were dropped because too many waited."}, []string{"state"})
	metrics.MustRegister(spans)
	e := &exporter{SpanExporter: out, endpoint: endpoint, log: log, exported: spans.WithLabelValues("exported"), failed: spans.WithLabelValues("failed")}
	p := sdk.NewTracerProvider(sdk.WithResource(res), sdk.WithIDGenerator(givenIDs{}),
		sdk.WithBatcher(e, sdk.WithMaxQueueSize(maxQueued), sdk.WithMaxExportBatchSize(batchSpans), sdk.WithBatchTimeout(batchPause), sdk.WithExportTimeout(exportLimit)))
	return &Tracer{provider: p, tracer: p.Tracer("github.com/drover-run/drover"), made: spans.WithLabelValues("made")}, nil
}

// Close sends what waits, for at most ten seconds.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), exportLimit)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// exporter counts what is exported, and says at most once a minute that it is not.
type exporter struct {
	sdk.SpanExporter
	endpoint         string
	log              *slog.Logger
	exported, failed prometheus.Counter
	complained       atomic.Int64 // Unix ns
}

// ExportSpans implements sdk.SpanExporter.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		e.exported.Add(float64(len(spans)))
		return nil
	}
	e.failed.Add(float64(len(spans)))
	if last, now := e.complained.Load(), time.Now().UnixNano(); now-last >= int64(complainOnce) && e.complained.CompareAndSwap(last, now) {
		e.log.Warn("traces cannot be exported; jobs are not affected", "endpoint", e.endpoint, "spans", len(spans), "err", err)
	}
	return nil // said and counted
}

// ids are the ids of a span that is to be made.
type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

type idsKey struct{}

// givenIDs generates the ids that the context names.
type givenIDs struct{}

// NewIDs implements sdk.IDGenerator.
func (givenIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	i, _ := ctx.Value(idsKey{}).(ids)
	return i.trace, i.span
}

// NewSpanID implements sdk.IDGenerator.
func (givenIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	i, _ := ctx.Value(idsKey{}).(ids)
	return i.span
}

// traceOf returns the id of a job's trace.
func traceOf(cluster string, job uint64) (id trace.TraceID) {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("trace "+cluster+" "), job))
	copy(id[:], sum[:])
	return id
}

// spanOf returns the id of a span in a trace. It differs by name, and by the attempt that the span
// belongs to, if any.
func spanOf(in trace.TraceID, name string, k *droverv1.AttemptKey) (id trace.SpanID) {
	b := append([]byte("span "+name+" "), in[:]...)
	for _, n := range []int32{k.GetStage(), k.GetTask(), k.GetAttempt()} {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	return id
}

// Names of the spans that have others below them.
const (
	jobSpan     = "job"
	attemptSpan = "attempt"
)

// span is a span that is to be made.
type span struct {
	in         trace.TraceID
	name       string
	parent     string               // name of the span above; empty for the job's own
	key        *droverv1.AttemptKey // of the attempt that it belongs to; nil for none
	begin, end time.Time
	attributes []attribute.KeyValue
	failure    string // why it failed; empty if it did not
}

func (t *Tracer) add(s span) {
	ctx := context.WithValue(context.Background(), idsKey{}, ids{s.in, spanOf(s.in, s.name, s.key)})
	if s.parent != "" {
		above := s.key
		if s.parent == jobSpan {
			above = nil
		}
		ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: s.in, SpanID: spanOf(s.in, s.parent, above), TraceFlags: trace.FlagsSampled, Remote: true}))
	}
	if s.end.Before(s.begin) { // two clocks
		s.end = s.begin
	}
	_, x := t.tracer.Start(ctx, s.name, trace.WithTimestamp(s.begin), trace.WithAttributes(s.attributes...))
	if s.failure != "" {
		x.SetStatus(codes.Error, s.failure)
	}
	x.End(trace.WithTimestamp(s.end))
	t.made.Inc()
}
