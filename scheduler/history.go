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
	tasks ring[finished]
	jobs  ring[FinishedJob]
}

// finished is a FinishedTask as it is kept: each end of a task writes one, so it is
// small, and what the tasks of a stage have in common is kept once.
type finished struct {
	of    *finishedStage
	index int32
	node  NodeID
	bytes int64
	run   time.Duration
	ended Time
	local bool
}

type finishedStage struct {
	id            StageID
	tenant        TenantID
	kind          StageKind
	name, jobName string
	demand        Resources
	tasks         int32
}

// told is the task as others are told of it.
func (f *finished) told() FinishedTask {
	g := f.of
	return FinishedTask{Task: TaskID{g.id.Job, g.id.Stage, f.index}, Tenant: g.tenant, Kind: g.kind, Stage: g.name, JobName: g.jobName,
		Node: f.node, Demand: g.demand, InputBytes: f.bytes, Local: f.local, Tasks: g.tasks, RunTime: f.run, Ended: f.ended}
}

// inFinished is what the history says of a stage's tasks.
func (g *Stage) inFinished() *finishedStage {
	if g.finished == nil {
		g.finished = &finishedStage{g.ID(), g.Job.Spec.Tenant, g.Spec.Kind, g.Spec.Name, g.Job.Spec.Name, g.Spec.Demand, g.Spec.Tasks}
	}
	return g.finished
}

// putTasks puts tasks in as they were told, from the oldest.
func (h *History) putTasks(all []FinishedTask) {
	stages := map[finishedStage]*finishedStage{}
	for i := range all {
		t := &all[i]
		g := finishedStage{t.Task.StageID(), t.Tenant, t.Kind, t.Stage, t.JobName, t.Demand, t.Tasks}
		if stages[g] == nil {
			stages[g] = &g
		}
		h.tasks.put(finished{stages[g], t.Task.Index, t.Node, t.InputBytes, t.RunTime, t.Ended, t.Local}, HistoryTasks)
	}
}

// allTasks lists the tasks from the oldest.
func (h *History) allTasks() []FinishedTask {
	out := make([]FinishedTask, 0, len(h.tasks.of))
	h.Tasks(func(t *FinishedTask) bool {
		out = append(out, *t)
		return true
	})
	return out
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

// Tasks walks the tasks from the oldest. What is yielded is good until the next one.
func (h *History) Tasks(yield func(*FinishedTask) bool) {
	var t FinishedTask
	h.tasks.each(func(f *finished) bool {
		t = f.told()
		return yield(&t)
	})
}

// Jobs walks the jobs from the oldest.
func (h *History) Jobs(yield func(*FinishedJob) bool) { h.jobs.each(yield) }

// TaskCount is the number of tasks ever recorded: a predictor trains again
// when it has grown enough.
func (h *History) TaskCount() uint64 { return h.tasks.n }

// JobCount is the number of jobs ever recorded.
func (h *History) JobCount() uint64 { return h.jobs.n }
