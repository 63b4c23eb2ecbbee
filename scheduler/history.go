package scheduler

import "time"

// Sizes of the History; the oldest entries are dropped first.
const (
	HistoryTasks = 16384
	HistoryJobs  = 4096
)

// FinishedTask is the record of a task that succeeded. Predictors learn from it.
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

// FinishedJob is the record of a job that ended.
type FinishedJob struct {
	Job       JobID      `json:"job"`
	Tenant    TenantID   `json:"tenant"`
	Name      string     `json:"name"`
	Deadline  Time       `json:"deadline,omitempty"`
	Submitted Time       `json:"submitted"`
	Started   Time       `json:"started"` // first placement, 0 for never
	Ended     Time       `json:"ended"`
	Outcome   JobOutcome `json:"outcome"`
	// Service is the total running time of its attempts.
	Service time.Duration `json:"service_ns"`
	Tasks   int32         `json:"tasks"`
}

// History holds the last HistoryTasks tasks and HistoryJobs jobs that ended.
type History struct {
	tasks ring[finishedRecord]
	jobs  ring[FinishedJob]
}

// finishedRecord is the compact form of a FinishedTask: one is written whenever a task ends,
// and the fields common to a stage's tasks are stored once.
type finishedRecord struct {
	stage *finishedStage
	index int32
	node  NodeID
	bytes int64
	run   time.Duration
	ended Time
	local bool
}

// finishedStage is what the records of a stage's tasks have in common.
type finishedStage struct {
	id            StageID
	tenant        TenantID
	kind          StageKind
	name, jobName string
	demand        Resources
	tasks         int32
}

// expand returns the record as a FinishedTask.
func (f *finishedRecord) expand() FinishedTask {
	g := f.stage
	return FinishedTask{Task: TaskID{g.id.Job, g.id.Stage, f.index}, Tenant: g.tenant, Kind: g.kind, Stage: g.name, JobName: g.jobName,
		Node: f.node, Demand: g.demand, InputBytes: f.bytes, Local: f.local, Tasks: g.tasks, RunTime: f.run, Ended: f.ended}
}

// finishedStageOf returns the fields that the records of the stage's tasks share.
func (g *Stage) finishedStageOf() *finishedStage {
	if g.finished == nil {
		g.finished = &finishedStage{g.ID(), g.Job.Spec.Tenant, g.Spec.Kind, g.Spec.Name, g.Job.Spec.Name, g.Spec.Demand, g.Spec.Tasks}
	}
	return g.finished
}

// putTasks adds tasks, oldest first.
func (h *History) putTasks(all []FinishedTask) {
	stages := map[finishedStage]*finishedStage{}
	for i := range all {
		t := &all[i]
		g := finishedStage{t.Task.StageID(), t.Tenant, t.Kind, t.Stage, t.JobName, t.Demand, t.Tasks}
		if stages[g] == nil {
			stages[g] = &g
		}
		h.tasks.put(finishedRecord{stages[g], t.Task.Index, t.Node, t.InputBytes, t.RunTime, t.Ended, t.Local}, HistoryTasks)
	}
}

// allTasks returns the tasks, oldest first.
func (h *History) allTasks() []FinishedTask {
	out := make([]FinishedTask, 0, len(h.tasks.values))
	h.Tasks(func(t *FinishedTask) bool {
		out = append(out, *t)
		return true
	})
	return out
}

// ring holds the last values that were put in.
type ring[T any] struct {
	values []T
	head   int
	total  uint64 // values ever put in
}

func (r *ring[T]) put(v T, limit int) {
	r.total++
	if len(r.values) < limit {
		r.values = append(r.values, v)
		return
	}
	r.values[r.head] = v
	r.head = (r.head + 1) % limit
}

// all returns a copy of the values, oldest first.
func (r *ring[T]) all() []T {
	return append(append(make([]T, 0, len(r.values)), r.values[r.head:]...), r.values[:r.head]...)
}

func (r *ring[T]) each(yield func(*T) bool) {
	for i := range r.values {
		if !yield(&r.values[(r.head+i)%len(r.values)]) {
			return
		}
	}
}

// Tasks calls yield for each task, oldest first. The task is valid until the next call.
func (h *History) Tasks(yield func(*FinishedTask) bool) {
	var t FinishedTask
	h.tasks.each(func(f *finishedRecord) bool {
		t = f.expand()
		return yield(&t)
	})
}

// RecentTasks is Tasks for the last n.
func (h *History) RecentTasks(n int, yield func(*FinishedTask) bool) {
	r := &h.tasks
	for i := max(0, len(r.values)-n); i < len(r.values); i++ {
		if t := r.values[(r.head+i)%len(r.values)].expand(); !yield(&t) {
			return
		}
	}
}

// Jobs calls yield for each job, oldest first.
func (h *History) Jobs(yield func(*FinishedJob) bool) { h.jobs.each(yield) }

// TaskCount returns the number of tasks ever recorded. Predictors compare it to decide when to
// train again.
func (h *History) TaskCount() uint64 { return h.tasks.total }

// JobCount returns the number of jobs ever recorded.
func (h *History) JobCount() uint64 { return h.jobs.total }
