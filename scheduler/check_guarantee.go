package scheduler

import "slices"

// This file is the part of Check about guarantees: which placements they forbid, which
// attempts may not be preempted, and how a guarantee may move or end.

// placedTask is a task that an earlier action of the decision placed, resumed (demand and
// space are then what it did not occupy before) or migrated.
type placedTask struct {
	node   NodeID
	disk   int16
	job    *Job
	demand Resources
	space  int64
	end    Time // by its bound, or Never
}

// changedReservations are the reservations that the decision so far has added, changed or
// deleted, in their latest version.
type changedReservations struct {
	latest    map[ReservationID]*Reservation // nil if deleted
	broughtTo map[NodeID][]ReservationID     // moved to a node by some action, perhaps away again by a later one
}

func (m *changedReservations) begin() {
	if m.latest == nil {
		m.latest, m.broughtTo = map[ReservationID]*Reservation{}, map[NodeID][]ReservationID{}
	}
	clear(m.latest)
	clear(m.broughtTo)
}

func (m *changedReservations) put(r *Reservation) {
	if old := m.latest[r.ID]; old == nil || old.Node != r.Node {
		m.broughtTo[r.Node] = append(m.broughtTo[r.Node], r.ID)
	}
	m.latest[r.ID] = r
}

// guaranteeKey identifies what a reservation is for.
type guaranteeKey struct {
	job         JobID
	stage, task int32
	project     ProjectID
}

func guaranteeKeyOf(r *Reservation) guaranteeKey {
	return guaranteeKey{r.Job, r.Stage, r.Task, r.Project}
}

// droppedGuarantee is a guarantee that an action of the decision deletes.
type droppedGuarantee struct {
	action      int
	reservation Reservation
}

// reservedOn returns the reservations on a node after the actions so far. O(reservations on
// the node and moved there).
func (c *checker) reservedOn(s *State, id NodeID) []*Reservation {
	if len(c.changed.latest) == 0 {
		return s.cluster.nodes[id].reserved
	}
	c.scratchReservations = c.scratchReservations[:0]
	for _, r := range s.cluster.nodes[id].reserved {
		if _, moved := c.changed.latest[r.ID]; !moved {
			c.scratchReservations = append(c.scratchReservations, r)
		}
	}
	for _, k := range c.changed.broughtTo[id] {
		if r := c.changed.latest[k]; r != nil && r.Node == id && !slices.Contains(c.scratchReservations, r) { // broughtTo may list it twice
			c.scratchReservations = append(c.scratchReservations, r)
		}
	}
	return c.scratchReservations
}

// checkGuarantees checks a start on a node against the guarantees reserved there: at the start of
// each of them there must be enough free capacity for it beside what then runs and is not
// preemptible, on the node's disks too. A task with a runtime bound is
// assumed to run until its bound; one without a bound for ever.
func (c *checker) checkGuarantees(s *State, j *Job, g *Stage, task int32, id NodeID, now Time) Violation {
	if len(s.cluster.nodes[id].reserved) == 0 && len(c.changed.latest) == 0 { // the common case: nothing is reserved
		return Violation{}
	}
	if c.isPreemptibleOn(s, j, id) {
		return Violation{}
	}
	end, list := boundedEnd(g, now), c.reservedOn(s, id)
	if len(list) == 0 || hasDueGuarantee(list, j, g, task, now) {
		return Violation{}
	}
	for _, r := range list {
		if !r.Kind.IsGuarantee() || r.End <= now || r.Start >= end || r.Job == j.Spec.ID {
			continue
		}
		if !c.guaranteeFits(s, r, list, id, now) {
			return violationOf(RuleGuarantee, "job %d on node %q leaves too little capacity for reservation %d at %d",
				j.Spec.ID, s.cluster.nodes[id].Spec.Name, r.ID, r.Start)
		}
	}
	return Violation{}
}

// guaranteeFits reports whether a guarantee has its capacity at its start: CPU, memory and I/O
// beside the other guarantees in force then, space summed over the disks, and, if it is for
// one task, I/O and space on one disk.
func (c *checker) guaranteeFits(s *State, r *Reservation, list []*Reservation, id NodeID, now Time) bool {
	n := c.account(s, id)
	at := max(r.Start, now)
	free := n.free
	c.scratchDisks = append(c.scratchDisks[:0], n.disks...)
	leaves := func(d Resources, disk int16, space int64) {
		free = free.Add(d)
		if disk >= 0 && int(disk) < len(c.scratchDisks) {
			c.scratchDisks[disk].FreeIO += d[IO]
			c.scratchDisks[disk].FreeSpace += space
		}
	}
	for a := range s.Attempts().On(id) {
		b, k := s.StageOf(a).Bound(), s.StageOf(a).Job
		if c.isPreemptibleOn(s, k, id) || (b > 0 && a.Placed.Add(b) <= at) || k.Spec.ID == r.Job {
			leaves(a.Occupied.Resources, a.Disk, a.Occupied.Disk)
		}
	}
	for i := range c.placed {
		k := &c.placed[i]
		if k.node == id && (c.isPreemptibleOn(s, k.job, id) || k.end <= at || k.job.Spec.ID == r.Job) {
			leaves(k.demand, k.disk, k.space)
		}
	}
	space := int64(0)
	onOne := r.Task < 0 || (r.Demand[IO] == 0 && r.Disk == 0)
	for _, d := range c.scratchDisks {
		space += d.FreeSpace
		onOne = onOne || (d.FreeIO >= r.Demand[IO] && d.FreeSpace >= r.Disk)
	}
	for _, o := range list {
		if o.Kind.IsGuarantee() && o.Start <= at && o.End > at {
			free = free.Sub(o.Demand)
			space -= o.Disk
		}
	}
	return (Resources{}).Fits(free) && onOne && (space >= 0 || r.Disk == 0)
}

// boundedEnd returns the end of a task that starts now by its bound, or Never.
func boundedEnd(g *Stage, now Time) Time {
	if b := g.Bound(); b > 0 {
		return now.Add(b)
	}
	return Never
}

// hasDueGuarantee reports whether the list contains a guarantee in force for this task.
func hasDueGuarantee(list []*Reservation, j *Job, g *Stage, task int32, now Time) bool {
	return slices.ContainsFunc(list, func(r *Reservation) bool {
		return r.Kind.IsGuarantee() && r.Start <= now && r.End > now && r.Job == j.Spec.ID &&
			(r.Stage < 0 || r.Stage == g.Index) && (r.Task < 0 || r.Task == task)
	})
}

// isGuaranteeDueOn reports whether a guarantee is due on a node: it may take the place of a job
// whose deadline is accepted without one.
func (c *checker) isGuaranteeDueOn(s *State, id NodeID, now Time) bool {
	return slices.ContainsFunc(c.reservedOn(s, id), func(r *Reservation) bool { return r.Kind.IsGuarantee() && r.Start <= now && r.End > now })
}

// isPreemptibleOn is Node.CanPreempt, except that jobs count as infeasible if the
// decision declares them so.
func (c *checker) isPreemptibleOn(s *State, j *Job, id NodeID) bool {
	n := s.cluster.nodes[id]
	return n.CanPreempt(j) || (j.Spec.Project == 0 && n.Spec.Levels.FreesMemory() && slices.Contains(c.infeasible, j.Spec.ID))
}

// keepsDeadline reports whether the deadline of a job has a guarantee that holds. One that is violated, as by a task that
// ran past its bound, gives way to guarantees that are due.
func (c *checker) keepsDeadline(s *State, d *Decision, j *Job) bool {
	return j.IsGuaranteed() && !s.Reservations().guaranteeViolated(d, j.Spec.ID, j.Spec.Project)
}

// isProtectedByProject reports whether an attempt may not be preempted because its project has
// a guarantee that holds. An attempt that ran past its bound has voided its own guarantee
// (two-tier 4.6); a speculative attempt has none.
func (c *checker) isProtectedByProject(s *State, d *Decision, a *Attempt, j *Job, now Time) bool {
	id := j.Spec.Project
	if id == 0 || j.Phase != JobActive || a.Speculative {
		return false
	}
	if !s.Reservations().hasGuarantee(id) {
		return false
	}
	overran := j.Spec.Bound > 0 && a.RanFor(now) >= j.Spec.Bound
	return !overran && !s.Reservations().guaranteeViolated(d, j.Spec.ID, id)
}

// hasGuarantee reports whether the departure of a project is guaranteed.
func (rs Reservations) hasGuarantee(id ProjectID) bool {
	p := rs.s.projects[id]
	return p != nil && (p.HasState(GuaranteeState) || p.Spec.GuaranteedDeparture != 0)
}

// guaranteeViolated reports whether this decision or an earlier one recorded that the
// guarantee of a job or project is violated, and why.
func (rs Reservations) guaranteeViolated(d *Decision, job JobID, project ProjectID) bool {
	if decisionViolates(d, &Reservation{Job: job, Project: project}) {
		return true
	}
	j, p := rs.s.jobs[job], rs.s.projects[project]
	return (j != nil && j.HasState(ViolatedState)) || (p != nil && p.HasState(ViolatedState))
}

// checkReserve checks the addition, change or deletion of a reservation.
func (c *checker) checkReserve(s *State, d *Decision, a *Action, action int) Violation {
	r := &a.Reservation
	old, moved := c.changed.latest[r.ID] // the latest version counts
	if !moved {
		old = s.Reservations().Get(r.ID)
	}
	if a.Kind == ActUnreserve {
		if old == nil {
			return violationOf(RuleUnknown, "reservation %d: it does not exist", r.ID)
		}
		if old.Kind.IsGuarantee() {
			c.dropped = append(c.dropped, droppedGuarantee{action, *old})
		}
		c.changed.latest[r.ID] = nil
		return Violation{}
	}
	c.changed.put(r)
	if err := r.validate(); err != nil {
		return violationOf(RuleMalformed, "%v", err)
	}
	if s.Node(r.Node) == nil || (r.Job != 0 && s.jobs[r.Job] == nil) ||
		(r.Job == 0 && s.projects[r.Project] == nil) {
		return violationOf(RuleUnknown, "reservation %d: node %d, job %d or project %d does not exist", r.ID, r.Node, r.Job, r.Project)
	}
	if !r.Kind.IsGuarantee() || decisionViolates(d, r) {
		return Violation{}
	}
	if c.reservedAgain == nil {
		c.reservedAgain = map[guaranteeKey]bool{}
	}
	c.reservedAgain[guaranteeKeyOf(r)] = true
	if old != nil && old.Latest != 0 && s.Reservations().isGuaranteed(old) && (r.Latest == 0 || r.Latest > old.Latest) {
		return violationOf(RuleGuarantee, "reservation %d: its latest start moves from %d to %d", r.ID, old.Latest, r.Latest)
	}
	if r.Latest != 0 && r.Start > r.Latest {
		return violationOf(RuleGuarantee, "reservation %d: it starts at %d, its latest start is %d", r.ID, r.Start, r.Latest)
	}
	return Violation{}
}

// isGuaranteed reports whether a reservation serves a guarantee that was made: an accepted
// deadline, or the departure of a project. Any other reservation is the policy's own plan.
func (rs Reservations) isGuaranteed(r *Reservation) bool {
	j := rs.s.jobs[r.Job]
	return (r.Kind == ReserveDeadline && j != nil && j.IsAccepted()) || (r.Project != 0 && rs.hasGuarantee(r.Project))
}

// checkDropped checks, at the end of a decision, each guarantee that it deleted. That is valid
// if its job or project is done, stopped or infeasible, its task started, it was reserved
// again, or a policy state says that it is violated and why. Reservations that are not
// isGuaranteed are the policy's to delete.
func (c *checker) checkDropped(s *State, d *Decision) {
	for i := range c.dropped {
		r := &c.dropped[i].reservation
		j := s.jobs[r.Job]
		if !s.Reservations().isGuaranteed(r) || c.reservedAgain[guaranteeKeyOf(r)] || (j != nil && c.isInfeasible(j)) || s.Reservations().isServed(c, r) || s.Reservations().guaranteeViolated(d, r.Job, r.Project) {
			continue
		}
		v := violationOf(RuleGuarantee, "reservation %d of job %d, project %d is dropped without being served, reserved again or recorded as violated",
			r.ID, r.Job, r.Project)
		v.Action = c.dropped[i].action
		c.violations = append(c.violations, v)
	}
}

// isServed reports whether nothing that the guarantee is for is waiting any more.
func (rs Reservations) isServed(c *checker, r *Reservation) bool {
	if r.Job == 0 {
		p := rs.s.projects[r.Project]
		return p == nil || len(p.Jobs) == 0
	}
	j := rs.s.jobs[r.Job]
	if j == nil || j.Phase != JobActive {
		return true
	}
	for _, g := range j.Stages {
		if r.Stage >= 0 && g.Index != r.Stage {
			continue
		}
		from, to := int32(0), g.Spec.Tasks
		if r.Task >= 0 { // most are for one task
			from, to = r.Task, min(r.Task+1, to)
		}
		for i := from; i < to; i++ {
			if !c.isTaskServed(rs.s, g, i) {
				return false
			}
		}
	}
	return true
}

// isTaskServed is isServed for one task of a stage.
func (c *checker) isTaskServed(s *State, g *Stage, task int32) bool {
	if g.IsPending(task) && !c.seen[AttemptID{TaskID: g.Task(task)}] {
		return false
	}
	for a := range s.Attempts().Of(g, task) {
		if a.Phase == AttemptSuspended && !c.seen[a.ID] {
			return false
		}
	}
	return true
}

// decisionViolates reports whether a policy state of the decision records that the guarantee
// of the reservation's job or project is violated.
func decisionViolates(d *Decision, r *Reservation) bool {
	for i := range d.PolicyStates {
		p := &d.PolicyStates[i]
		if p.Kind == ViolatedState && ((r.Job != 0 && p.Job == r.Job) || (r.Project != 0 && p.Project == r.Project)) {
			return true
		}
	}
	return false
}
