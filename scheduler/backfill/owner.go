package backfill

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// How the planning policies keep a plan in a State: its reservations are those of the planned
// tasks, and guarantees are policy states. A job without a project is planned as a project of its
// own.

// SingleJob returns the project that stands for a job alone: its id with the high bit set.
func SingleJob(id scheduler.JobID) scheduler.ProjectID { return scheduler.ProjectID(id) | 1<<63 }

// JobOf returns the job that a project of SingleJob stands for, 0 for a project of the State.
func JobOf(id scheduler.ProjectID) scheduler.JobID {
	if id>>63 == 0 {
		return 0
	}
	return scheduler.JobID(id &^ (1 << 63))
}

// OwnerOf returns the project that a job is planned in: its own, or that of SingleJob.
func OwnerOf(j *scheduler.Job) scheduler.ProjectID {
	if j.Spec.Project != 0 {
		return j.Spec.Project
	}
	return SingleJob(j.Spec.ID)
}

// ProjectFor returns the project that work of a job is planned in, by its id (OwnerOf), without requests.
func ProjectFor(s *scheduler.State, id scheduler.ProjectID, j *scheduler.Job) Project {
	if pr := s.Project(id); pr != nil {
		return Project{ID: id, Submitted: pr.Spec.Submitted, HighPriority: pr.Spec.Priority == scheduler.PriorityHigh}
	}
	return Project{ID: id, Submitted: j.Spec.Submitted, HighPriority: j.Spec.Priority == scheduler.PriorityHigh}
}

// StateKey returns the key of a policy state of a project, or of the job that it stands for.
func StateKey(kind scheduler.PolicyStateKind, id scheduler.ProjectID) scheduler.PolicyStateKey {
	if j := JobOf(id); j != 0 {
		return scheduler.PolicyStateKey{Kind: kind, Job: j}
	}
	return scheduler.PolicyStateKey{Kind: kind, Project: id}
}

// GuaranteeOf returns the guaranteed departure of a project, or the zero Guarantee. O(1).
func GuaranteeOf(s *scheduler.State, id scheduler.ProjectID) Guarantee {
	departure, _ := s.PolicyState(StateKey(scheduler.GuaranteeState, id))
	latest, _ := s.PolicyState(StateKey(scheduler.LatestDepartureState, id))
	return Guarantee{Departure: departure.At, Latest: latest.At}
}

// States returns the policy states that GuaranteeOf reads.
func (q Guarantee) States(id scheduler.ProjectID) []scheduler.PolicyState {
	return []scheduler.PolicyState{{PolicyStateKey: StateKey(scheduler.GuaranteeState, id), At: q.Departure},
		{PolicyStateKey: StateKey(scheduler.LatestDepartureState, id), At: q.Latest}}
}

// ViolatedState returns the policy state that records the violation of a project's guarantee.
func ViolatedState(id scheduler.ProjectID, cause Cause, at scheduler.Time) scheduler.PolicyState {
	k := StateKey(scheduler.ViolatedState, id)
	k.Slot = int32(cause)
	return scheduler.PolicyState{PolicyStateKey: k, At: at}
}

// RecordsViolation reports whether one of some policy states is a ViolatedState of a project, whatever the cause.
func RecordsViolation(states []scheduler.PolicyState, id scheduler.ProjectID) bool {
	k := StateKey(scheduler.ViolatedState, id)
	return slices.ContainsFunc(states, func(n scheduler.PolicyState) bool {
		return n.Kind == k.Kind && n.Job == k.Job && n.Project == k.Project
	})
}

// ViolationOf returns the policy state that records the violation of a project's guarantee, whose
// slot is the Cause; false if there is none. O(causes).
func ViolationOf(s *scheduler.State, id scheduler.ProjectID) (scheduler.PolicyState, bool) {
	k := StateKey(scheduler.ViolatedState, id)
	for cause := CauseOverrun; cause <= CauseSuspended; cause++ {
		k.Slot = int32(cause)
		if n, ok := s.PolicyState(k); ok {
			return n, true
		}
	}
	return scheduler.PolicyState{}, false
}

// KeyOf returns the task that a reservation of the plan is for.
func KeyOf(r *scheduler.Reservation) Key { return Key{Job: r.Job, Stage: r.Stage, Task: r.Task} }

// Reservation returns the State's reservation of a planned task of a stage, for the stage's whole
// demand. The caller must set ID, Kind and Latest.
func (x *PlannedTask) Reservation(g *scheduler.Stage) scheduler.Reservation {
	return scheduler.Reservation{Job: x.Key.Job, Stage: x.Key.Stage, Task: x.Key.Task, Project: g.Job.Spec.Project,
		Node: scheduler.NodeID(x.Spot.Bin), Demand: g.Spec.Demand, Disk: g.Spec.Disk, OnDisk: x.Spot.Disk, Start: x.Spot.At, End: x.End}
}

// NeedBuffer is memory for the amounts of needs, which a policy reuses in each round.
type NeedBuffer struct{ amounts []int64 }

// Reset makes all needs made so far invalid.
func (x *NeedBuffer) Reset() { x.amounts = x.amounts[:0] }

// NeedOf is scheduler.NodeNeed with its amounts in the buffer.
func (x *NeedBuffer) NeedOf(d scheduler.Resources, space int64) Need {
	n := len(x.amounts)
	x.amounts = append(x.amounts, d[scheduler.CPU], d[scheduler.Memory])
	return Need{Base: x.amounts[n : n+2 : n+2], IO: d[scheduler.IO], Space: space}
}
