package scheduler

import (
	"time"

	"github.com/drover-run/drover/internal/enum"
	"github.com/drover-run/drover/scheduler/timeline"
)

// Limits of a State; events beyond them are refused.
const (
	MaxNodes              = 1 << 20
	maxTenants            = 1 << 20
	MaxDisks              = timeline.MaxDisks
	MaxStages             = 1 << 12
	MaxTasks              = 1 << 24
	MaxReplicas           = 1 << 10
	MaxTenantDepth        = 32
	maxReservations       = 1 << 17 // the same as the log's limit, in coordinator/facts
	MaxPolicyStatesPerJob = 1 << 10
	maxPolicyStatesNoJob  = 1 << 16
	defaultAttempts       = 4
	maxAttemptsLimit      = 1 << 10

	// MaxRunTime is the longest bound or estimate, 36 years: the sum of one, a margin and a time does not overflow.
	MaxRunTime time.Duration = 1 << 60
)

// Disk is one disk of a node.
type Disk struct {
	Name  string `json:"name"`
	IO    int64  `json:"io"`    // allocatable bytes per second
	Space int64  `json:"space"` // allocatable bytes
}

// NodeSpec is a machine as it registered: its abilities, and the capacity without the machine's own reserve.
type NodeSpec struct {
	// Capacity in CPU and memory; its IO must be the sum over Disks.
	Capacity Resources `json:"capacity"`
	ID       NodeID    `json:"id"`
	Down     bool      `json:"down,omitempty"`
	Draining bool      `json:"draining,omitempty"`
	Name     string    `json:"name"`
	// Path is the topology above the node, from the top, for example "/dc1/rack7", of any
	// depth. Nodes with equal paths share a rack.
	Path   string       `json:"path,omitempty"`
	Disks  []Disk       `json:"disks,omitempty"`
	Swap   int64        `json:"swap,omitempty"` // bytes for LevelSwapped
	Levels LevelSet     `json:"levels"`
	Speeds SuspendSpeed `json:"speeds"`
	// CPUClass names the CPU features that a checkpoint depends on. A checkpoint is restored
	// only on a node of the same class or one that lists it in Restores.
	CPUClass string   `json:"cpu_class,omitempty"`
	Restores []string `json:"restores,omitempty"`
	// Windows are the ordered maintenance windows, in order: when the node will be away.
	Windows []Window `json:"windows,omitempty"`
}

// Limit bounds a sum of resources; a zero part is unlimited.
type Limit Resources

// Allows reports whether r stays within every limit. If not, it returns the first resource that does not.
func (l Limit) Allows(r Resources) (Resource, bool) {
	for i, v := range l {
		if v > 0 && r[i] > v {
			return Resource(i), false
		}
	}
	return 0, true
}

// Caps limits what one task, one job and a whole subtree of tenants may occupy of any resource, disk I/O included. A
// group is an inner tenant of the tree: its Total limits the sum over everything below it.
type Caps struct {
	Task  Limit `json:"task"`
	Job   Limit `json:"job"`
	Total Limit `json:"total"`
}

// TenantSpec is a tenant: the unit of accounting and sharing. Tenants form a tree; any of them can have jobs.
type TenantSpec struct {
	ID     TenantID `json:"id"`
	Name   string   `json:"name"`
	Parent TenantID `json:"parent"` // NoTenant at the root
	Weight float64  `json:"weight"` // share among its siblings, above 0
	Caps   Caps     `json:"caps"`
}

// Priority orders jobs and preemption victims. Regular jobs do not preempt others because of it.
type Priority uint8

// The priorities.
const (
	PriorityLow Priority = iota + 1
	PriorityHigh
)

// String returns the word of the job file.
func (p Priority) String() string {
	return enum.Name("priority", p, []string{PriorityLow: "low", PriorityHigh: "high"})
}

// OnMiss says what happens to a deadline job that can no longer meet its deadline.
type OnMiss uint8

// The values of OnMiss.
const (
	OnMissContinue OnMiss = iota + 1 // continues behind the regular jobs (lane P6)
	OnMissStop                       // is stopped
)

// String returns the word of the job file.
func (o OnMiss) String() string {
	return enum.Name("on_miss", o, []string{OnMissContinue: "continue", OnMissStop: "stop"})
}

// JobSpec is a job as it was accepted. Zero Deadline, Bound and Project mean none.
type JobSpec struct {
	ID        JobID         `json:"id"`
	Name      string        `json:"name"`
	Tenant    TenantID      `json:"tenant"`
	Priority  Priority      `json:"priority"`
	Submitted Time          `json:"submitted"`
	Deadline  Time          `json:"deadline,omitempty"`
	Bound     time.Duration `json:"bound_ns,omitempty"` // runtime_bound
	OnMiss    OnMiss        `json:"on_miss,omitempty"`
	// AcceptedByQuote: the deadline is accepted by its quote, without a guarantee. The job is in
	// the deadline lane until it becomes infeasible. A policy that guarantees a deadline records
	// AcceptedState instead: see Job.IsAccepted. The name on disk is older than the field's.
	AcceptedByQuote bool          `json:"accepted,omitempty"`
	Estimate        time.Duration `json:"estimate_ns,omitempty"` // predicted run time of the whole job, 0 for unknown
	Project         ProjectID     `json:"project,omitempty"`
	// Size is the true amount of work in task-seconds if a simulation knows it (policies sjf and ideal), else 0.
	Size float64 `json:"size,omitempty"`
	// Weight is the job's share among its tenant's, for policies that share between jobs (fair); 0 counts as 1.
	Weight float64 `json:"weight,omitempty"`
}

// ProjectSpec is a set of jobs with one guaranteed departure time (two-tier 4.2).
type ProjectSpec struct {
	ID        ProjectID `json:"id"`
	Name      string    `json:"name"`
	Tenant    TenantID  `json:"tenant"`
	Priority  Priority  `json:"priority"`
	Submitted Time      `json:"submitted"`
	Jobs      int32     `json:"jobs"`
	// GuaranteedDeparture is 0 if there is none.
	GuaranteedDeparture Time `json:"guaranteed_departure,omitempty"`
}

// StageKind is the kind of a stage.
type StageKind uint8

// The kinds of stages.
const (
	KindMap StageKind = iota + 1
	KindReduce
	KindGroup
)

// String returns the word of the job file.
func (k StageKind) String() string {
	return enum.Name("kind", k, []string{KindMap: "map", KindReduce: "reduce", KindGroup: "group"})
}

// StageSpec is a set of tasks with equal demands.
type StageSpec struct {
	Name   string    `json:"name"`
	Kind   StageKind `json:"kind"`
	After  []int32   `json:"after,omitempty"` // earlier stages of the job
	Tasks  int32     `json:"tasks"`
	Demand Resources `json:"demand"`
	Disk   int64     `json:"disk,omitempty"` // bytes of space for each task
	// Exclusive tasks are frozen when the node loses the coordinator.
	Exclusive bool `json:"exclusive,omitempty"`
	// Bound is the assumed maximum run time of one task of a job without a runtime_bound: an upper
	// quantile of its prediction at submission. 0 if none is known. Nothing enforces it.
	Bound time.Duration `json:"bound_ns,omitempty"`
	// Estimate is the predicted run time of one task, 0 if unknown.
	Estimate time.Duration `json:"estimate_ns,omitempty"`
	// MaxParallel limits the tasks that run at once; 0: unlimited.
	MaxParallel int32 `json:"max_parallel,omitempty"`
	// MaxAttempts limits the failures through the user's fault; 0 is defaultAttempts.
	MaxAttempts int32 `json:"max_attempts,omitempty"`
	// SlowStart is the fraction of each earlier map stage that must be done before a reduce stage
	// may start, to fetch while the last maps run. No such map may wait for capacity or be
	// suspended, since it would lack what the reduces occupy. 0 counts as 1, and so does any value
	// in a job with a bound, a deadline or a project: waiting tasks would use up their bound.
	SlowStart float64 `json:"slow_start,omitempty"`
	// Inputs are what the tasks read, nil for nothing. State keeps the pointer: callers must not change it afterwards.
	Inputs *Inputs `json:"inputs,omitempty"`
}

// Inputs lists what each task reads and where it is, in flat arrays: 44 bytes for a task with three
// replicas. Task i reads Bytes[i]; its nodes are Nodes[Start[i]:Start[i+1]], best first. Local
// holds the bytes on each of those nodes (for tasks of several blocks); if nil, each has all bytes.
type Inputs struct {
	Bytes []int64  `json:"bytes"`
	Start []int32  `json:"start"`
	Nodes []NodeID `json:"nodes"`
	Local []int64  `json:"local,omitempty"`
}

// ReservationKind says what a reservation is for.
type ReservationKind uint8

// The kinds of reservations. None changes a node's Free: policies and Check use their times.
const (
	// ReserveProject guarantees a project's departure.
	ReserveProject ReservationKind = iota + 1
	// ReserveDeadline guarantees an accepted deadline.
	ReserveDeadline
	// ReserveHead reserves the start of the head of the queue (EASY backfilling).
	ReserveHead
	// ReserveData reserves capacity for a task that waits for a node with its data; End is when it stops waiting.
	ReserveData
	// ReservePreempt reserves the capacity that a preemption in progress frees.
	ReservePreempt
)

// String returns the word used in listings.
func (k ReservationKind) String() string {
	return enum.Name("reservation", k, []string{ReserveProject: "project", ReserveDeadline: "deadline", ReserveHead: "head", ReserveData: "data",
		ReservePreempt: "preemption"})
}

// IsGuarantee reports whether Check protects reservations of this kind.
func (k ReservationKind) IsGuarantee() bool { return k == ReserveProject || k == ReserveDeadline }

// Reservation reserves Demand (and Disk bytes of space) on a node from Start until End, for a job
// or one of its stages (Stage -1: any) and tasks (Task -1: any), or for a project.
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
	// OnDisk is the index in NodeSpec.Disks of the planned disk, -1 for none. It is not binding: a
	// plan that is rebuilt from the reservations starts with it.
	OnDisk int16 `json:"on_disk,omitempty"`
	Start  Time  `json:"start"`
	End    Time  `json:"end"`
	// Latest is the latest start that keeps the guarantee (lts of two-tier section 4.4), set once; 0 for none.
	Latest Time `json:"latest,omitempty"`
}

// Task returns the bytes that task i reads, the nodes that hold them, and the bytes on each
// (nil: all). The slices belong to the Inputs. If i is out of range it returns zero values.
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
