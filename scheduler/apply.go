package scheduler

import (
	"fmt"
	"slices"
)

// Apply executes an action on the State: a placement takes effect at once, a suspension, migration or kill stays in
// progress until the node reports it. It returns an error for an invalid (ErrUnknown, ErrInvalid) or stale (ErrStale)
// action or one that does not fit (ErrNoCapacity), and then changes nothing. Check alone checks caps and reservations.
// Rollback undoes it inside a try. O(1) plus the tenant's depth; no allocation once the State has its size.
func (s *State) Apply(a *Action, now Time) error { return s.applier().apply(a, now, true) }

// ApplyFact is Apply for an action that is already committed to a log. It does not check free capacity (which
// may become negative), whether the node is schedulable, whether the stage is open (map outputs may have been
// lost since) or which levels nodes support. It may resume a parked attempt, which no policy may: users do.
func (s *State) ApplyFact(a *Action, now Time) error { return s.applier().apply(a, now, false) }

// applier executes actions on a State.
type applier struct{ s *State }

// target is the object of an action on a task or an attempt.
type target struct {
	g    *Stage
	a    *Attempt // nil for a placement
	slot int32    // slot of a
	n    *Node    // node of a placement, or target of a migration
}

// apply implements Apply (verify is true) and ApplyFact (verify is false: the action is already committed).
func (p applier) apply(act *Action, now Time, verify bool) error {
	var err error
	switch act.Kind {
	case ActReserve:
		err = p.reserve(&act.Reservation)
	case ActUnreserve:
		err = p.unreserve(act.Reservation.ID)
	default:
		var t target
		if t, err = p.find(act, verify); err == nil {
			p.change(act, &t, now)
		}
	}
	if err == nil {
		p.s.Journal().countStep()
	}
	return err
}

// find returns the target of an action on a task or an attempt, or why it is impossible now. verify is as in apply.
func (p applier) find(act *Action, verify bool) (t target, err error) {
	run := act.Run
	switch act.Kind {
	case ActPlace:
		if t.g, err = p.findPlacement(act, verify); err == nil {
			t.n, err = p.findNode(act, t.g.Spec.Demand, t.g.Spec.Disk, verify)
		}
		return t, err
	case ActMigrate:
		run--
	case ActSuspend, ActResume, ActKill:
	default:
		return t, refuse(ErrInvalid, "action", "kind is %v", act.Kind)
	}
	if t.a, t.g, t.slot, err = p.findAttempt(act.AttemptID(), run); err != nil {
		return t, err
	}
	switch act.Kind {
	case ActSuspend:
		err = p.checkSuspend(t.a, act.Level, verify)
	case ActResume:
		err = p.checkResume(t.a, verify)
	case ActMigrate:
		t.n, err = p.findMigration(act, t.a, verify)
	default:
		if t.a.Phase == AttemptKilling {
			err = t.a.refuse(ErrStale, "it is already being killed")
		}
	}
	return t, err
}

func (a *Attempt) refuse(class error, format string, args ...any) error {
	return refuse(class, "attempt "+a.ID.String(), format, args...)
}

// findPlacement returns the stage of a placement, or an error if its task cannot be placed.
func (p applier) findPlacement(a *Action, verify bool) (*Stage, error) {
	g := p.s.Stage(a.Task.StageID())
	i := a.Task.Index
	if !g.hasTask(i) {
		return nil, refuse(ErrUnknown, "task "+a.Task.String(), "there is no such task")
	}
	switch {
	case !a.Speculative && (!g.pending.has(i) || verify && !g.Open || g.Job.Phase != JobActive):
		return nil, refuse(ErrStale, "task "+a.Task.String(), "it is not pending")
	case a.Speculative && (!g.busy.has(i) || g.done.has(i) || p.s.Attempts().at(g.active.get(i)-1).sibling != 0 || verify && !g.Open || g.Job.Phase != JobActive):
		return nil, refuse(ErrStale, "task "+a.Task.String(), "it cannot have a second attempt now")
	}
	// A committed placement may be of an attempt that moved since, or that a restored cluster had;
	// its run is then above 1.
	if want := p.s.Attempts().NextAttempt(g, i); a.Attempt != want || a.Run < 1 {
		return nil, refuse(ErrStale, "task "+a.Task.String(), "attempt %d run %d: the next one is %d run 1", a.Attempt, a.Run, want)
	}
	return g, nil
}

// findNode returns the node of a placement or migration. With verify it returns an error unless the
// node is schedulable and fits the demand.
func (p applier) findNode(act *Action, d Resources, space int64, verify bool) (*Node, error) {
	id, disk := act.Node, act.Disk
	n := p.s.Node(id)
	if n == nil {
		return nil, refuse(ErrUnknown, fmt.Sprintf("node %d", id), "there is no such node")
	}
	if int(disk) >= len(n.Disks) || disk < -1 || (disk == -1 && (d[IO] > 0 || space > 0)) {
		return nil, refuse(ErrUnknown, fmt.Sprintf("node %d", id), "it has no disk %d", disk)
	}
	if verify && !n.Schedulable() {
		return nil, refuse(ErrNoCapacity, fmt.Sprintf("node %d", id), "it is not schedulable")
	}
	if verify && !n.hasCapacity(disk, d, space) {
		return nil, refuse(ErrNoCapacity, fmt.Sprintf("node %d", id), "%s and %d bytes on disk %d do not fit", d, space, disk)
	}
	return n, nil
}

// hasCapacity reports whether d and space fit on the node and its disk. Zero parts fit even where Free is negative.
func (n *Node) hasCapacity(disk int16, d Resources, space int64) bool {
	if (d[CPU] > 0 && d[CPU] > n.Free[CPU]) || (d[Memory] > 0 && d[Memory] > n.Free[Memory]) {
		return false
	}
	if disk < 0 {
		return true
	}
	k := &n.Disks[disk]
	return (d[IO] == 0 || d[IO] <= k.FreeIO) && (space == 0 || space <= k.FreeSpace)
}

func (p applier) place(act *Action, g *Stage, n *Node, now Time) {
	slot := p.s.Attempts().newSlot()
	a := p.s.Attempts().at(slot)
	p.s.seq++
	*a = Attempt{ID: act.AttemptID(), Node: act.Node, Disk: act.Disk, Level: LevelRunning, Phase: AttemptStarting,
		Speculative: act.Speculative, Placed: now, Seq: p.s.seq, attemptDetails: g.sharedDetails()}
	if act.Run != a.Run {
		a.ownDetails().Run = act.Run
	}
	first := g.Job.FirstPlaced == 0
	if first {
		g.Job.FirstPlaced = max(now, 1)
	}
	if p.s.undo.depth > 0 {
		p.s.undo.records = append(p.s.undo.records, undoRec{op: undoPlace, first: first, slot: slot, taskTime: g.taskTime, lastTick: g.lastTick})
	}
	g.accrueTaskTime(now)
	n.attempts = append(n.attempts, slot)
	p.s.links().setPlaced(g, a, slot, 1)
	if !g.Open {
		p.s.stalled.update(g)
	}
}

// accrueTaskTime adds the running time since lastTick to taskTime. It must be called before Running changes.
func (g *Stage) accrueTaskTime(now Time) {
	g.begin()
	if now > g.lastTick {
		g.taskTime += float64(g.Running) * float64(now-g.lastTick)
		g.lastTick = now
	}
}

// begin records for Job.Begun that an attempt of the stage was placed. Rollback does not undo it.
func (g *Stage) begin() { g.Job.begun = max(g.Job.begun, uint16(g.Index+1)) }

func (g *Stage) addPending(n int32) {
	g.Pending += n
	g.Job.Pending += int64(n)
}

// occupy subtracts an attempt's occupancy from a node's free capacity (sign 1), or adds it back (sign -1).
func (n *Node) occupy(disk int16, h *Occupancy, sign int64) {
	if sign < 0 {
		n.Free = n.Free.Add(h.Resources)
	} else {
		n.Free = n.Free.Sub(h.Resources)
	}
	n.SwapFree -= sign * h.Swap
	if disk >= 0 {
		n.Disks[disk].FreeIO -= sign * h.Resources[IO]
		n.Disks[disk].FreeSpace -= sign * h.Disk
	}
}

// findAttempt returns the live attempt with this id and run, its stage and its slot.
func (p applier) findAttempt(id AttemptID, run int32) (*Attempt, *Stage, int32, error) {
	g := p.s.Stage(id.StageID())
	if !g.hasTask(id.Index) {
		return nil, nil, 0, refuse(ErrUnknown, "attempt "+id.String(), "there is no such task, or its job has ended")
	}
	for slot := g.active.get(id.Index) - 1; slot >= 0; slot = p.s.Attempts().at(slot).sibling - 1 {
		if a := p.s.Attempts().at(slot); a.ID.Attempt == id.Attempt {
			if a.Run != run {
				return nil, nil, 0, refuse(ErrStale, "attempt "+id.String(), "run %d is not the current run %d", run, a.Run)
			}
			return a, g, slot, nil
		}
	}
	return nil, nil, 0, refuse(ErrStale, "attempt "+id.String(), "it is not live")
}

// PendingRelease returns what the suspension or kill in progress will free, an estimate until the node measures it.
func (a *Attempt) PendingRelease() Resources {
	switch {
	case a.Phase == AttemptSuspending && a.Target == LevelFrozen:
		return Resources{CPU: a.Occupied.Resources[CPU], IO: a.Occupied.Resources[IO]}
	case a.Phase == AttemptSuspending || a.Phase == AttemptKilling:
		return a.Occupied.Resources
	default:
		return Resources{}
	}
}

// change executes an action that find has found possible.
func (p applier) change(act *Action, t *target, now Time) {
	if act.Kind == ActPlace {
		p.place(act, t.g, t.n, now)
		return
	}
	a := t.a
	p.s.Journal().saveAttempt(a, t.g, t.slot)
	switch act.Kind {
	case ActResume, ActMigrate:
		p.resume(act, t, now)
	case ActSuspend, ActKill:
		was := a.PendingRelease()
		a.Phase = AttemptKilling
		if act.Kind == ActSuspend {
			a.Phase, a.Target = AttemptSuspending, act.Level
		}
		p.s.links().release(a, t.g.Job, a.PendingRelease().Sub(was))
		p.s.changeLog.recordJob(t.g.Job)
		p.s.cluster.updateFitIndex(a.Node)
	default:
		panic(fmt.Sprintf("scheduler: an action of kind %v that find found possible", act.Kind))
	}
}

// resume resumes an attempt on its node, or on the target of its migration.
func (p applier) resume(act *Action, t *target, now Time) {
	a := t.a
	p.s.links().detach(a, t.slot)
	t.g.accrueTaskTime(now)
	if act.Kind == ActMigrate {
		d := a.ownDetails()
		d.Ran = a.RanFor(now)
		d.From, d.FromDisk, d.FromOccupied = a.Node, a.Disk, a.Occupied
		a.Node, a.Disk, d.Run = act.Node, act.Disk, act.Run
	}
	p.s.links().beginResume(a, now)
	p.s.links().attach(a, t.slot)
}

func (p applier) checkSuspend(a *Attempt, to Level, verify bool) error {
	n := p.s.cluster.nodes[a.Node]
	switch {
	case !to.Suspended():
		return a.refuse(ErrInvalid, "cannot suspend to level %v: use frozen, swapped or checkpointed", to)
	case a.Phase != AttemptStarting && a.Phase != AttemptRunning && a.Phase != AttemptSuspended:
		return a.refuse(ErrStale, "it is %v", a.Phase)
	case a.Phase == AttemptSuspended && to <= a.Level:
		return a.refuse(ErrStale, "it is already %v", a.Level)
	case verify && !n.CanReach(a, to):
		return a.refuse(ErrInvalid, "its node %q does not support level %v or has refused it", n.Spec.Name, to)
	}
	return nil
}

func (p applier) checkResume(a *Attempt, verify bool) error {
	if a.Phase != AttemptSuspended {
		return a.refuse(ErrStale, "it is %v, not suspended", a.Phase)
	}
	if verify && a.Parked {
		return a.refuse(ErrStale, "it is parked")
	}
	if verify && !a.FitsBack(p.s.cluster.nodes[a.Node]) {
		return refuse(ErrNoCapacity, fmt.Sprintf("node %d", a.Node), "what attempt %s needs again does not fit", a.ID)
	}
	return nil
}

// FitsBack reports whether the node of a suspended attempt, which may be draining, has free what the attempt
// needs beyond what it occupies. A resource of which it needs nothing more fits even if Free is negative. O(1).
func (a *Attempt) FitsBack(n *Node) bool {
	more := a.Demand.Sub(a.Occupied.Resources).Max(Resources{})
	return !n.Spec.Down && n.hasCapacity(a.Disk, more, max(a.DiskSpace-a.Occupied.Disk, 0))
}

func (p applier) findMigration(act *Action, a *Attempt, verify bool) (*Node, error) {
	switch {
	case a.From != NoNode:
		return nil, a.refuse(ErrStale, "it is already migrating")
	case a.Phase != AttemptRunning && a.Phase != AttemptSuspended:
		return nil, a.refuse(ErrStale, "it is %v", a.Phase)
	case verify && a.Parked:
		return nil, a.refuse(ErrStale, "it is parked")
	case act.Node == a.Node:
		return nil, a.refuse(ErrInvalid, "it is already on node %d: resume it there", a.Node)
	}
	n, err := p.findNode(act, a.Demand, a.DiskSpace, verify)
	if from := &p.s.cluster.nodes[a.Node].Spec; err == nil && verify && !CanRestore(from, &n.Spec) {
		err = a.refuse(ErrInvalid, "node %q cannot restore a checkpoint of node %q", n.Spec.Name, from.Name)
	}
	return n, err
}

// CanRestore reports whether an image that was checkpointed on one node can be restored on
// another: both support checkpoints, and the CPU class is the same or listed in Restores.
func CanRestore(from, to *NodeSpec) bool {
	if !from.Levels.Has(LevelCheckpointed) || !to.Levels.Has(LevelCheckpointed) {
		return false
	}
	return from.CPUClass == to.CPUClass || slices.Contains(to.Restores, from.CPUClass)
}

func (p applier) reserve(r *Reservation) error {
	if err := p.checkReservation(r); err != nil {
		return err
	}
	if p.s.Reservations().Left() <= 0 && p.s.Reservations().Get(r.ID) == nil {
		return r.refuseAdded()
	}
	old, had := p.s.Reservations().put(*r)
	save(&p.s.undo, &p.s.undo.reservations, old, undoRec{op: undoReservation, isNew: !had})
	return nil
}

// checkReservation returns an error if a reservation has an invalid value or names an unknown object.
func (p applier) checkReservation(r *Reservation) error {
	if err := r.validate(); err != nil {
		return err
	}
	switch {
	case p.s.Node(r.Node) == nil:
		return r.refuse(ErrUnknown, "its node %d is unknown", r.Node)
	case r.Job != 0 && p.s.jobs[r.Job] == nil:
		return r.refuse(ErrUnknown, "its job %d does not exist", r.Job)
	case r.Job == 0 && p.s.projects[r.Project] == nil:
		return r.refuse(ErrUnknown, "it has no job and its project %d does not exist", r.Project)
	}
	return nil
}

func (r *Reservation) refuse(class error, format string, args ...any) error {
	return refuse(class, fmt.Sprintf("reservation %d", r.ID), format, args...)
}

// refuseAdded returns the error for a reservation beyond the maximum.
func (r *Reservation) refuseAdded() error {
	return r.refuse(ErrInvalid, "there are already the maximum of %d reservations", maxReservations)
}

func (p applier) unreserve(id ReservationID) error {
	i, ok := p.s.Reservations().find(id)
	if !ok {
		return refuse(ErrStale, fmt.Sprintf("reservation %d", id), "there is no such reservation")
	}
	save(&p.s.undo, &p.s.undo.reservations, *p.s.reservations[i], undoRec{op: undoReservation})
	p.s.Reservations().drop(i)
	return nil
}
