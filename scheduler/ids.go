package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Time is an instant in nanoseconds since the Unix epoch, UTC, or since the
// start of a simulation. It enters every function as a value.
type Time int64

// Never is the instant that does not come.
const Never Time = math.MaxInt64

// Add returns t + d, kept within the range of Time.
func (t Time) Add(d time.Duration) Time {
	s := t + Time(d)
	if d > 0 && s < t {
		return Never
	}
	if d < 0 && s > t {
		return math.MinInt64
	}
	return s
}

// Sub returns t - u, kept within the range of time.Duration.
func (t Time) Sub(u Time) time.Duration {
	d := t - u
	switch {
	case u < 0 && d < t:
		return math.MaxInt64
	case u > 0 && d > t:
		return math.MinInt64
	}
	return time.Duration(d)
}

// TenantID numbers a tenant densely from 0; the caller assigns it.
type TenantID int32

// NodeID numbers a node densely from 0; the caller assigns it.
type NodeID int32

// NoNode is the absence of a node: a reservation on the pool of all nodes, or
// an attempt that is not moving.
const NoNode NodeID = -1

// NoTenant is the parent of a tenant at the root of the tree.
const NoTenant TenantID = -1

// JobID names a job for ever; the caller assigns it, 0 is no job.
type JobID uint64

// ProjectID names a project; the caller assigns it, 0 is no project.
type ProjectID uint64

// ReservationID names a reservation; the policy assigns it, from 1.
type ReservationID uint64

// StageID is a stage of a job, counted from 0.
type StageID struct {
	Job   JobID `json:"job"`
	Stage int32 `json:"stage"`
}

// TaskID is a task of a stage, counted from 0.
type TaskID struct {
	Job   JobID `json:"job"`
	Stage int32 `json:"stage"`
	Index int32 `json:"index"`
}

// AttemptID is one try at a task, counted from 1. With the attempt's Run it
// is the fencing token everywhere.
type AttemptID struct {
	TaskID
	Attempt int32 `json:"attempt"`
}

// StageID gives the stage that the task belongs to.
func (t TaskID) StageID() StageID { return StageID{t.Job, t.Stage} }

// Compare orders stages by job, then stage.
func (s StageID) Compare(o StageID) int {
	return cmp.Or(cmp.Compare(s.Job, o.Job), cmp.Compare(s.Stage, o.Stage))
}

// Compare orders tasks by job, stage, index.
func (t TaskID) Compare(o TaskID) int {
	return cmp.Or(cmp.Compare(t.Job, o.Job), cmp.Compare(t.Stage, o.Stage), cmp.Compare(t.Index, o.Index))
}

// Compare orders attempts by task, then attempt.
func (a AttemptID) Compare(o AttemptID) int {
	return cmp.Or(a.TaskID.Compare(o.TaskID), cmp.Compare(a.Attempt, o.Attempt))
}

// String prints job.stage, for example "17.0".
func (s StageID) String() string { return fmt.Sprintf("%d.%d", s.Job, s.Stage) }

// String prints job.stage.index, for example "17.0.3".
func (t TaskID) String() string { return fmt.Sprintf("%d.%d.%d", t.Job, t.Stage, t.Index) }

// String prints job.stage.index#attempt, for example "17.0.3#1".
func (a AttemptID) String() string { return fmt.Sprintf("%s#%d", a.TaskID, a.Attempt) }
