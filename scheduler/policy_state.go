package scheduler

import (
	"cmp"
	"math"

	"github.com/drover-run/drover/internal/enum"
)

// PolicyStateKind is the kind of a PolicyState. Policy states are all that a policy may
// remember between cycles; its other memory is a cache that can be rebuilt.
type PolicyStateKind uint8

// The kinds of policy states, with the key and value fields that each one uses.
const (
	// QueueState: Job is in queue Value (LAS_MQ: it only rises).
	QueueState PolicyStateKind = iota + 1
	// AdmittedState: Job was admitted at At.
	AdmittedState
	// WaitSinceState: Task of Stage of Job has waited for a node with its data since At.
	WaitSinceState
	// DeficitState: queue or lane Slot (of Tenant) has deficit Real at At; Value is its
	// average number of running tasks in thousandths.
	DeficitState
	// InfeasibleState: the deadline of Job became infeasible at At; it left its lane.
	InfeasibleState
	// SuspendCountState: Task of Stage of Job was suspended Value times, first at At.
	SuspendCountState
	// GuaranteeState: Job or Project is guaranteed to end by At. Value of a Project is the last job that it includes, 0 for
	// all; a later one is included if it has this state too (State.GuaranteeIncludes).
	GuaranteeState
	// LatestDepartureState: At is the latest departure of Job or Project that keeps its guarantee.
	LatestDepartureState
	// ViolatedState: the guarantee of Job or Project was violated at At; Slot is the policy's number of the cause.
	ViolatedState
	// RunTimeState: the remaining run time of Job was predicted as Value ns at At.
	RunTimeState
	// VirtualTimeState: the virtual time of Tenant, or of queue Slot, is Real (multifactor:
	// the decayed use of Tenant at At, dominant share x seconds).
	VirtualTimeState
	// CursorState: where incremental work number Slot of the policy continues. Value is a
	// position, or a hash of what the work has seen; each policy defines its slots.
	CursorState
	// TombstoneState deletes the state with the same key whose kind is in Value.
	TombstoneState
	// AcceptedState: the scheduler guarantees the deadline of Job, which is Value, and plans its end for At.
	AcceptedState
	// RefusedState: the deadline of Job, which is Value, or a departure of Project cannot be
	// guaranteed. At is the earliest end that can, 0 for none.
	RefusedState
)

// String returns the word used in listings.
func (k PolicyStateKind) String() string {
	return enum.Name("policy_state", k, []string{QueueState: "queue", AdmittedState: "admitted", WaitSinceState: "wait_since", DeficitState: "deficit",
		InfeasibleState: "infeasible", SuspendCountState: "suspend_count", GuaranteeState: "guarantee", LatestDepartureState: "latest_departure",
		ViolatedState: "violated", RunTimeState: "run_time", VirtualTimeState: "virtual_time", CursorState: "cursor", TombstoneState: "tombstone",
		AcceptedState: "accepted", RefusedState: "refused"})
}

// PolicyStateKey identifies a policy state: a later state with the same key replaces it. Unused fields are zero. States
// with a Job are deleted when the job ends, states with a Project when the project is dropped.
type PolicyStateKey struct {
	Kind    PolicyStateKind `json:"kind"`
	Job     JobID           `json:"job,omitempty"`
	Stage   int32           `json:"stage,omitempty"`
	Task    int32           `json:"task,omitempty"`
	Tenant  TenantID        `json:"tenant,omitempty"`
	Slot    int32           `json:"slot,omitempty"`
	Project ProjectID       `json:"project,omitempty"`
}

// PolicyState is one fact that a policy remembers: a key and values of fixed size.
type PolicyState struct {
	PolicyStateKey
	Value int64   `json:"value,omitempty"`
	Real  float64 `json:"real,omitempty"`
	At    Time    `json:"at,omitempty"`
}

// compare orders keys by kind, project, job, stage, task, tenant, slot.
func (k *PolicyStateKey) compare(o *PolicyStateKey) int {
	if k.Kind != o.Kind { // most comparisons end here or with the slot
		return cmp.Compare(k.Kind, o.Kind)
	}
	if k.Project == o.Project && k.Job == o.Job && k.Stage == o.Stage && k.Task == o.Task && k.Tenant == o.Tenant {
		return cmp.Compare(k.Slot, o.Slot)
	}
	return cmp.Or(cmp.Compare(k.Project, o.Project), cmp.Compare(k.Job, o.Job), cmp.Compare(k.Stage, o.Stage), cmp.Compare(k.Task, o.Task), cmp.Compare(k.Tenant, o.Tenant))
}

// Tombstone returns the policy state that deletes the one with this key.
func (k PolicyStateKey) Tombstone() PolicyState {
	p := PolicyState{PolicyStateKey: k, Value: int64(k.Kind)}
	p.Kind = TombstoneState
	return p
}

// about returns the key of the policy state that p stores or, as a TombstoneState, deletes.
func (p *PolicyState) about() PolicyStateKey {
	k := p.PolicyStateKey
	if k.Kind == TombstoneState {
		k.Kind = PolicyStateKind(p.Value)
	}
	return k
}

func (p *PolicyState) refuse(class error, format string, args ...any) error {
	return refuse(class, "policy state "+p.Kind.String(), format, args...)
}

func (p *PolicyState) validate() error {
	if p.Kind < QueueState || p.Kind > RefusedState {
		return refuse(ErrInvalid, "policy state", "unknown kind %v", p.Kind)
	}
	if math.IsNaN(p.Real) || math.IsInf(p.Real, 0) {
		return p.refuse(ErrInvalid, "real is %v: it must be finite", p.Real)
	}
	return nil
}

// stateKindSet is the set of the kinds of policy states that a job or project has as a whole.
type stateKindSet uint32

func (m stateKindSet) has(k PolicyStateKind) bool { return m&(1<<k) != 0 }
