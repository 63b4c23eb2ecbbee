package threedsf

import (
	"time"

	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/lasmq"
	"github.com/drover-run/drover/scheduler/locality"
)

// Config chooses the modules and their parameters.
type Config struct {
	// Name is what the policy calls itself.
	Name string

	// Level is Lev of 3DSF Alg. 1. Resources is how many of CPU, memory and
	// disk I/O count in shares: 2 is the original DRF.
	Level     drf.Level
	Resources int
	// StopAtFirstMisfit ends a cycle at the first task that does not fit, as
	// Alg. 1 line 13 is printed.
	StopAtFirstMisfit bool

	// Locality switches DLAforBT on.
	Locality bool
	Network  locality.Network
	// MaxWait bounds waiting for the node of the data: a stage none of whose
	// tasks was placed at its data for so long moves the next ones.
	MaxWait time.Duration
	// MaxYield bounds, by the same clock, for how long such a stage lets others
	// use the slots elsewhere when its turn has come.
	MaxYield time.Duration
	// SmallTask is the number of input bytes below which a task skips matching
	// and judgment: the size of a block (3DSF section 8.1).
	SmallTask int64

	// PriorityOrder puts a tenant's jobs of high priority before those of low;
	// else they come in order of submission.
	PriorityOrder bool

	// Reserve keeps a node for a task whose turn it is and that fits nowhere,
	// instead of passing it over.
	Reserve bool

	// LASMQ orders a tenant's regular jobs of one priority by LAS_MQ queues; nil
	// orders them by submission. Prior starts a job in the queue that its input
	// size predicts. Deadline jobs are in no queue as long as they are in their
	// lane, nor behind the others.
	LASMQ *lasmq.Config
	Prior bool

	// Deadlines switches the lane of accepted deadline jobs on; AllDeadlines
	// puts every job with a deadline there. Order is that of the lane.
	Deadlines    bool
	AllDeadlines bool
	Order        deadline.Order
	// Preempt is how room is taken back for the lane.
	Preempt deadline.Mode
	// MaxSuspended: from half of it on room is kept for a suspended task to come
	// back to, and one that was suspended for so long is a victim no more.
	MaxSuspended time.Duration
	// Promises is what is promised, and how.
	Promises Promises
	// Migrate lets a checkpointed task go on on another node.
	Migrate bool
}

// Promises says how 3dsf promises projects their departure and jobs their
// deadline.
type Promises struct {
	On bool
	// SF is the slack factor of a project's departure (two-tier eq. 7), PL how
	// many promises one job may put off, backfill.NoLimit for no limit, and
	// Tries bounds the instants tried for one task (backfill.Config).
	SF    float64
	PL    int
	Tries int
	// Spare nodes, those with the highest ids, are never promised.
	Spare int
	// Share of the cluster that the promises to one tenant may take at any
	// instant; 0 is its weighted fair share among the tenants that have work.
	Share float64
	// Margin is added to each bound, for starting and stopping.
	Margin time.Duration
	// Every bounds how often holes are given forward.
	Every time.Duration
}
