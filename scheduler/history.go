package scheduler

import "time"

// historyTasks is the size of the History; the oldest entries are dropped first.
const historyTasks = 16384

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
	Local      bool          `json:"local"` // ran on a node that holds at least half of its input
	Tasks      int32         `json:"tasks"` // tasks of its stage
	RunTime    time.Duration `json:"run_ns"`
	Ended      Time          `json:"ended"`
}

// History holds the last historyTasks tasks that ended.
type History struct{ tasks ring }

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
		h.tasks.put(finishedRecord{stages[g], t.Task.Index, t.Node, t.InputBytes, t.RunTime, t.Ended, t.Local})
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

// ring holds the last records that were put in.
type ring struct {
	values []finishedRecord
	head   int
	total  uint64 // records ever put in
}

func (r *ring) put(v finishedRecord) {
	r.total++
	if len(r.values) < historyTasks {
		r.values = append(r.values, v)
		return
	}
	r.values[r.head] = v
	r.head = (r.head + 1) % historyTasks
}

// Tasks calls yield for each task, oldest first. The task is valid until the next call.
func (h *History) Tasks(yield func(*FinishedTask) bool) { h.RecentTasks(len(h.tasks.values), yield) }

// RecentTasks is Tasks for the last n.
func (h *History) RecentTasks(n int, yield func(*FinishedTask) bool) {
	r := &h.tasks
	for i := max(0, len(r.values)-n); i < len(r.values); i++ {
		if t := r.values[(r.head+i)%len(r.values)].expand(); !yield(&t) {
			return
		}
	}
}

// TaskCount returns the number of tasks ever recorded. Predictors compare it to decide when to
// train again.
func (h *History) TaskCount() uint64 { return h.tasks.total }
