package scheduler

import (
	"fmt"
	"strings"

	"github.com/drover-run/drover/internal/enum"
)

// Reason says why a stage waits. It is a closed set; package policytest checks each reason under every policy.
type Reason uint8

// The reasons, with the fields of Waiting that each one uses.
const (
	// ReasonNoCPU: no node can take a task. Nodes is how many nodes lack CPU, the resource that most
	// nodes lack. ReasonNoMemory, ReasonNoIO and ReasonNoDiskSpace are alike for their resource.
	ReasonNoCPU Reason = iota + 1
	ReasonNoMemory
	ReasonNoIO
	ReasonNoDiskSpace
	// ReasonNoNode: no node is schedulable.
	ReasonNoNode
	// ReasonCap: the cap of Tenant on Resource, for the scope in Cap.
	ReasonCap
	// ReasonMaxParallel: the stage runs as many tasks as MaxParallel allows.
	ReasonMaxParallel
	// ReasonReservation: capacity is reserved by Reservation until Until.
	ReasonReservation
	// ReasonData: waits until Until for Node, which holds its data.
	ReasonData
	// ReasonNotAdmitted: the job waits for admission.
	ReasonNotAdmitted
	// ReasonHeadOfLine: behind stage Behind, which does not fit. For policies with a strict order.
	ReasonHeadOfLine
	// ReasonCycleFull: the decision reached its maximum of actions or of planning work; the next cycle continues.
	ReasonCycleFull
	// ReasonShare: another tenant, job or queue (Behind) is due first, and the capacity that fits is left to it.
	ReasonShare
	// ReasonSuspending: suspensions in progress on Node are freeing capacity for it.
	ReasonSuspending
	// ReasonLater: the plan (a guarantee or a quote) starts it at Until.
	ReasonLater
	// ReasonDue: by its Reservation it starts now on Node, but attempts that should have ended still run there.
	ReasonDue
	// ReasonPlanning: a guarantee for its job or project is still being planned, over several cycles.
	ReasonPlanning
	// ReasonNotExamined: there are so many different demands that only the first in the queue were compared with all nodes.
	ReasonNotExamined
	// ReasonMaintenance: all schedulable nodes leave for maintenance before a task would end.
	ReasonMaintenance
)

// String returns the reason in words, without its numbers.
func (r Reason) String() string {
	return enum.Name("reason", r, []string{ReasonNoCPU: "no free cpu", ReasonNoMemory: "no free memory", ReasonNoIO: "no free io",
		ReasonNoDiskSpace: "no free disk space", ReasonNoNode: "no schedulable node", ReasonCap: "over its cap",
		ReasonMaxParallel: "at its max_parallel", ReasonReservation: "behind a reservation", ReasonData: "waiting for its data's node",
		ReasonNotAdmitted: "not admitted", ReasonHeadOfLine: "behind the head of line", ReasonCycleFull: "next cycle",
		ReasonShare: "another is due first", ReasonSuspending: "capacity is being freed", ReasonLater: "planned for later",
		ReasonDue: "due, but its reserved capacity is still occupied", ReasonPlanning: "its guarantee is being planned",
		ReasonNotExamined: "not examined, behind many others", ReasonMaintenance: "nodes leave for maintenance before it would end"})
}

// CapScope is the scope of a cap.
type CapScope uint8

// The scopes: one task, one job, or the total of a tenant (or group).
const (
	CapTask CapScope = iota + 1
	CapJob
	CapTotal
)

// String returns the scope's name.
func (c CapScope) String() string {
	return enum.Name("cap", c, []string{CapTask: "task", CapJob: "job", CapTotal: "total"})
}

// Waiting is a stage with pending tasks that may start but were not all placed, with the reason for the next one.
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

// String returns the reason with its numbers.
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

// Decision is the result of Policy.Decide. Its slices belong to the policy and are valid until
// its next Decide; use Clone to keep them longer.
type Decision struct {
	// Base is State.Index at the time of the decision: the decision knows the facts of the log up to this index.
	Base         uint64        `json:"base"`
	At           Time          `json:"at"`
	Actions      []Action      `json:"actions,omitempty"`
	PolicyStates []PolicyState `json:"policy_states,omitempty"`
	// Waiting is why stages wait. If too many wait for one decision, it is a part: WaitingMore says that the
	// next decision continues with other stages, WaitingContinues that the previous one explained others.
	Waiting          []Waiting `json:"waiting,omitempty"`
	WaitingContinues bool      `json:"waiting_continues,omitempty"`
	WaitingMore      bool      `json:"waiting_more,omitempty"`
	// Wake is the next time at which the policy may decide differently without an event (a reservation starts or
	// ends); 0 for none. A decision that left work to the next one, to stay within its budget, requests At + 1.
	Wake Time `json:"wake,omitempty"`
}

// WakeAt requests the next decision at a time, unless an earlier one is requested; Never requests none.
func (d *Decision) WakeAt(at Time) {
	if at < Never && (d.Wake == 0 || at < d.Wake) {
		d.Wake = at
	}
}

// Empty reports whether there is nothing to execute and nothing to store.
func (d *Decision) Empty() bool { return len(d.Actions) == 0 && len(d.PolicyStates) == 0 }

// String returns one action, policy state or reason per line.
func (d *Decision) String() string {
	var b strings.Builder
	for i := range d.Actions {
		fmt.Fprintln(&b, d.Actions[i].String())
	}
	for i := range d.PolicyStates {
		p := &d.PolicyStates[i]
		fmt.Fprintf(&b, "policy_state %s job %d stage %d task %d tenant %d slot %d value %d real %g at %d\n",
			p.Kind, p.Job, p.Stage, p.Task, p.Tenant, p.Slot, p.Value, p.Real, p.At)
	}
	for i := range d.Waiting {
		fmt.Fprintln(&b, d.Waiting[i].String())
	}
	return b.String()
}
