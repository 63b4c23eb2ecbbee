package scheduler

import (
	"fmt"
	"slices"
	"sort"
)

// Apply carries an action out on the State: a placement is there at once, a
// suspension, migration or kill is under way until the node reports it. It
// refuses what makes no sense (ErrUnknown, ErrInvalid), is past (ErrStale) or
// does not fit (ErrNoRoom), and then changes nothing. Caps and reservations
// are the business of Check. Inside a try it is undone by Rollback. O(1) plus
// the tenant's depth; no allocation once the State has its size.
func (s *State) Apply(a *Action, now Time) error { return s.apply(a, now, true) }

// ApplyFact is Apply for an action that is a fact already, which a log says
// was committed: it does not ask whether it fits or whether the node takes
// work, so Free may become negative.
func (s *State) ApplyFact(a *Action, now Time) error { return s.apply(a, now, false) }

func (s *State) apply(a *Action, now Time, ask bool) error {
	var err error
	switch a.Kind {
	case ActPlace:
		err = s.applyPlace(a, now, ask)
	case ActSuspend:
		err = s.applySuspend(a, ask)
	case ActResume:
		err = s.applyResume(a, now, ask)
	case ActMigrate:
		err = s.applyMigrate(a, now, ask)
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
		s.didOne()
	}
	return err
}

// didOne counts a change, or a step of a try.
func (s *State) didOne() {
	if s.undo.depth == 0 {
		s.changed()
	} else {
		s.undo.tried++
	}
}

// placeable finds the stage of a placement and says whether the task waits.
func (s *State) placeable(a *Action, ask bool) (*Stage, error) {
	g := s.stageFor(a.Task.StageID())
	i := a.Task.Index
	if g == nil || i < 0 || i >= g.Spec.Tasks {
		return nil, refuse(ErrUnknown, "task "+a.Task.String(), "there is no such task")
	}
	switch {
	case !a.Speculative && (!g.pending.has(i) || !g.Open || g.Job.Phase != JobActive):
		return nil, refuse(ErrStale, "task "+a.Task.String(), "it does not wait for a place")
	case a.Speculative && (!g.busy.has(i) || g.done.has(i) || s.at(g.active[i]-1).sibling != 0 || g.Job.Phase != JobActive):
		return nil, refuse(ErrStale, "task "+a.Task.String(), "it cannot have a second attempt now")
	}
	// A fact may be of an attempt that has moved since: then its run is higher.
	if want := s.NextAttempt(g, i); a.Attempt != want || a.Run < 1 || ask && a.Run != 1 {
		return nil, refuse(ErrStale, "task "+a.Task.String(), "attempt %d run %d: the next one is %d run 1", a.Attempt, a.Run, want)
	}
	return g, nil
}

func (s *State) target(id NodeID, disk int16, d Resources, space int64, ask bool) (*Node, error) {
	n := s.Node(id)
	if n == nil {
		return nil, refuse(ErrUnknown, fmt.Sprintf("node %d", id), "there is no such node")
	}
	if int(disk) >= len(n.Disks) || disk < -1 || (disk == -1 && (d[IO] > 0 || space > 0)) {
		return nil, refuse(ErrUnknown, fmt.Sprintf("node %d", id), "there is no disk %d on it", disk)
	}
	if !ask {
		return n, nil
	}
	if !n.Takes() {
		return nil, refuse(ErrNoRoom, fmt.Sprintf("node %d", id), "it takes no new work")
	}
	if !n.hasRoom(disk, d, space) {
		return nil, refuse(ErrNoRoom, fmt.Sprintf("node %d", id), "%s and %d bytes on disk %d do not fit", d, space, disk)
	}
	return n, nil
}

// hasRoom tells whether d and space fit on the node and that disk. Parts of
// zero fit everywhere, also where more is used than there is.
func (n *Node) hasRoom(disk int16, d Resources, space int64) bool {
	if (d[CPU] > 0 && d[CPU] > n.Free[CPU]) || (d[Memory] > 0 && d[Memory] > n.Free[Memory]) {
		return false
	}
	if disk < 0 {
		return true
	}
	k := &n.Disks[disk]
	return (d[IO] == 0 || d[IO] <= k.FreeIO) && (space == 0 || space <= k.FreeSpace)
}

func (s *State) applyPlace(act *Action, now Time, ask bool) error {
	g, err := s.placeable(act, ask)
	if err != nil {
		return err
	}
	n, err := s.target(act.Node, act.Disk, g.Spec.Demand, g.Spec.Disk, ask)
	if err != nil {
		return err
	}
	i := act.Task.Index
	slot := s.newSlot()
	a := s.at(slot)
	s.seq++
	*a = Attempt{ID: act.AttemptID(), Node: act.Node, Disk: act.Disk, Level: LevelRunning, Phase: AttemptStarting,
		Speculative: act.Speculative, Placed: now, Seq: s.seq, details: g.alike()}
	if act.Run != a.Run {
		a.own().Run = act.Run
	}
	first := uint8(0)
	if g.Job.FirstPlaced == 0 {
		g.Job.FirstPlaced, first = max(now, 1), 1
	}
	if s.undo.depth > 0 {
		s.undo.recs = append(s.undo.recs, undoRec{op: undoPlace, phase: first, slot: slot, taskTime: g.taskTime, lastTick: g.lastTick})
	}
	g.tick(now)
	if act.Speculative {
		s.at(g.active[i] - 1).sibling = slot + 1
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
	s.occupy(n, act.Disk, &a.Held, 1)
	s.charge(g.Job, a.Held.Resources, 1)
	s.touch(act.Node)
	if g.Pending == 0 {
		s.refresh(g)
	}
	return nil
}

// unplace undoes applyPlace.
func (s *State) unplace(r *undoRec) {
	a := s.at(r.slot)
	g := s.stages[a.stage]
	n := s.nodes[a.Node]
	i := a.ID.Index
	n.attempts = n.attempts[:len(n.attempts)-1]
	s.occupy(n, a.Disk, &a.Held, -1)
	s.charge(g.Job, Resources{}.Sub(a.Held.Resources), -1)
	s.touch(a.Node)
	if a.Speculative {
		s.at(g.active[i] - 1).sibling = 0
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
		s.refresh(g)
	}
	s.freeSlots = append(s.freeSlots, r.slot)
}

// Withdraw takes a placement of the try under way back, so that its task waits
// again; what was tried after it stays. It refuses (ErrStale) what is no first
// attempt at its task that was placed in this try. Rollback undoes it. O(1) plus
// the tenant's depth and the attempts on the node.
func (s *State) Withdraw(act *Action) error {
	a, _, slot, err := s.current(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	if s.undo.depth == 0 || act.Kind != ActPlace || a.Phase != AttemptStarting || a.Speculative || a.sibling != 0 || !s.placedInTry(slot) {
		return refuse(ErrStale, "attempt "+a.ID.String(), "it was not placed in a try that is under way")
	}
	s.hook(a, slot, -1)
	s.undo.recs = append(s.undo.recs, undoRec{op: undoWithdraw, slot: slot})
	return nil
}

// placedInTry tells whether the attempt in a slot was placed since the first mark.
func (s *State) placedInTry(slot int32) bool {
	for i := len(s.undo.recs) - 1; i >= 0; i-- {
		if r := &s.undo.recs[i]; r.op == undoPlace && r.slot == slot {
			return true
		}
	}
	return false
}

// hook takes a starting attempt with sign -1 off its task and its node, or brings
// it back there.
func (s *State) hook(a *Attempt, slot int32, sign int64) {
	g := s.stages[a.stage]
	n := s.nodes[a.Node]
	i := a.ID.Index
	s.list(&n.attempts, slot, sign, s.bySeq)
	s.occupy(n, a.Disk, &a.Held, sign)
	s.charge(g.Job, a.Held.Resources.Times(sign), int32(sign))
	s.touch(a.Node)
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
	s.refresh(g)
}

func (g *Stage) tick(now Time) {
	if now > g.lastTick {
		g.taskTime += float64(g.Running) * float64(now-g.lastTick)
		g.lastTick = now
	}
}

// occupy takes (sign 1) or gives back (-1) what an attempt holds on a node.
func (s *State) occupy(n *Node, disk int16, h *Held, sign int64) {
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

// charge adds to what a job, its tenant and the tenants above it hold.
func (s *State) charge(j *Job, d Resources, running int32) {
	s.worked(j)
	j.Used = j.Used.Add(d)
	t := s.tenants[j.Spec.Tenant]
	t.Own = t.Own.Add(d)
	s.chargeUp(j.Spec.Tenant, d, running)
}

// live finds the attempt of an action and checks its run.
func (s *State) current(id AttemptID, run int32) (*Attempt, *Stage, int32, error) {
	g := s.stageFor(id.StageID())
	if g == nil || id.Index < 0 || id.Index >= g.Spec.Tasks {
		return nil, nil, 0, refuse(ErrUnknown, "attempt "+id.String(), "there is no such task, or its job ended")
	}
	for slot := g.active[id.Index] - 1; slot >= 0; slot = s.at(slot).sibling - 1 {
		if a := s.at(slot); a.ID.Attempt == id.Attempt {
			if a.Run != run {
				return nil, nil, 0, refuse(ErrStale, "attempt "+id.String(), "run %d is past or to come: it is at %d", run, a.Run)
			}
			return a, g, slot, nil
		}
	}
	return nil, nil, 0, refuse(ErrStale, "attempt "+id.String(), "it is not live")
}

// save remembers an attempt as it is, for undo.
func (s *State) save(a *Attempt, g *Stage, slot int32) {
	if s.undo.depth > 0 {
		s.undo.attempts = append(s.undo.attempts, undoneAttempt{*a, *a.details})
		s.undo.recs = append(s.undo.recs, undoRec{op: undoAttempt, slot: slot, taskTime: g.taskTime, lastTick: g.lastTick})
	}
}

// putBack undoes a change to an attempt.
func (s *State) putBack(r *undoRec, was *undoneAttempt) {
	a := s.at(r.slot)
	g := s.stages[a.stage]
	sibling := a.sibling
	if a.details == was.details && *a.details == was.was && a.Node == was.Node && a.Disk == was.Disk && a.Level == was.Level && a.Seq == was.Seq {
		released := a.releases()
		*a = was.Attempt
		a.sibling = sibling
		s.releasesNow(a, released)
		g.taskTime, g.lastTick = r.taskTime, r.lastTick
		return
	}
	s.detach(a, r.slot)
	*a = was.Attempt
	a.sibling = sibling
	if a.details.own {
		*a.details = was.was
	}
	s.attach(a, r.slot)
	g.taskTime, g.lastTick = r.taskTime, r.lastTick
}

// detach takes an attempt with all it holds out of nodes, tenants, counts and
// the list of suspended ones; attach is its inverse.
func (s *State) detach(a *Attempt, slot int32) { s.tie(a, slot, -1) }

func (s *State) attach(a *Attempt, slot int32) { s.tie(a, slot, 1) }

func (s *State) tie(a *Attempt, slot int32, sign int64) {
	g := s.stages[a.stage]
	n := s.nodes[a.Node]
	s.occupy(n, a.Disk, &a.Held, sign)
	n.Releasing = n.Releasing.Add(a.releases().Times(sign))
	s.list(&n.attempts, slot, sign, s.bySeq)
	if a.From != NoNode {
		from := s.nodes[a.From]
		s.occupy(from, a.FromDisk, &a.FromHeld, sign)
		from.Releasing = from.Releasing.Add(a.FromHeld.Resources.Times(sign))
		s.list(&from.moving, slot, sign, s.bySeq)
		s.touch(a.From)
	}
	running := int32(0)
	if a.Level == LevelRunning {
		running = int32(sign)
		g.Running += running
	} else {
		g.Suspended += int32(sign)
		s.list(&s.suspended, slot, sign, s.bySuspension)
	}
	s.charge(g.Job, a.Held.Resources.Times(sign), running)
	s.touch(a.Node)
}

// releases is what the node gets back when what is under way is done, as far
// as it is known before it is measured.
func (a *Attempt) releases() Resources {
	switch a.Phase {
	case AttemptKilling:
		return a.Held.Resources
	case AttemptSuspending:
		switch a.Target {
		case LevelFrozen:
			return Resources{CPU: a.Held.Resources[CPU], IO: a.Held.Resources[IO]}
		default:
			return a.Held.Resources
		}
	default:
		return Resources{}
	}
}

func (s *State) bySeq(x, y int32) bool { return s.at(x).Seq < s.at(y).Seq }

func (s *State) bySuspension(x, y int32) bool {
	a, b := s.at(x), s.at(y)
	if a.SuspendedAt != b.SuspendedAt {
		return a.SuspendedAt < b.SuspendedAt
	}
	return a.Seq < b.Seq
}

// list puts a slot at its place in an ordered list, or takes it out.
func (s *State) list(l *[]int32, slot int32, sign int64, less func(x, y int32) bool) {
	if sign < 0 {
		i := sort.Search(len(*l), func(k int) bool { return !less((*l)[k], slot) })
		if i == len(*l) || (*l)[i] != slot { // two of one key
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

func (s *State) applySuspend(act *Action, ask bool) error {
	a, g, slot, err := s.current(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	what := func() string { return "attempt " + a.ID.String() }
	if !act.Level.Suspended() {
		return refuse(ErrInvalid, what(), "%v is no level to suspend to", act.Level)
	}
	n := s.nodes[a.Node]
	switch {
	case a.Phase != AttemptStarting && a.Phase != AttemptRunning && a.Phase != AttemptSuspended:
		return refuse(ErrStale, what(), "it is %v", a.Phase)
	case a.Phase == AttemptSuspended && act.Level <= a.Level:
		return refuse(ErrStale, what(), "it is %v already", a.Level)
	case ask && a.Barred.Has(act.Level):
		return refuse(ErrInvalid, what(), "its node %q could not bring it to %v before", n.Spec.Name, act.Level)
	case ask && !n.Spec.Levels.Has(act.Level):
		return refuse(ErrInvalid, what(), "its node %q cannot bring tasks to %v", n.Spec.Name, act.Level)
	}
	s.save(a, g, slot)
	was := a.releases()
	a.Phase, a.Target = AttemptSuspending, act.Level
	s.releasesNow(a, was)
	return nil
}

// releasesNow follows a change of an attempt by which nothing became otherwise but
// what its node will get back.
func (s *State) releasesNow(a *Attempt, was Resources) {
	n := s.nodes[a.Node]
	n.Releasing = n.Releasing.Sub(was).Add(a.releases())
	s.worked(s.stages[a.stage].Job)
	s.touch(a.Node)
}

func (s *State) applyResume(act *Action, now Time, ask bool) error {
	a, g, slot, err := s.current(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	if a.Phase != AttemptSuspended {
		return refuse(ErrStale, "attempt "+a.ID.String(), "it is %v, not suspended", a.Phase)
	}
	if ask {
		more := a.Demand.Sub(a.Held.Resources).Max(Resources{})
		n := s.nodes[a.Node]
		if n.Spec.Down || !n.hasRoom(a.Disk, more, max(a.DiskSpace-a.Held.Disk, 0)) {
			return refuse(ErrNoRoom, fmt.Sprintf("node %d", a.Node), "%s more for attempt %s do not fit", more, a.ID)
		}
	}
	s.save(a, g, slot)
	s.detach(a, slot)
	g.tick(now)
	s.run(a, now)
	s.attach(a, slot)
	return nil
}

// run gives an attempt all that a running one holds.
func (s *State) run(a *Attempt, now Time) {
	a.Phase, a.Target, a.Level = AttemptResuming, LevelRunning, LevelRunning
	a.own().Held = Held{Resources: a.Demand, Disk: a.DiskSpace}
	a.Placed = now
}

func (s *State) applyMigrate(act *Action, now Time, ask bool) error {
	a, g, slot, err := s.current(act.AttemptID(), act.Run-1)
	if err != nil {
		return err
	}
	what := "attempt " + a.ID.String()
	switch {
	case a.From != NoNode:
		return refuse(ErrStale, what, "it is moving already")
	case a.Phase != AttemptRunning && a.Phase != AttemptSuspended:
		return refuse(ErrStale, what, "it is %v", a.Phase)
	case act.Node == a.Node:
		return refuse(ErrInvalid, what, "it is on node %d: resume it there", a.Node)
	}
	n, err := s.target(act.Node, act.Disk, a.Demand, a.DiskSpace, ask)
	if err != nil {
		return err
	}
	if ask && !CanRestore(&s.nodes[a.Node].Spec, &n.Spec) {
		return refuse(ErrInvalid, what, "node %q cannot restore what node %q checkpoints", n.Spec.Name, s.nodes[a.Node].Spec.Name)
	}
	s.save(a, g, slot)
	s.detach(a, slot)
	g.tick(now)
	d := a.own()
	d.Ran = a.RanFor(now)
	d.From, d.FromDisk, d.FromHeld = a.Node, a.Disk, a.Held
	a.Node, a.Disk, d.Run = act.Node, act.Disk, act.Run
	s.seq++
	a.Seq = s.seq
	s.run(a, now)
	s.attach(a, slot)
	return nil
}

// CanRestore tells whether an image checkpointed on one node can be restored
// on another: both do checkpoints, and the CPU class is the same or listed.
func CanRestore(from, to *NodeSpec) bool {
	if !from.Levels.Has(LevelCheckpointed) || !to.Levels.Has(LevelCheckpointed) {
		return false
	}
	return from.CPUClass == to.CPUClass || slices.Contains(to.Restores, from.CPUClass)
}

func (s *State) applyKill(act *Action) error {
	a, g, slot, err := s.current(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	if a.Phase == AttemptKilling {
		return refuse(ErrStale, "attempt "+a.ID.String(), "it is being killed already")
	}
	s.save(a, g, slot)
	was := a.releases()
	a.Phase = AttemptKilling
	s.releasesNow(a, was)
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
		return refuse(ErrUnknown, what(), "its job %d is not there", r.Job)
	}
	if r.Job == 0 && s.projects[r.Project] == nil {
		return refuse(ErrUnknown, what(), "it is for no job and its project %d is not there", r.Project)
	}
	if len(s.reservations) >= MaxReservations {
		return refuse(ErrInvalid, what(), "there are %d reservations: no more are kept", len(s.reservations))
	}
	old, had := s.putReservation(*r)
	if s.undo.depth > 0 {
		rec := undoRec{op: undoReserve, lastTick: Time(r.ID)}
		if had {
			s.undo.res = append(s.undo.res, old)
			rec.op = undoReplace
		}
		s.undo.recs = append(s.undo.recs, rec)
	}
	return nil
}

func (s *State) applyUnreserve(id ReservationID) error {
	i, ok := s.findReservation(id)
	if !ok {
		return refuse(ErrStale, fmt.Sprintf("reservation %d", id), "there is no such reservation")
	}
	if s.undo.depth > 0 {
		s.undo.res = append(s.undo.res, *s.reservations[i])
		s.undo.recs = append(s.undo.recs, undoRec{op: undoUnreserve})
	}
	s.dropReservation(i)
	return nil
}
