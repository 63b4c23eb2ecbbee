package facts

import (
	"fmt"
	"math"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// Key identifies an attempt. Together with the attempt's Run it is the fencing
// token.
type Key struct {
	Job     uint64 `json:"job"`
	Stage   int32  `json:"stage"`
	Task    int32  `json:"task"`
	Attempt int32  `json:"attempt"`
}

// KeyOf returns the key in a message; nil yields the zero Key.
func KeyOf(k *droverv1.AttemptKey) Key {
	return Key{k.GetJob(), k.GetStage(), k.GetTask(), k.GetAttempt()}
}

// Proto returns k as a message, for the given run.
func (k Key) Proto(run int32) *droverv1.AttemptKey {
	return &droverv1.AttemptKey{Job: k.Job, Stage: k.Stage, Task: k.Task, Attempt: k.Attempt, Run: run}
}

// TaskState is the state of a task.
type TaskState uint8

// The states of a task.
const (
	TaskPending TaskState = iota + 1 // waiting for placement
	TaskActive                       // has an attempt that is live or stopping
	TaskDone                         // has a winner
)

// String returns the word shown to users.
func (s TaskState) String() string {
	switch s {
	case TaskPending:
		return "pending"
	case TaskActive:
		return "running"
	case TaskDone:
		return "done"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}

// AttemptState is the state of an attempt.
type AttemptState uint8

// The states of an attempt. Attempts in the first two occupy their node.
const (
	AttemptLive      AttemptState = iota + 1
	AttemptStopping               // told to end; occupies its node until the node reports the end
	AttemptSucceeded              // complete, whether or not it won
	AttemptFailed
	AttemptStopped // ended because it was told to
	AttemptLost    // its node or its output was lost
)

// String returns the word shown to users.
func (s AttemptState) String() string {
	switch s {
	case AttemptLive:
		return "live"
	case AttemptStopping:
		return "stopping"
	case AttemptSucceeded:
		return "succeeded"
	case AttemptFailed:
		return "failed"
	case AttemptStopped:
		return "stopped"
	case AttemptLost:
		return "lost"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}

// IsActive reports whether an attempt in this state occupies its node.
func (s AttemptState) IsActive() bool { return s == AttemptLive || s == AttemptStopping }

// Amounts is a vector <CPU millicores, memory bytes, disk I/O bytes/s>.
type Amounts struct {
	CPU    int64 `json:"cpu,omitempty"`
	Memory int64 `json:"memory,omitempty"`
	IO     int64 `json:"io,omitempty"`
}

// AmountsOf returns the amounts in a message; nil yields zero.
func AmountsOf(r *droverv1.Resources) Amounts {
	return Amounts{r.GetCpu(), r.GetMemory(), r.GetIo()}
}

// Proto returns a as a message.
func (a Amounts) Proto() *droverv1.Resources {
	return &droverv1.Resources{Cpu: a.CPU, Memory: a.Memory, Io: a.IO}
}

func (a Amounts) add(b Amounts, sign int64) Amounts {
	return Amounts{a.CPU + sign*b.CPU, a.Memory + sign*b.Memory, a.IO + sign*b.IO}
}

func (a Amounts) fits(free Amounts) bool {
	return a.CPU <= free.CPU && a.Memory <= free.Memory && a.IO <= free.IO
}

// Attempt is one try at a task. It is immutable: Apply replaces it by a changed
// copy.
type Attempt struct {
	Attempt     int32          `json:"attempt"`
	Run         int32          `json:"run"`
	Node        int32          `json:"node"`
	Epoch       uint64         `json:"epoch"` // of the node at placement; reports of another epoch are refused
	Disk        int32          `json:"disk"`  // index among the node's disks, -1 for none
	State       AttemptState   `json:"state"`
	Level       droverv1.Level `json:"level"`            // as confirmed by the node
	Target      droverv1.Level `json:"target,omitempty"` // the requested level; 0 if none is pending
	Speculative bool           `json:"speculative,omitempty"`
	Locality    string         `json:"locality,omitempty"` // node, rack, remote, none
	Placed      int64          `json:"placed"`             // Unix ns
	Ended       int64          `json:"ended,omitempty"`
	EstimateNS  int64          `json:"estimate_ns,omitempty"` // run time predicted at placement; 0 = unknown
	Occupied    Amounts        `json:"occupied"`
	Retained    bool           `json:"retained,omitempty"` // its task folder is kept for inspection
	Suspension  Suspension     `json:"suspension,omitzero"`

	// Seq, EndSeq and LostSeq order the placements, ends and output losses of
	// all attempts of the cluster.
	Seq     uint64 `json:"seq"`
	EndSeq  uint64 `json:"end_seq,omitempty"`
	LostSeq uint64 `json:"lost_seq,omitempty"`

	seen *droverv1.SeenAttempt

	// Of a sealed attempt that has a report: where it is, and its cause.
	sealed *sealedTasks
	report int32
	cause  droverv1.Cause
}

// Seen returns the node's last durable report, of the attempt's end or of its
// level; nil for none. That of a task that ended is decoded at each call.
func (a *Attempt) Seen() *droverv1.SeenAttempt {
	if a.seen == nil && a.sealed != nil {
		return a.sealed.report(a.report)
	}
	return a.seen
}

// Cause returns why the attempt failed, CAUSE_UNSPECIFIED if it did not.
func (a *Attempt) Cause() droverv1.Cause {
	if a.seen == nil && a.sealed != nil {
		return a.cause
	}
	return a.seen.GetCause()
}

// Task is one unit of work.
type Task struct {
	State         TaskState  `json:"state"`
	Failures      int32      `json:"failures,omitempty"`       // attempts that failed by the user's fault
	InfraFailures int32      `json:"infra_failures,omitempty"` // infrastructure failures, and outputs that could not be fetched
	Winner        int32      `json:"winner,omitempty"`         // attempt number, 0 for none
	Attempts      []*Attempt `json:"-"`
}

// find returns the attempt with that number, or nil.
func (t *Task) find(attempt int32) *Attempt {
	for _, a := range t.Attempts {
		if a.Attempt == attempt {
			return a
		}
	}
	return nil
}

// WinningAttempt returns the winner, or nil.
func (t *Task) WinningAttempt() *Attempt {
	if t.Winner == 0 {
		return nil
	}
	return t.find(t.Winner)
}

const chunkTasks = 256

// chunk is a block of tasks, the unit of copying after a snapshot and of sealing.
// A nil task is pending and has no attempts. One of tasks and sealed is set.
type chunk struct {
	gen    uint64
	tasks  *[chunkTasks]*Task
	sealed *sealedTasks
}

// untriedTask represents every task without attempts.
var untriedTask = &Task{State: TaskPending}

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

// LogsToGather reports whether the logs of the job's attempts are to be gathered when it has ended, and are not yet.
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

// TaskOverheadMemory returns the harness's share of memory that a job accepted
// now is charged for each task: the largest of any node.
func (f *Facts) TaskOverheadMemory() (most int64) {
	for _, n := range f.nodes {
		most = max(most, n.Info.GetTaskOverheadMemory())
	}
	return most
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

// MapOutput returns the attempt that made a map output, nil unless this is the output of its task that counts.
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

func (j *Job) stageOf(k jobspec.StageKind) int {
	for i := range j.Spec.Stages {
		if j.Spec.Stages[i].Kind == k {
			return i
		}
	}
	return -1
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

// occupiesNode reports whether an attempt of task t is active, or is a map whose
// output its node keeps for the job's reduce tasks.
func (j *Job) occupiesNode(k Key, t *Task, a *Attempt) bool {
	return a.State.IsActive() || t.Winner == a.Attempt && int(k.Stage) == j.MapStage() && j.ReduceStage() >= 0 && !j.HasEnded()
}

// Node is a machine. It is immutable: Apply replaces it by a changed copy.
type Node struct {
	ID            int32      `json:"id"`
	Epoch         uint64     `json:"epoch"`
	Up            bool       `json:"up"`
	Draining      bool       `json:"draining,omitempty"`       // no new work: drained by an operator or a maintenance window, or quarantined (RetryAt)
	DrainDeadline int64      `json:"drain_deadline,omitempty"` // of an operator's drain: when what still runs leaves the node, Unix ns; 0 = it runs to its end
	DrainSetAt    int64      `json:"drain_set_at,omitempty"`   // when DrainDeadline was set to a while from then, Unix ns; 0 = it is a time by itself, as a window's is
	Reason        string     `json:"reason,omitempty"`         // why it is draining, quarantined or down
	InfraFailures []int64    `json:"infra_failures,omitempty"` // times of infrastructure failures within infraWindow, Unix ns
	InfraJobs     []InfraJob `json:"infra_jobs,omitempty"`     // jobs that the infrastructure failed here within infraWindow, oldest first
	AvoidedBy     []uint64   `json:"avoided_by,omitempty"`     // jobs that avoid it, and some that have ended
	Used          Amounts    `json:"used"`
	Attempts      int32      `json:"attempts,omitempty"` // that are live or stopping

	Maintenance []MaintenanceWindow `json:"maintenance,omitempty"` // that has not ended, in order

	// Quarantine by the coordinator; all zero for a node that an operator
	// drained.
	RetryAt          int64 `json:"retry_at,omitempty"`          // end of the quarantine, Unix ns; 0 = not quarantined
	QuarantineStreak int32 `json:"quarantine_streak,omitempty"` // consecutive quarantines
	SchedulableSince int64 `json:"schedulable_since,omitempty"` // attempts placed before this time say nothing about its health, Unix ns
	Probation        bool  `json:"probation,omitempty"`         // takes one attempt at a time until one proves it healthy

	Info *droverv1.NodeInfo `json:"-"`
}

// Cordoned reports whether the node, even if it is up, takes no new work: it is
// draining, or on probation with an active attempt.
func (n *Node) Cordoned() bool { return n.Draining || n.Probation && n.Attempts > 0 }

// Schedulable reports whether tasks may be placed on the node.
func (n *Node) Schedulable() bool { return n.Up && !n.Cordoned() }

// TakesTasks reports whether the node takes tasks, if perhaps one at a time: as Schedulable, but also on probation with
// an active attempt.
func (n *Node) TakesTasks() bool { return n.Up && !n.Draining }

// IsQuarantined reports whether the coordinator keeps new work off the node, after failures or for a problem.
func (n *Node) IsQuarantined() bool { return n.Draining && n.RetryAt > 0 }

// IsDrained reports whether an operator, or a maintenance window, keeps new work off the node.
func (n *Node) IsDrained() bool { return n.Draining && n.RetryAt == 0 }

// FirstDisk returns the number of the first disk that tasks may be given, -1 for a node without one.
func (n *Node) FirstDisk() int32 {
	if len(n.Info.GetDisks()) == 0 {
		return -1
	}
	return 0
}

// Tenant is the entity that jobs are charged to. It is immutable.
type Tenant struct {
	ID        int32            `json:"id"` // dense from 0, in creation order
	Preempted PreemptionTotals `json:"preempted,omitzero"`
	Deleted   bool             `json:"deleted,omitempty"` // its id stays taken, and is its own again if the name comes back
	Spec      *droverv1.Tenant `json:"-"`
}

// Blob is a file or image of the content-addressed store.
type Blob struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	Added  int64  `json:"added"` // Unix ns
	Refs   int32  `json:"-"`     // jobs that reference it; recounted by Restore
}

// Event records something that happened, for users and audits.
type Event struct {
	Seq   uint64 `json:"seq"`
	Index uint64 `json:"index"`
	At    int64  `json:"at"` // Unix ns
	Actor string `json:"actor"`
	Kind  string `json:"kind"`
	Job   string `json:"job,omitempty"`
	JobID uint64 `json:"job_id,omitempty"`
	Task  string `json:"task,omitempty"`
	Node  string `json:"node,omitempty"`
	Text  string `json:"text,omitempty"`
}

// PolicyState is one value that a policy asked to have stored.
type PolicyState struct {
	PolicyStateKey
	Value int64   `json:"value,omitempty"`
	Real  float64 `json:"real,omitempty"`
	At    int64   `json:"at,omitempty"`
}

// PolicyStateKey mirrors scheduler.PolicyStateKey.
type PolicyStateKey struct {
	Kind    int32  `json:"kind"`
	Job     uint64 `json:"job,omitempty"`
	Stage   int32  `json:"stage,omitempty"`
	Task    int32  `json:"task,omitempty"`
	Tenant  int32  `json:"tenant,omitempty"`
	Slot    int32  `json:"slot,omitempty"`
	Project uint64 `json:"project,omitempty"`
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

// eachAttempt passes over sealed blocks unless sealed.
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
