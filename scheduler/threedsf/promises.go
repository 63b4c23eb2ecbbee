package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
)

// countPromises counts the promises on nodes that are not over and lists those
// that are due and have a task left to place; without any the rest of this file
// costs nothing. O(promises that have begun).
func (p *Policy) countPromises() {
	p.due = p.due[:0]
	all := p.s.Promises()
	p.promises = len(all)
	for _, r := range all {
		if r.Start > p.now {
			p.wakeAt(r.Start)
			return
		}
		if r.End <= p.now || r.Node == scheduler.NoNode {
			p.promises--
			continue
		}
		if j := p.s.Job(r.Job); j != nil && j.Ready > 0 {
			p.due = append(p.due, r)
		}
	}
}

// reservedLane places the tasks whose reservation is due (P1) on its node, and
// takes room back for them there, in the order of their starts.
func (p *Policy) reservedLane() {
	for _, r := range p.due {
		j := p.s.Job(r.Job)
		if j == nil || !p.s.Node(r.Node).Takes() {
			continue
		}
		for _, g := range j.Stages {
			if r.Stage < 0 || r.Stage == g.Index {
				p.placeReserved(r, g)
			}
		}
	}
}

// placeReserved places what a reservation has room for of one stage.
func (p *Policy) placeReserved(r *scheduler.Reservation, g *scheduler.Stage) {
	if r.Task >= 0 && !g.IsPending(r.Task) {
		return
	}
	n := p.s.Node(r.Node)
	room := r.Demand
	if r.Task < 0 { // for what runs of its job too
		for a := range p.s.AttemptsOn(r.Node) {
			if a.ID.Job == r.Job {
				room = room.Sub(a.Held.Resources)
			}
		}
	}
	for p.left > 0 && g.Ready() && g.Startable() > 0 && g.Spec.Demand.Fits(room) {
		if _, _, _, ok := p.s.UnderCaps(g); !ok {
			return
		}
		task := p.taskAt(g, r.Node)
		if r.Task >= 0 {
			if task = r.Task; !g.IsPending(task) {
				return
			}
		}
		if _, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); !ok {
			p.vacate(r, g)
			return
		}
		p.place(g, task, r.Node)
		if planned(r) {
			if p.left > 0 { // else the next cycle does it
				p.do(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: r.ID}})
			}
			return
		}
		room = room.Sub(g.Spec.Demand)
	}
}

// vacate has victims on the reserved node make room for a task, though room is kept
// there for suspended ones to come back.
func (p *Policy) vacate(r *scheduler.Reservation, g *scheduler.Stage) {
	if p.cfg.Preempt == deadline.None || p.holdsAt(g, r.Node) >= p.owedCount(g, r.Node) {
		return
	}
	p.preempt.Deep = true // the next task that is due here needs the memory
	p.preempt.Due, p.past = true, true
	defer func() { p.preempt.Deep, p.preempt.Due, p.past = false, false, false }()
	if plan, ok := p.preempt.PlanOn(p.s, g, r.Node, p.now); ok {
		p.carryOut(g, plan, r.End)
	}
}

// owed tells whether a reservation of the job is due on a node for a task that
// waits.
func (p *Policy) owed(g *scheduler.Stage, node scheduler.NodeID) bool {
	return p.owedTask(g, node) >= 0
}

// owedTask is the first waiting task of a stage for which a reservation is due on
// a node, or -1.
func (p *Policy) owedTask(g *scheduler.Stage, node scheduler.NodeID) int32 {
	for _, r := range p.s.ReservationsOn(node) {
		if !p.owes(r, g) {
			continue
		}
		if r.Task < 0 {
			return p.taskAt(g, node)
		}
		if g.IsPending(r.Task) {
			return r.Task
		}
	}
	return -1
}

// owedCount counts the reservations due on a node for waiting tasks of a stage.
func (p *Policy) owedCount(g *scheduler.Stage, node scheduler.NodeID) (n int) {
	for _, r := range p.s.ReservationsOn(node) {
		if p.owes(r, g) && (r.Task < 0 || g.IsPending(r.Task)) {
			n++
		}
	}
	return n
}

// owes tells whether a reservation is due for a stage.
func (p *Policy) owes(r *scheduler.Reservation, g *scheduler.Stage) bool {
	return r.Kind.Promise() && r.Job == g.Job.Spec.ID && (r.Stage < 0 || r.Stage == g.Index) && r.Start <= p.now && r.End > p.now
}

// holdsAt counts the tasks of a stage that room on a node is kept for.
func (p *Policy) holdsAt(g *scheduler.Stage, node scheduler.NodeID) (n int) {
	for _, r := range p.s.ReservationsOn(node) {
		if r.Kind == scheduler.HoldPreempt && r.Task < 0 && r.Job == g.Job.Spec.ID && r.Stage == g.Index {
			n++
		}
	}
	return n
}

// keepsPromises tells whether the start of d more of a stage on a disk of a node,
// with space, leaves room for each promise there at its start, but for those of its
// job's stages that wait for it: beside it run those
// that have no bound and cannot be suspended, and those whose bound, or predicted
// end where the promise was made counting on that, is later. It
// is the rule of scheduler.Check, on the safe side for what this decision has
// placed. O(reservations²) there, and O(reservations x attempts) where even an
// empty node would have room.
func (p *Policy) keepsPromises(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16) bool {
	j := g.Job
	if p.yields(n, j) {
		return true
	}
	list := p.s.ReservationsOn(n.Spec.ID)
	if len(list) == 0 {
		return true
	}
	end := scheduler.Never
	if j.Spec.Bound > 0 {
		end = p.now.Add(j.Spec.Bound + p.cfg.Promises.Margin/2)
	}
	predicted := scheduler.Never
	if g.Spec.Estimate > 0 {
		predicted = p.now.Add(g.Spec.Estimate + p.cfg.Promises.Margin/2)
	}
	concerns := func(r *scheduler.Reservation) bool {
		return r.Kind.Promise() && r.End > p.now && r.Start < end && !(r.Start >= predicted && p.s.Foreseen(r, j)) && (r.Job != j.Spec.ID || (planned(r) && !p.comesAfter(j, r.Stage, g.Index)))
	}
	for _, r := range list {
		if concerns(r) && !(scheduler.Resources{}).Fits(n.Spec.Capacity.Sub(d).Sub(promisedAt(list, max(r.Start, p.now)))) {
			return false
		}
	}
	for _, r := range list {
		if concerns(r) && !p.findsRoom(r, n, d, space, disk) {
			return false
		}
	}
	return true
}

// comesAfter tells whether a stage of a job starts only when another is done.
// O(stages x what each waits for).
func (p *Policy) comesAfter(j *scheduler.Job, stage, other int32) bool {
	if stage <= other {
		return false // stages wait for earlier ones
	}
	p.behind = slices.Grow(p.behind[:0], int(stage)+1)[:stage+1]
	clear(p.behind)
	p.behind[stage] = true
	for i := stage; i > other; i-- {
		if p.behind[i] {
			for _, before := range j.Stages[i].Spec.After {
				p.behind[before] = true
			}
		}
	}
	return p.behind[other]
}

// promisedAt is what is promised on a node at an instant.
func promisedAt(list []*scheduler.Reservation, at scheduler.Time) (sum scheduler.Resources) {
	for _, o := range list {
		if o.Kind.Promise() && o.Start <= at && o.End > at {
			sum = sum.Add(o.Demand)
		}
	}
	return sum
}

// findsRoom tells whether a promise has its room at its start though d more is
// there: CPU, memory and I/O beside all that is promised then, disk space on the
// disks together, and for one task on one disk.
func (p *Policy) findsRoom(r *scheduler.Reservation, n *scheduler.Node, d scheduler.Resources, space int64, disk int16) bool {
	at := max(r.Start, p.now)
	free := n.Free.Sub(d)
	disks := append(p.disks[:0], n.Disks...)
	p.disks = disks
	if disk >= 0 && int(disk) < len(disks) {
		disks[disk].FreeIO -= d[scheduler.IO]
		disks[disk].FreeSpace -= space
	}
	for a := range p.s.AttemptsOn(n.Spec.ID) {
		k := p.s.StageOf(a).Job
		fresh := a.Placed == p.now && (a.Phase == scheduler.AttemptStarting || a.Phase == scheduler.AttemptResuming)
		leaves := isFor(r, a) || (k.Spec.Bound > 0 && a.Placed.Add(k.Spec.Bound) <= at) || p.yields(n, k)
		if !p.isGone(a, r) && (fresh || !leaves) {
			continue
		}
		free = free.Add(a.Held.Resources)
		if a.Disk >= 0 && int(a.Disk) < len(disks) {
			disks[a.Disk].FreeIO += a.Held.Resources[scheduler.IO]
			disks[a.Disk].FreeSpace += a.Held.Disk
		}
	}
	onOne, all := r.Task < 0 || (r.Demand[scheduler.IO] == 0 && r.Disk == 0), int64(0)
	for _, k := range disks {
		all += k.FreeSpace
		onOne = onOne || (k.FreeIO >= r.Demand[scheduler.IO] && k.FreeSpace >= r.Disk)
	}
	for _, o := range p.s.ReservationsOn(n.Spec.ID) {
		if o.Kind.Promise() && o.Start <= at && o.End > at {
			free = free.Sub(o.Demand)
			all -= o.Disk
		}
	}
	return (scheduler.Resources{}).Fits(free) && onOne && (all >= 0 || r.Disk == 0)
}

// isGone tells whether an attempt is predicted to end before a promise begins that
// was made counting on that.
func (p *Policy) isGone(a *scheduler.Attempt, r *scheduler.Reservation) bool {
	end, known := locality.EndOf(p.s, a)
	return known && end > p.now && end <= r.Start && a.Level == scheduler.LevelRunning && p.s.Foreseen(r, p.s.StageOf(a).Job)
}

// isFor tells whether what an attempt holds is part of what is reserved.
func isFor(r *scheduler.Reservation, a *scheduler.Attempt) bool {
	return a.ID.Job == r.Job && (!planned(r) || (a.ID.Stage == r.Stage && a.ID.Index == r.Task))
}

// yields tells whether tasks of a job can make room for a promise on a node.
func (p *Policy) yields(n *scheduler.Node, j *scheduler.Job) bool {
	return !p.s.Firm(j) &&
		(n.Spec.Levels.Has(scheduler.LevelSwapped) || n.Spec.Levels.Has(scheduler.LevelCheckpointed))
}
