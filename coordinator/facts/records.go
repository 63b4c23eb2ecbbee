package facts

import (
	"fmt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
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

// TakesTasks reports whether the node takes tasks, if perhaps one at a time: as Schedulable, but
// also on probation with an active attempt.
func (n *Node) TakesTasks() bool { return n.Up && !n.Draining }

// IsQuarantined reports whether the coordinator keeps new work off the node, after failures or for
// a problem.
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
