package traces

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// spansOf returns the spans that do makes, as "name begin-end", times in ms of the Unix epoch.
func spansOf(t *testing.T, do func(*Tracer)) (list []string) {
	t.Helper()
	out := tracetest.NewInMemoryExporter()
	x, err := open(out, "memory", "c1", slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	do(x)
	if err := x.provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range out.GetSpans() {
		list = append(list, fmt.Sprintf("%s %d-%d", s.Name, s.StartTime.UnixMilli(), s.EndTime.UnixMilli()))
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	return list
}

// unreachable is an exporter to nobody.
type unreachable struct{ sdk.SpanExporter }

func (unreachable) ExportSpans(context.Context, []sdk.ReadOnlySpan) error {
	return errors.New("connection refused")
}

// While traces cannot be exported the log says so once a minute, and not only at first.
func TestTracesThatCannotBeExportedAreToldOfEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}) }
		e := &exporter{SpanExporter: unreachable{}, log: slog.New(slog.NewTextHandler(&log, nil)), exported: counter(), failed: counter()}
		for range 150 {
			if err := e.ExportSpans(t.Context(), make([]sdk.ReadOnlySpan, 1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // of the bubble
		}
		if n := strings.Count(log.String(), "\n"); n != 3 {
			t.Errorf("%d lines in 150 s, want 3:\n%s", n, &log)
		}
	})
}

func TestPhasesOfAnAttemptFollowEachOther(t *testing.T) {
	a := &droverv1.PastAttempt{Key: &droverv1.AttemptKey{Job: 3, Attempt: 1}, State: "succeeded", PlacedMs: 1000, EndedMs: 2000,
		WaitingMs: 100, StartingMs: 300, StartPauseMs: 60, FetchingMs: 200, RunningMs: 400, SuspendedMs: 250, Suspends: 1, CommittingMs: 50}
	got := spansOf(t, func(x *Tracer) { x.Attempt("c", "main", a) })
	want := []string{"attempt 900-2000", "wait 900-1000", "pause 1000-1060", "start 1060-1100", "fetch 1100-1300", "run 1300-1950", "commit 1950-2000"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestManyTasksHaveFewSpans(t *testing.T) {
	at := time.UnixMilli(5)
	for _, c := range []struct {
		task  int32
		state string
		want  int
	}{{maxTasks - 1, "succeeded", 3}, {maxTasks, "succeeded", 0}, {maxTasks, "failed", 1}, {maxTasks, "lost", 1}, {maxTasks, "stopped", 0}} {
		k := &droverv1.AttemptKey{Job: 3, Task: c.task, Attempt: 1}
		got := spansOf(t, func(x *Tracer) {
			x.Decision("c", Decision{Begin: at, Decided: at, Logged: at, Placed: []*droverv1.AttemptKey{k}})
			x.Attempt("c", "main", &droverv1.PastAttempt{Key: k, State: c.state})
		})
		if len(got) != c.want {
			t.Errorf("task %d %s: %q, want %d spans", c.task, c.state, got, c.want)
		}
	}
}

func TestSpansOfOneTraceDiffer(t *testing.T) {
	seen := map[string]string{}
	for job := range uint64(3) {
		in := traceOf("c", job)
		for _, name := range []string{jobSpan, attemptSpan, "run"} {
			for task := range int32(3) {
				for attempt := range int32(3) {
					id, what := spanOf(in, name, &droverv1.AttemptKey{Task: task, Attempt: attempt}).String(), fmt.Sprint(job, name, task, attempt)
					if seen[id] != "" {
						t.Errorf("%s is that of %s", what, seen[id])
					}
					seen[id] = what
				}
			}
		}
	}
	if traceOf("c", 1) == traceOf("d", 1) {
		t.Error("two clusters share a trace")
	}
}
