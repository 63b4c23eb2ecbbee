package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
)

// reservedLane serves tasks that have a node reserved: by a guarantee that is due, or by preemption.
type reservedLane struct {
	c            *cycle
	open         *openNodes
	preemption   *preemption
	reservations *preemptReservations

	due            []*scheduler.Reservation // guarantees that are due, with a task left to place
	freed          []*scheduler.Reservation // preemption reservations of tasks that are not due
	withoutVictims []*scheduler.Stage       // stages that caps stop and that have no victims left in this pass

	state *scheduler.State // of ends
	now   scheduler.Time   // of the last collectDue
	ends  []nodeEnd        // by node
}

// nodeEnd is when the next attempt on a node should end by its bound, Never for none, at a version of the node.
type nodeEnd struct {
	version uint64
	at      scheduler.Time
}

// collectDue counts the guarantee reservations that have not ended and lists the due ones with a task
// left to place. If there are none, the rest of this file costs nothing. O(guarantees that have begun).
func (l *reservedLane) collectDue() {
	l.due, l.withoutVictims, l.c.capWaits = l.due[:0], l.withoutVictims[:0], l.c.capWaits[:0]
	if l.state != l.c.s || l.c.now < l.now {
		clear(l.ends)
	}
	l.state, l.now = l.c.s, l.c.now
	all := l.c.s.Reservations().Guarantees()
	count := len(all)
	for _, r := range all {
		if r.Start > l.c.now {
			l.c.wakeAt(r.Start)
			break
		}
		if r.End <= l.c.now || !isPlanned(r) {
			count--
			continue
		}
		l.wakeForEnds(r.Node)
		if g := l.c.s.Stage(r.StageID()); g != nil && g.Ready() {
			l.due = append(l.due, r)
		}
	}
	l.open.guaranteeCount = count
}

// wakeForEnds requests a cycle for when a task on a node should end by its bound: beside a due
// guarantee it then counts as ended, and others may start. O(1) while nothing happens on the node.
func (l *reservedLane) wakeForEnds(node scheduler.NodeID) {
	for len(l.ends) <= int(node) {
		l.ends = append(l.ends, nodeEnd{})
	}
	e := &l.ends[node]
	if version := l.c.s.Cluster().NodeVersion(node); e.version != version || e.at <= l.c.now {
		*e = nodeEnd{version, scheduler.Never}
		for a := range l.c.s.Attempts().On(node) {
			if end := l.c.s.StageOf(a).AssumedEnd(a); end > l.c.now {
				e.at = min(e.at, end)
			}
		}
	}
	l.c.wakeAt(e.at)
}

// serveDue places the tasks whose reservation is due (P1) on the reserved node, in order of start, and preempts for
// them there.
func (l *reservedLane) serveDue() {
	for _, r := range l.due {
		g := l.c.s.Stage(r.StageID())
		if !l.c.s.Node(r.Node).Schedulable() || !l.c.canStayOn(r) {
			continue // its task is planned again
		}
		if !g.IsPending(r.Task) || l.c.actionsLeft <= 0 || g.Startable() == 0 || !g.Spec.Demand.Fits(r.Demand) {
			continue
		}
		if l.placeOrPreempt(r, g) && l.c.s.TenantTree().HasCaps() {
			l.c.capWaits = append(l.c.capWaits, capWait{g, r})
		}
	}
}

// placeOrPreempt places a task into its reservation, or preempts for it if its node or a cap has
// too little. It reports whether the missing capacity is being freed.
func (l *reservedLane) placeOrPreempt(r *scheduler.Reservation, g *scheduler.Stage) bool {
	allowed := l.c.allows(g)
	_, fits := l.c.s.Node(r.Node).Fits(g.Spec.Demand, g.Spec.Disk)
	if allowed && fits {
		l.c.place(g, r.Task, r.Node)
		if l.c.actionsLeft > 0 { // otherwise the next cycle drops the reservation
			l.c.apply(scheduler.Unreserve(r.ID))
		}
		return false
	}
	if l.c.cfg.Preempt == deadline.None {
		return false
	}
	var victims []deadline.Victim
	ok := true
	if !allowed {
		if victims, ok = l.findCapVictims(r, g); !ok {
			return false // the node would free capacity in vain
		}
	}
	_, due := l.dueOn(g, r.Node)
	switch reserved := l.reservations.countOn(g, r.Node) >= due; {
	case fits && !reserved && l.c.actionsLeft > 0: // reserve its node while it waits for a cap
		l.reservations.reserve(g, -1, r.Node, g.Spec.Demand, g.Spec.Disk, r.End)
	case fits:
	case !reserved && !l.preemptOnNode(r, g): // before the victims for the caps: the victims on the node mostly count below these too
		return false
	case !allowed:
		victims, ok = l.findCapVictims(r, g)
	}
	l.preemption.preempt(victims)
	return ok
}

// findCapVictims finds victims for a due task that its tenants' caps stop; ok is false if none suffice.
// Then it searches no more for that stage in this pass. The victims are valid until the next search.
func (l *reservedLane) findCapVictims(r *scheduler.Reservation, g *scheduler.Stage) (victims []deadline.Victim, ok bool) {
	if slices.Contains(l.withoutVictims, g) {
		return nil, false
	}
	if victims, ok = l.preemption.capVictimsForDue(g, r.Node); !ok {
		l.withoutVictims = append(l.withoutVictims, g)
	}
	return victims, ok
}

// preemptOnNode preempts for a due task on its node. It reports whether the capacity is being freed.
func (l *reservedLane) preemptOnNode(r *scheduler.Reservation, g *scheduler.Stage) bool {
	plan, ok := l.victimsOnNode(r, g)
	return ok && l.preemption.apply(g, plan, r.End)
}

// victimsOnNode finds victims for a due task on its node, ignoring capacity reserved there for suspended tasks.
func (l *reservedLane) victimsOnNode(r *scheduler.Reservation, g *scheduler.Stage) (deadline.PreemptionPlan, bool) {
	l.open.ignoreResumeReservations = true
	defer func() { l.open.ignoreResumeReservations = false }()
	return l.preemption.victimsForDue(g, r.Node)
}

// dueOn returns the first waiting task of a stage with a guarantee in force on a node that stays to
// its end, -1 for none, and the number of such tasks.
func (l *reservedLane) dueOn(g *scheduler.Stage, node scheduler.NodeID) (first, n int32) {
	first = -1
	for _, r := range l.c.s.Reservations().On(node) {
		if isPlanned(r) && r.StageID() == g.ID() && r.Start <= l.c.now && r.End > l.c.now && l.c.canStayOn(r) && g.IsPending(r.Task) {
			if n++; n == 1 {
				first = r.Task
			}
		}
	}
	return first, n
}

// servePreempted places due tasks whose preemption reservation has its capacity, and drops useless reservations.
func (l *reservedLane) servePreempted() {
	l.reservations.refresh()
	l.freed = l.freed[:0]
	l.dropUnless(l.reservations.list, l.placeOrKeepReservation)
}

// dropUnless drops those preemption reservations of a list that need not stay.
func (l *reservedLane) dropUnless(list []*scheduler.Reservation, mustStay func(*scheduler.Reservation) bool) {
	for _, r := range list {
		if l.c.actionsLeft > 0 && !mustStay(r) && l.c.actionsLeft > 0 {
			l.reservations.drop(r)
		}
	}
}

// serveFreed places, after all due tasks, the tasks that are not due and whose preemption
// reservation has its capacity: caps may have too little for both.
func (l *reservedLane) serveFreed() { l.dropUnless(l.freed, l.placeFreed) }

// placeFreed places a task that is not due on the capacity freed for it. It reports whether the
// reservation must stay, as placeOrKeepReservation does.
func (l *reservedLane) placeFreed(r *scheduler.Reservation) bool {
	g, n := l.c.s.Stage(r.StageID()), l.c.s.Node(r.Node)
	if !g.Ready() || g.Startable() == 0 {
		return false
	}
	disk, ok := n.Fits(g.Spec.Demand, g.Spec.Disk)
	if ok && l.open.respectsReservations(n, g, g.Spec.Demand, g.Spec.Disk, disk, nil) && l.c.allows(g) {
		l.c.place(g, pickTaskFor(g, r.Node), r.Node)
		return false
	}
	return !n.Releasing.IsZero()
}

// placeOrKeepReservation places the task of a reservation if it is due and its capacity is free;
// tasks that are not due are left to serveFreed. It reports whether the reservation must stay: not
// if it is pointless or its task was just placed.
func (l *reservedLane) placeOrKeepReservation(r *scheduler.Reservation) bool {
	g := l.c.s.Stage(r.StageID())
	n := l.c.s.Node(r.Node)
	if g == nil || r.End <= l.c.now || !n.Schedulable() || g.Job.Phase != scheduler.JobActive {
		return false
	}
	l.c.wakeAt(r.End)
	if r.Task >= 0 { // reserved for a suspended task to resume
		a := l.reservations.suspendedAttemptOf(r)
		if a == nil || !l.open.mayReserveToResume(a, g) || l.reservations.hasOlder(a) {
			return false
		}
		if l.open.guaranteeCount > 0 && !n.CanPreempt(g.Job) {
			l.c.wakeAt(l.open.guarantees.leavesCapsUntil(g, a))
		}
		return true
	}
	task := int32(-1)
	if l.open.guaranteeCount > 0 {
		task, _ = l.dueOn(g, r.Node)
	}
	due := task >= 0
	if !g.Ready() || (!due && (!l.c.inLane(g.Job) || l.c.s.Cluster().Avoids(g, r.Node))) || g.Startable() == 0 {
		return false
	}
	_, ok := n.Fits(g.Spec.Demand, g.Spec.Disk)
	if ok && !due {
		l.freed = append(l.freed, r)
		return true
	}
	if ok && l.c.allows(g) {
		l.c.place(g, task, r.Node)
		return false
	}
	return !n.Releasing.IsZero() || (due && (ok || l.awaitsStart(r, g))) // if the task fits, a cap stops it
}

// awaitsStart reports whether a due task's preemption reservation lacks only attempts that start or
// resume on its node and can be preempted once they run.
func (l *reservedLane) awaitsStart(r *scheduler.Reservation, g *scheduler.Stage) bool {
	if l.c.cfg.Preempt == deadline.None {
		return false
	}
	l.open.ignored = r
	defer func() { l.open.ignored = nil }()
	plan, ok := l.victimsOnNode(r, g)
	return ok && plan.AwaitsStart && len(plan.Victims) == 0
}
