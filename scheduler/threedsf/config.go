package threedsf

import (
	"time"

	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/lasmq"
	"github.com/drover-run/drover/scheduler/locality"
)

// Config selects the modules and their parameters.
type Config struct {
	// Name is returned by Policy.Name.
	Name string

	// Level is Lev of 3DSF Alg. 1. Resources is the number of resources that count in shares: 2
	// (CPU and memory) is the original DRF, 3 adds disk I/O.
	Level     drf.Level
	Resources int
	// StopAtFirstMisfit ends a cycle at the first task that does not fit, as Alg. 1 line 13 is printed.
	StopAtFirstMisfit bool

	// Locality enables DLAforBT.
	Locality bool
	Network  locality.Network
	// MaxLocalityWait bounds how long a stage waits for the nodes of its input. If none of its
	// tasks was placed there for that long, its tasks may go elsewhere.
	MaxLocalityWait time.Duration
	// MaxLocalityYield bounds, by the same clock, how long such a stage is delayed so that others
	// use the slots elsewhere.
	MaxLocalityYield time.Duration
	// SmallTaskBytes is the input size, in bytes, below which a task skips matching and waiting: one block in the paper
	// (3DSF section 8.1).
	SmallTaskBytes int64

	// PriorityOrder serves a tenant's jobs of high priority before those of low priority. Without it, submission order
	// alone counts.
	PriorityOrder bool

	// ReserveNodes reserves a node for the next task if it fits nowhere, instead of passing it over.
	ReserveNodes bool

	// LASMQ orders a tenant's regular jobs of one priority by LAS_MQ queues; nil orders them by submission.
	// InitialQueueByInput starts a job in the queue that its input size predicts. Deadline jobs are in no queue,
	// neither in their lane nor after an infeasible deadline.
	LASMQ               *lasmq.Config
	InitialQueueByInput bool

	// Aging, if above 0, bounds how long a regular job waits while others keep coming: when it had
	// nothing for Aging times the number of ready stages, one of its tasks is next.
	Aging time.Duration

	// Deadlines enables the lane of accepted deadline jobs, which Order sorts. AllDeadlines puts every job with a
	// deadline into the lane.
	Deadlines    bool
	AllDeadlines bool
	Order        deadline.Order
	// Preempt is how capacity is reclaimed for the lane.
	Preempt deadline.Mode
	// MaxSuspended bounds suspension. After half of it, capacity is reserved for a suspended task.
	// An attempt whose last suspension took that long is not preempted again.
	MaxSuspended time.Duration
	// Guarantees configures guaranteed departures and deadlines.
	Guarantees Guarantees
	// Migrate lets a checkpointed task resume on another node.
	Migrate bool
}

// Guarantees configures the departures that 3dsf guarantees to projects and the deadlines that it guarantees to jobs.
type Guarantees struct {
	Enabled bool
	// SF is the slack factor of a project's departure (two-tier eq. 7). MaxTries bounds the start times tried for one
	// task (backfill.Config).
	SF       float64
	MaxTries int
	// SpareNodes nodes, those with the highest ids, are never used for guarantees.
	SpareNodes int
	// Share is the part of the cluster that the guarantees of one tenant may reserve at any time. 0 means its weighted
	// fair share among the tenants that have work.
	Share float64
	// Margin is added to each bound, for starting and stopping.
	Margin time.Duration
	// CompressEvery is the shortest time between two compressions of the schedule.
	CompressEvery time.Duration
}
