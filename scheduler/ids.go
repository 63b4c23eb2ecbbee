package scheduler

import (
	"cmp"
	"fmt"

	"github.com/drover-run/drover/scheduler/timeline"
)

// Time is a time in nanoseconds since the Unix epoch, UTC, or since the start of a simulation.
// Functions take the current time as a value.
type Time = timeline.Time

// Never is later than any other time.
const Never = timeline.Never

// TenantID is the number of a tenant, dense from 0. The caller assigns it.
type TenantID int32

// NodeID is the number of a node, dense from 0. The caller assigns it.
type NodeID int32

// NoNode means no node; for an attempt's source, that it is not migrating.
const NoNode NodeID = -1

// NoTenant is the parent of a tenant at the root of the tree.
const NoTenant TenantID = -1

// JobID identifies a job and is never reused. The caller assigns it; 0 is no job.
type JobID uint64

// ProjectID identifies a project. The caller assigns it; 0 is no project.
type ProjectID uint64

// ReservationID identifies a reservation. The policy assigns it, from 1.
type ReservationID uint64

// StageID identifies a stage by its job and its index, from 0.
type StageID struct {
	Job   JobID `json:"job"`
	Stage int32 `json:"stage"`
}

// TaskID identifies a task by its stage and its index, from 0.
type TaskID struct {
	Job   JobID `json:"job"`
	Stage int32 `json:"stage"`
	Index int32 `json:"index"`
}

// AttemptID identifies an attempt at a task by its number, from 1. With the attempt's Run it is the fencing token.
type AttemptID struct {
	TaskID
	Attempt int32 `json:"attempt"`
}

// StageID returns the stage that the task belongs to.
func (t TaskID) StageID() StageID { return StageID{t.Job, t.Stage} }

// Compare orders stages by job, then stage.
func (s StageID) Compare(o StageID) int {
	return cmp.Or(cmp.Compare(s.Job, o.Job), cmp.Compare(s.Stage, o.Stage))
}

// Compare orders attempts by task, then attempt.
func (a AttemptID) Compare(o AttemptID) int {
	return cmp.Or(a.StageID().Compare(o.StageID()), cmp.Compare(a.Index, o.Index), cmp.Compare(a.Attempt, o.Attempt))
}

// String returns job.stage, for example "17.0".
func (s StageID) String() string { return fmt.Sprintf("%d.%d", s.Job, s.Stage) }

// String returns job.stage.index, for example "17.0.3".
func (t TaskID) String() string { return fmt.Sprintf("%d.%d.%d", t.Job, t.Stage, t.Index) }

// String returns job.stage.index#attempt, for example "17.0.3#1".
func (a AttemptID) String() string { return fmt.Sprintf("%s#%d", a.TaskID, a.Attempt) }
