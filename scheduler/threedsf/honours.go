package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// guaranteeCheck decides what may start beside the guarantees on a node. It owns scratch space, and
// records when to retry a task that a cap stops in this pass (capGuarantees.retryAt).
type guaranteeCheck struct {
	v         *view
	capacity  scheduler.FreeCapacity // scratch of guaranteeFits
	caps      capGuarantees
	ancestors []bool // scratch of dependsOn
}

// honoursGuarantees reports whether starting d more of a stage (with disk space on disk), or resuming
// its attempt a, leaves each guarantee on the node its capacity at its start, and the guarantees below
// the same caps what they need of these. Guarantees of the job's own later stages that depend on this
// stage are ignored. A running task counts at that start if it is non-preemptible there and its bound
// ends later, a suspended task always. A preemptible task takes only memory that exceeds the swap.
//
// The rule is that of scheduler.Check, but stricter for placements of this decision. O(reservations²)
// of the node, and O(reservations x attempts) if an empty node would have the capacity.
func (x *guaranteeCheck) honoursGuarantees(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16, a *scheduler.Attempt) bool {
	j := g.Job
	preemptible, end := n.CanPreempt(j), scheduler.Never
	if !preemptible {
		end = x.assumedEndFromNow(g, a)
		if !x.leavesCaps(g, a) {
			return false
		}
	}
	list := x.v.s.Reservations().On(n.Spec.ID)
	if len(list) == 0 || (preemptible && freesMemory(n, d[scheduler.Memory])) {
		return true
	}
	concerns := func(r *scheduler.Reservation) bool {
		return r.Kind.IsGuarantee() && r.End > x.v.now && r.Start < end &&
			(r.Job != j.Spec.ID || !x.dependsOn(j, r.Stage, g.Index))
	}
	for _, r := range list {
		if !preemptible && concerns(r) {
			reserved, _ := guaranteedAt(list, max(r.Start, x.v.now))
			if !(scheduler.Resources{}).Fits(n.Spec.Capacity.Sub(d).Sub(reserved)) {
				return false
			}
		}
	}
	return !slices.ContainsFunc(list, func(r *scheduler.Reservation) bool { return concerns(r) && !x.guaranteeFits(r, n, j, d, space, disk) })
}

// dependsOn reports whether a stage of a job starts only after another one. O(stages x predecessors).
func (x *guaranteeCheck) dependsOn(j *scheduler.Job, stage, other int32) bool {
	if stage <= other {
		return false // stages depend on earlier ones only
	}
	x.ancestors = slices.Grow(x.ancestors[:0], int(stage)+1)[:stage+1]
	clear(x.ancestors)
	x.ancestors[stage] = true
	for i := stage; i > other; i-- {
		if x.ancestors[i] {
			for _, before := range j.Stages[i].Spec.After {
				x.ancestors[before] = true
			}
		}
	}
	return x.ancestors[other]
}

// guaranteedAt returns the sum of the guarantees in list at a time.
func guaranteedAt(list []*scheduler.Reservation, at scheduler.Time) (sum scheduler.Resources, space int64) {
	for _, o := range list {
		if o.Kind.IsGuarantee() && o.Start <= at && o.End > at {
			sum = sum.Add(o.Demand)
			space += o.Disk
		}
	}
	return sum, space
}

// guaranteeFits reports whether a guarantee has its capacity at its start if d more of a job is in
// use: CPU, memory and I/O beside all guarantees in force then and the memory that cannot leave the
// node, disk space over all disks and on one disk.
func (x *guaranteeCheck) guaranteeFits(r *scheduler.Reservation, n *scheduler.Node, j *scheduler.Job, d scheduler.Resources, space int64, disk int16) bool {
	at := max(r.Start, x.v.now)
	swap := swapDemand{}
	x.capacity.Load(n)
	if n.CanPreempt(j) {
		swap.add(n.Spec.Levels, d[scheduler.Memory], 0)
	} else {
		x.capacity.Release(d.Times(-1), -space, disk)
	}
	for a := range x.v.s.Attempts().On(n.Spec.ID) {
		g := x.v.s.StageOf(a)
		byBound, preemptible := g.AssumedEnd(a) <= at, n.CanPreempt(g.Job)
		justStarted := a.Placed == x.v.now && (a.Phase == scheduler.AttemptStarting || a.Phase == scheduler.AttemptResuming)
		ended := a.ID.TaskID == scheduler.TaskID{Job: r.Job, Stage: r.Stage, Index: r.Task} || byBound || preemptible
		if justStarted || !ended {
			continue
		}
		if preemptible {
			swap.addAttempt(n, a)
		}
		x.capacity.Release(a.Occupied.Resources, a.Occupied.Disk, a.Disk)
	}
	reserved, reservedSpace := guaranteedAt(x.v.s.Reservations().On(n.Spec.ID), at)
	free, fitsOneDisk, diskSpace := x.capacity.Free.Sub(reserved), r.Demand[scheduler.IO] == 0 && r.Disk == 0, -reservedSpace
	for _, other := range x.capacity.Disks {
		diskSpace += other.FreeSpace
		fitsOneDisk = fitsOneDisk || (other.FreeIO >= r.Demand[scheduler.IO] && other.FreeSpace >= r.Disk)
	}
	if !x.v.hasProjectGuarantee(j) { // a job with a guarantee of its own was planned beside that memory
		free[scheduler.Memory] -= swap.beyond(n.SwapFree)
	}
	return (scheduler.Resources{}).Fits(free) && fitsOneDisk && (diskSpace >= 0 || r.Disk == 0)
}
