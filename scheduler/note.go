package scheduler

import (
	"cmp"
	"fmt"
	"math"
)

// NoteKind is what a policy may remember between cycles. There is nothing
// else: all other memory of a policy is a cache that can be rebuilt.
type NoteKind uint8

// The kinds of notes, each with the key fields and value fields it uses.
const (
	// NoteQueue: Job is in queue Value (LAS_MQ: only ever raised).
	NoteQueue NoteKind = iota + 1
	// NoteAdmitted: Job was admitted at At.
	NoteAdmitted
	// NoteWaitSince: Job, Stage, Task wait for their data's node since At.
	NoteWaitSince
	// NoteDeficit: queue or lane Slot has deficit Real.
	NoteDeficit
	// NoteHopeless: deadline job Job left its lane at At.
	NoteHopeless
	// NoteSuspends: Job, Stage, Task was suspended Value times, first at At.
	NoteSuspends
	// NotePromise: Job or project (Value) was promised to end by At.
	NotePromise
	// NoteLatestStart: project Value has latest start At.
	NoteLatestStart
	// NoteBroken: the promise to Job or project Value was broken at At, Slot
	// is the policy's cause number.
	NoteBroken
	// NoteRun: Job's predicted remaining run time is Value ns, made at At.
	NoteRun
	// NoteVirtual: Tenant's or queue Slot's virtual time is Real.
	NoteVirtual
	// NoteCursor: a place Slot to go on from is Value.
	NoteCursor
	// NoteForget drops the note with the same key whose kind is in Value.
	NoteForget
	// NoteAccepted: the scheduler promised that Job ends by its deadline, which
	// is Value; it plans the end for At.
	NoteAccepted
	// NoteRefused: the deadline of Job (Value) or a departure of Project could
	// not be promised; At is the earliest end that can, 0 for none.
	NoteRefused
)

// String gives the word used in listings.
func (k NoteKind) String() string {
	names := [...]string{NoteQueue: "queue", NoteAdmitted: "admitted", NoteWaitSince: "wait_since", NoteDeficit: "deficit",
		NoteHopeless: "hopeless", NoteSuspends: "suspends", NotePromise: "promise", NoteLatestStart: "latest_start",
		NoteBroken: "broken", NoteRun: "run", NoteVirtual: "virtual", NoteCursor: "cursor", NoteForget: "forget",
		NoteAccepted: "accepted", NoteRefused: "refused"}
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("note(%d)", uint8(k))
}

// NoteKey identifies a note: a later note with the same key replaces it.
// Unused fields are zero. Notes with a Job go when the job ends; notes with a
// Project go when the project is dropped.
type NoteKey struct {
	Kind    NoteKind  `json:"kind"`
	Job     JobID     `json:"job,omitempty"`
	Stage   int32     `json:"stage,omitempty"`
	Task    int32     `json:"task,omitempty"`
	Tenant  TenantID  `json:"tenant,omitempty"`
	Slot    int32     `json:"slot,omitempty"`
	Project ProjectID `json:"project,omitempty"`
}

// Note is one thing remembered: a key and bounded values.
type Note struct {
	NoteKey
	Value int64   `json:"value,omitempty"`
	Real  float64 `json:"real,omitempty"`
	At    Time    `json:"at,omitempty"`
}

// Compare orders keys by kind, project, job, stage, task, tenant, slot.
func (k NoteKey) Compare(o NoteKey) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), cmp.Compare(k.Project, o.Project), cmp.Compare(k.Job, o.Job),
		cmp.Compare(k.Stage, o.Stage), cmp.Compare(k.Task, o.Task), cmp.Compare(k.Tenant, o.Tenant), cmp.Compare(k.Slot, o.Slot))
}

func (n *Note) validate() error {
	if n.Kind < NoteQueue || n.Kind > NoteRefused {
		return refuse(ErrInvalid, "note", "kind is %v", n.Kind)
	}
	if math.IsNaN(n.Real) || math.IsInf(n.Real, 0) {
		return refuse(ErrInvalid, "note "+n.Kind.String(), "its number is %v", n.Real)
	}
	return nil
}
