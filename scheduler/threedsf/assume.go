package threedsf

import (
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// assumptions are those that guarantees are planned with: non-preemptible tasks run until their
// bound or their predicted end, all others free their capacity in time.
type assumptions struct {
	deadlines, allDeadlines bool // as in Config
}

// overrunExtension is how long a non-preemptible task past its expected end is assumed to continue.
const overrunExtension = 10 * time.Second

// ChargeTenants reports true: each tenant's guarantees are limited.
func (assumptions) ChargeTenants() bool { return true }

// ClaimOf returns the claim of an attempt: of a non-preemptible one all that it occupies, until its expected end.
func (x assumptions) ClaimOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Claim {
	j := s.StageOf(a).Job
	if s.Node(a.Node).CanPreempt(j) {
		return memoryClaim(s, a)
	}
	return x.wholeClaim(s, a, j.IsNonPreemptible(), now)
}

// wholeClaim returns all that an attempt occupies, until its expected end. It is assumed to leave
// the source node of its migration after overrunExtension.
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

// memoryClaim returns the claim of a preemptible attempt: its memory that cannot leave the node.
// The claim has no end, since a suspended task makes no progress towards its bound.
func memoryClaim(s *scheduler.State, a *scheduler.Attempt) scheduler.Claim {
	c := scheduler.Claim{ValidUntil: scheduler.Never}
	if staying := stayingMemory(s, a); staying > 0 {
		c.Occupied.Resources[scheduler.Memory], c.End = staying, scheduler.Never
	}
	return c
}

// expectedEnd returns until when an attempt is assumed to run: until its bound or its predicted end. An attempt past its
// bound ends now if its guarantee is violated and the node can preempt it. fixed is false if the result moves with time.
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

// inLane reports whether a job is in the deadline lane (P2): its deadline is accepted, or all count, and is feasible.
func (x assumptions) inLane(s *scheduler.State, j *scheduler.Job) bool {
	return x.deadlines && j.Spec.Deadline > 0 && (x.allDeadlines || j.IsAccepted()) && !j.IsInfeasible()
}

// overrunsAt returns when an attempt of a stage with a bound has used it up: before its placement if it
// had already then. The margin is not included: it is for tasks that start late in their reservation,
// and a task that starts before its reservation leaves half of it to the next task (honoursGuarantees).
func overrunsAt(a *scheduler.Attempt, g *scheduler.Stage) scheduler.Time {
	return a.Placed.Add(g.Bound() - a.Ran)
}

// swapDemand is the memory of preemptible tasks on a node that can leave it only by swap, since the
// node or the task cannot be checkpointed. Guarantees count on memory that can leave. Memory in
// swap already is included, so that swapping and resuming change nothing here.
type swapDemand struct {
	sum     int64 // bytes
	largest int64 // of one task
	unit    int64 // the greatest common divisor of the tasks' memory
	swapped int64 // bytes of sum that are in swap
	stays   int64 // bytes of tasks that cannot be swapped
}

// add adds a task whose memory can leave by the given levels.
func (d *swapDemand) add(levels scheduler.LevelSet, memory, swapped int64) {
	switch all := memory + swapped; {
	case all <= 0 || levels.Has(scheduler.LevelCheckpointed):
	case levels.Has(scheduler.LevelSwapped) || swapped > 0:
		d.sum, d.largest, d.unit = d.sum+all, max(d.largest, all), greatestCommonDivisor(d.unit, all)
		d.swapped += swapped
	default:
		d.stays += all
	}
}

// addAttempt adds an attempt on a node.
func (d *swapDemand) addAttempt(n *scheduler.Node, a *scheduler.Attempt) {
	d.add(n.Spec.Levels&^a.RefusedLevels, a.Occupied.Resources[scheduler.Memory], a.Occupied.Swap)
}

// beyond returns how much of the memory may have to stay if free bytes of swap are free. Tasks are
// swapped out whole, in any order, until none fits. The swap left over is then less than the memory
// of some task that stays, and differs from the whole swap by a multiple of the unit.
func (d *swapDemand) beyond(free int64) int64 {
	room := max(free, 0) + d.swapped
	if d.sum <= room {
		return d.stays
	}
	return d.stays + min(d.sum, d.sum-room+min(room, d.largest-d.unit+room%d.unit))
}

func greatestCommonDivisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// swapHasRoom reports whether a node has enough free swap for all memory in use there plus memory bytes. O(1).
func swapHasRoom(n *scheduler.Node, memory int64) bool {
	return n.Used()[scheduler.Memory]+memory <= n.SwapFree
}

// freesMemory reports whether a node can free the memory of any set of tasks there, plus memory
// bytes more. O(1).
func freesMemory(n *scheduler.Node, memory int64) bool {
	return n.Spec.Levels.Has(scheduler.LevelCheckpointed) || swapHasRoom(n, memory)
}

// stayingMemory returns how much of a preemptible attempt's memory cannot leave the node: its part
// of the memory that exceeds the swap. Attempts that were placed first have the first parts. O(1)
// if all of it can leave, else O(attempts on the node).
func stayingMemory(s *scheduler.State, a *scheduler.Attempt) int64 {
	n := s.Node(a.Node)
	levels := n.Spec.Levels &^ a.RefusedLevels
	if levels.Has(scheduler.LevelCheckpointed) || (levels.Has(scheduler.LevelSwapped) && swapHasRoom(n, 0)) {
		return 0
	}
	var own, before, all swapDemand
	own.addAttempt(n, a)
	for b := range s.Attempts().On(n.Spec.ID) {
		if b == a {
			before = all
		}
		if !s.StageOf(b).Job.IsNonPreemptible() {
			all.addAttempt(n, b)
		}
	}
	all.stays = 0 // only the memory beyond swap is divided: each task has its own stays
	return own.stays + min(max(all.beyond(n.SwapFree)-before.sum, 0), own.sum)
}
