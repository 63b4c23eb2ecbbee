package scheduler

import (
	"cmp"
	"slices"
	"time"
)

// This file is the part of Check about guarantees: which placements they forbid, which
// attempts may not be preempted, and how a guarantee may move or end.

// placedTask is a task that an earlier action of the decision placed, resumed (demand and
// space are then what it did not occupy before) or migrated.
type placedTask struct {
	node    NodeID
	disk    int16
	job     *Job
	demand  Resources
	space   int64
	end     Time     // by its bound, or Never
	resumed *Attempt // nil if it was placed or migrated
}

// guaranteeKey identifies what a reservation is for.
type guaranteeKey struct {
	job         JobID
	stage, task int32
	project     ProjectID
}

func keyOf(r *Reservation) guaranteeKey { return guaranteeKey{r.Job, r.Stage, r.Task, r.Project} }

// droppedGuarantee is a guarantee of the State that an action of the decision, its first on this id, deletes or replaces.
type droppedGuarantee struct {
	action      int
	reservation Reservation
}

// reservedOn returns the reservations on a node after the actions so far. O(reservations on the node and moved there).
func (c *checker) reservedOn(id NodeID) []*Reservation {
	reserved := c.s.cluster.nodes[id].reserved
	if len(c.latest) == 0 {
		return reserved
	}
	c.scratchReservations = c.scratchReservations[:0]
	for _, r := range reserved {
		if _, changed := c.latest[r.ID]; !changed {
			c.scratchReservations = append(c.scratchReservations, r)
		}
	}
	for _, k := range c.broughtTo[id] {
		if r := c.latest[k]; r != nil && r.Node == id && !slices.Contains(c.scratchReservations, r) { // broughtTo may list it twice
			c.scratchReservations = append(c.scratchReservations, r)
		}
	}
	return c.scratchReservations
}

// checkGuarantees checks a start on a node against the guarantees reserved there: at the start of each of them there
// must be enough free capacity for it beside what then runs and is not preemptible, on the node's disks too. A task
// with a runtime bound is assumed to run until its bound, one without for ever. One that is suspended stays until its
// bound from the start of its own guarantee there on, and for ever without one.
func (c *checker) checkGuarantees(p *placedTask, g *Stage, task int32) {
	n := c.s.cluster.nodes[p.node]
	if (len(n.reserved) == 0 && len(c.latest) == 0) || c.isPreemptibleOn(p.job, n) {
		return
	}
	list := c.reservedOn(p.node)
	if slices.ContainsFunc(list, func(r *Reservation) bool { // that it is due for
		return c.inForce(r) && r.Job == p.job.Spec.ID && (r.Stage < 0 || r.Stage == g.Index) && (r.Task < 0 || r.Task == task)
	}) {
		return
	}
	for _, r := range list {
		if r.Kind.IsGuarantee() && r.End > c.now && r.Start < p.end && r.Job != p.job.Spec.ID && !c.guaranteeFits(r, list, n) {
			c.violate(RuleGuarantee, "job %d on node %q leaves too little capacity for reservation %d at %d", p.job.Spec.ID, n.Spec.Name, r.ID, r.Start)
			return
		}
	}
}

// guaranteeFits reports whether a guarantee has its capacity at its start: CPU, memory and I/O beside the other
// guarantees in force then, space summed over the disks, and, if it is for one task, I/O and space on one disk.
func (c *checker) guaranteeFits(r *Reservation, list []*Reservation, n *Node) bool {
	at, account := max(r.Start, c.now), c.account(n.Spec.ID)
	c.scratch.Free, c.scratch.Disks = account.free, append(c.scratch.Disks[:0], account.disks...)
	for a := range c.s.Attempts().On(n.Spec.ID) {
		g := c.s.StageOf(a)
		if c.isPreemptibleOn(g.Job, n) || g.Job.Spec.ID == r.Job || c.endsBy(a, g, at, list) {
			c.scratch.Release(a.Occupied.Resources, a.Occupied.Disk, a.Disk)
		}
	}
	for i := range c.placed {
		p := &c.placed[i]
		if p.node != n.Spec.ID {
			continue
		}
		goes := c.isPreemptibleOn(p.job, n) || p.job.Spec.ID == r.Job
		if goes || p.end <= at {
			c.scratch.Release(p.demand, p.space, p.disk)
		}
		if !goes && p.end <= at && p.resumed != nil { // so far counted as suspended
			c.scratch.Release(p.resumed.Occupied.Resources, p.resumed.Occupied.Disk, p.resumed.Disk)
		}
	}
	free, space := c.scratch.Free, int64(0)
	onOne := r.Task < 0 || (r.Demand[IO] == 0 && r.Disk == 0)
	for _, d := range c.scratch.Disks {
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

// endsBy reports whether an attempt is taken to have ended by a time: by its bound, a suspended one if a guarantee of the list lets it go
// on before, for as long as that is. One that the decision resumes is also among the placed, and stays suspended here.
func (c *checker) endsBy(a *Attempt, g *Stage, at Time, list []*Reservation) bool {
	if !a.Level.Suspended() || c.seen[a.ID] {
		return g.AssumedEnd(a) <= at
	}
	return slices.ContainsFunc(list, func(r *Reservation) bool {
		return r.Kind.IsGuarantee() && r.End <= at && r.Job == a.ID.Job && r.Stage == a.ID.Stage && r.Task == a.ID.Index &&
			boundedEnd(g, a.Ran, max(r.Start, c.now)) <= r.End
	})
}

// boundedEnd returns the end of a task that has run for so long and starts or goes on now by its bound, or Never.
func boundedEnd(g *Stage, ran time.Duration, now Time) Time {
	if b := g.BoundLeft(ran); b > 0 {
		return now.Add(b)
	}
	return Never
}

// inForce reports whether a reservation is a guarantee in force now.
func (c *checker) inForce(r *Reservation) bool {
	return r.Kind.IsGuarantee() && r.Start <= c.now && r.End > c.now
}

// isPreemptibleOn is Node.CanPreempt, except that jobs count as infeasible if the decision declares them so.
func (c *checker) isPreemptibleOn(j *Job, n *Node) bool {
	return n.CanPreempt(j) || (j.Spec.Project == 0 && n.Spec.Levels.FreesMemory() && slices.Contains(c.infeasible, j.Spec.ID))
}

// keepsDeadline reports whether the deadline of a job is protected: by a guarantee that is not violated (as by a task
// that ran past its bound), or, accepted without one, unless a guarantee is due on the node or under the same cap.
func (c *checker) keepsDeadline(j *Job, on NodeID) bool {
	return (j.IsDeadlineGuaranteed() && !c.countsAsViolated(j.Spec.ID, j.Spec.Project)) || !(slices.ContainsFunc(c.reservedOn(on), c.inForce) || c.isInWayUnderCap(j))
}

// isInWayUnderCap reports whether a cap above a job has no room for all tasks below it that wait and are due by a guarantee,
// after the actions so far. O((guarantees that have begun + reservations of the decision) x depth²); O(1) if no tenant has a cap.
func (c *checker) isInWayUnderCap(j *Job) bool {
	if c.s.tree.capped == 0 {
		return false
	}
	for t := j.tenant; t != nil; t = c.s.tree.tenant(t.Spec.Parent) {
		used := t.Used.Add(c.charged.tenants[t.Spec.ID])
		sum := used
		add := func(r *Reservation) {
			if g := c.s.Stage(r.StageID()); g != nil && c.inForce(r) && r.IsOfTask() && g.IsPending(r.Task) && c.s.tree.IsBelow(g.Job.Spec.Tenant, t.Spec.ID) {
				sum = sum.Add(g.Spec.Demand)
			}
		}
		for _, r := range c.s.Reservations().Guarantees() {
			if r.Start > c.now {
				break
			}
			if _, changed := c.latest[r.ID]; !changed {
				add(r)
			}
		}
		for _, r := range c.latest {
			if r != nil {
				add(r)
			}
		}
		if _, ok := t.Spec.Caps.Total.Allows(sum); sum != used && !ok {
			return true
		}
	}
	return false
}

// keepsProject reports whether the guarantee of a job's project, or of a job without a project, if it has one, protects an
// attempt. An attempt that ran past its bound has voided its own guarantee (two-tier 4.6).
func (c *checker) keepsProject(j *Job, a *Attempt) bool {
	overran := j.Spec.Bound > 0 && a.RanFor(c.now) >= j.Spec.Bound
	return (c.s.Reservations().hasGuarantee(j.Spec.Project) || j.HasState(GuaranteeState)) && !overran && !c.countsAsViolated(j.Spec.ID, j.Spec.Project)
}

func (rs Reservations) hasGuarantee(id ProjectID) bool {
	p := rs.s.projects[id]
	return p != nil && (p.HasState(GuaranteeState) || p.Spec.GuaranteedDeparture != 0)
}

// GuaranteeIncludes reports whether the guarantee of a job's project, where it has one, is for this job too. One that
// joined the project later is included once the policy says so. O(1).
func (s *State) GuaranteeIncludes(j *Job) bool {
	n, _ := s.PolicyState(PolicyStateKey{Kind: GuaranteeState, Project: j.Spec.Project})
	return n.Value == 0 || j.Spec.ID <= JobID(n.Value) || j.HasState(GuaranteeState)
}

// IsViolated reports whether a policy recorded that the guarantee of a job, or of its project, is violated. O(1).
func (rs Reservations) IsViolated(j *Job) bool {
	p := rs.s.projects[j.Spec.Project]
	return j.HasState(ViolatedState) || (p != nil && p.HasState(ViolatedState))
}

// countsAsViolated reports whether this decision or an earlier one recorded that the guarantee of a job or project is
// violated, and why. A policy asks Reservations.IsViolated of a State to which it has applied its records; Check is
// independent of it, and counts those of the decision beside a State that has none of them.
func (c *checker) countsAsViolated(job JobID, project ProjectID) bool {
	j, p := c.s.jobs[job], c.s.projects[project]
	return c.recordsViolation(job, project) || (j != nil && c.s.Reservations().IsViolated(j)) || (p != nil && p.HasState(ViolatedState))
}

// recordsViolation reports whether a policy state of the decision says that the guarantee of a job or project is violated.
func (c *checker) recordsViolation(job JobID, project ProjectID) bool {
	return slices.ContainsFunc(c.states, func(p PolicyState) bool {
		return p.Kind == ViolatedState && ((job != 0 && p.Job == job) || (project != 0 && p.Project == project))
	})
}

// checkReserve checks the addition, change or deletion of a reservation. The first action on the id of a guarantee notes
// it as dropped: checkDropped finds out whether the decision leaves it reserved.
func (c *checker) checkReserve(a *Action) {
	r := &a.Reservation
	old, changed := c.latest[r.ID]
	if !changed {
		if old = c.s.Reservations().Get(r.ID); old != nil && old.Kind.IsGuarantee() {
			c.dropped = append(c.dropped, droppedGuarantee{c.index, *old})
		}
	}
	if a.Kind == ActUnreserve {
		if old == nil {
			c.violate(RuleUnknown, "reservation %d: it does not exist", r.ID)
			return
		}
		c.latest[r.ID] = nil
		c.added--
		return
	}
	if old == nil {
		if c.added >= c.s.Reservations().Left() {
			c.violateBy(r.refuseAdded())
			return
		}
		c.added++
	}
	if was := c.latest[r.ID]; was == nil || was.Node != r.Node {
		c.broughtTo[r.Node] = append(c.broughtTo[r.Node], r.ID)
	}
	c.latest[r.ID] = r
	if err := c.s.applier().checkReservation(r); err != nil {
		c.violateBy(err)
		return
	}
	if r.Kind.IsGuarantee() && r.Latest != 0 && r.Start > r.Latest && !c.recordsViolation(r.Job, r.Project) {
		c.violate(RuleGuarantee, "reservation %d: it starts at %d, its latest start is %d", r.ID, r.Start, r.Latest)
	}
}

// servesGuarantee reports whether a reservation serves a guarantee that was made: an accepted
// deadline, or the departure of a project or of a job without one. Any other reservation is the policy's own plan.
func (c *checker) servesGuarantee(r *Reservation) bool {
	j := c.s.jobs[r.Job]
	ofJob := j != nil && ((r.Kind == ReserveDeadline && j.IsAccepted()) || (r.Kind == ReserveProject && j.HasState(GuaranteeState)))
	return ofJob || (r.Project != 0 && c.s.Reservations().hasGuarantee(r.Project) && (j == nil || c.s.GuaranteeIncludes(j)))
}

// checkDropped checks, at the end of a decision, each guarantee that it deleted or replaced. That is valid if its job or
// project is done, stopped or infeasible, its task started, it is reserved again by its latest start, or a policy state
// says that it is violated and why. Reservations that serve no guarantee are the policy's to delete.
func (c *checker) checkDropped() {
	if len(c.dropped) == 0 {
		return
	}
	for _, r := range c.latest {
		if r != nil && r.Kind.IsGuarantee() {
			k := keyOf(r)
			c.reservedAgain[k] = min(cmp.Or(c.reservedAgain[k], Never), cmp.Or(r.Latest, Never))
		}
	}
	for i := range c.dropped {
		r := &c.dropped[i].reservation
		latest, reserved := c.reservedAgain[keyOf(r)]
		kept := reserved && latest <= cmp.Or(r.Latest, Never)
		j := c.s.jobs[r.Job]
		if !kept && c.servesGuarantee(r) && (j == nil || !c.countsAsInfeasible(j)) && !c.isServed(r) && !c.countsAsViolated(r.Job, r.Project) {
			c.index = c.dropped[i].action
			c.violate(RuleGuarantee, "reservation %d of job %d, project %d is dropped without being served, reserved again by its latest start or recorded as violated",
				r.ID, r.Job, r.Project)
		}
	}
}

// isServed reports whether nothing that the guarantee is for is waiting any more.
func (c *checker) isServed(r *Reservation) bool {
	if r.Job == 0 {
		p := c.s.projects[r.Project]
		return p == nil || len(p.Jobs) == 0
	}
	j := c.s.jobs[r.Job]
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
			if !c.isTaskServed(g, i) {
				return false
			}
		}
	}
	return true
}

// isTaskServed is isServed for one task of a stage. One attempt that goes on is enough.
func (c *checker) isTaskServed(g *Stage, task int32) bool {
	if g.IsPending(task) {
		return c.seen[AttemptID{TaskID: g.Task(task)}]
	}
	suspended := false
	for a := range c.s.Attempts().Of(g, task) {
		if a.Phase != AttemptSuspended || c.seen[a.ID] {
			return true
		}
		suspended = true
	}
	return !suspended
}
