package scheduler

import (
	"time"

	"github.com/drover-run/drover/internal/enum"
)

// AttemptPhase is the phase of an attempt's life cycle.
type AttemptPhase uint8

// The phases of an attempt. In every phase but Suspended the attempt occupies what it occupied
// before the phase began; Resuming occupies what Running does.
const (
	AttemptStarting AttemptPhase = iota + 1
	AttemptRunning
	AttemptSuspending
	AttemptSuspended
	AttemptResuming
	AttemptKilling
)

// String returns the phase's name.
func (p AttemptPhase) String() string {
	return enum.Name("phase", p, []string{AttemptStarting: "starting", AttemptRunning: "running", AttemptSuspending: "suspending", AttemptSuspended: "suspended",
		AttemptResuming: "resuming", AttemptKilling: "killing"})
}

// Attempt is one live attempt at a task. Callers outside this package may only read it, and only until the attempt ends.
type Attempt struct {
	// The fields that differ between attempts share one cache line: with tens of thousands of
	// attempts the next one is rarely in the cache.
	ID          AttemptID
	Node        NodeID
	sibling     int32 // slot + 1 of a second attempt at the same task, or 0
	Disk        int16 // index in the node's Disks; -1: no disk
	Level       Level // LevelRunning until a suspension is confirmed
	Target      Level // level of the suspension in progress, 0 for none
	Phase       AttemptPhase
	Speculative bool
	// Parked attempts were suspended by a user or a drain, or wait for an operator to adopt them. No policy
	// resumes them, nor plans for them once they are suspended. Attempts.Suspended leaves them out.
	Parked bool
	// RefusedLevels are the levels that the node failed to bring the attempt to.
	RefusedLevels LevelSet
	// Placed is when the attempt was placed or last resumed; Ran is its running time before
	// that. SuspendedAt is when it was last suspended.
	Placed Time
	// Seq orders placements: later placements have higher numbers. A migration keeps it, so that a State that is rebuilt
	// has its attempts in the same order.
	Seq uint64
	*attemptDetails
}

// attemptDetails are the fields that all attempts of a stage share until they are suspended, moved or report progress.
// They are never changed: an attempt with another value gets its own copy (Attempt.ownDetails).
type attemptDetails struct {
	owned        bool // belongs to one attempt, may be changed
	Run          int32
	Tenant       TenantID
	stage        int32  // index in State.stages
	From         NodeID // source of a migration in progress, or NoNode
	FromDisk     int16
	Suspends     int32
	SuspendedAt  Time
	Ran          time.Duration
	Occupied     Occupancy // on Node
	FromOccupied Occupancy // on From
	Demand       Resources
	DiskSpace    int64
	// Progress is the completed fraction, 0 to 1. Estimate is the predicted total run time, 0 if unknown.
	Progress float64
	Estimate time.Duration
}

// sharedDetails returns the details of an attempt of the stage that is placed now.
func (g *Stage) sharedDetails() *attemptDetails {
	if g.details == nil {
		g.details = &attemptDetails{Run: 1, Tenant: g.Job.Spec.Tenant, stage: g.self, From: NoNode, FromDisk: -1,
			Occupied: Occupancy{Resources: g.Spec.Demand, Disk: g.Spec.Disk}, Demand: g.Spec.Demand, DiskSpace: g.Spec.Disk, Estimate: g.Spec.Estimate}
	}
	return g.details
}

// ownDetails returns details that belong to this attempt alone and may be changed. It
// allocates on the first call for an attempt.
func (a *Attempt) ownDetails() *attemptDetails {
	if !a.attemptDetails.owned {
		d := *a.attemptDetails
		d.owned = true
		a.attemptDetails = &d
	}
	return a.attemptDetails
}

// RanFor returns the attempt's running time until now, without suspensions.
func (a *Attempt) RanFor(now Time) time.Duration {
	if a.Level.Suspended() || now <= a.Placed {
		return a.Ran
	}
	return a.Ran + now.Sub(a.Placed)
}
