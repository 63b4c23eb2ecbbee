package scheduler

import (
	"fmt"
	"strings"
)

// Reason is why a stage is left waiting: a closed list that an independent
// judge proves again (package policytest).
type Reason uint8

// The reasons, with the fields of Waiting each one uses.
const (
	// ReasonNoCPU: no node can take a task; Nodes of them lack CPU, which is
	// what most lack. Likewise the next three.
	ReasonNoCPU Reason = iota + 1
	ReasonNoMemory
	ReasonNoIO
	ReasonNoDiskSpace
	// ReasonNoNode: no node is up and taking work.
	ReasonNoNode
	// ReasonCap: the cap of Tenant on Resource, for the scope in Cap.
	ReasonCap
	// ReasonMaxParallel: the stage runs as many tasks as it may.
	ReasonMaxParallel
	// ReasonReservation: behind Reservation until Until.
	ReasonReservation
	// ReasonData: waits for Node, where its data lies, until Until.
	ReasonData
	// ReasonNotAdmitted: the job waits for admission.
	ReasonNotAdmitted
	// ReasonHeadOfLine: behind stage Behind, which does not fit; for
	// policies that keep an order strictly.
	ReasonHeadOfLine
	// ReasonTurn: the cycle was full (max actions); its turn comes next.
	ReasonTurn
	// ReasonShare: another tenant, job or queue is due first and what fits
	// is kept for it (Behind).
	ReasonShare
	// ReasonSuspending: room is being made by suspensions in flight on Node.
	ReasonSuspending
	// ReasonLater: the plan starts it at Until (a guarantee or a quote).
	ReasonLater
	// ReasonDue: the plan starts it now, as Reservation says, on Node, where what
	// should be gone by now still holds its room.
	ReasonDue
)

// String gives the sentence's core.
func (r Reason) String() string {
	names := [...]string{ReasonNoCPU: "no room for cpu", ReasonNoMemory: "no room for memory", ReasonNoIO: "no room for io",
		ReasonNoDiskSpace: "no room for disk space", ReasonNoNode: "no node takes work", ReasonCap: "over its cap",
		ReasonMaxParallel: "at its max_parallel", ReasonReservation: "behind a reservation", ReasonData: "waiting for its data's node",
		ReasonNotAdmitted: "not admitted", ReasonHeadOfLine: "behind the head of line", ReasonTurn: "next cycle",
		ReasonShare: "another is due first", ReasonSuspending: "room is being made", ReasonLater: "planned for later",
		ReasonDue: "due, and its room is not free yet"}
	if int(r) < len(names) && names[r] != "" {
		return names[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// NoRoom gives the reason for lacking r.
func NoRoom(r Resource) Reason {
	switch r {
	case CPU:
		return ReasonNoCPU
	case Memory:
		return ReasonNoMemory
	case IO:
		return ReasonNoIO
	default:
		return ReasonNoDiskSpace
	}
}

// CapScope says which cap holds a stage back.
type CapScope uint8

// The scopes: one task, one job, or the tenant's (or group's) total.
const (
	CapTask CapScope = iota + 1
	CapJob
	CapTotal
)

// String gives the scope's name.
func (c CapScope) String() string {
	switch c {
	case CapTask:
		return "task"
	case CapJob:
		return "job"
	case CapTotal:
		return "total"
	default:
		return fmt.Sprintf("cap(%d)", uint8(c))
	}
}

// Waiting is a stage that has pending tasks it may start and was given none,
// or not all, with the reason for the next one.
type Waiting struct {
	Stage       StageID       `json:"stage"`
	Reason      Reason        `json:"reason"`
	Resource    Resource      `json:"resource,omitempty"`
	Cap         CapScope      `json:"cap,omitempty"`
	Tenant      TenantID      `json:"tenant,omitempty"`
	Node        NodeID        `json:"node,omitempty"`
	Tasks       int32         `json:"tasks"` // pending tasks
	Nodes       int32         `json:"nodes,omitempty"`
	Until       Time          `json:"until,omitempty"`
	Reservation ReservationID `json:"reservation,omitempty"`
	Behind      StageID       `json:"behind,omitzero"`
}

// String prints the reason with its numbers.
func (w *Waiting) String() string {
	s := fmt.Sprintf("%s: %d waiting, %s", w.Stage, w.Tasks, w.Reason)
	switch w.Reason {
	case ReasonNoCPU, ReasonNoMemory, ReasonNoIO, ReasonNoDiskSpace:
		s += fmt.Sprintf(" on %d nodes", w.Nodes)
	case ReasonCap:
		s += fmt.Sprintf(" of tenant %d on %s (%s)", w.Tenant, w.Resource, w.Cap)
	case ReasonReservation:
		s += fmt.Sprintf(" %d until %d", w.Reservation, w.Until)
	case ReasonDue:
		s += fmt.Sprintf(" on %d, reservation %d", w.Node, w.Reservation)
	case ReasonData, ReasonSuspending:
		s += fmt.Sprintf(" %d until %d", w.Node, w.Until)
	case ReasonHeadOfLine, ReasonShare:
		s += " " + w.Behind.String()
	case ReasonLater:
		s += fmt.Sprintf(" at %d", w.Until)
	}
	return s
}

// Decision is what a policy wants done. Its slices belong to the policy and
// are good until its next Decide; whoever keeps them copies them (Clone).
type Decision struct {
	// Base is State.Index at the time of deciding: the index in the
	// coordinator's log up to which the decision knows the facts.
	Base    uint64    `json:"base"`
	At      Time      `json:"at"`
	Actions []Action  `json:"actions,omitempty"`
	Notes   []Note    `json:"notes,omitempty"`
	Waiting []Waiting `json:"waiting,omitempty"`
	// Wake is the next instant at which the policy may decide differently
	// though no event came (a hold ends, a reservation is due); 0 for none.
	Wake Time `json:"wake,omitempty"`
}

// Empty tells whether there is nothing to carry out or to remember.
func (d *Decision) Empty() bool { return len(d.Actions) == 0 && len(d.Notes) == 0 }

// Clone copies the decision with its slices.
func (d *Decision) Clone() Decision {
	c := *d
	c.Actions = append([]Action(nil), d.Actions...)
	c.Notes = append([]Note(nil), d.Notes...)
	c.Waiting = append([]Waiting(nil), d.Waiting...)
	return c
}

// String prints one action, note or reason a line.
func (d *Decision) String() string {
	var b strings.Builder
	for i := range d.Actions {
		fmt.Fprintln(&b, d.Actions[i].String())
	}
	for i := range d.Notes {
		n := &d.Notes[i]
		fmt.Fprintf(&b, "note %s job %d stage %d task %d tenant %d slot %d value %d real %g at %d\n",
			n.Kind, n.Job, n.Stage, n.Task, n.Tenant, n.Slot, n.Value, n.Real, n.At)
	}
	for i := range d.Waiting {
		fmt.Fprintln(&b, d.Waiting[i].String())
	}
	return b.String()
}
