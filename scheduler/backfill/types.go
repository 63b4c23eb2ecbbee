package backfill

import (
	"cmp"
	"errors"
	"time"

	"github.com/drover-run/drover/internal/enum"
	"github.com/drover-run/drover/scheduler"
)

// Key identifies one planned task.
type Key struct {
	Job   scheduler.JobID
	Stage int32
	Task  int32
}

// StageID returns the stage of the task.
func (k Key) StageID() scheduler.StageID { return scheduler.StageID{Job: k.Job, Stage: k.Stage} }

// Compare orders keys by job, stage, task.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Job, o.Job), cmp.Compare(k.Stage, o.Stage), cmp.Compare(k.Task, o.Task))
}

// Request is the tasks of one stage of a job, which have equal needs. A job of the
// paper is a request with one task.
type Request struct {
	Job   scheduler.JobID
	Stage int32
	Tasks []int32 // ascending
	Need  Need
	// Bound is the paper's te: the duration reserved for each task, above 0.
	Bound time.Duration
	// SoftBound reports that Bound is an estimate. Stays reports that such a task cannot be made to
	// leave any bin; SetNonPreemptible marks a bin that none can be made to leave. There the task
	// is reserved until the bin leaves (SetWindows), or for ever. Unknown reports that not even an
	// estimate of the run time is known: the task is reserved at most until its bin leaves, and
	// starts at any time before.
	SoftBound, Stays, Unknown bool
	// After lists earlier stages of the same job that must have ended.
	After []int32
	// NotBefore is the earliest start of every task, 0 for none: the expected end of
	// running tasks of earlier stages.
	NotBefore scheduler.Time
	// Caps lists the bins that each task takes from in the profile of caps.
	Caps []int32
	// Occupied is what a suspended task occupies already, in addition to Need; nil for none. The
	// caller that restores the plan reserves it for ever; the planner releases it from the task's
	// planned end on. Such tasks are never displaced.
	Occupied *Need
}

// Project is a set of jobs with one departure time. Requests are planned in their
// order; a stage must follow the stages in its After.
type Project struct {
	ID           scheduler.ProjectID
	Submitted    scheduler.Time
	HighPriority bool // priority 1 of the paper; used by variant Priority alone
	// Deadline is the latest useful departure, 0 for none. A project that cannot depart
	// by it is refused; later projects may delay the departure up to it.
	Deadline scheduler.Time
	// Limit is the departure beyond which later projects may not delay this one, whatever the
	// slack, if it can depart by then; 0 for none.
	Limit scheduler.Time
	// Account, from 1, is the bin charged in the profile of accounts; 0
	// for none.
	Account  int32
	Requests []Request
}

// Guarantee is the planned departure time of a project (the paper's td) and the latest
// departure that later projects may cause: td + SF x turn-around time.
type Guarantee struct {
	Departure, Latest scheduler.Time
}

// errNeverFits is the class of error for a project with a task that fits on no bin, not
// even an empty one.
var errNeverFits = errors.New("fits on no bin, not even an empty one")

// ErrTooLate is the class of error for a project that cannot depart by its deadline.
var ErrTooLate = errors.New("cannot depart by its deadline")

// Cause is the reason why a guarantee was violated.
type Cause uint8

// The causes. Their values are stored in the Slot of a scheduler.ViolatedState, so they
// must not change.
const (
	CauseOverrun   Cause = iota + 1 // a job ran past its bound
	CauseNodeLost                   // a node was lost, is being drained, or shrank
	CauseFailed                     // a task failed and is rerun
	CauseLate                       // a job could not start at its planned time
	CauseSuspended                  // a task was suspended by an operator or another scheduler
)

// String returns the cause in words.
func (c Cause) String() string {
	return enum.Name("cause", c, []string{CauseOverrun: "a job ran past its bound", CauseNodeLost: "a node was lost", CauseFailed: "a task failed",
		CauseLate: "a job could not start in time", CauseSuspended: "a task was suspended"})
}

// Violation is a guarantee that no longer holds: the project now departs at Departure,
// which is after Latest.
type Violation struct {
	Project   scheduler.ProjectID
	Cause     Cause
	Departure scheduler.Time
	Latest    scheduler.Time
}

// PlannedTask is the reservation of a task. For a task without one Spot.Bin is -1, and
// Spot.At and End are Never.
type PlannedTask struct {
	Key     Key
	Project scheduler.ProjectID
	Spot    Spot
	End     scheduler.Time
	Started bool
	// Kept, KeptAt and Ref describe the task's reservation as passed to Restore. Moved reports
	// whether the task is new or may have left that place.
	Kept, Moved bool
	KeptAt      Spot
	Ref         uint64
}

// Reserved is what the owner of a profile has reserved for a task.
type Reserved struct {
	Spot Spot
	End  scheduler.Time
	Need Need
	Kept bool   // false for a task without a reservation
	Ref  uint64 // the owner's id for it, see PlannedTask
}

// Position is the place of a project in submission order.
type Position struct {
	Submitted scheduler.Time
	ID        scheduler.ProjectID
}

func (p *project) position() Position { return Position{p.Submitted, p.ID} }

func (a Position) compare(b Position) int {
	return cmp.Or(cmp.Compare(a.Submitted, b.Submitted), cmp.Compare(a.ID, b.ID))
}

// Existing describes a task of a project that is restored.
type Existing struct {
	Reserved
	Lost     bool // the task cannot stay in its reservation: it needs another place
	Changed  bool // PlannedTask.Moved must be true even if the task stays
	Searched bool // if the round is searched (NextRound), no earlier start is possible except on bins marked as freed
	Pinned   bool // the task is suspended on Bin and Disk, and must stay there
	Bin      int32
	Disk     int16
}
