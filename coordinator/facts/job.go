package facts

import (
	"fmt"
	"math"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// Stage holds tasks with equal resource demands, and totals over its attempts.
type Stage struct {
	Tasks          int32 `json:"tasks"`
	Pending        int32 `json:"pending"`
	Done           int32 `json:"done"`
	Live           int32 `json:"live"` // attempts that are live or stopping
	Suspended      int32 `json:"suspended,omitempty"`
	FailedAttempts int32 `json:"failed_attempts,omitempty"`
	NodeLocal      int32 `json:"node_local,omitempty"` // winners, by where they ran
	RackLocal      int32 `json:"rack_local,omitempty"`
	Remote         int32 `json:"remote,omitempty"`
	PeakMemory     int64 `json:"peak_memory,omitempty"` // bytes, largest over attempts
	PeakDisk       int64 `json:"peak_disk,omitempty"`
	CPUMS          int64 `json:"cpu_ms,omitempty"`
	ReadBytes      int64 `json:"read_bytes,omitempty"`
	WriteBytes     int64 `json:"write_bytes,omitempty"`
	LimitsChecked  int64 `json:"limits_checked,omitempty"`
	MaxTaskMS      int64 `json:"max_task_ms,omitempty"`
	SumTaskMS      int64 `json:"sum_task_ms,omitempty"`

	EstimateNS     int64  `json:"estimate_ns,omitempty"` // predicted run time of one task; 0 = unknown
	EstimateSource string `json:"estimate_source,omitempty"`
	UpperNS        int64  `json:"upper_ns,omitempty"` // bound of one task for guarantees, from the prediction at submission; 0 = unknown

	Limits *droverv1.Limits      `json:"-"` // of the last attempt that ended
	Splits []*droverv1.FactSplit `json:"-"` // of a map stage; immutable

	MeanSplit int64 `json:"-"` // MeanSplit of Splits, which may be a million: computed when they become facts and by Restore

	chunks []*chunk
}

// Task returns the i-th task for reading; i must be in range. One in a block whose
// tasks have ended is decoded at each call.
func (s *Stage) Task(i int32) *Task {
	if c := s.chunks[i/chunkTasks]; c != nil {
		if t := c.task(i % chunkTasks); t != nil {
			return t
		}
	}
	return untriedTask
}

// MeanSplit returns the mean size of splits, in bytes; 0 for none. O(splits).
func MeanSplit(splits []*droverv1.FactSplit) int64 {
	if len(splits) == 0 {
		return 0
	}
	sum := 0.0
	for _, s := range splits {
		for _, p := range s.GetPieces() {
			sum += float64(p.GetLength())
		}
	}
	return int64(min(sum/float64(len(splits)), math.MaxInt64/2))
}

// Job is an accepted job. Readers must not keep it beyond the read lock.
type Job struct {
	ID                uint64            `json:"id"`
	Name              string            `json:"name"`
	Actor             string            `json:"actor"`
	Key               string            `json:"key,omitempty"` // idempotency key
	SpecJSON          string            `json:"spec"`
	Token             string            `json:"token,omitempty"` // authenticates its shuffle
	Output            string            `json:"output,omitempty"`
	Temporary         string            `json:"temporary,omitempty"`
	Submitted         int64             `json:"submitted"` // Unix ns
	Started           int64             `json:"started,omitempty"`
	Ended             int64             `json:"ended,omitempty"`
	EndIndex          uint64            `json:"end_index,omitempty"` // index of the entry that ended it
	State             droverv1.JobState `json:"state"`
	Message           string            `json:"message,omitempty"` // why it ended so; while its result is being published, who has stopped it
	FailedTask        string            `json:"failed_task,omitempty"`
	FailureTail       string            `json:"failure_tail,omitempty"`
	Cleaned           bool              `json:"cleaned,omitempty"`       // its Temporary folder is gone
	LogsGathered      bool              `json:"logs_gathered,omitempty"` // its logs are in LogsFolder, but for LogsMissing
	LogsMissing       string            `json:"logs_missing,omitempty"`
	OutputReserved    bool              `json:"output_reserved,omitempty"`   // it ended, but its output path is not free yet
	Live              int32             `json:"live,omitempty"`              // attempts that are live or stopping
	RetainedAttempts  int32             `json:"retained_attempts,omitempty"` // failed attempts whose folder is kept
	Overhead          int64             `json:"overhead,omitempty"`
	OutputBytes       int64             `json:"output_bytes,omitempty"`
	Emulated          bool              `json:"emulated,omitempty"`
	Counters          map[string]int64  `json:"counters,omitempty"`             // replaced, never written to
	Project           uint64            `json:"project,omitempty"`              // project number; 0 = none
	Miss              *Miss             `json:"miss,omitempty"`                 // of its deadline; replaced, never written to
	GuaranteeRefused  bool              `json:"guarantee_refused,omitempty"`    // the scheduler does not guarantee its deadline
	DepartureAtEnd    int64             `json:"guaranteed_departure,omitempty"` // planned when it ended, Unix ns, 0 for none: a guaranteed deadline, or a departure that may be before the guaranteed one
	GuaranteeViolated string            `json:"guarantee_violated,omitempty"`   // why its guarantee was violated first; of an ended job, that of its project too
	Stages            []Stage           `json:"stages"`
	Preempted         PreemptionTotals  `json:"preempted,omitzero"`
	NodeFailures      []NodeFailures    `json:"node_failures,omitempty"` // replaced, never written to

	Quote *droverv1.Quote `json:"-"` // of its deadline, at submission; immutable

	Spec *jobspec.Job `json:"-"` // decoded SpecJSON; immutable

	gen uint64
}

// HasEnded reports whether the job succeeded, failed or was stopped.
func (j *Job) HasEnded() bool { return isTerminal(j.State) }

// IsSettled reports whether nothing more happens to the job: it may be forgotten.
func (j *Job) IsSettled() bool {
	return j.HasEnded() && j.Cleaned && j.Live == 0 && !j.LogsToGather()
}

// LogsToGather reports whether the logs of the job's attempts are to be gathered when it has ended,
// and are not yet.
func (j *Job) LogsToGather() bool { return j.Spec.GatherLogs != "" && !j.LogsGathered }

// LogsFolder returns the URI of the folder for the logs of the job's attempts, "" if
// they stay where they are.
func (j *Job) LogsFolder() string { return LogsFolder(j.Spec, j.Name, j.ID) }

// LogsFolder returns the LogsFolder of a job that may be forgotten.
func LogsFolder(spec *jobspec.Job, name string, id uint64) string {
	if spec.GatherLogs == "" {
		return ""
	}
	return fmt.Sprintf("%s/%s-%d", strings.TrimSuffix(spec.GatherLogs, "/"), name, id)
}

// Demand returns what one task of stage i is charged: its demand plus the
// harness overhead at the time the job was accepted.
func (j *Job) Demand(i int) Amounts {
	r := j.Spec.Stages[i].Resources
	return Amounts{r.CPU, r.Memory + j.Overhead, r.IO}
}

// ReduceStage returns the index of the job's reduce stage, or -1.
func (j *Job) ReduceStage() int { return j.stageOf(jobspec.KindReduce) }

// MapStage returns the index of the job's map stage, or -1.
func (j *Job) MapStage() int { return j.stageOf(jobspec.KindMap) }

// MapOutput returns the attempt that made a map output; nil if another output of its task counts.
func (j *Job) MapOutput(o *droverv1.MapOutput) *Attempt {
	m := j.MapStage()
	if m < 0 || int(o.GetStage()) != m || o.GetTask() < 0 || o.GetTask() >= j.Stages[m].Tasks {
		return nil
	}
	t := j.Stages[m].Task(o.GetTask())
	if t.State != TaskDone || t.Winner != o.GetAttempt() {
		return nil
	}
	a := t.WinningAttempt()
	if a == nil || a.Run != o.GetRun() {
		return nil
	}
	return a
}

// WritesOutput reports whether the tasks of stage i write the job's output
// files: the reduce stage, or the map stage of a job without one.
func (j *Job) WritesOutput(i int) bool {
	if j.Spec.Output == nil {
		return false
	}
	if r := j.ReduceStage(); r >= 0 {
		return i == r
	}
	return i == j.MapStage()
}

// OutputsNeeded reports whether the outputs of stage i must stay on their
// nodes: map outputs, until every reduce task is done.
func (j *Job) OutputsNeeded(i int) bool {
	r := j.ReduceStage()
	return r >= 0 && i == j.MapStage() && !j.HasEnded() && j.Stages[r].Done < j.Stages[r].Tasks
}

// EachAttempt calls fn for every attempt of a job in key order.
func (f *Facts) EachAttempt(j *Job, fn func(Key, *Task, *Attempt)) {
	j.eachAttempt(true, fn)
}

// EachActive calls fn for every active attempt of a job in key order. It passes
// over blocks of tasks in which nothing is active.
func (f *Facts) EachActive(j *Job, fn func(Key, *Task, *Attempt)) {
	j.eachAttempt(false, func(k Key, t *Task, a *Attempt) {
		if a.State.IsActive() {
			fn(k, t, a)
		}
	})
}

// eachAttempt calls fn for every attempt in key order. It skips sealed blocks unless sealed is set.
func (j *Job) eachAttempt(sealed bool, fn func(Key, *Task, *Attempt)) {
	for s := range j.Stages {
		for c, ch := range j.Stages[s].chunks {
			if ch == nil || ch.sealed != nil && !sealed {
				continue
			}
			ch.each(func(i int, t *Task) {
				for _, a := range t.Attempts {
					fn(Key{j.ID, int32(s), int32(c*chunkTasks + i), a.Attempt}, t, a)
				}
			})
		}
	}
}

func isTerminal(s droverv1.JobState) bool {
	switch s {
	case droverv1.JobState_JOB_STATE_SUCCEEDED, droverv1.JobState_JOB_STATE_FAILED, droverv1.JobState_JOB_STATE_STOPPED:
		return true
	default:
		return false
	}
}

// isComplete reports whether every task of every stage is done. Map outputs
// lost after the last reduce task finished need not be recomputed, so maps do
// not count once there is a reduce stage.
func (j *Job) isComplete() bool {
	r, m := j.ReduceStage(), j.MapStage()
	for i := range j.Stages {
		if i == m && r >= 0 && j.Stages[r].Tasks > 0 {
			continue
		}
		if j.Stages[i].Done < j.Stages[i].Tasks {
			return false
		}
	}
	return true
}

func (j *Job) stageOf(k jobspec.StageKind) int {
	for i := range j.Spec.Stages {
		if j.Spec.Stages[i].Kind == k {
			return i
		}
	}
	return -1
}

// occupiesNode reports whether an attempt of task t is active, or is a map whose
// output its node keeps for the job's reduce tasks.
func (j *Job) occupiesNode(k Key, t *Task, a *Attempt) bool {
	return a.State.IsActive() || t.Winner == a.Attempt && int(k.Stage) == j.MapStage() && j.ReduceStage() >= 0 && !j.HasEnded()
}

// TaskOverheadMemory returns the harness's share of memory that a job accepted
// now is charged for each task: the largest of any node.
func (f *Facts) TaskOverheadMemory() (most int64) {
	for _, n := range f.nodes {
		most = max(most, n.Info.GetTaskOverheadMemory())
	}
	return most
}
