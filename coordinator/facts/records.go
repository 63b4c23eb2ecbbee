package facts

import (
	"fmt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// Key names an attempt; with its Run it is the fencing token.
type Key struct {
	Job     uint64 `json:"job"`
	Stage   int32  `json:"stage"`
	Task    int32  `json:"task"`
	Attempt int32  `json:"attempt"`
}

// KeyOf takes the name out of a message; nil gives the zero Key.
func KeyOf(k *droverv1.AttemptKey) Key {
	return Key{k.GetJob(), k.GetStage(), k.GetTask(), k.GetAttempt()}
}

// Proto gives the message for run.
func (k Key) Proto(run int32) *droverv1.AttemptKey {
	return &droverv1.AttemptKey{Job: k.Job, Stage: k.Stage, Task: k.Task, Attempt: k.Attempt, Run: run}
}

// TaskState is where a task stands.
type TaskState uint8

// The states of a task.
const (
	TaskPending TaskState = iota + 1 // waits for a place
	TaskActive                       // an attempt lives, or is being stopped
	TaskDone                         // has a winner
)

// String gives the word shown to users.
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

// AttemptState is where an attempt stands.
type AttemptState uint8

// The states of an attempt. The first two are live: they hold resources.
const (
	AttemptLive      AttemptState = iota + 1
	AttemptStopping               // told to end; holds what it held until the node reports
	AttemptSucceeded              // complete, whether it won or not
	AttemptFailed
	AttemptStopped // ended because it was told to
	AttemptLost    // its node or its output went away
)

// String gives the word shown to users.
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

// Holds tells whether an attempt in this state occupies its node.
func (s AttemptState) Holds() bool { return s == AttemptLive || s == AttemptStopping }

// Amounts is a vector <CPU millicores, memory bytes, disk I/O bytes/s>.
type Amounts struct {
	CPU    int64 `json:"cpu,omitempty"`
	Memory int64 `json:"memory,omitempty"`
	IO     int64 `json:"io,omitempty"`
}

// AmountsOf takes a message; nil is zero.
func AmountsOf(r *droverv1.Resources) Amounts {
	return Amounts{r.GetCpu(), r.GetMemory(), r.GetIo()}
}

// Proto gives the message.
func (a Amounts) Proto() *droverv1.Resources {
	return &droverv1.Resources{Cpu: a.CPU, Memory: a.Memory, Io: a.IO}
}

func (a Amounts) add(b Amounts, sign int64) Amounts {
	return Amounts{a.CPU + sign*b.CPU, a.Memory + sign*b.Memory, a.IO + sign*b.IO}
}

func (a Amounts) fits(room Amounts) bool {
	return a.CPU <= room.CPU && a.Memory <= room.Memory && a.IO <= room.IO
}

// Attempt is one try at a task. It is never changed once made: Apply puts a
// new one in its place.
type Attempt struct {
	Attempt     int32          `json:"attempt"`
	Run         int32          `json:"run"`
	Node        int32          `json:"node"`
	Epoch       uint64         `json:"epoch"` // of the node at placement
	Disk        int32          `json:"disk"`  // index among the node's disks, -1 without
	State       AttemptState   `json:"state"`
	Level       droverv1.Level `json:"level"`            // as confirmed by the node
	Target      droverv1.Level `json:"target,omitempty"` // the level asked for, 0 = Level
	Speculative bool           `json:"speculative,omitempty"`
	Locality    string         `json:"locality,omitempty"` // node, rack, remote, none
	Placed      int64          `json:"placed"`             // Unix ns
	Ended       int64          `json:"ended,omitempty"`
	EstimateNS  int64          `json:"estimate_ns,omitempty"` // its run time as it was predicted then, 0 = not known
	Held        Amounts        `json:"held"`
	Kept        bool           `json:"kept,omitempty"` // its folder stays for a look
	Sus         Suspension     `json:"sus,omitzero"`

	// Seq, EndSeq and LostSeq order what happened to all attempts of the
	// cluster: the placement, the end, the loss of the output.
	Seq     uint64 `json:"seq"`
	EndSeq  uint64 `json:"end_seq,omitempty"`
	LostSeq uint64 `json:"lost_seq,omitempty"`

	// Seen is the node's last durable report: of its end, or of its level.
	Seen *droverv1.SeenAttempt `json:"-"`
}

// Cause gives the cause of the attempt's failure, if it failed.
func (a *Attempt) Cause() droverv1.Cause { return a.Seen.GetCause() }

// Task is one unit of work.
type Task struct {
	State    TaskState  `json:"state"`
	Failures int32      `json:"failures,omitempty"` // by the user's fault
	Infra    int32      `json:"infra,omitempty"`    // by the infrastructure's, and outputs that could not be fetched
	Winner   int32      `json:"winner,omitempty"`   // attempt number, 0 for none
	Attempts []*Attempt `json:"-"`
}

// Find gives the attempt of that number, or nil.
func (t *Task) Find(attempt int32) *Attempt {
	for _, a := range t.Attempts {
		if a.Attempt == attempt {
			return a
		}
	}
	return nil
}

// Win gives the winning attempt, or nil.
func (t *Task) Win() *Attempt {
	if t.Winner == 0 {
		return nil
	}
	return t.Find(t.Winner)
}

const chunkTasks = 256

// chunk is a block of tasks, the unit of copying after a snapshot. A nil task
// is pending and was never tried.
type chunk struct {
	gen   uint64
	tasks [chunkTasks]*Task
}

// pristine stands for every task that was never tried.
var pristine = &Task{State: TaskPending}

// Stage is tasks of one shape, with sums over its attempts.
type Stage struct {
	Tasks          int32 `json:"tasks"`
	Pending        int32 `json:"pending"`
	Done           int32 `json:"done"`
	Live           int32 `json:"live"` // attempts that hold something
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

	EstimateNS     int64  `json:"estimate_ns,omitempty"` // predicted run time of one task, 0 = not known
	EstimateSource string `json:"estimate_source,omitempty"`

	Limits *droverv1.Limits      `json:"-"` // of the last attempt that ended
	Splits []*droverv1.FactSplit `json:"-"` // of a map stage; never changed

	chunks []*chunk
}

// Task gives the i-th task for reading; i must be in range.
func (s *Stage) Task(i int32) *Task {
	if c := s.chunks[i/chunkTasks]; c != nil && c.tasks[i%chunkTasks] != nil {
		return c.tasks[i%chunkTasks]
	}
	return pristine
}

// Job is an accepted job. Readers do not keep it beyond the read lock.
type Job struct {
	ID          uint64            `json:"id"`
	Name        string            `json:"name"`
	Actor       string            `json:"actor"`
	Key         string            `json:"key,omitempty"` // idempotency key
	SpecJSON    string            `json:"spec"`
	Token       string            `json:"token,omitempty"` // of its shuffle
	Output      string            `json:"output,omitempty"`
	Temporary   string            `json:"temporary,omitempty"`
	Submitted   int64             `json:"submitted"` // Unix ns
	Started     int64             `json:"started,omitempty"`
	Ended       int64             `json:"ended,omitempty"`
	EndIndex    uint64            `json:"end_index,omitempty"` // of the entry that ended it
	State       droverv1.JobState `json:"state"`
	Message     string            `json:"message,omitempty"`
	FailedTask  string            `json:"failed_task,omitempty"`
	FailureTail string            `json:"failure_tail,omitempty"`
	Cleaned     bool              `json:"cleaned,omitempty"` // nothing of it is left below Temporary
	Holds       bool              `json:"holds,omitempty"`   // ended, and its output path is not free yet
	Live        int32             `json:"live,omitempty"`    // attempts that hold something
	Kept        int32             `json:"kept,omitempty"`    // failed attempts whose folder stays
	Overhead    int64             `json:"overhead,omitempty"`
	OutputBytes int64             `json:"output_bytes,omitempty"`
	Emulated    bool              `json:"emulated,omitempty"`
	Counters    map[string]int64  `json:"counters,omitempty"` // replaced, never written
	Project     uint64            `json:"project,omitempty"`  // number of its project, 0 = none
	Miss        *Miss             `json:"miss,omitempty"`     // of its deadline; replaced, never written
	Refused     bool              `json:"refused,omitempty"`  // the scheduler does not guarantee its deadline
	Promised    int64             `json:"promised,omitempty"` // departure that was guaranteed when it ended, Unix ns
	Stages      []Stage           `json:"stages"`
	Preempted   Preempted         `json:"preempted,omitzero"`

	Quote *droverv1.Quote `json:"-"` // of its deadline, at submission; never changed

	Spec *jobspec.Job `json:"-"` // decoded SpecJSON; never changed

	gen uint64
}

// HasEnded tells whether the job reached its end.
func (j *Job) HasEnded() bool { return endState(j.State) }

func endState(s droverv1.JobState) bool {
	switch s {
	case droverv1.JobState_JOB_STATE_SUCCEEDED, droverv1.JobState_JOB_STATE_FAILED, droverv1.JobState_JOB_STATE_STOPPED:
		return true
	default:
		return false
	}
}

// Complete tells whether every task of every stage is done. Maps whose output
// was lost after the last reduce task had it need not be made again.
func (j *Job) Complete() bool {
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

// Demand is what one task of stage i is charged: its demand and the harness's
// overhead as it was when the job was accepted.
func (j *Job) Demand(i int) Amounts {
	r := j.Spec.Stages[i].Resources
	return Amounts{r.CPU, r.Memory + j.Overhead, r.IO}
}

// ReduceStage gives the index of the job's reduce stage, or -1.
func (j *Job) ReduceStage() int { return j.stageOf(jobspec.KindReduce) }

// MapStage gives the index of the job's map stage, or -1.
func (j *Job) MapStage() int { return j.stageOf(jobspec.KindMap) }

func (j *Job) stageOf(k jobspec.StageKind) int {
	for i := range j.Spec.Stages {
		if j.Spec.Stages[i].Kind == k {
			return i
		}
	}
	return -1
}

// Writes tells whether the tasks of stage i write files of the job's output:
// the reduce stage, or the map stage of a job without one.
func (j *Job) Writes(i int) bool {
	if j.Spec.Output == nil {
		return false
	}
	if r := j.ReduceStage(); r >= 0 {
		return i == r
	}
	return i == j.MapStage()
}

// OutputsNeeded tells whether the outputs of stage i must stay on their nodes:
// those of maps while a reduce task is not done.
func (j *Job) OutputsNeeded(i int) bool {
	r := j.ReduceStage()
	return r >= 0 && i == j.MapStage() && !j.HasEnded() && j.Stages[r].Done < j.Stages[r].Tasks
}

// Node is a machine. It is never changed once made: Apply replaces it.
type Node struct {
	ID       int32   `json:"id"`
	Epoch    uint64  `json:"epoch"`
	Up       bool    `json:"up"`
	Draining bool    `json:"draining,omitempty"`
	Why      string  `json:"why,omitempty"`   // why it drains or is down
	Infra    []int64 `json:"infra,omitempty"` // when infrastructure failed there, Unix ns, in the window
	Used     Amounts `json:"used"`
	Attempts int32   `json:"attempts,omitempty"` // that hold something

	// Of a node that was held off by itself, not by an operator.
	Back  int64 `json:"back,omitempty"`  // it drains until then, Unix ns; 0: not by itself
	Holds int32 `json:"holds,omitempty"` // how often in a row it was held off
	Since int64 `json:"since,omitempty"` // it takes work again since then, Unix ns
	Trial bool  `json:"trial,omitempty"` // one attempt at a time, until one passes

	Info *droverv1.NodeInfo `json:"-"`
}

// Closed tells whether the node takes no new work although it may be up: it
// drains, or it is on trial and has its task.
func (n *Node) Closed() bool { return n.Draining || n.Trial && n.Attempts > 0 }

// Takes tells whether new work may go to the node now.
func (n *Node) Takes() bool { return n.Up && !n.Closed() }

// Tenant is who is charged. It is never changed once made.
type Tenant struct {
	ID        int32            `json:"id"` // dense from 0, in order of creation
	Preempted Preempted        `json:"preempted,omitzero"`
	Spec      *droverv1.Tenant `json:"-"`
}

// Blob is a file or image of the content-addressed store.
type Blob struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	Added  int64  `json:"added"` // Unix ns
	Refs   int32  `json:"-"`     // jobs that name it; counted again at restore
}

// Event is one thing that happened, for people and audits.
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

// Note is what a policy remembers; its key is all but Value, Real and At.
type Note struct {
	NoteKey
	Value int64   `json:"value,omitempty"`
	Real  float64 `json:"real,omitempty"`
	At    int64   `json:"at,omitempty"`
}

// NoteKey mirrors scheduler.NoteKey.
type NoteKey struct {
	Kind    int32  `json:"kind"`
	Job     uint64 `json:"job,omitempty"`
	Stage   int32  `json:"stage,omitempty"`
	Task    int32  `json:"task,omitempty"`
	Tenant  int32  `json:"tenant,omitempty"`
	Slot    int32  `json:"slot,omitempty"`
	Project uint64 `json:"project,omitempty"`
}
