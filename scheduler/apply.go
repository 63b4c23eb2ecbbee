package scheduler

import (
	"fmt"
	"slices"
	"sort"
)

// Apply executes an action on the State: a placement takes effect at once, a suspension,
// migration or kill stays in progress until the node reports it. It returns an error for an
// invalid (ErrUnknown, ErrInvalid) or stale (ErrStale) action or one that does not fit
// (ErrNoCapacity), and then changes nothing. Caps and reservations are checked by Check alone.
// Rollback undoes it inside a try. O(1) plus the tenant's depth; no allocation once the State
// has reached its size.
func (s *State) Apply(a *Action, now Time) error { return s.apply(a, now, true) }

// ApplyFact is Apply for an action that was already committed to a log. It does not check free
// capacity or whether the node is schedulable, so Free may become negative.
func (s *State) ApplyFact(a *Action, now Time) error { return s.apply(a, now, false) }

// apply implements Apply and ApplyFact. With verify it checks that the action fits.
func (s *State) apply(a *Action, now Time, verify bool) error {
	var err error
	switch a.Kind {
	case ActPlace:
		err = s.applyPlace(a, now, verify)
	case ActSuspend:
		err = s.applySuspend(a, verify)
	case ActResume:
		err = s.applyResume(a, now, verify)
	case ActMigrate:
		err = s.applyMigrate(a, now, verify)
	case ActKill:
		err = s.applyKill(a)
	case ActReserve:
		err = s.applyReserve(&a.Reservation)
	case ActUnreserve:
		err = s.applyUnreserve(a.Reservation.ID)
	default:
		err = refuse(ErrInvalid, "action", "kind is %v", a.Kind)
	}
	if err == nil {
		s.countStep()
	}
	return err
}

// countStep counts a change, or a step of the current try.
func (s *State) countStep() {
	if s.undo.depth == 0 {
		s.countChange()
	} else {
		s.undo.steps++
	}
}

// findPlacement returns the stage of a placement, or an error if its task cannot be placed.
func (s *State) findPlacement(a *Action, verify bool) (*Stage, error) {
	g := s.stageFor(a.Task.StageID())
	i := a.Task.Index
	if g == nil || i < 0 || i >= g.Spec.Tasks {
		return nil, refuse(ErrUnknown, "task "+a.Task.String(), "there is no such task")
	}
	switch {
	case !a.Speculative && (!g.pending.has(i) || !g.Open || g.Job.Phase != JobActive):
		return nil, refuse(ErrStale, "task "+a.Task.String(), "it is not pending")
	case a.Speculative && (!g.busy.has(i) || g.done.has(i) || s.attemptAt(g.active[i]-1).sibling != 0 || verify && !g.Open || g.Job.Phase != JobActive):
		return nil, refuse(ErrStale, "task "+a.Task.String(), "it cannot have a second attempt now")
	}
	// A committed placement may be of an attempt that has moved since: its run is then higher.
	if want := s.NextAttempt(g, i); a.Attempt != want || a.Run < 1 || verify && a.Run != 1 {
		return nil, refuse(ErrStale, "task "+a.Task.String(), "attempt %d run %d: the next one is %d run 1", a.Attempt, a.Run, want)
	}
	return g, nil
}

// findTarget returns the node that an attempt is to occupy. With verify it returns an error
// unless the node is schedulable and fits the demand.
func (s *State) findTarget(id NodeID, disk int16, d Resources, space int64, verify bool) (*Node, error) {
	n := s.Node(id)
	if n == nil {
		return nil, refuse(ErrUnknown, fmt.Sprintf("node %d", id), "there is no such node")
	}
	if int(disk) >= len(n.Disks) || disk < -1 || (disk == -1 && (d[IO] > 0 || space > 0)) {
		return nil, refuse(ErrUnknown, fmt.Sprintf("node %d", id), "it has no disk %d", disk)
	}
	if !verify {
		return n, nil
	}
	if !n.Schedulable() {
		return nil, refuse(ErrNoCapacity, fmt.Sprintf("node %d", id), "it is not schedulable")
	}
	if !n.hasCapacity(disk, d, space) {
		return nil, refuse(ErrNoCapacity, fmt.Sprintf("node %d", id), "%s and %d bytes on disk %d do not fit", d, space, disk)
	}
	return n, nil
}

// hasCapacity reports whether d and space fit on the node and its disk. Zero parts always fit,
// even where Free is negative.
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

func (s *State) applyPlace(act *Action, now Time, verify bool) error {
	g, err := s.findPlacement(act, verify)
	if err != nil {
		return err
	}
	n, err := s.findTarget(act.Node, act.Disk, g.Spec.Demand, g.Spec.Disk, verify)
	if err != nil {
		return err
	}
	i := act.Task.Index
	slot := s.newSlot()
	a := s.attemptAt(slot)
	s.seq++
	*a = Attempt{ID: act.AttemptID(), Node: act.Node, Disk: act.Disk, Level: LevelRunning, Phase: AttemptStarting,
		Speculative: act.Speculative, Placed: now, Seq: s.seq, attemptDetails: g.sharedDetails()}
	if act.Run != a.Run {
		a.ownDetails().Run = act.Run
	}
	first := uint8(0)
	if g.Job.FirstPlaced == 0 {
		g.Job.FirstPlaced, first = max(now, 1), 1
	}
	if s.undo.depth > 0 {
		s.undo.records = append(s.undo.records, undoRec{op: undoPlace, phase: first, slot: slot, taskTime: g.taskTime, lastTick: g.lastTick})
	}
	g.accrueTaskTime(now)
	if act.Speculative {
		s.attemptAt(g.active[i] - 1).sibling = slot + 1
	} else {
		g.pending.clear(i)
		g.busy.set(i)
		g.active[i] = slot + 1
		g.Pending--
	}
	g.Running++
	g.Job.Live++
	s.live++
	n.attempts = append(n.attempts, slot)
	s.occupy(n, act.Disk, &a.Occupied, 1)
	s.charge(g.Job, a.Occupied.Resources, 1)
	s.updateFitIndex(act.Node)
	if g.Pending == 0 {
		s.updateReady(g)
	}
	return nil
}

// revertPlace undoes applyPlace.
func (s *State) revertPlace(r *undoRec) {
	a := s.attemptAt(r.slot)
	g := s.stages[a.stage]
	n := s.nodes[a.Node]
	i := a.ID.Index
	n.attempts = n.attempts[:len(n.attempts)-1]
	s.occupy(n, a.Disk, &a.Occupied, -1)
	s.charge(g.Job, Resources{}.Sub(a.Occupied.Resources), -1)
	s.updateFitIndex(a.Node)
	if a.Speculative {
		s.attemptAt(g.active[i] - 1).sibling = 0
	} else {
		g.active[i] = 0
		g.busy.clear(i)
		g.pending.set(i)
		g.Pending++
	}
	g.Running--
	g.Job.Live--
	s.live--
	g.taskTime, g.lastTick = r.taskTime, r.lastTick
	if r.phase == 1 {
		g.Job.FirstPlaced = 0
	}
	if g.Pending == 1 {
		s.updateReady(g)
	}
	s.freeSlots = append(s.freeSlots, r.slot)
}

// Withdraw takes back a placement of the current try, so that its task is pending again; later
// actions of the try stay. It returns ErrStale unless the attempt is the first at its task and
// was placed in this try. Rollback undoes it. O(1) plus the tenant's depth and the attempts on
// the node.
func (s *State) Withdraw(act *Action) error {
	a, _, slot, err := s.findAttempt(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	if s.undo.depth == 0 || act.Kind != ActPlace || a.Phase != AttemptStarting || a.Speculative || a.sibling != 0 || !s.placedInTry(slot) {
		return refuse(ErrStale, "attempt "+a.ID.String(), "it was not placed in the current try")
	}
	s.relinkStarting(a, slot, -1)
	s.undo.records = append(s.undo.records, undoRec{op: undoWithdraw, slot: slot})
	return nil
}

// placedInTry reports whether the attempt in a slot was placed in the current try.
func (s *State) placedInTry(slot int32) bool {
	for i := len(s.undo.records) - 1; i >= 0; i-- {
		if r := &s.undo.records[i]; r.op == undoPlace && r.slot == slot {
			return true
		}
	}
	return false
}

// relinkStarting removes (sign -1) a starting attempt from its task and its node, or adds it
// back (sign 1).
func (s *State) relinkStarting(a *Attempt, slot int32, sign int64) {
	g := s.stages[a.stage]
	n := s.nodes[a.Node]
	i := a.ID.Index
	s.updateSlotList(&n.attempts, slot, sign, s.bySeq)
	s.occupy(n, a.Disk, &a.Occupied, sign)
	s.charge(g.Job, a.Occupied.Resources.Times(sign), int32(sign))
	s.updateFitIndex(a.Node)
	if sign < 0 {
		g.active[i] = 0
		g.busy.clear(i)
		g.pending.set(i)
	} else {
		g.pending.clear(i)
		g.busy.set(i)
		g.active[i] = slot + 1
	}
	g.Pending -= int32(sign)
	g.Running += int32(sign)
	g.Job.Live += int32(sign)
	s.live += int32(sign)
	s.updateReady(g)
}

// accrueTaskTime adds the running time since lastTick to taskTime. It must be called before
// Running changes.
func (g *Stage) accrueTaskTime(now Time) {
	if now > g.lastTick {
		g.taskTime += float64(g.Running) * float64(now-g.lastTick)
		g.lastTick = now
	}
}

// occupy takes (sign 1) or frees (sign -1) what an attempt occupies on a node.
func (s *State) occupy(n *Node, disk int16, h *Occupancy, sign int64) {
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

// charge adds d to the use of a job, its tenant and the tenants above it.
func (s *State) charge(j *Job, d Resources, running int32) {
	s.recordJobChange(j)
	j.Used = j.Used.Add(d)
	t := s.tenants[j.Spec.Tenant]
	t.Own = t.Own.Add(d)
	s.chargeUp(j.Spec.Tenant, d, running)
}

// findAttempt returns the live attempt with this id and run, its stage and its slot.
func (s *State) findAttempt(id AttemptID, run int32) (*Attempt, *Stage, int32, error) {
	g := s.stageFor(id.StageID())
	if g == nil || id.Index < 0 || id.Index >= g.Spec.Tasks {
		return nil, nil, 0, refuse(ErrUnknown, "attempt "+id.String(), "there is no such task, or its job has ended")
	}
	for slot := g.active[id.Index] - 1; slot >= 0; slot = s.attemptAt(slot).sibling - 1 {
		if a := s.attemptAt(slot); a.ID.Attempt == id.Attempt {
			if a.Run != run {
				return nil, nil, 0, refuse(ErrStale, "attempt "+id.String(), "run %d is not the current run %d", run, a.Run)
			}
			return a, g, slot, nil
		}
	}
	return nil, nil, 0, refuse(ErrStale, "attempt "+id.String(), "it is not live")
}

// saveForUndo records an attempt before it changes, for Rollback.
func (s *State) saveForUndo(a *Attempt, g *Stage, slot int32) {
	if s.undo.depth > 0 {
		s.undo.attempts = append(s.undo.attempts, undoneAttempt{*a, *a.attemptDetails})
		s.undo.records = append(s.undo.records, undoRec{op: undoAttempt, slot: slot, taskTime: g.taskTime, lastTick: g.lastTick})
	}
}

// revertAttempt undoes a change to an attempt.
func (s *State) revertAttempt(r *undoRec, was *undoneAttempt) {
	a := s.attemptAt(r.slot)
	g := s.stages[a.stage]
	sibling := a.sibling
	if a.attemptDetails == was.attemptDetails && *a.attemptDetails == was.savedDetails && a.Node == was.Node && a.Disk == was.Disk && a.Level == was.Level && a.Seq == was.Seq {
		released := a.pendingRelease()
		*a = was.Attempt
		a.sibling = sibling
		s.updateReleasing(a, released)
		g.taskTime, g.lastTick = r.taskTime, r.lastTick
		return
	}
	s.detach(a, r.slot)
	*a = was.Attempt
	a.sibling = sibling
	if a.attemptDetails.owned {
		*a.attemptDetails = was.savedDetails
	}
	s.attach(a, r.slot)
	g.taskTime, g.lastTick = r.taskTime, r.lastTick
}

// detach removes an attempt and what it occupies from nodes, tenants, counts and the list of
// suspended attempts; attach is its inverse.
func (s *State) detach(a *Attempt, slot int32) { s.setAttached(a, slot, -1) }

func (s *State) attach(a *Attempt, slot int32) { s.setAttached(a, slot, 1) }

// setAttached attaches an attempt (sign 1) or detaches it (sign -1).
func (s *State) setAttached(a *Attempt, slot int32, sign int64) {
	g := s.stages[a.stage]
	n := s.nodes[a.Node]
	s.occupy(n, a.Disk, &a.Occupied, sign)
	n.Releasing = n.Releasing.Add(a.pendingRelease().Times(sign))
	s.updateSlotList(&n.attempts, slot, sign, s.bySeq)
	if a.From != NoNode {
		from := s.nodes[a.From]
		s.occupy(from, a.FromDisk, &a.FromOccupied, sign)
		from.Releasing = from.Releasing.Add(a.FromOccupied.Resources.Times(sign))
		s.updateSlotList(&from.moving, slot, sign, s.bySeq)
		s.updateFitIndex(a.From)
	}
	running := int32(0)
	if a.Level == LevelRunning {
		running = int32(sign)
		g.Running += running
	} else {
		g.Suspended += int32(sign)
		s.updateSlotList(&s.suspended, slot, sign, s.bySuspension)
	}
	s.charge(g.Job, a.Occupied.Resources.Times(sign), running)
	s.updateFitIndex(a.Node)
}

// pendingRelease returns what the node will regain from the suspension or kill in progress, as
// far as is known before it is measured.
func (a *Attempt) pendingRelease() Resources {
	switch a.Phase {
	case AttemptKilling:
		return a.Occupied.Resources
	case AttemptSuspending:
		switch a.Target {
		case LevelFrozen:
			return Resources{CPU: a.Occupied.Resources[CPU], IO: a.Occupied.Resources[IO]}
		default:
			return a.Occupied.Resources
		}
	default:
		return Resources{}
	}
}

func (s *State) bySeq(x, y int32) bool { return s.attemptAt(x).Seq < s.attemptAt(y).Seq }

// bySuspension orders slots by the time of suspension, then by placement.
func (s *State) bySuspension(x, y int32) bool {
	a, b := s.attemptAt(x), s.attemptAt(y)
	if a.SuspendedAt != b.SuspendedAt {
		return a.SuspendedAt < b.SuspendedAt
	}
	return a.Seq < b.Seq
}

// updateSlotList inserts a slot into an ordered list (sign 1) or removes it (sign -1).
func (s *State) updateSlotList(l *[]int32, slot int32, sign int64, less func(x, y int32) bool) {
	if sign < 0 {
		i := sort.Search(len(*l), func(k int) bool { return !less((*l)[k], slot) })
		if i == len(*l) || (*l)[i] != slot { // two slots with equal keys
			i = slices.Index(*l, slot)
		}
		if i >= 0 {
			*l = slices.Delete(*l, i, i+1)
		}
		return
	}
	i := len(*l)
	if i > 0 && less(slot, (*l)[i-1]) {
		i = sort.Search(i, func(k int) bool { return less(slot, (*l)[k]) })
	}
	*l = slices.Insert(*l, i, slot)
}

func (s *State) applySuspend(act *Action, verify bool) error {
	a, g, slot, err := s.findAttempt(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	what := func() string { return "attempt " + a.ID.String() }
	if !act.Level.Suspended() {
		return refuse(ErrInvalid, what(), "cannot suspend to level %v: use frozen, swapped or checkpointed", act.Level)
	}
	n := s.nodes[a.Node]
	switch {
	case a.Phase != AttemptStarting && a.Phase != AttemptRunning && a.Phase != AttemptSuspended:
		return refuse(ErrStale, what(), "it is %v", a.Phase)
	case a.Phase == AttemptSuspended && act.Level <= a.Level:
		return refuse(ErrStale, what(), "it is already %v", a.Level)
	case verify && a.RefusedLevels.Has(act.Level):
		return refuse(ErrInvalid, what(), "its node %q has refused level %v", n.Spec.Name, act.Level)
	case verify && !n.Spec.Levels.Has(act.Level):
		return refuse(ErrInvalid, what(), "its node %q does not support level %v", n.Spec.Name, act.Level)
	}
	s.saveForUndo(a, g, slot)
	was := a.pendingRelease()
	a.Phase, a.Target = AttemptSuspending, act.Level
	s.updateReleasing(a, was)
	return nil
}

// updateReleasing updates the node after a change of an attempt that affects nothing but its
// pending release. was is the pending release before.
func (s *State) updateReleasing(a *Attempt, was Resources) {
	n := s.nodes[a.Node]
	n.Releasing = n.Releasing.Sub(was).Add(a.pendingRelease())
	s.recordJobChange(s.stages[a.stage].Job)
	s.updateFitIndex(a.Node)
}

func (s *State) applyResume(act *Action, now Time, verify bool) error {
	a, g, slot, err := s.findAttempt(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	if a.Phase != AttemptSuspended {
		return refuse(ErrStale, "attempt "+a.ID.String(), "it is %v, not suspended", a.Phase)
	}
	if verify {
		more := a.Demand.Sub(a.Occupied.Resources).Max(Resources{})
		n := s.nodes[a.Node]
		if n.Spec.Down || !n.hasCapacity(a.Disk, more, max(a.DiskSpace-a.Occupied.Disk, 0)) {
			return refuse(ErrNoCapacity, fmt.Sprintf("node %d", a.Node), "%s more for attempt %s does not fit", more, a.ID)
		}
	}
	s.saveForUndo(a, g, slot)
	s.detach(a, slot)
	g.accrueTaskTime(now)
	s.beginResume(a, now)
	s.attach(a, slot)
	return nil
}

// beginResume sets an attempt to resuming; it occupies what a running one does.
func (s *State) beginResume(a *Attempt, now Time) {
	a.Phase, a.Target, a.Level = AttemptResuming, LevelRunning, LevelRunning
	a.ownDetails().Occupied = Occupancy{Resources: a.Demand, Disk: a.DiskSpace}
	a.Placed = now
}

func (s *State) applyMigrate(act *Action, now Time, verify bool) error {
	a, g, slot, err := s.findAttempt(act.AttemptID(), act.Run-1)
	if err != nil {
		return err
	}
	what := "attempt " + a.ID.String()
	switch {
	case a.From != NoNode:
		return refuse(ErrStale, what, "it is already migrating")
	case a.Phase != AttemptRunning && a.Phase != AttemptSuspended:
		return refuse(ErrStale, what, "it is %v", a.Phase)
	case act.Node == a.Node:
		return refuse(ErrInvalid, what, "it is already on node %d: resume it there", a.Node)
	}
	n, err := s.findTarget(act.Node, act.Disk, a.Demand, a.DiskSpace, verify)
	if err != nil {
		return err
	}
	if verify && !CanRestore(&s.nodes[a.Node].Spec, &n.Spec) {
		return refuse(ErrInvalid, what, "node %q cannot restore a checkpoint of node %q", n.Spec.Name, s.nodes[a.Node].Spec.Name)
	}
	s.saveForUndo(a, g, slot)
	s.detach(a, slot)
	g.accrueTaskTime(now)
	d := a.ownDetails()
	d.Ran = a.RanFor(now)
	d.From, d.FromDisk, d.FromOccupied = a.Node, a.Disk, a.Occupied
	a.Node, a.Disk, d.Run = act.Node, act.Disk, act.Run
	s.seq++
	a.Seq = s.seq
	s.beginResume(a, now)
	s.attach(a, slot)
	return nil
}

// CanRestore reports whether an image that was checkpointed on one node can be restored on
// another: both support checkpoints, and the CPU class is the same or listed in Restores.
func CanRestore(from, to *NodeSpec) bool {
	if !from.Levels.Has(LevelCheckpointed) || !to.Levels.Has(LevelCheckpointed) {
		return false
	}
	return from.CPUClass == to.CPUClass || slices.Contains(to.Restores, from.CPUClass)
}

func (s *State) applyKill(act *Action) error {
	a, g, slot, err := s.findAttempt(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	if a.Phase == AttemptKilling {
		return refuse(ErrStale, "attempt "+a.ID.String(), "it is already being killed")
	}
	s.saveForUndo(a, g, slot)
	was := a.pendingRelease()
	a.Phase = AttemptKilling
	s.updateReleasing(a, was)
	return nil
}

func (s *State) applyReserve(r *Reservation) error {
	if err := r.validate(); err != nil {
		return err
	}
	what := func() string { return fmt.Sprintf("reservation %d", r.ID) }
	if r.Node != NoNode && s.Node(r.Node) == nil {
		return refuse(ErrUnknown, what(), "its node %d is unknown", r.Node)
	}
	if r.Job != 0 && s.jobs[r.Job] == nil {
		return refuse(ErrUnknown, what(), "its job %d does not exist", r.Job)
	}
	if r.Job == 0 && s.projects[r.Project] == nil {
		return refuse(ErrUnknown, what(), "it has no job and its project %d does not exist", r.Project)
	}
	if len(s.reservations) >= MaxReservations {
		return refuse(ErrInvalid, what(), "there are already the maximum of %d reservations", len(s.reservations))
	}
	old, had := s.putReservation(*r)
	if s.undo.depth > 0 {
		rec := undoRec{op: undoReserve, lastTick: Time(r.ID)}
		if had {
			s.undo.reservations = append(s.undo.reservations, old)
			rec.op = undoReplace
		}
		s.undo.records = append(s.undo.records, rec)
	}
	return nil
}

func (s *State) applyUnreserve(id ReservationID) error {
	i, ok := s.findReservation(id)
	if !ok {
		return refuse(ErrStale, fmt.Sprintf("reservation %d", id), "there is no such reservation")
	}
	if s.undo.depth > 0 {
		s.undo.reservations = append(s.undo.reservations, *s.reservations[i])
		s.undo.records = append(s.undo.records, undoRec{op: undoUnreserve})
	}
	s.dropReservation(i)
	return nil
}
