package scheduler

import "time"

// History sizes: what is kept of tasks and jobs that ended, oldest first out.
const (
	HistoryTasks = 16384
	HistoryJobs  = 4096
)

// FinishedTask is what is remembered of a task that succeeded; predictors
// learn from it.
type FinishedTask struct {
	Task       TaskID        `json:"task"`
	Tenant     TenantID      `json:"tenant"`
	Kind       StageKind     `json:"kind"`
	Stage      string        `json:"stage"` // its stage's name
	JobName    string        `json:"job_name"`
	Node       NodeID        `json:"node"`
	Demand     Resources     `json:"demand"`
	InputBytes int64         `json:"input_bytes"`
	Local      bool          `json:"local"` // ran on a node that holds its input
	Tasks      int32         `json:"tasks"` // tasks of its stage
	RunTime    time.Duration `json:"run_ns"`
	Ended      Time          `json:"ended"`
}

// FinishedJob is what is remembered of a job that ended.
type FinishedJob struct {
	Job       JobID      `json:"job"`
	Tenant    TenantID   `json:"tenant"`
	Name      string     `json:"name"`
	Deadline  Time       `json:"deadline,omitempty"`
	Submitted Time       `json:"submitted"`
	Started   Time       `json:"started"` // first placement, 0 for never
	Ended     Time       `json:"ended"`
	Outcome   JobOutcome `json:"outcome"`
	// Service is its attempts' running time, summed.
	Service time.Duration `json:"service_ns"`
	Tasks   int32         `json:"tasks"`
}

// History holds the last HistoryTasks tasks and HistoryJobs jobs.
type History struct {
	tasks ring[FinishedTask]
	jobs  ring[FinishedJob]
}

// ring keeps the last values put in.
type ring[T any] struct {
	of   []T
	head int
	n    uint64 // values ever put in
}

func (r *ring[T]) put(v T, limit int) {
	r.n++
	if len(r.of) < limit {
		r.of = append(r.of, v)
		return
	}
	r.of[r.head] = v
	r.head = (r.head + 1) % limit
}

// all lists from the oldest; it copies.
func (r *ring[T]) all() []T {
	return append(append(make([]T, 0, len(r.of)), r.of[r.head:]...), r.of[:r.head]...)
}

func (r *ring[T]) each(yield func(*T) bool) {
	for i := range r.of {
		if !yield(&r.of[(r.head+i)%len(r.of)]) {
			return
		}
	}
}

// Tasks walks the tasks from the oldest.
func (h *History) Tasks(yield func(*FinishedTask) bool) { h.tasks.each(yield) }

// Jobs walks the jobs from the oldest.
func (h *History) Jobs(yield func(*FinishedJob) bool) { h.jobs.each(yield) }

// TaskCount is the number of tasks ever recorded: a predictor trains again
// when it has grown enough.
func (h *History) TaskCount() uint64 { return h.tasks.n }

// JobCount is the number of jobs ever recorded.
func (h *History) JobCount() uint64 { return h.jobs.n }
