package traces

import (
	"cmp"
	"time"

	"go.opentelemetry.io/otel/attribute"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
)

// Submission adds the submission of a job: from the request's arrival until the job was durable.
func (t *Tracer) Submission(cluster string, job uint64, begin, end time.Time) {
	if t == nil {
		return
	}
	t.add(span{in: traceOf(cluster, job), name: "submission", parent: jobSpan, begin: begin, end: end})
}

// Decision is a decision of the scheduler that was applied.
type Decision struct {
	Scheduler string
	Begin     time.Time // when the scheduler began to decide
	Decided   time.Time
	Logged    time.Time // when it was durable and in force
	Placed    []*droverv1.AttemptKey
}

// Decision adds to the attempts that a decision placed how long it took: the scheduler's decision, and
// the placement's way through the log. Neither is repeated for tasks beyond the first thousand of a
// stage.
func (t *Tracer) Decision(cluster string, d Decision) {
	if t == nil {
		return
	}
	by := []attribute.KeyValue{attribute.String("drover.scheduler", d.Scheduler)}
	for _, k := range d.Placed {
		if k.GetTask() >= maxTasks {
			continue
		}
		in := traceOf(cluster, k.GetJob())
		t.add(span{in: in, name: "decision", parent: attemptSpan, key: k, begin: d.Begin, end: d.Decided, attributes: by})
		t.add(span{in: in, name: "place", parent: attemptSpan, key: k, begin: d.Decided, end: d.Logged})
	}
}

// Job adds a job that ended.
func (t *Tracer) Job(cluster string, j *droverv1.PastJob) {
	if t == nil {
		return
	}
	s := j.GetSummary()
	x := span{in: traceOf(cluster, s.GetJob()), name: jobSpan, begin: time.UnixMilli(s.GetSubmittedMs()), end: time.UnixMilli(s.GetEndedMs()),
		attributes: []attribute.KeyValue{
			attribute.Int64("drover.job", int64(s.GetJob())),
			attribute.String("drover.job.name", s.GetName()),
			attribute.String("drover.tenant", s.GetTenant()),
			attribute.String("drover.user", s.GetSubmitter()),
			attribute.String("drover.state", apitext.JobState(s.GetState())),
			attribute.Int64("drover.tasks", int64(s.GetTasks())),
		}}
	if s.GetDeadlineMs() > 0 {
		x.attributes = append(x.attributes, attribute.String("drover.deadline", time.UnixMilli(s.GetDeadlineMs()).UTC().Format(time.RFC3339)))
	}
	if s.GetState() != droverv1.JobState_JOB_STATE_SUCCEEDED {
		x.failure = cmp.Or(s.GetMessage(), apitext.JobState(s.GetState()))
	}
	t.add(x)
}

// Attempt adds an attempt of a stage that ended, with its phases. Attempts of tasks beyond the first
// thousand of a stage are added only if they failed.
func (t *Tracer) Attempt(cluster, stage string, a *droverv1.PastAttempt) {
	failed := a.GetState() == "failed" || a.GetState() == "lost"
	if t == nil || (a.GetKey().GetTask() >= maxTasks && !failed) {
		return
	}
	k := a.GetKey()
	in := traceOf(cluster, k.GetJob())
	placed, ended := time.UnixMilli(a.GetPlacedMs()), time.UnixMilli(a.GetEndedMs())
	whole := span{in: in, name: attemptSpan, parent: jobSpan, key: k, begin: placed.Add(-milliseconds(a.GetWaitingMs())), end: ended, attributes: attributesOf(stage, a)}
	if failed {
		whole.failure = cmp.Or(a.GetMessage(), a.GetState())
	}
	t.add(whole)
	at := whole.begin
	for _, p := range phases(a) {
		if p.took > 0 {
			t.add(span{in: in, name: p.name, parent: attemptSpan, key: k, begin: at, end: at.Add(p.took), attributes: p.attributes})
		}
		at = at.Add(p.took)
	}
}

// phase is a part of an attempt's time.
type phase struct {
	name       string
	took       time.Duration
	attributes []attribute.KeyValue
}

// phases returns the parts of an attempt's time, which follow each other. A run has its suspensions
// in it, since only their sum is known.
func phases(a *droverv1.PastAttempt) []phase {
	run := phase{name: "run", took: milliseconds(a.GetRunningMs() + a.GetSuspendedMs())}
	if a.GetSuspends() > 0 {
		run.attributes = []attribute.KeyValue{attribute.Int("drover.suspensions", int(a.GetSuspends())), attribute.Int64("drover.suspended_ms", a.GetSuspendedMs())}
	}
	return []phase{
		{name: "wait", took: milliseconds(a.GetWaitingMs())},
		{name: "pause", took: milliseconds(a.GetStartPauseMs())},
		{name: "start", took: milliseconds(a.GetStartingMs() - a.GetStartPauseMs() - a.GetFetchingMs())},
		{name: "fetch", took: milliseconds(a.GetFetchingMs()), attributes: []attribute.KeyValue{attribute.Int64("drover.input_bytes", a.GetInputBytes())}},
		run,
		{name: "commit", took: milliseconds(a.GetCommittingMs())},
	}
}

func attributesOf(stage string, a *droverv1.PastAttempt) []attribute.KeyValue {
	k := a.GetKey()
	list := []attribute.KeyValue{
		attribute.String("drover.stage", stage),
		attribute.Int("drover.task", int(k.GetTask())),
		attribute.Int("drover.attempt", int(k.GetAttempt())),
		attribute.String("drover.node", a.GetNode()),
		attribute.String("drover.state", a.GetState()),
		attribute.Int64("drover.cpu_ms", a.GetUsage().GetCpuMs()),
		attribute.Int64("drover.memory_peak_bytes", a.GetUsage().GetMemoryPeak()),
		attribute.Int64("drover.output_bytes", a.GetOutputBytes()),
	}
	if l := a.GetLocality(); l != "none" && l != "" {
		list = append(list, attribute.String("drover.locality", l))
	}
	if a.GetSpeculative() {
		list = append(list, attribute.Bool("drover.speculative", true))
	}
	if a.GetState() == "failed" {
		list = append(list, attribute.Int("drover.exit_code", int(a.GetExitCode())))
	}
	return list
}

func milliseconds(n int64) time.Duration { return time.Duration(max(0, n)) * time.Millisecond }
