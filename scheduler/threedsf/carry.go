package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// carryOut brings the State's reservations and notes in line with the plan:
// first for those who were promised something before, then one by one for those
// who asked. Where the cycle is full, the one in hand is not promised yet; what is
// reserved for it already stays, and the next cycle goes on from there. Moves to
// earlier instants, which nobody needs, take an eighth of the cycle at most.
func (b *plan) carryOut(refused []scheduler.Note) {
	b.moves = b.p.left/8 + 1
	for _, k := range b.planner.Changed() {
		if j := b.p.s.Job(k.Job); j != nil {
			if o := b.known[ownerOf(j)]; o != nil {
				o.touched = true
			}
		}
	}
	for _, o := range b.owners {
		if o.unsettled = o.touched; o.touched && !o.asked {
			o.touched, o.unsettled = false, false
			o.unsettled = !b.reserve(o) || o.unsettled
		}
	}
	for _, n := range refused {
		if o := b.owner(n); b.forget(o) {
			b.p.note(n)
		}
	}
	for _, o := range b.owners {
		if !o.asked || o.quote == (backfill.Quote{}) || !b.reserve(o) {
			continue
		}
		if o.in.Deadline > 0 {
			b.p.note(scheduler.Note{NoteKey: noteKey(scheduler.NoteAccepted, o.id), Value: int64(o.in.Deadline), At: o.quote.Departure})
			continue
		}
		b.p.note(scheduler.Note{NoteKey: noteKey(scheduler.NotePromise, o.id), At: o.quote.Departure})
		b.p.note(scheduler.Note{NoteKey: noteKey(scheduler.NoteLatestStart, o.id), At: o.quote.Latest})
	}
}

// owner finds whom a note is about.
func (b *plan) owner(n scheduler.Note) *owner {
	for _, o := range b.owners {
		if k := noteKey(n.Kind, o.id); k == n.NoteKey {
			return o
		}
	}
	panic("threedsf: a note about nobody")
}

// reserve makes the State say what the plan says of one owner; false where the
// cycle is full.
func (b *plan) reserve(o *owner) bool {
	for i := range o.in.Requests {
		r := &o.in.Requests[i]
		for _, task := range r.Tasks {
			x, ok := b.planner.Find(backfill.Key{Job: r.Job, Stage: r.Stage, Task: task})
			if ok && !b.reserveTask(o, &x) {
				return false
			}
		}
	}
	return true
}

func (b *plan) reserveTask(o *owner, x *backfill.Planned) bool {
	p, old := b.p, b.byKey[x.Key]
	if x.Spot.Bin < 0 {
		return old == nil || b.act(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: old.ID}})
	}
	g := p.s.Stage(scheduler.StageID{Job: x.Key.Job, Stage: x.Key.Stage})
	if g.Spec.Demand.IsZero() && g.Spec.Disk == 0 {
		return true // it needs no room
	}
	r := scheduler.Reservation{Kind: scheduler.ReserveProject, Job: x.Key.Job, Stage: x.Key.Stage, Task: x.Key.Task, Project: g.Job.Spec.Project,
		Node: scheduler.NodeID(x.Spot.Bin), Demand: g.Spec.Demand, Disk: g.Spec.Disk, OnDisk: x.Spot.Disk, Start: x.Spot.At, End: x.End,
		Latest: o.quote.Latest.Add(-x.End.Sub(x.Spot.At))}
	if r.Project == 0 {
		r.Kind = scheduler.ReserveDeadline
	}
	if old != nil && old.Latest != 0 && !o.asked {
		r.Latest = old.Latest
	}
	if !o.asked && (r.Start > r.Latest || p.isBroken(g.Job)) {
		r.Latest = 0
	}
	if old != nil && r.Start < old.Start && !p.expired(old) && p.s.Node(old.Node).Takes() {
		if b.moves == 0 {
			o.unsettled = true
			return true // it may stay where it is
		}
		b.moves--
	}
	if old == nil {
		r.ID = p.newID()
		return b.act(scheduler.Action{Kind: scheduler.ActReserve, Reservation: r})
	}
	if r.ID = old.ID; r == *old {
		return true
	}
	if r.Latest == 0 && old.Latest != 0 {
		b.sayBroken(o)
	}
	return b.act(scheduler.Action{Kind: scheduler.ActReserve, Reservation: r})
}

// sayBroken has the decision say that a promise is broken, as Check asks when a
// latest start is given up, though it may have been said before.
func (b *plan) sayBroken(o *owner) {
	p := b.p
	key := noteKey(scheduler.NoteBroken, o.id)
	for i := range p.notes {
		if n := &p.notes[i]; n.Kind == key.Kind && n.Job == key.Job && n.Project == key.Project {
			return
		}
	}
	for key.Slot = int32(backfill.CauseOverrun); key.Slot <= int32(backfill.CauseLate); key.Slot++ {
		if n, ok := p.s.Note(key); ok {
			p.note(n)
			return
		}
	}
	key.Slot = int32(backfill.CauseLate)
	p.note(scheduler.Note{NoteKey: key, At: p.now})
}

// forget drops what is reserved for an owner that is refused; false where the
// cycle is full.
func (b *plan) forget(o *owner) bool {
	for _, j := range o.jobs {
		for _, r := range slices.Clone(j.Reservations()) {
			if planned(r) && !b.act(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: r.ID}}) {
				return false
			}
		}
	}
	return true
}

// act carries out one step if the cycle has one left.
func (b *plan) act(a scheduler.Action) bool {
	if b.p.left <= 0 {
		return false
	}
	b.p.do(a)
	return true
}

// newID gives the id of a new reservation.
func (p *Policy) newID() scheduler.ReservationID {
	if all := p.s.Reservations(); len(all) > 0 {
		return all[len(all)-1].ID + 1
	}
	return 1
}

// sweep drops planned reservations that have nothing to wait for any more: their
// task runs or is done, or their job is out of its lane. Whoever started before
// its reservation so gives its room forward.
func (p *Policy) sweep() {
	if p.left <= 0 || len(p.s.Reservations()) == 0 || !p.stale() {
		return
	}
	p.served = p.served[:0]
	for i := range p.watch.jobs {
		if !p.watch.jobs[i].stale {
			continue
		}
		for _, r := range p.s.Job(p.watch.jobs[i].id).Reservations() {
			if planned(r) && p.isServed(r) {
				p.served = append(p.served, r.ID)
			}
		}
	}
	slices.Sort(p.served)
	for _, id := range p.served {
		if p.left <= 0 {
			return
		}
		p.promise.swept = true
		p.do(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: id}})
	}
}

// isServed tells whether a planned reservation has nothing to wait for any more.
func (p *Policy) isServed(r *scheduler.Reservation) bool {
	g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
	return g == nil || (!g.IsPending(r.Task) && !p.sleeps(g, r.Task)) || g.Job.Phase != scheduler.JobActive || (g.Job.Spec.Project == 0 && p.isHopeless(g.Job))
}

// sleeps tells whether an attempt at a task is suspended: what is reserved for
// the task is its to come back to.
func (p *Policy) sleeps(g *scheduler.Stage, task int32) bool {
	for a := range p.s.AttemptsOf(g, task) {
		if a.Phase == scheduler.AttemptSuspended {
			return true
		}
	}
	return false
}

// stale tells whether a job may have more reserved than waits.
func (p *Policy) stale() bool {
	p.watchJobs()
	return slices.ContainsFunc(p.watch.jobs, func(x watched) bool { return x.stale })
}

// guaranteed tells whether a job belongs to a project whose departure was
// promised, and the promise holds: then it is no victim.
func (p *Policy) guaranteed(j *scheduler.Job) bool {
	pr := p.s.Project(j.Spec.Project)
	return pr != nil && !pr.Noted(scheduler.NoteBroken) && (pr.Noted(scheduler.NotePromise) || pr.Spec.Promised != 0)
}
