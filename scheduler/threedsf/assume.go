package threedsf

import (
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// assumptions are what guarantees are planned with: tasks that are not preempted run
// until their bound or their predicted end, all others are out of the way in time.
type assumptions struct {
	deadlines, allDeadlines bool // as in Config
}

// overrunExtension is how long a non-preemptible task past its expected end is
// assumed to run on.
const overrunExtension = 10 * time.Second

// ChargeTenants reports true: each tenant's guarantees are limited.
func (assumptions) ChargeTenants() bool { return true }

// ClaimOf returns what an attempt occupies until its expected end if it cannot be
// preempted.
func (x assumptions) ClaimOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Claim {
	j := s.StageOf(a).Job
	if s.Node(a.Node).CanPreempt(j) {
		return memoryClaim(s, a)
	}
	return x.wholeClaim(s, a, j.IsNonPreemptible(), now)
}

// wholeClaim returns all that an attempt occupies, until its expected end. On the source
// node of its migration it is assumed to stay a moment.
func (x assumptions) wholeClaim(s *scheduler.State, a *scheduler.Attempt, nonPreemptible bool, now scheduler.Time) scheduler.Claim {
	end, fixed := x.expectedEnd(s, a, nonPreemptible, now)
	c := scheduler.Claim{Occupied: a.Occupied, End: end, SourceEnd: now.Add(overrunExtension), ValidUntil: end, Charged: nonPreemptible}
	if a.Level.Suspended() { // it will resume and need its full demand
		c.Occupied = scheduler.Occupancy{Resources: a.Demand, Disk: a.DiskSpace}
	}
	if !fixed || a.From != scheduler.NoNode {
		c.ValidUntil = now
	}
	return c
}

// memoryClaim returns what a preemptible attempt occupies: the memory that cannot leave the node. No bound
// ends that, since a task that is suspended does not run.
func memoryClaim(s *scheduler.State, a *scheduler.Attempt) scheduler.Claim {
	c := scheduler.Claim{ValidUntil: scheduler.Never}
	if staying := stayingMemory(s, a); staying > 0 {
		c.Occupied.Resources[scheduler.Memory], c.End = staying, scheduler.Never
	}
	return c
}

// expectedEnd returns until when an attempt is assumed to run: until its bound or
// its predicted end. One past its bound ends now if its guarantee is violated and
// the node can preempt it. fixed is false if the result moves with time.
func (x assumptions) expectedEnd(s *scheduler.State, a *scheduler.Attempt, nonPreemptible bool, now scheduler.Time) (at scheduler.Time, fixed bool) {
	g := s.StageOf(a)
	preemptible := s.Reservations().IsViolated(g.Job) && s.Node(a.Node).Spec.Levels.FreesMemory()
	bound := g.Bound()
	switch end, known := locality.PredictedEnd(s, a); {
	case a.Level.Suspended() && bound > 0:
		return now.Add(max(bound-a.Ran, overrunExtension)), false
	case a.Level.Suspended():
		return scheduler.Never, true
	case bound > 0 && overrunsAt(a, g) > now:
		return overrunsAt(a, g), true
	case bound > 0 && preemptible:
		return now, false
	case bound > 0:
		return now.Add(overrunExtension), false
	case !nonPreemptible:
		return scheduler.Never, true
	case known && end > now:
		return end, true
	default:
		return now.Add(overrunExtension), false
	}
}

// inLane reports whether a job is in the deadline lane (P2): its deadline was
// accepted, or all deadlines count, and it is still feasible.
func (x assumptions) inLane(s *scheduler.State, j *scheduler.Job) bool {
	return x.deadlines && j.Spec.Deadline > 0 && (x.allDeadlines || j.IsAccepted()) && !j.IsInfeasible()
}

// overrunsAt returns when an attempt at a task of a stage with a bound has used that up: in the past
// if it had when it was placed. The margin is not included: it is for tasks that start late in their
// reservation, and a task that starts before its reservation leaves half of it to
// the next one (honoursGuarantees).
func overrunsAt(a *scheduler.Attempt, g *scheduler.Stage) scheduler.Time {
	return a.Placed.Add(g.Bound() - a.Ran)
}
