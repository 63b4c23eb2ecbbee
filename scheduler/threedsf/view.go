package threedsf

import (
	"cmp"

	"github.com/drover-run/drover/scheduler"
)

// view is the input of a decision: the configuration, the State and the time. Its methods answer
// questions about jobs, stages and reservations, and change nothing. During a decision, cycle
// changes the State and reservedLane lists the capWaits.
type view struct {
	cfg         *Config
	assumptions assumptions
	s           *scheduler.State
	now         scheduler.Time
	capWaits    []capWait // of this pass
}

// wasRefused reports whether a job or its project was refused a guarantee and has none from elsewhere.
func (v *view) wasRefused(j *scheduler.Job) bool {
	if pr := v.s.Project(j.Spec.Project); pr != nil {
		if v.joins(j) {
			return j.HasState(scheduler.RefusedState)
		}
		return pr.HasState(scheduler.RefusedState) && !pr.HasState(scheduler.GuaranteeState) && pr.Spec.GuaranteedDeparture == 0
	}
	return v.isRefused(j) && !j.IsAccepted()
}

// hasProjectGuarantee reports whether a job's project has an unviolated guarantee: the job is not preempted.
func (v *view) hasProjectGuarantee(j *scheduler.Job) bool {
	pr := v.s.Project(j.Spec.Project)
	return pr != nil && !pr.HasState(scheduler.ViolatedState) && (pr.HasState(scheduler.GuaranteeState) || pr.Spec.GuaranteedDeparture != 0)
}

// canStayOn reports whether the node of a planned reservation can be up during it.
func (v *view) canStayOn(r *scheduler.Reservation) bool {
	n := v.s.Node(r.Node)
	return v.s.Cluster().Plannable(n) && !n.AwayWithin(max(r.Start, v.now), r.End)
}

func compareSubmission(a, b *scheduler.Job) int {
	return cmp.Or(cmp.Compare(a.Spec.Submitted, b.Spec.Submitted), cmp.Compare(a.Spec.ID, b.Spec.ID))
}

// inLane reports whether a job is in the deadline lane (P2).
func (v *view) inLane(j *scheduler.Job) bool {
	return v.assumptions.inLane(v.s, j)
}

// isStoppedByMiss reports whether a job must not continue: its deadline is infeasible and its
// on_miss is stop. The owner of the State ends the job.
func (v *view) isStoppedByMiss(j *scheduler.Job) bool {
	return j.Spec.OnMiss == scheduler.OnMissStop && j.Spec.Deadline > 0 && v.cfg.Deadlines && j.IsInfeasible()
}

// mayReserveToResume reports whether capacity on its node may be reserved for a suspended attempt of a
// stage. It may not if the attempt could not resume even on an empty node (the node has shrunk, a cap
// was lowered), or if a user suspended it: nothing else could start there, perhaps for ever.
func (v *view) mayReserveToResume(a *scheduler.Attempt, g *scheduler.Stage) bool {
	n := v.s.Node(a.Node)
	if a.Parked || !n.Schedulable() || g.Job.Phase != scheduler.JobActive || g.WaitsForInput() || v.isStoppedByMiss(g.Job) ||
		a.Demand[scheduler.CPU] > n.Spec.Capacity[scheduler.CPU] || a.Demand[scheduler.Memory] > n.Spec.Capacity[scheduler.Memory] {
		return false
	}
	if a.Disk >= 0 {
		if d := &n.Spec.Disks[a.Disk]; a.Demand[scheduler.IO] > d.IO || a.DiskSpace > d.Space {
			return false
		}
	}
	return v.withinCaps(g.Job, a.Demand, a.Demand.Sub(a.Occupied.Resources))
}

// usesMatching reports whether a stage takes part in matching: its next task reads at least SmallTaskBytes.
func (v *view) usesMatching(g *scheduler.Stage) bool {
	if !v.cfg.Locality || g.Spec.Inputs == nil {
		return false
	}
	bytes, nodes, _ := g.Input(g.NextPending(0))
	return len(nodes) > 0 && bytes >= v.cfg.SmallTaskBytes
}

// guaranteeStatus is the state of a job's guarantee.
type guaranteeStatus uint8

// guaranteeStatus returns the state of the guarantee of a job or its project.
func (v *view) guaranteeStatus(j *scheduler.Job) guaranteeStatus {
	if j.Spec.Project != 0 {
		status := v.projectStatus(v.s.Project(j.Spec.Project))
		switch {
		case !v.joins(j):
			return status
		case j.HasState(scheduler.RefusedState) || v.s.Reservations().IsViolated(j):
			return statusNone
		default:
			return statusRequested
		}
	}
	switch {
	case j.HasState(scheduler.AcceptedState):
		if j.IsInfeasible() {
			return statusNone
		}
		return statusGuaranteed
	case j.Spec.AcceptedByQuote || j.IsInfeasible() || !v.cfg.Deadlines || v.isRefused(j):
		return statusNone
	default:
		return statusRequested
	}
}

// joins reports whether a job's project has a guarantee that does not include the job.
func (v *view) joins(j *scheduler.Job) bool {
	pr := v.s.Project(j.Spec.Project)
	return pr != nil && pr.HasState(scheduler.GuaranteeState) && !v.s.GuaranteeIncludes(j)
}

// projectStatus returns the state of the guarantee of a project.
func (v *view) projectStatus(pr *scheduler.Project) guaranteeStatus {
	switch {
	case pr.HasState(scheduler.GuaranteeState):
		return statusGuaranteed
	case pr.HasState(scheduler.RefusedState) || len(pr.Jobs) < int(pr.Spec.Jobs): // not all were submitted
		return statusNone
	default:
		return statusRequested
	}
}

// isRefused reports whether the job's present deadline was refused.
func (v *view) isRefused(j *scheduler.Job) bool {
	if !j.HasState(scheduler.RefusedState) {
		return false
	}
	n, _ := v.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.RefusedState, Job: j.Spec.ID})
	return scheduler.Time(n.Value) == j.Spec.Deadline
}

// isPlanned reports whether a reservation belongs to the plan: a guarantee for one task on a node.
func isPlanned(r *scheduler.Reservation) bool {
	return r.Kind.IsGuarantee() && r.IsOfTask()
}

// isExpired reports whether a planned task is too late to start: it would run into the capacity of others.
func (v *view) isExpired(r *scheduler.Reservation) bool { return v.now > v.latestStart(r) }

// latestStart returns the last time at which a planned task may start in its reservation: a margin after its start,
// which victims need to leave, but early enough for its bound to end with the reservation. Reservation.Latest is
// irrelevant here: it includes the margin, so a task that ends with its reservation departs in time.
func (v *view) latestStart(r *scheduler.Reservation) scheduler.Time {
	at := min(r.Start.Add(v.cfg.Guarantees.Margin), r.End-1)
	if g := v.s.Stage(r.StageID()); g != nil && g.Bound() > 0 {
		at = min(at, max(r.Start, r.End.Add(-g.Bound())))
	}
	return at
}

// classOf returns the class of a job, 0 for jobs of another lane.
func (v *view) classOf(j *scheduler.Job) uint8 {
	switch {
	case j.Spec.Deadline > 0 && v.inLane(j):
		return 0
	case j.Spec.Deadline > 0 && v.cfg.Deadlines && j.IsInfeasible():
		if j.Spec.OnMiss == scheduler.OnMissStop {
			return 0
		}
		return classInfeasible
	case j.Spec.Priority == scheduler.PriorityHigh && v.cfg.PriorityOrder:
		return classHigh
	default:
		return classLow
	}
}

const (
	statusNone       guaranteeStatus = iota + 1 // never requested, refused, infeasible, or decided elsewhere
	statusRequested                             // to be accepted or refused
	statusGuaranteed                            // accepted, perhaps violated since
)

// The classes of a tenant's stages, in the order in which they are served.
const (
	classHigh uint8 = iota + 1
	classLow
	classInfeasible
	classEnd
)
