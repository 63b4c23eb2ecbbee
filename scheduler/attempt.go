package scheduler

import (
	"fmt"
	"time"
)

// AttemptPhase is where an attempt stands.
type AttemptPhase uint8

// The phases of an attempt. Starting, Running, Suspending and Killing hold
// what a running attempt holds; Resuming as well.
const (
	AttemptStarting AttemptPhase = iota + 1
	AttemptRunning
	AttemptSuspending
	AttemptSuspended
	AttemptResuming
	AttemptKilling
)

// String gives the phase's name.
func (p AttemptPhase) String() string {
	switch p {
	case AttemptStarting:
		return "starting"
	case AttemptRunning:
		return "running"
	case AttemptSuspending:
		return "suspending"
	case AttemptSuspended:
		return "suspended"
	case AttemptResuming:
		return "resuming"
	case AttemptKilling:
		return "killing"
	default:
		return fmt.Sprintf("phase(%d)", uint8(p))
	}
}

// Attempt is one live try at a task. Read only outside this package, and good
// until the attempt ends.
type Attempt struct {
	// What differs from one attempt to the next is one cache line: of tens of
	// thousands of attempts the next one is never at hand.
	ID          AttemptID
	Node        NodeID
	sibling     int32 // slot + 1 of a second attempt at the same task
	Disk        int16 // on Node, -1 without
	Level       Level // LevelRunning until a suspension is confirmed
	Target      Level // the level it is being brought to, 0 for none
	Phase       AttemptPhase
	Speculative bool
	// Parked: a person suspended it, so Suspended leaves it out.
	Parked bool
	// Barred: levels that its node tried to bring it to, and could not.
	Barred LevelSet
	// Placed is when it was placed or last resumed; Ran is for how long it
	// had run before that. SuspendedAt is when it was last suspended.
	Placed Time
	// Seq orders placements: later ones are higher.
	Seq uint64
	*details
}

// details are what all attempts of a stage have alike as long as they simply run.
// They share one then, which nobody changes; an attempt of which something here
// becomes otherwise gets its own (State.own).
type details struct {
	own         bool // one attempt's
	Run         int32
	Tenant      TenantID
	stage       int32  // index in State.stages
	From        NodeID // where it moves from, NoNode if it does not move
	FromDisk    int16
	Suspends    int32
	SuspendedAt Time
	Ran         time.Duration
	Held        Held // on Node
	FromHeld    Held // on From
	Demand      Resources
	DiskSpace   int64
	Footprint   Footprint
	// Progress is the part done, 0..1. Estimate is its predicted whole run
	// time, 0 if unknown.
	Progress float64
	Estimate time.Duration
}

// alike gives the details of an attempt of the stage that is placed now.
func (g *Stage) alike() *details {
	if g.details == nil {
		g.details = &details{Run: 1, Tenant: g.Job.Spec.Tenant, stage: g.self, From: NoNode, FromDisk: -1,
			Held: Held{Resources: g.Spec.Demand, Disk: g.Spec.Disk}, Demand: g.Spec.Demand, DiskSpace: g.Spec.Disk, Estimate: g.Spec.Estimate}
	}
	return g.details
}

// own gives an attempt details of its own, to be changed. It allocates when they
// were not its own yet.
func (a *Attempt) own() *details {
	if !a.details.own {
		d := *a.details
		d.own = true
		a.details = &d
	}
	return a.details
}

// RanFor is how long the attempt has run until now, suspensions left out.
func (a *Attempt) RanFor(now Time) time.Duration {
	if a.Level.Suspended() || now <= a.Placed {
		return a.Ran
	}
	return a.Ran + now.Sub(a.Placed)
}

// Remaining is the predicted remaining run time (3DSF eq. 8: estimate minus
// time already run, never below 0), and whether there is an estimate.
func (a *Attempt) Remaining(now Time) (time.Duration, bool) {
	if a.Estimate <= 0 {
		return 0, false
	}
	return max(0, a.Estimate-a.RanFor(now)), true
}
