package coordinator

import (
	"time"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/coordinator/traces"
	"github.com/drover-run/drover/scheduler"
)

// tracing passes what this coordinator does while it leads to the tracer. An end is passed on after
// it is in the history. A new leader does not pass on what ended earlier.
type tracing struct {
	to      *traces.Tracer // nil: nobody wants to know
	cluster func() string
	leads   func() bool
	now     func() time.Time
}

func openTracing(c *core) (*tracing, error) {
	to, err := traces.Open(c.cfg.TracesEndpoint, c.cfg.ID, c.log, c.cfg.Metrics)
	if err != nil {
		return nil, err
	}
	return &tracing{to: to, leads: c.leadership.leads, now: c.now, cluster: func() (id string) {
		c.view(func(f *facts.Facts) { id = f.Cluster() })
		return id
	}}, nil
}

func (t *tracing) close() error { return t.to.Close() }

// submitted traces a job that was just accepted.
func (t *tracing) submitted(job uint64, began time.Time) {
	if t.to == nil {
		return
	}
	t.to.Submission(t.cluster(), job, began, t.now())
}

// decided traces the placements of a decision, after they are in the log.
func (t *tracing) decided(policy string, began, decided time.Time, d scheduler.Decision) {
	if t.to == nil {
		return
	}
	out := traces.Decision{Scheduler: policy, Begin: began, Decided: decided, Logged: t.now()}
	for i := range d.Actions {
		a := &d.Actions[i]
		if a.Kind == scheduler.ActPlace {
			k := facts.Key{Job: uint64(a.Task.Job), Stage: a.Task.Stage, Task: a.Task.Index, Attempt: a.Attempt}
			out.Placed = append(out.Placed, k.Proto(a.Run))
		}
	}
	if len(out.Placed) > 0 {
		t.to.Decision(t.cluster(), out)
	}
}

// ended traces jobs and attempts that were written to the history: b was made from list and has its
// order.
func (t *tracing) ended(list []facts.Ended, b past.Batch) {
	if t.to == nil || !t.leads() {
		return
	}
	cluster, attempts := t.cluster(), b.Attempts
	for i := range list {
		if e := &list[i]; e.Attempt != nil {
			t.to.Attempt(cluster, e.Spec.Stages[e.Key.Stage].Name, attempts[0].PastAttempt)
			attempts = attempts[1:]
		}
	}
	for _, j := range b.Jobs {
		t.to.Job(cluster, j.PastJob)
	}
}
