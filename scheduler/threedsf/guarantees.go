package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
)

// collectDueGuarantees counts the guarantee reservations that have not ended and
// lists those that are due and have a task left to place. Without any, the rest of
// this file costs nothing. O(guarantees that have begun).
func (p *Policy) collectDueGuarantees() {
	p.dueReservations = p.dueReservations[:0]
	all := p.s.Reservations().Guarantees()
	p.guaranteeCount = len(all)
	for _, r := range all {
		if r.Start > p.now {
			p.wakeAt(r.Start)
			return
		}
		if r.End <= p.now || r.Node == scheduler.NoNode {
			p.guaranteeCount--
			continue
		}
		if j := p.s.Job(r.Job); j != nil && j.Ready > 0 {
			p.dueReservations = append(p.dueReservations, r)
		}
	}
}

// reservedLane places the tasks whose reservation is due (P1) on the reserved node,
// in order of start, and preempts for them there.
func (p *Policy) reservedLane() {
	for _, r := range p.dueReservations {
		j := p.s.Job(r.Job)
		if j == nil || !p.s.Node(r.Node).Schedulable() {
			continue
		}
		for _, g := range j.Stages {
			if r.Stage < 0 || r.Stage == g.Index {
				p.placeReserved(r, g)
			}
		}
	}
}

// placeReserved places tasks of one stage into a reservation.
func (p *Policy) placeReserved(r *scheduler.Reservation, g *scheduler.Stage) {
	if r.Task >= 0 && !g.IsPending(r.Task) {
		return
	}
	n := p.s.Node(r.Node)
	free := r.Demand
	if r.Task < 0 { // a reservation for a whole job also covers what already runs
		for a := range p.s.Attempts().On(r.Node) {
			if a.ID.Job == r.Job {
				free = free.Sub(a.Occupied.Resources)
			}
		}
	}
	for p.actionsLeft > 0 && g.Ready() && g.Startable() > 0 && g.Spec.Demand.Fits(free) {
		if _, _, _, ok := p.s.TenantTree().UnderCaps(g); !ok {
			return
		}
		task := p.pickTaskFor(g, r.Node)
		if r.Task >= 0 {
			if task = r.Task; !g.IsPending(task) {
				return
			}
		}
		if _, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); !ok {
			p.preemptReservedNode(r, g)
			return
		}
		p.place(g, task, r.Node)
		if isPlanned(r) {
			if p.actionsLeft > 0 { // otherwise the next cycle drops the reservation
				p.apply(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: r.ID}})
			}
			return
		}
		free = free.Sub(g.Spec.Demand)
	}
}

// preemptReservedNode preempts for a due task on its node. Capacity reserved there
// for suspended tasks does not stop it.
func (p *Policy) preemptReservedNode(r *scheduler.Reservation, g *scheduler.Stage) {
	if p.cfg.Preempt == deadline.None || p.countPreemptReservationsOn(g, r.Node) >= p.countDueTasks(g, r.Node) {
		return
	}
	p.preemptor.Escalate = true // memory too: the next task due here will need it
	p.preemptor.ForDueReservation, p.ignoreResumeReservations = true, true
	defer func() {
		p.preemptor.Escalate, p.preemptor.ForDueReservation, p.ignoreResumeReservations = false, false, false
	}()
	if plan, ok := p.preemptor.FindVictimsOn(p.s, g, r.Node, p.now); ok {
		p.applyPreemption(g, plan, r.End)
	}
}

// hasDueTask reports whether a waiting task of a stage has a due reservation on a
// node.
func (p *Policy) hasDueTask(g *scheduler.Stage, node scheduler.NodeID) bool {
	return p.dueTask(g, node) >= 0
}

// dueTask returns the first waiting task of a stage with a due reservation on a
// node, or -1.
func (p *Policy) dueTask(g *scheduler.Stage, node scheduler.NodeID) int32 {
	for _, r := range p.s.Reservations().On(node) {
		if !p.isDueFor(r, g) {
			continue
		}
		if r.Task < 0 {
			return p.pickTaskFor(g, node)
		}
		if g.IsPending(r.Task) {
			return r.Task
		}
	}
	return -1
}

// countDueTasks returns the number of due reservations on a node for waiting tasks
// of a stage.
func (p *Policy) countDueTasks(g *scheduler.Stage, node scheduler.NodeID) (n int) {
	for _, r := range p.s.Reservations().On(node) {
		if p.isDueFor(r, g) && (r.Task < 0 || g.IsPending(r.Task)) {
			n++
		}
	}
	return n
}

// isDueFor reports whether a reservation is a guarantee for a stage and in force
// now.
func (p *Policy) isDueFor(r *scheduler.Reservation, g *scheduler.Stage) bool {
	return r.Kind.IsGuarantee() && r.Job == g.Job.Spec.ID && (r.Stage < 0 || r.Stage == g.Index) && r.Start <= p.now && r.End > p.now
}

// countPreemptReservationsOn returns the number of preemption reservations on a node
// for new tasks of a stage.
func (p *Policy) countPreemptReservationsOn(g *scheduler.Stage, node scheduler.NodeID) (n int) {
	for _, r := range p.s.Reservations().On(node) {
		if r.Kind == scheduler.ReservePreempt && r.Task < 0 && r.Job == g.Job.Spec.ID && r.Stage == g.Index {
			n++
		}
	}
	return n
}

// honoursGuarantees reports whether starting d more of a stage (with disk space on
// disk) leaves each guarantee on the node its capacity at its start. Guarantees of
// the job's own later stages that depend on this stage are ignored. A running task
// counts at that start if it is non-preemptible there and its bound ends later.
//
// The rule is that of scheduler.Check, on the safe side for what this decision has
// placed. O(reservations²) of the node, and O(reservations x attempts) where an
// empty node would have the capacity.
func (p *Policy) honoursGuarantees(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16) bool {
	j := g.Job
	if p.isPreemptible(n, j) {
		return true
	}
	list := p.s.Reservations().On(n.Spec.ID)
	if len(list) == 0 {
		return true
	}
	end := scheduler.Never
	if b := g.Bound(); b > 0 {
		end = p.now.Add(b + p.cfg.Guarantees.Margin/2)
	}
	concerns := func(r *scheduler.Reservation) bool {
		return r.Kind.IsGuarantee() && r.End > p.now && r.Start < end &&
			(r.Job != j.Spec.ID || (isPlanned(r) && !p.dependsOn(j, r.Stage, g.Index)))
	}
	for _, r := range list {
		if concerns(r) && !(scheduler.Resources{}).Fits(n.Spec.Capacity.Sub(d).Sub(guaranteedAt(list, max(r.Start, p.now)))) {
			return false
		}
	}
	for _, r := range list {
		if concerns(r) && !p.guaranteeFits(r, n, d, space, disk) {
			return false
		}
	}
	return true
}

// dependsOn reports whether a stage of a job starts only after another one. O(stages
// x predecessors).
func (p *Policy) dependsOn(j *scheduler.Job, stage, other int32) bool {
	if stage <= other {
		return false // stages depend on earlier ones only
	}
	p.ancestors = slices.Grow(p.ancestors[:0], int(stage)+1)[:stage+1]
	clear(p.ancestors)
	p.ancestors[stage] = true
	for i := stage; i > other; i-- {
		if p.ancestors[i] {
			for _, before := range j.Stages[i].Spec.After {
				p.ancestors[before] = true
			}
		}
	}
	return p.ancestors[other]
}

// guaranteedAt returns what guarantee reservations in list take at a time.
func guaranteedAt(list []*scheduler.Reservation, at scheduler.Time) (sum scheduler.Resources) {
	for _, o := range list {
		if o.Kind.IsGuarantee() && o.Start <= at && o.End > at {
			sum = sum.Add(o.Demand)
		}
	}
	return sum
}

// guaranteeFits reports whether a guarantee has its capacity at its start if d more
// is in use: CPU, memory and I/O beside all guarantees in force then, disk space
// over all disks and, for a single task, on one disk.
func (p *Policy) guaranteeFits(r *scheduler.Reservation, n *scheduler.Node, d scheduler.Resources, space int64, disk int16) bool {
	at := max(r.Start, p.now)
	free := n.Free.Sub(d)
	disks := append(p.diskScratch[:0], n.Disks...)
	p.diskScratch = disks
	if disk >= 0 && int(disk) < len(disks) {
		disks[disk].FreeIO -= d[scheduler.IO]
		disks[disk].FreeSpace -= space
	}
	for a := range p.s.Attempts().On(n.Spec.ID) {
		b, other := p.s.StageOf(a).Bound(), p.s.StageOf(a).Job
		justStarted := a.Placed == p.now && (a.Phase == scheduler.AttemptStarting || a.Phase == scheduler.AttemptResuming)
		ended := coversAttempt(r, a) || (b > 0 && a.Placed.Add(b) <= at) || p.isPreemptible(n, other)
		if justStarted || !ended {
			continue
		}
		free = free.Add(a.Occupied.Resources)
		if a.Disk >= 0 && int(a.Disk) < len(disks) {
			disks[a.Disk].FreeIO += a.Occupied.Resources[scheduler.IO]
			disks[a.Disk].FreeSpace += a.Occupied.Disk
		}
	}
	fitsOneDisk, diskSpace := r.Task < 0 || (r.Demand[scheduler.IO] == 0 && r.Disk == 0), int64(0)
	for _, other := range disks {
		diskSpace += other.FreeSpace
		fitsOneDisk = fitsOneDisk || (other.FreeIO >= r.Demand[scheduler.IO] && other.FreeSpace >= r.Disk)
	}
	for _, o := range p.s.Reservations().On(n.Spec.ID) {
		if o.Kind.IsGuarantee() && o.Start <= at && o.End > at {
			free = free.Sub(o.Demand)
			diskSpace -= o.Disk
		}
	}
	return (scheduler.Resources{}).Fits(free) && fitsOneDisk && (diskSpace >= 0 || r.Disk == 0)
}

// coversAttempt reports whether what an attempt occupies is part of a reservation.
func coversAttempt(r *scheduler.Reservation, a *scheduler.Attempt) bool {
	return a.ID.Job == r.Job && (!isPlanned(r) || (a.ID.Stage == r.Stage && a.ID.Index == r.Task))
}

// isPreemptible reports whether tasks of a job can be moved out of memory on a node
// when a guarantee needs it.
func (p *Policy) isPreemptible(n *scheduler.Node, j *scheduler.Job) bool {
	return !j.IsNonPreemptible() &&
		(n.Spec.Levels.Has(scheduler.LevelSwapped) || n.Spec.Levels.Has(scheduler.LevelCheckpointed))
}
