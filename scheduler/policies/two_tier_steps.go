package policies

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// stopOverruns suspends what is past its bound, or kills it where it cannot be
// brought out of memory. Jobs with an accepted deadline are left. So is what was
// only guessed to be gone by now, unless its room is promised to others: the guess
// was wrong, and it is taken to stay longer. To suspend a short task costs more
// than to let it end.
func (f *planned) stopOverruns(s *scheduler.State, now scheduler.Time) {
	if !f.late {
		return
	}
	var stop []scheduler.Action
	for _, n := range s.Nodes() {
		for a := range s.AttemptsOn(n.Spec.ID) {
			running := a.Phase == scheduler.AttemptStarting || a.Phase == scheduler.AttemptRunning
			j := s.StageOf(a).Job
			if !running || f.boundOf(s, a) >= now || j.Spec.Accepted || (j.Spec.Bound <= 0 && !f.inTheWay(s, a, now)) {
				continue
			}
			act := scheduler.Action{Kind: scheduler.ActKill, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run}
			switch {
			case s.CanReach(a, scheduler.LevelCheckpointed):
				act.Kind, act.Level = scheduler.ActSuspend, scheduler.LevelCheckpointed
			case s.CanReach(a, scheduler.LevelSwapped):
				act.Kind, act.Level = scheduler.ActSuspend, scheduler.LevelSwapped
			}
			stop = append(stop, act)
		}
	}
	for _, a := range stop {
		f.act(a)
	}
}

// inTheWay tells whether an attempt that stays for longer than was guessed may be
// where something is promised: its node is over capacity before it is taken to end,
// and others are promised room there until then. O(reservations on the node).
func (f *planned) inTheWay(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) bool {
	end := f.endOf(s, a, now)
	if f.plan.Profile().Over(int32(a.Node), now, end) == scheduler.Never {
		return false
	}
	return slices.ContainsFunc(s.ReservationsOn(a.Node), func(r *scheduler.Reservation) bool {
		return r.Kind == scheduler.ReserveProject && r.Start < end && r.End > now
	})
}

// repair plans again what was reserved on nodes that are gone, what does not
// fit any more, and what could not start in time.
func (f *planned) repair(s *scheduler.State, now scheduler.Time) {
	nodes := s.Nodes()
	var lost []int32
	gone := len(nodes) - s.TakingNodes()
	if gone > 0 && gone < len(nodes) {
		for b := range int32(len(nodes)) {
			if !nodes[b].Takes() && f.plan.Busy(b) {
				lost = append(lost, b)
			}
		}
	}
	spare := f.spare - gone + len(lost)
	for i := len(nodes) - 1; i >= 0 && spare > 0; i-- {
		if nodes[i].Takes() {
			f.plan.Spare(int32(i), true)
			spare--
		}
	}
	for _, b := range lost {
		if nodes[b].Spec.Down {
			f.tell(f.plan.Lose(b, now), now)
		} else {
			f.tell(f.plan.Drain(b, now), now)
		}
	}
	cause := backfill.CauseNodeLost
	if f.late {
		cause = backfill.CauseOverrun
	}
	f.tell(f.plan.Repair(now, cause), now)
	f.tell(f.plan.Replan(now, backfill.CauseLate), now)
}

// tell notes promises that do not hold any more, each once, with its cause.
func (f *planned) tell(broken []backfill.Broken, now scheduler.Time) {
	for _, b := range broken {
		k := noteKey(scheduler.NoteBroken, b.Project)
		told := slices.ContainsFunc(f.notes, func(n scheduler.Note) bool {
			return n.Kind == k.Kind && n.Job == k.Job && n.Project == k.Project
		})
		for cause := backfill.CauseOverrun; cause <= backfill.CauseLate && !told; cause++ {
			k.Slot = int32(cause)
			_, told = f.placer.s.Note(k)
		}
		if k.Slot = int32(b.Cause); !told {
			f.notes = append(f.notes, scheduler.Note{NoteKey: k, At: now})
		}
	}
}

// walk gives holes forward if room was given back earlier than planned, or the
// nodes changed, since the last time; mark is the note that says so.
func (f *planned) walk(s *scheduler.State, now scheduler.Time) (mark scheduler.Note, walked bool) {
	h := fnv.New64a()
	word := func(v uint64) {
		for i := range 8 {
			h.Write([]byte{byte(v >> (8 * i))})
		}
	}
	word(s.Holes())
	if f.margin > 0 {
		word(s.History().TaskCount()) // then an end at its bound is early too
	}
	word(uint64(s.TakingNodes()))
	for _, v := range s.Total() {
		word(uint64(v))
	}
	mark = scheduler.Note{NoteKey: scheduler.NoteKey{Kind: scheduler.NoteCursor, Slot: walkSlot}, Value: int64(h.Sum64())}
	if old, ok := s.Note(mark.NoteKey); ok && old.Value == mark.Value {
		return mark, false
	}
	f.plan.Walk(now)
	return mark, true
}

// walkSlot is the slot of the note that says what the last walk knew.
const walkSlot = 2

// planNew plans what has no place yet and promises departures. What comes after
// something that was planned later follows, and leaves room for others: so it
// goes round until nothing moves, a few times at most.
func (f *planned) planNew(s *scheduler.State, now scheduler.Time) {
	const rounds = 4
	cause := f.causeOf(s)
	f.plan.Changed()
	missing := 0
	for _, id := range f.fresh {
		missing += f.plan.Missing(id)
	}
	ids := f.fresh
	if missing != f.plan.Unplaced() { // some that were planned before lost their place
		ids = f.waitingIDs(s)
	}
	for range rounds {
		for _, id := range ids {
			if _, err := f.plan.Complete(now, id); err != nil {
				f.plan.CompleteSome(now, id)
			}
		}
		f.tell(f.plan.Replan(now, cause), now)
		if len(f.plan.Changed()) == 0 {
			break
		}
	}
	for _, id := range f.fresh {
		if f.kept.owners[id].promised || !f.promisable(s, id) {
			continue
		}
		if _, q, ok := f.plan.Departure(id); ok && q != (backfill.Quote{}) {
			f.kept.owners[id].promised = true
			delete(f.kept.unpromised, id)
			f.notes = append(f.notes, scheduler.Note{NoteKey: noteKey(scheduler.NotePromise, id), At: q.Departure},
				scheduler.Note{NoteKey: noteKey(scheduler.NoteLatestStart, id), At: q.Latest})
		}
	}
}

// promisable tells whether every job of a project has a bound of its own: only
// then a departure can be guaranteed.
func (f *planned) promisable(s *scheduler.State, id scheduler.ProjectID) bool {
	jobs := []scheduler.JobID{scheduler.JobID(id &^ (1 << 63))}
	if id>>63 == 0 {
		jobs = s.Project(id).Jobs
	}
	for _, j := range jobs {
		if k := s.Job(j); k == nil || k.Spec.Bound <= 0 || k.Spec.Open || slices.ContainsFunc(k.Stages, partly) {
			return false
		}
	}
	return true
}

// causeOf names why work that was promised had to be planned again.
func (f *planned) causeOf(s *scheduler.State) backfill.Cause {
	for a := range s.Suspended() {
		if a.Suspends > 0 {
			return backfill.CauseOverrun
		}
	}
	return backfill.CauseFailed
}

// carryOut brings State's reservations in line with the plan, then starts what
// is due.
func (f *planned) carryOut(s *scheduler.State, now scheduler.Time) {
	if !f.synced { // some reservations may be of tasks that are not planned now
		var gone []backfill.Key
		for _, r := range s.Reservations() {
			if _, ok := f.plan.Find(keyOf(r)); f.byKey[keyOf(r)] == r.ID && !ok && !f.held[r.ID] {
				gone = append(gone, keyOf(r))
			}
		}
		for _, k := range gone {
			f.unreserve(k)
		}
	}
	f.due = f.due[:0]
	f.plan.Scan(func(x backfill.Planned, moved bool) {
		if x.Spot.Bin < 0 {
			f.odd = true
			if moved {
				f.unreserve(x.Key)
			}
			return
		}
		if f.wakeAt(x.Spot.At, now); x.Spot.At > now {
			if moved {
				f.reserve(s, x, f.reservation(s, x.Key))
			}
			return
		}
		f.due = append(f.due, x)
		g := s.Stage(scheduler.StageID{Job: x.Key.Job, Stage: x.Key.Stage})
		if f.stays(s, g.Job, scheduler.NodeID(x.Spot.Bin)) || f.blocked(s, g) || !f.startable(s, g, x) {
			f.reserve(s, x, f.reservation(s, x.Key)) // Check asks for it before it lets the task overtake promises
		} else {
			f.unreserve(x.Key)
		}
	})
	for _, x := range f.due {
		f.start(s, x, now)
	}
}

// unreserve drops the reservation of a task, if it has one.
func (f *planned) unreserve(k backfill.Key) {
	if id, ok := f.byKey[k]; ok && f.act(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: id}}) {
		delete(f.byKey, k)
	}
}

// reserveKind is what a job's reservations are: promises, or plans of a guess.
func (f *planned) reserveKind(j *scheduler.Job) scheduler.ReservationKind {
	if j.Spec.Bound <= 0 && (!f.bounds || (j.Spec.Project == 0 && !j.Spec.Accepted)) {
		return scheduler.ReserveHead
	}
	return scheduler.ReserveProject
}

// reserve makes State say what the plan says of one task.
func (f *planned) reserve(s *scheduler.State, x backfill.Planned, old *scheduler.Reservation) {
	g := s.Stage(scheduler.StageID{Job: x.Key.Job, Stage: x.Key.Stage})
	r := scheduler.Reservation{Kind: f.reserveKind(g.Job), Job: x.Key.Job, Stage: x.Key.Stage, Task: x.Key.Task, Project: g.Job.Spec.Project,
		Node: scheduler.NodeID(x.Spot.Bin), Demand: g.Spec.Demand, Disk: g.Spec.Disk, OnDisk: x.Spot.Disk, Start: x.Spot.At, End: x.End}
	if a := suspendedAt(s, g, x.Key.Task); a != nil {
		r.Demand, r.Disk = a.Demand.Sub(a.Held.Resources).Max(scheduler.Resources{}), max(0, a.DiskSpace-a.Held.Disk)
	}
	if old != nil {
		if r.ID = old.ID; r == *old {
			return
		}
	} else {
		r.ID = f.newID()
	}
	if f.act(scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}) {
		f.byKey[x.Key] = r.ID
	}
}

// start starts a due task if nothing but room was in question.
func (f *planned) start(s *scheduler.State, x backfill.Planned, now scheduler.Time) {
	g := s.Stage(scheduler.StageID{Job: x.Key.Job, Stage: x.Key.Stage})
	started := false
	if !f.startable(s, g, x) {
	} else if a := suspendedAt(s, g, x.Key.Task); a != nil {
		started = f.act(scheduler.Action{Kind: scheduler.ActResume, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run})
	} else {
		started = f.act(s.Place(g, x.Key.Task, scheduler.NodeID(x.Spot.Bin), x.Spot.Disk))
	}
	if started {
		f.unreserve(x.Key)
	} else if _, ok := f.byKey[x.Key]; !ok && !f.cut { // it stays due until nothing holds it up
		f.reserve(s, x, nil)
	}
}

// startable tells whether a due task can start where it is planned.
func (f *planned) startable(s *scheduler.State, g *scheduler.Stage, x backfill.Planned) bool {
	if a := suspendedAt(s, g, x.Key.Task); a != nil {
		return s.CanResume(a)
	}
	return g.Ready() && !f.blocked(s, g) && hasRoom(s.Node(scheduler.NodeID(x.Spot.Bin)), x.Spot.Disk, g)
}

// hasRoom tells whether a task fits on a node and that very disk now.
func hasRoom(n *scheduler.Node, disk int16, g *scheduler.Stage) bool {
	d := g.Spec.Demand
	if !n.Takes() || d[scheduler.CPU] > n.Free[scheduler.CPU] || d[scheduler.Memory] > n.Free[scheduler.Memory] {
		return false
	}
	return disk < 0 || (d[scheduler.IO] <= n.Disks[disk].FreeIO && g.Spec.Disk <= n.Disks[disk].FreeSpace)
}

// explain says why each stage with ready work waits.
func (f *planned) explain(s *scheduler.State, now scheduler.Time) {
	f.starts = f.starts[:0]
	sorted := true
	f.plan.Scan(func(x backfill.Planned, _ bool) {
		if x.Spot.Bin < 0 || x.Spot.At <= now {
			return
		}
		next := stageStart{scheduler.StageID{Job: x.Key.Job, Stage: x.Key.Stage}, x.Spot.At}
		if n := len(f.starts); n > 0 {
			sorted = sorted && (f.starts[n-1].stage.Job < next.stage.Job || byStageStart(f.starts[n-1], next) <= 0)
		}
		f.starts = append(f.starts, next)
	})
	if !sorted {
		slices.SortFunc(f.starts, byStageStart)
	}
	i := 0 // both lists are mostly in order of submission
	for j, at := s.NextReady(0); j != nil; j, at = s.NextReady(at) {
		for _, g := range j.Stages {
			if !g.Ready() {
				continue
			}
			id, next := g.ID(), scheduler.Time(0)
			if i >= len(f.starts) || f.starts[i].stage != id {
				i, _ = slices.BinarySearchFunc(f.starts, stageStart{stage: id}, byStageStart)
			}
			if i < len(f.starts) && f.starts[i].stage == id {
				next = f.starts[i].at
				for i < len(f.starts) && f.starts[i].stage == id {
					i++
				}
			}
			f.placer.wait(f.reason(s, g, next))
		}
	}
}

func byStageStart(a, b stageStart) int {
	if a.stage != b.stage {
		return a.stage.Compare(b.stage)
	}
	return cmp.Compare(a.at, b.at)
}

func (f *planned) reason(s *scheduler.State, g *scheduler.Stage, next scheduler.Time) scheduler.Waiting {
	w := scheduler.Waiting{Stage: g.ID(), Tasks: g.Pending}
	ok := true
	if f.cut || f.placer.left <= 0 {
		w.Reason = scheduler.ReasonTurn
	} else if g.Startable() == 0 {
		w.Reason = scheduler.ReasonMaxParallel
	} else if w.Tenant, w.Cap, w.Resource, ok = s.UnderCaps(g); !ok {
		w.Reason = scheduler.ReasonCap
	} else if next > 0 && next < scheduler.Never {
		w.Reason, w.Until = scheduler.ReasonLater, next
	} else if s.NextNode(g, 0) != scheduler.NoNode {
		w.Reason, w.Until = scheduler.ReasonLater, scheduler.Never
		if r := f.dueOf(s, g); r != nil {
			w.Reason, w.Until, w.Node, w.Reservation = scheduler.ReasonDue, 0, r.Node, r.ID
		}
	}
	return w
}

// dueOf is the reservation of the first waiting task of a stage that is due and
// could not start, nil for none. O(what is due).
func (f *planned) dueOf(s *scheduler.State, g *scheduler.Stage) *scheduler.Reservation {
	for i := range f.due {
		if k := f.due[i].Key; k.Job == g.Job.Spec.ID && k.Stage == g.Index && g.IsPending(k.Task) {
			return f.reservation(s, k)
		}
	}
	return nil
}
