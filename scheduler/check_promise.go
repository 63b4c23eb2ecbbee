package scheduler

import "slices"

// This file is Check's part about promises: what a start may not take, who is
// no victim, and how a promise may move or end.

// placedHere is a task that an earlier action of the decision placed, resumed (then
// demand and space are what it did not hold yet) or moved.
type placedHere struct {
	node   NodeID
	disk   int16
	job    *Job
	demand Resources
	space  int64
	end    Time // as predicted, Never without
}

// movedReservations are the reservations that the decision so far made, changed or
// dropped, as the latest action left them.
type movedReservations struct {
	now map[ReservationID]*Reservation // nil if dropped
	on  map[NodeID][]ReservationID     // that were brought to a node, perhaps not for long
}

func (m *movedReservations) begin() {
	if m.now == nil {
		m.now, m.on = map[ReservationID]*Reservation{}, map[NodeID][]ReservationID{}
	}
	if len(m.now) > 0 {
		clear(m.now)
		clear(m.on)
	}
}

func (m *movedReservations) put(r *Reservation) {
	if old := m.now[r.ID]; old == nil || old.Node != r.Node {
		m.on[r.Node] = append(m.on[r.Node], r.ID)
	}
	m.now[r.ID] = r
}

// promiseKey is whom a reservation is for.
type promiseKey struct {
	job         JobID
	stage, task int32
	project     ProjectID
}

func keyOf(r *Reservation) promiseKey { return promiseKey{r.Job, r.Stage, r.Task, r.Project} }

// droppedPromise is a promise that an action of the decision dropped.
type droppedPromise struct {
	action int
	r      Reservation
}

// poolPromise is a promise on the pool and what is free for it at its start.
type poolPromise struct {
	r    *Reservation
	free Resources
}

// reservedOn lists what is reserved on a node at this step of the decision.
// O(reservations there and brought there).
func (c *checker) reservedOn(s *State, id NodeID) []*Reservation {
	if len(c.moved.now) == 0 {
		return s.nodes[id].reserved
	}
	c.list = c.list[:0]
	for _, r := range s.nodes[id].reserved {
		if _, moved := c.moved.now[r.ID]; !moved {
			c.list = append(c.list, r)
		}
	}
	for _, k := range c.moved.on[id] {
		if r := c.moved.now[k]; r != nil && r.Node == id && !slices.Contains(c.list, r) { // it may have come twice
			c.list = append(c.list, r)
		}
	}
	return c.list
}

// promises holds a start on a node against the promises reserved there and on
// the pool: at the start of each of them there must be room for it beside what
// runs then and cannot be suspended, on the node's disks too. What has a bound
// runs until its bound; what has none, for ever, but until its predicted end where
// the promise was made counting on that (Foreseen); what can be suspended makes
// room.
func (c *checker) promises(s *State, j *Job, g *Stage, task int32, id NodeID, now Time) Violation {
	if len(s.pool) == 0 && len(s.nodes[id].reserved) == 0 && len(c.moved.now) == 0 { // the usual case: nothing is promised
		return Violation{}
	}
	if c.canYield(s, j, id) {
		return Violation{}
	}
	end := Never
	if j.Spec.Bound > 0 {
		end = now.Add(j.Spec.Bound)
	}
	if v := c.poolPromises(s, j, g.Spec.Demand, end, now); v.Rule != 0 {
		return v
	}
	list := c.reservedOn(s, id)
	if len(list) == 0 || owns(list, j, g, task, now) {
		return Violation{}
	}
	predicted := predictedEnd(g, now)
	for _, r := range list {
		if !r.Kind.Promise() || r.End <= now || r.Start >= end || r.Job == j.Spec.ID || (r.Start >= predicted && s.Foreseen(r, j)) {
			continue
		}
		if !c.roomFor(s, r, list, id, now) {
			return broke(RulePromise, "job %d on node %q leaves no room for reservation %d at %d",
				j.Spec.ID, s.nodes[id].Spec.Name, r.ID, r.Start)
		}
	}
	return Violation{}
}

// roomFor tells whether a promise finds its room at its start: in CPU, memory
// and I/O together with the others in force then, in disk space on the disks
// together, and if it is for one task on one disk.
func (c *checker) roomFor(s *State, r *Reservation, list []*Reservation, id NodeID, now Time) bool {
	n := c.node(s, id)
	at := max(r.Start, now)
	free := n.free
	c.disks = append(c.disks[:0], n.disks...)
	leaves := func(d Resources, disk int16, space int64) {
		free = free.Add(d)
		if disk >= 0 && int(disk) < len(c.disks) {
			c.disks[disk].FreeIO += d[IO]
			c.disks[disk].FreeSpace += space
		}
	}
	for a := range s.AttemptsOn(id) {
		k := s.StageOf(a).Job
		if c.canYield(s, k, id) || (k.Spec.Bound > 0 && a.Placed.Add(k.Spec.Bound) <= at) || k.Spec.ID == r.Job || s.goneBy(a, r, now) {
			leaves(a.Held.Resources, a.Disk, a.Held.Disk)
		}
	}
	for i := range c.placed {
		k := &c.placed[i]
		if k.node == id && (c.canYield(s, k.job, id) || (k.job.Spec.Bound > 0 && now.Add(k.job.Spec.Bound) <= at) || k.job.Spec.ID == r.Job ||
			(k.end <= at && s.Foreseen(r, k.job))) {
			leaves(k.demand, k.disk, k.space)
		}
	}
	space := int64(0)
	onOne := r.Task < 0 || (r.Demand[IO] == 0 && r.Disk == 0)
	for _, d := range c.disks {
		space += d.FreeSpace
		onOne = onOne || (d.FreeIO >= r.Demand[IO] && d.FreeSpace >= r.Disk)
	}
	for _, o := range list {
		if o.Kind.Promise() && o.Start <= at && o.End > at {
			free = free.Sub(o.Demand)
			space -= o.Disk
		}
	}
	return (Resources{}).Fits(free) && onOne && (space >= 0 || r.Disk == 0)
}

// predictedEnd is when a task of a stage that starts now is predicted to end, Never
// where nothing is predicted of it.
func predictedEnd(g *Stage, now Time) Time {
	if g.Spec.Estimate <= 0 {
		return Never
	}
	return now.Add(g.Spec.Estimate)
}

// goneBy tells whether an attempt is predicted to end before a promise that was made
// counting on that begins. One that should have ended before now is counted on no
// more.
func (s *State) goneBy(a *Attempt, r *Reservation, now Time) bool {
	if a.Estimate <= 0 || a.Level != LevelRunning {
		return false
	}
	end := a.Placed.Add(a.Estimate - a.Ran)
	return end > now && end <= r.Start && s.Foreseen(r, s.StageOf(a).Job)
}

// poolPromises holds a start against the promises on the pool, which are totals
// over the nodes that are up. O(live attempts x promises on the pool) at the
// first start of a decision, O(promises on the pool) afterwards.
func (c *checker) poolPromises(s *State, j *Job, d Resources, end, now Time) Violation {
	if len(s.pool) == 0 {
		return Violation{}
	}
	if !c.pooled {
		c.pooled = true
		for _, r := range s.pool {
			if r.Kind.Promise() && r.End > now {
				c.pool = append(c.pool, poolPromise{r, s.poolAt(r, now)})
			}
		}
	}
	for i := range c.pool {
		p := &c.pool[i]
		due := p.r.Start <= now && p.r.Job == j.Spec.ID
		if due || p.r.Start >= end || p.r.Job == j.Spec.ID {
			continue
		}
		p.free = p.free.Sub(d)
		if !(Resources{}).Fits(p.free) {
			return broke(RulePromise, "job %d leaves no room for reservation %d on the pool at %d", j.Spec.ID, p.r.ID, p.r.Start)
		}
	}
	return Violation{}
}

// poolAt is what is left of all nodes at the start of a promise on the pool.
func (s *State) poolAt(r *Reservation, now Time) Resources {
	at := max(r.Start, now)
	free := s.total
	for _, n := range s.nodes {
		if n.Spec.Down {
			continue
		}
		for a := range s.AttemptsOn(n.Spec.ID) {
			k := s.StageOf(a).Job
			if !canYield(s, k, n.Spec.ID) && (k.Spec.Bound <= 0 || a.Placed.Add(k.Spec.Bound) > at) && k.Spec.ID != r.Job {
				free = free.Sub(a.Held.Resources)
			}
		}
	}
	for _, o := range s.pool {
		if o.Kind.Promise() && o.Start <= at && o.End > at {
			free = free.Sub(o.Demand)
		}
	}
	return free
}

// owns tells whether a promise that is due now is for this task.
func owns(list []*Reservation, j *Job, g *Stage, task int32, now Time) bool {
	for _, r := range list {
		if r.Kind.Promise() && r.Start <= now && r.End > now && r.Job == j.Spec.ID &&
			(r.Stage < 0 || r.Stage == g.Index) && (r.Task < 0 || r.Task == task) {
			return true
		}
	}
	return false
}

// canYield is the State's canYield, but that a job that the decision says is
// hopeless is so already.
func (c *checker) canYield(s *State, j *Job, id NodeID) bool {
	return canYield(s, j, id) || (j.Spec.Project == 0 && canFree(s, id) && slices.Contains(c.hopeless, j.Spec.ID))
}

// canYield tells whether tasks of a job on a node can make room for a promise:
// the job is not firm and the node can free memory.
func canYield(s *State, j *Job, id NodeID) bool {
	return !s.Firm(j) && canFree(s, id)
}

// canFree tells whether a node can free the memory of a task.
func canFree(s *State, id NodeID) bool {
	l := s.nodes[id].Spec.Levels
	return l.Has(LevelSwapped) || l.Has(LevelCheckpointed)
}

// spared tells whether an attempt is no victim for the sake of its project: the
// project was promised its departure and the promise holds. What ran past its
// bound has void its own promise (two-tier 4.6), a second attempt has none.
func (c *checker) spared(s *State, d *Decision, a *Attempt, j *Job, now Time) bool {
	id := j.Spec.Project
	if id == 0 || j.Phase != JobActive || a.Speculative {
		return false
	}
	if !s.promised(id) {
		return false
	}
	overran := j.Spec.Bound > 0 && a.RanFor(now) >= j.Spec.Bound
	return !overran && !s.broken(d, j.Spec.ID, id)
}

// promised tells whether a project was promised its departure.
func (s *State) promised(id ProjectID) bool {
	if _, ok := s.notes[NoteKey{Kind: NotePromise, Project: id}]; ok {
		return true
	}
	p := s.projects[id]
	return p != nil && p.Spec.Promised != 0
}

// maxCauses bounds the cause numbers of NoteBroken that Check looks for.
const maxCauses = 16

// broken tells whether the promise to a job or project is broken with a cause,
// by a note of this decision or before.
func (s *State) broken(d *Decision, job JobID, project ProjectID) bool {
	if brokenWithCause(d, &Reservation{Job: job, Project: project}) {
		return true
	}
	for slot := range int32(maxCauses) {
		for _, k := range [...]NoteKey{{Kind: NoteBroken, Job: job, Slot: slot}, {Kind: NoteBroken, Project: project, Slot: slot}} {
			if _, ok := s.notes[k]; ok && (k.Job != 0 || k.Project != 0) {
				return true
			}
		}
	}
	return false
}

func (c *checker) reserve(s *State, d *Decision, a *Action, action int) Violation {
	r := &a.Reservation
	old, moved := c.moved.now[r.ID] // the latest counts
	if !moved {
		old = s.Reservation(r.ID)
	}
	if a.Kind == ActUnreserve {
		if old == nil {
			return broke(RuleUnknown, "reservation %d: there is none", r.ID)
		}
		if old.Kind.Promise() {
			c.dropped = append(c.dropped, droppedPromise{action, *old})
		}
		c.moved.now[r.ID] = nil
		return Violation{}
	}
	c.moved.put(r)
	if err := r.validate(); err != nil {
		return broke(RuleMalformed, "%v", err)
	}
	if (r.Node != NoNode && s.Node(r.Node) == nil) || (r.Job != 0 && s.jobs[r.Job] == nil) ||
		(r.Job == 0 && s.projects[r.Project] == nil) {
		return broke(RuleUnknown, "reservation %d: node %d, job %d or project %d is not there", r.ID, r.Node, r.Job, r.Project)
	}
	if !r.Kind.Promise() || brokenWithCause(d, r) {
		return Violation{}
	}
	if c.again == nil {
		c.again = map[promiseKey]bool{}
	}
	c.again[keyOf(r)] = true
	if old != nil && old.Latest != 0 && s.isPromised(old) && (r.Latest == 0 || r.Latest > old.Latest) {
		return broke(RulePromise, "reservation %d: its latest start moves from %d to %d", r.ID, old.Latest, r.Latest)
	}
	if r.Latest != 0 && r.Start > r.Latest {
		return broke(RulePromise, "reservation %d: it starts at %d, its latest start is %d", r.ID, r.Start, r.Latest)
	}
	return Violation{}
}

// isPromised tells whether a reservation is for a promise that was made: an
// accepted deadline, or the departure of a project. Any other is its policy's plan.
func (s *State) isPromised(r *Reservation) bool {
	j := s.jobs[r.Job]
	return (r.Kind == ReserveDeadline && j != nil && s.Accepted(j)) || (r.Project != 0 && s.promised(r.Project))
}

// dropsKept judges, at the end of a decision, each promise it dropped: that is
// right if its job or project is done, stopped or hopeless, its task started, it
// was reserved again, or a note says that it is broken and why. What is reserved
// neither for an accepted deadline nor for a project that was promised its
// departure is its policy's plan, and its to change.
func (c *checker) dropsKept(s *State, d *Decision) {
	for i := range c.dropped {
		r := &c.dropped[i].r
		j := s.jobs[r.Job]
		if !s.isPromised(r) || c.again[keyOf(r)] || (j != nil && hopeless(d, j)) || s.served(c, r) || s.broken(d, r.Job, r.Project) {
			continue
		}
		v := broke(RulePromise, "reservation %d of job %d, project %d is dropped: it is not served, nor reserved again, nor broken with a cause",
			r.ID, r.Job, r.Project)
		v.Action = c.dropped[i].action
		c.out = append(c.out, v)
	}
}

// served tells whether nothing of what a promise is for waits any more.
func (s *State) served(c *checker, r *Reservation) bool {
	if r.Job == 0 {
		p := s.projects[r.Project]
		return p == nil || len(p.Jobs) == 0
	}
	j := s.jobs[r.Job]
	if j == nil || j.Phase != JobActive {
		return true
	}
	for _, g := range j.Stages {
		if r.Stage >= 0 && g.Index != r.Stage {
			continue
		}
		for i := g.pending.next(0); i >= 0; i = g.pending.next(i + 1) {
			if (r.Task < 0 || r.Task == i) && !c.seen.has(AttemptID{TaskID: g.Task(i)}) {
				return false
			}
		}
		for a := range s.AttemptsIn(g) {
			if (r.Task < 0 || r.Task == a.ID.Index) && a.Phase == AttemptSuspended && !c.seen.has(a.ID) {
				return false
			}
		}
	}
	return true
}

// brokenWithCause tells whether a note of the decision says that the promise to
// the reservation's job or project is broken.
func brokenWithCause(d *Decision, r *Reservation) bool {
	for i := range d.Notes {
		n := &d.Notes[i]
		if n.Kind == NoteBroken && ((r.Job != 0 && n.Job == r.Job) || (r.Project != 0 && n.Project == r.Project)) {
			return true
		}
	}
	return false
}
