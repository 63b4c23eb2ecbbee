package scheduler

import (
	"time"
)

const historyTasks = 16384 // the size of the History; the oldest entries are dropped first

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
type History struct {
	tasks []FinishedTask // a ring when full
	head  int            // index of the oldest task
	total uint64         // tasks ever put in
}

func (h *History) put(t FinishedTask) {
	h.total++
	if len(h.tasks) < historyTasks {
		h.tasks = append(h.tasks, t)
		return
	}
	h.tasks[h.head] = t
	h.head = (h.head + 1) % historyTasks
}

// Tasks calls yield for each task, oldest first. The task belongs to the History.
func (h *History) Tasks(yield func(*FinishedTask) bool) { h.RecentTasks(len(h.tasks), yield) }

// RecentTasks is Tasks for the last n tasks.
func (h *History) RecentTasks(n int, yield func(*FinishedTask) bool) {
	for i := max(0, len(h.tasks)-n); i < len(h.tasks); i++ {
		if !yield(&h.tasks[(h.head+i)%len(h.tasks)]) {
			return
		}
	}
}

// TaskCount returns the number of tasks ever recorded. Predictors compare it to decide when to train again.
func (h *History) TaskCount() uint64 { return h.total }
