package deadline

import (
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Order says by what deadline jobs are ordered.
type Order uint8

// The orders.
const (
	// EMWTF is earliest maximal waiting time first (3DSF 7.1), which the
	// real-time field calls least laxity first: by latest start.
	EMWTF Order = iota + 1
	// EDF is earliest deadline first.
	EDF
)

// String gives the order's name.
func (o Order) String() string {
	switch o {
	case EMWTF:
		return "emwtf"
	case EDF:
		return "edf"
	default:
		return "order(?)"
	}
}

// Outlook is what is predicted of one job: Of fills it in, and it is good until
// the next Of.
type Outlook struct {
	job  *scheduler.Job
	task []time.Duration // run time of one task of each stage
	tail []time.Duration // of all that comes after the stage
	left time.Duration   // predicted run time of the stages not complete
}

// Of looks at a job. A stage runs as long as one task of it is predicted to; a
// job without predictions for its stages runs as long as its own estimate says,
// in equal parts along its longest chain of stages; without either it takes no
// time. What is left of the job's own estimate is the part of the chain that is
// not complete. O(stages + edges between them).
func (o *Outlook) Of(j *scheduler.Job) {
	o.job = j
	n := len(j.Stages)
	o.task, o.tail = sized(o.task, n), sized(o.tail, n)
	known := false
	for i, g := range j.Stages {
		o.task[i] = g.Spec.Estimate
		known = known || g.Spec.Estimate > 0
	}
	if !known && n > 0 {
		for i := range o.task {
			o.task[i] = 1
		}
		chain := o.chain(func(*scheduler.Stage) bool { return true })
		for i := range o.task {
			o.task[i] = j.Spec.Estimate / chain
		}
	}
	whole := o.chain(func(*scheduler.Stage) bool { return true })
	o.left = o.chain(func(g *scheduler.Stage) bool { return g.Remaining() > 0 })
	if j.Spec.Estimate > whole && whole > 0 {
		o.left = time.Duration(float64(o.left) / float64(whole) * float64(j.Spec.Estimate))
	}
}

// chain is the longest chain of stages that count, and leaves what comes after
// each stage in tail.
func (o *Outlook) chain(counts func(*scheduler.Stage) bool) time.Duration {
	longest := time.Duration(0)
	clear(o.tail)
	for i := len(o.tail) - 1; i >= 0; i-- {
		g := o.job.Stages[i]
		through := o.tail[i]
		if counts(g) {
			through = plus(through, o.task[i])
		}
		longest = max(longest, through)
		for _, a := range g.Spec.After {
			o.tail[a] = max(o.tail[a], through)
		}
	}
	return longest
}

// LatestStart is the deadline less the predicted run time of the stages that
// are not complete: the end of the maximal waiting time (3DSF 7.1). It is fixed
// between ends of stages and updates of predictions.
func (o *Outlook) LatestStart() scheduler.Time { return o.job.Spec.Deadline.Add(-o.left) }

// Task is the predicted run time of one task of stage i, 0 if nothing is known.
func (o *Outlook) Task(i int32) time.Duration { return o.task[i] }

// Key is what jobs are ordered by: smaller first.
func (o *Outlook) Key(by Order) scheduler.Time {
	if by == EDF {
		return o.job.Spec.Deadline
	}
	return o.LatestStart()
}

// LatestFor is the latest instant at which the waiting tasks of stage i can
// begin on n slots, one after another, so that the job is predicted to end by
// its deadline; with no waiting task, or no slot, Never and the distant past.
func (o *Outlook) LatestFor(i int32, n int32) scheduler.Time {
	return o.LatestOf(i, o.job.Stages[i].Pending, n)
}

// LatestOf is LatestFor of so many waiting tasks.
func (o *Outlook) LatestOf(i int32, waiting, n int32) scheduler.Time {
	switch {
	case waiting <= 0:
		return scheduler.Never
	case n <= 0:
		return -scheduler.Never
	}
	waves := (waiting + n - 1) / n
	return o.job.Spec.Deadline.Add(-o.tail[i]).Add(-times(o.task[i], waves))
}

// After is how many tasks of stage i can run in time one after another on a slot
// from an instant on; all that wait where nothing is predicted of them.
func (o *Outlook) After(i int32, from scheduler.Time) int32 {
	left := o.job.Spec.Deadline.Add(-o.tail[i]).Sub(from)
	switch {
	case left <= 0:
		return 0
	case o.task[i] <= 0:
		return o.job.Stages[i].Pending
	}
	return int32(min(int64(left/o.task[i]), int64(o.job.Stages[i].Pending)))
}

// Hopeless tells whether the job can no longer make it though it had all the
// room there is: its deadline has come, or one task after another of what
// waits does not end by it. until is the instant after which it is hopeless
// without an event.
func (o *Outlook) Hopeless(now scheduler.Time) (hopeless bool, until scheduler.Time) {
	until = o.job.Spec.Deadline
	for _, g := range o.job.Stages {
		if g.Pending > 0 && g.Open {
			until = min(until, o.LatestFor(g.Index, g.Pending))
		}
	}
	return now > until, until
}

func plus(a, b time.Duration) time.Duration {
	if s := a + b; s >= a {
		return s
	}
	return 1<<63 - 1
}

func times(d time.Duration, n int32) time.Duration {
	if d > 0 && int64(n) > (1<<63-1)/int64(d) {
		return 1<<63 - 1
	}
	return d * time.Duration(n)
}

func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		s = make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}
