package scheduler

import (
	"fmt"

	"github.com/drover-run/drover/internal/enum"
)

// ActionKind is the kind of an Action. The zero value is invalid.
type ActionKind uint8

// The kinds of actions.
const (
	// ActPlace starts a new attempt at a pending task on a node and disk. With Speculative it
	// starts a second attempt at a running task.
	ActPlace ActionKind = iota + 1
	// ActSuspend brings an attempt down to Level. The attempt occupies what it occupied until
	// the node confirms (Events.AttemptSuspended).
	ActSuspend
	// ActResume brings a suspended attempt back to running on its own node.
	ActResume
	// ActMigrate moves an attempt to another node. Run is the new run number, one above the
	// current one. Source and target stay occupied until AttemptResumed.
	ActMigrate
	// ActKill ends an attempt. It occupies what it occupied until AttemptEnded.
	ActKill
	// ActReserve adds the reservation, or replaces the one with the same id.
	ActReserve
	// ActUnreserve deletes the reservation with the given id.
	ActUnreserve
)

// String returns the word of the glossary for k.
func (k ActionKind) String() string {
	return enum.Name("action", k, []string{ActPlace: "place", ActSuspend: "suspend", ActResume: "resume", ActMigrate: "migrate", ActKill: "kill", ActReserve: "reserve",
		ActUnreserve: "unreserve"})
}

// Action is one step of a Decision. The owner of the State executes it. Kind decides which fields are used:
//
//	place      Task, Attempt, Run (1), Node, Disk, Speculative
//	suspend    Task, Attempt, Run, Level
//	resume     Task, Attempt, Run
//	migrate    Task, Attempt, Run (the new one), Node, Disk
//	kill       Task, Attempt, Run
//	reserve    Reservation
//	unreserve  Reservation.ID
type Action struct {
	Kind        ActionKind  `json:"kind"`
	Level       Level       `json:"level,omitempty"`
	Speculative bool        `json:"speculative,omitempty"`
	Disk        int16       `json:"disk,omitempty"` // index in NodeSpec.Disks; -1: no disk
	Node        NodeID      `json:"node"`
	Task        TaskID      `json:"task"`
	Attempt     int32       `json:"attempt,omitempty"`
	Run         int32       `json:"run,omitempty"`
	Reservation Reservation `json:"reservation,omitzero"`
}

// AttemptID returns the attempt that the action applies to.
func (a *Action) AttemptID() AttemptID { return AttemptID{a.Task, a.Attempt} }

// Unreserve returns the action that deletes a reservation.
func Unreserve(id ReservationID) Action {
	return Action{Kind: ActUnreserve, Reservation: Reservation{ID: id}}
}

// Act returns an action on the attempt's present run.
func (a *Attempt) Act(kind ActionKind) Action {
	return Action{Kind: kind, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run}
}

// String returns the action as one line, for scripts and logs.
func (a *Action) String() string {
	switch a.Kind {
	case ActPlace:
		s := fmt.Sprintf("place %s run %d on %d disk %d", a.AttemptID(), a.Run, a.Node, a.Disk)
		if a.Speculative {
			s += " speculative"
		}
		return s
	case ActSuspend:
		return fmt.Sprintf("suspend %s run %d %s", a.AttemptID(), a.Run, a.Level)
	case ActResume:
		return fmt.Sprintf("resume %s run %d", a.AttemptID(), a.Run)
	case ActMigrate:
		return fmt.Sprintf("migrate %s run %d to %d disk %d", a.AttemptID(), a.Run, a.Node, a.Disk)
	case ActKill:
		return fmt.Sprintf("kill %s run %d", a.AttemptID(), a.Run)
	case ActReserve:
		r := &a.Reservation
		return fmt.Sprintf("reserve %d %s job %d on %d %s from %d to %d", r.ID, r.Kind, r.Job, r.Node, r.Demand, r.Start, r.End)
	case ActUnreserve:
		return fmt.Sprintf("unreserve %d", a.Reservation.ID)
	default:
		return a.Kind.String()
	}
}
