package coordinator

import (
	"time"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/coordinator/traces"
	"github.com/drover-run/drover/scheduler"
)

// tracing tells the tracer what this coordinator does while it leads. What ends is told after it is in
// the history; a coordinator that becomes the leader does not tell what ended before.
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

// submitted tells of a job that was accepted just now.
func (t *tracing) submitted(job uint64, began time.Time) {
	if t.to == nil {
		return
	}
	t.to.Submission(t.cluster(), job, began, t.now())
}

// decided tells of the placements of a decision, after they were logged.
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

// ended tells of jobs and attempts that were written to the history: b is made of list, in its order.
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
