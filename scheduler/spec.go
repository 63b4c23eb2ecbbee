package scheduler

import (
	"fmt"
	"time"
)

// Bounds on what a State takes; beyond them an event is refused.
const (
	MaxNodes         = 1 << 20
	MaxTenants       = 1 << 20
	MaxDisks         = 64
	MaxStages        = 1 << 12
	MaxTasks         = 1 << 24
	MaxReplicas      = 1 << 10
	MaxTenantDepth   = 32
	MaxReservations  = 1 << 21
	MaxNotesPerJob   = 1 << 10
	MaxNotesNoJob    = 1 << 16
	DefaultAttempts  = 4
	MaxAttemptsLimit = 1 << 10
)

// Disk is one disk of a node.
type Disk struct {
	Name  string `json:"name"`
	IO    int64  `json:"io"`    // bytes per second that can be handed out
	Space int64  `json:"space"` // bytes that can be handed out
}

// NodeSpec is a machine as it registered itself: what can be handed out after
// reserves, and what the machine can do.
type NodeSpec struct {
	ID   NodeID `json:"id"`
	Name string `json:"name"`
	// Path is the topology above the node, from the top, for example
	// "/dc1/rack7". Two nodes of one path share their rack. Any depth.
	Path string `json:"path,omitempty"`
	// Capacity in CPU and memory; its IO must be the sum over Disks.
	Capacity Resources    `json:"capacity"`
	Disks    []Disk       `json:"disks,omitempty"`
	Swap     int64        `json:"swap,omitempty"` // bytes for LevelSwapped
	Levels   LevelSet     `json:"levels"`
	Speeds   SuspendSpeed `json:"speeds"`
	// CPUClass names the CPU features a checkpoint depends on. An image is
	// restored only on a node of the same class or one that lists it.
	CPUClass string   `json:"cpu_class,omitempty"`
	Restores []string `json:"restores,omitempty"`
	Down     bool     `json:"down,omitempty"`
	Draining bool     `json:"draining,omitempty"`
}

// Limit bounds a sum of resources; a zero part does not bound.
type Limit Resources

// Allows tells whether r stays within every bound, and if not, the first
// resource that does not.
func (l Limit) Allows(r Resources) (Resource, bool) {
	for i, v := range l {
		if v > 0 && r[i] > v {
			return Resource(i), false
		}
	}
	return 0, true
}

// None tells whether nothing is bounded.
func (l Limit) None() bool { return l == Limit{} }

// MarshalJSON writes a Limit as Resources.
func (l Limit) MarshalJSON() ([]byte, error) { return Resources(l).MarshalJSON() }

// UnmarshalJSON reads a Limit as Resources.
func (l *Limit) UnmarshalJSON(b []byte) error { return (*Resources)(l).UnmarshalJSON(b) }

// Caps bounds what one task, one job and a whole subtree of tenants may hold,
// on any resource, disk I/O included. A group is an inner tenant of the tree:
// its Total bounds the sum over everything below.
type Caps struct {
	Task  Limit `json:"task"`
	Job   Limit `json:"job"`
	Total Limit `json:"total"`
}

// TenantSpec is who is charged. Tenants form a tree; jobs hang on any of them.
type TenantSpec struct {
	ID     TenantID `json:"id"`
	Name   string   `json:"name"`
	Parent TenantID `json:"parent"` // NoTenant at the root
	Weight float64  `json:"weight"` // share among its siblings, above 0
	Caps   Caps     `json:"caps"`
}

// Priority orders jobs and victims; regular jobs never preempt by it.
type Priority uint8

// The priorities.
const (
	PriorityLow Priority = iota + 1
	PriorityHigh
)

// String gives the word of the job file.
func (p Priority) String() string {
	switch p {
	case PriorityLow:
		return "low"
	case PriorityHigh:
		return "high"
	default:
		return fmt.Sprintf("priority(%d)", uint8(p))
	}
}

// OnMiss is what becomes of a deadline job that cannot make it any more.
type OnMiss uint8

// The answers to a missed deadline.
const (
	OnMissContinue OnMiss = iota + 1 // goes on behind the regular jobs (lane P6)
	OnMissStop                       // is stopped
)

// String gives the word of the job file.
func (o OnMiss) String() string {
	switch o {
	case OnMissContinue:
		return "continue"
	case OnMissStop:
		return "stop"
	default:
		return fmt.Sprintf("on_miss(%d)", uint8(o))
	}
}

// JobSpec is a job as it was accepted. Zero Deadline, Bound and Project mean
// none.
type JobSpec struct {
	ID        JobID         `json:"id"`
	Name      string        `json:"name"`
	Tenant    TenantID      `json:"tenant"`
	Priority  Priority      `json:"priority"`
	Submitted Time          `json:"submitted"`
	Deadline  Time          `json:"deadline,omitempty"`
	Bound     time.Duration `json:"bound_ns,omitempty"` // runtime_bound
	OnMiss    OnMiss        `json:"on_miss,omitempty"`
	// Accepted tells that the deadline was promised: the job is in the
	// deadline lane until it is hopeless. Estimate is the run time the
	// promise was computed with.
	Accepted bool          `json:"accepted,omitempty"`
	Estimate time.Duration `json:"estimate_ns,omitempty"`
	Project  ProjectID     `json:"project,omitempty"`
	// Open tells that stages may still be added (AddStage, CloseJob).
	Open bool `json:"open,omitempty"`
	// Size is the true work in task-seconds where a simulation knows it
	// (policies sjf and ideal), else 0.
	Size float64 `json:"size,omitempty"`
	// Weight is the job's share among the jobs of its tenant, for policies that
	// share between jobs (fair); 0 counts as 1.
	Weight float64 `json:"weight,omitempty"`
}

// ProjectSpec is jobs with one guaranteed departure time (two-tier 4.2).
type ProjectSpec struct {
	ID        ProjectID `json:"id"`
	Name      string    `json:"name"`
	Tenant    TenantID  `json:"tenant"`
	Priority  Priority  `json:"priority"`
	Submitted Time      `json:"submitted"`
	Jobs      int32     `json:"jobs"`
	// Promised is the guaranteed departure, 0 while there is none.
	Promised Time `json:"promised,omitempty"`
	// LatestStart is lts, computed once from the first departure.
	LatestStart Time `json:"latest_start,omitempty"`
}

// StageKind is the kind of a stage.
type StageKind uint8

// The kinds.
const (
	KindMap StageKind = iota + 1
	KindReduce
	KindGroup
)

// String gives the word of the job file.
func (k StageKind) String() string {
	switch k {
	case KindMap:
		return "map"
	case KindReduce:
		return "reduce"
	case KindGroup:
		return "group"
	default:
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
}

// StageSpec is tasks of one shape.
type StageSpec struct {
	Name   string    `json:"name"`
	Kind   StageKind `json:"kind"`
	After  []int32   `json:"after,omitempty"` // earlier stages of the job
	Tasks  int32     `json:"tasks"`
	Demand Resources `json:"demand"`
	Disk   int64     `json:"disk,omitempty"` // bytes of space for each task
	// Exclusive tasks are frozen when the node loses the coordinator.
	Exclusive bool `json:"exclusive,omitempty"`
	// Estimate is the predicted run time of one task, 0 if unknown.
	Estimate time.Duration `json:"estimate_ns,omitempty"`
	// MaxParallel bounds the tasks that run at once, 0 for no bound.
	MaxParallel int32 `json:"max_parallel,omitempty"`
	// MaxAttempts bounds failures by the user's fault; 0 is DefaultAttempts.
	MaxAttempts int32 `json:"max_attempts,omitempty"`
	// SlowStart is the part of each earlier map stage that must be done
	// before a reduce stage may start; 0 counts as 1, all of it.
	SlowStart float64 `json:"slow_start,omitempty"`
	// Inputs is what the tasks read, nil for nothing. State keeps it: the
	// caller must not change it afterwards.
	Inputs *Inputs `json:"inputs,omitempty"`
}

// Inputs says what each task of a stage reads and where it lies, in flat
// arrays so that a million tasks with three replicas stay small (44 bytes a
// task). Task i reads Bytes[i]; its nodes are Nodes[Start[i]:Start[i+1]], best
// first; Local, if not nil, has the bytes that lie on each of those nodes
// (for tasks of several blocks), else all of them lie on each.
type Inputs struct {
	Bytes []int64  `json:"bytes"`
	Start []int32  `json:"start"`
	Nodes []NodeID `json:"nodes"`
	Local []int64  `json:"local,omitempty"`
}

// ReservationKind says whose promise a reservation keeps.
type ReservationKind uint8

// The kinds of reservations. Reservations and holds do not change what is
// free on a node: policies and Check weigh them by their times.
const (
	// ReserveProject keeps a project's guaranteed departure.
	ReserveProject ReservationKind = iota + 1
	// ReserveDeadline keeps an accepted deadline.
	ReserveDeadline
	// ReserveHead keeps the start of the head of line (easy backfilling).
	ReserveHead
	// HoldData keeps room for a task that waits for its data's node; End is
	// when it stops waiting.
	HoldData
	// HoldPreempt keeps room that a suspension in flight makes.
	HoldPreempt
)

// String gives the word used in JSON-free listings.
func (k ReservationKind) String() string {
	switch k {
	case ReserveProject:
		return "project"
	case ReserveDeadline:
		return "deadline"
	case ReserveHead:
		return "head"
	case HoldData:
		return "data hold"
	case HoldPreempt:
		return "preemption hold"
	default:
		return fmt.Sprintf("reservation(%d)", uint8(k))
	}
}

// Promise tells whether the kind is a promise that Check defends.
func (k ReservationKind) Promise() bool { return k == ReserveProject || k == ReserveDeadline }

// Reservation keeps Demand (and Disk bytes of space) on a node, or on the
// pool of all nodes where Node is NoNode, from Start until End, for a job and
// maybe one of its stages (Stage -1: any) and tasks (Task -1: any).
type Reservation struct {
	ID      ReservationID   `json:"id"`
	Kind    ReservationKind `json:"kind"`
	Job     JobID           `json:"job"`
	Stage   int32           `json:"stage"`
	Task    int32           `json:"task"`
	Project ProjectID       `json:"project,omitempty"`
	Node    NodeID          `json:"node"`
	Demand  Resources       `json:"demand"`
	Disk    int64           `json:"disk,omitempty"`
	// OnDisk is the index in NodeSpec.Disks that it is planned on, -1 without;
	// it binds nobody, a plan that is built again goes on from it.
	OnDisk int16 `json:"on_disk,omitempty"`
	Start  Time  `json:"start"`
	End    Time  `json:"end"`
	// Latest is the latest start that keeps the promise (lts of two-tier
	// section 4.4), set once; 0 for none.
	Latest Time `json:"latest,omitempty"`
}

// Task returns the bytes that task i reads, the nodes that hold them, and the
// bytes on each (nil: all). The slices belong to the Inputs. Out of range it
// returns nothing.
func (in *Inputs) Task(i int32) (bytes int64, nodes []NodeID, local []int64) {
	if in == nil || i < 0 || int(i) >= len(in.Bytes) {
		return 0, nil, nil
	}
	from, to := in.Start[i], in.Start[i+1]
	if in.Local != nil {
		local = in.Local[from:to]
	}
	return in.Bytes[i], in.Nodes[from:to], local
}
