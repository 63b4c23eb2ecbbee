package scheduler

import "slices"

// links connects attempts with their nodes, tenants and jobs, and updates the counts there.
type links struct{ s *State }

// charge adds d to the use of a job, its tenant and the tenants above it.
func (l links) charge(j *Job, d Resources, running int32) {
	l.s.changeLog.recordJob(j)
	j.Used = j.Used.Add(d)
	j.tenant.Own = j.tenant.Own.Add(d)
	l.s.tree.chargeUp(j.Spec.Tenant, d, running)
}

// detach removes an attempt and its occupancy from nodes, tenants, counts and suspendedList; attach is its inverse.
func (l links) detach(a *Attempt, slot int32) { l.setAttached(a, slot, -1) }

func (l links) attach(a *Attempt, slot int32) { l.setAttached(a, slot, 1) }

// setAttached attaches an attempt (sign 1) or detaches it (sign -1).
func (l links) setAttached(a *Attempt, slot int32, sign int64) {
	g := l.s.stages[a.stage]
	g.begin()
	n := l.s.cluster.nodes[a.Node]
	n.occupy(a.Disk, &a.Occupied, sign)
	if more := a.PendingRelease().Times(sign); !more.IsZero() {
		l.release(a, g.Job, more)
	}
	l.updateSlotList(&n.attempts, slot, sign)
	if a.From != NoNode {
		from := l.s.cluster.nodes[a.From]
		from.occupy(a.FromDisk, &a.FromOccupied, sign)
		from.Releasing = from.Releasing.Add(a.FromOccupied.Resources.Times(sign))
		l.updateSlotList(&from.moving, slot, sign)
		l.s.cluster.updateFitIndex(a.From)
	}
	running := int32(0)
	if a.Level == LevelRunning {
		running = int32(sign)
		g.Running += running
	} else {
		g.Suspended += int32(sign)
		if sign > 0 {
			l.s.suspended.add(a, slot)
		} else {
			l.s.suspended.remove(a, slot)
		}
		l.s.Queue().openEarly(g)
	}
	l.charge(g.Job, a.Occupied.Resources.Times(sign), running)
	l.s.cluster.updateFitIndex(a.Node)
}

// setPlaced adds a starting attempt (sign 1) to its task and to the counts of its stage, job, node and
// tenants, or removes it (sign -1). The caller updates the attempts of the node.
func (l links) setPlaced(g *Stage, a *Attempt, slot int32, sign int64) {
	i, n := a.ID.Index, int32(sign)
	switch {
	case a.Speculative:
		l.s.Attempts().at(g.active.get(i) - 1).sibling = (slot + 1) * max(n, 0)
	case sign > 0:
		g.pending.clear(i)
		g.busy.set(i)
		g.active.set(i, slot+1)
		g.addPending(-1)
	default:
		g.active.set(i, 0)
		g.busy.clear(i)
		g.pending.set(i)
		g.addPending(1)
	}
	g.Running += n
	g.Job.Live += n
	l.s.live += n
	l.s.cluster.nodes[a.Node].occupy(a.Disk, &a.Occupied, sign)
	l.charge(g.Job, a.Occupied.Resources.Times(sign), n)
	l.s.cluster.updateFitIndex(a.Node)
	if g.Pending <= 1 || g.Spec.MaxParallel > 0 {
		l.s.Queue().updateReady(g)
	}
}

// updateSlotList inserts a slot into a list in order of placement (sign 1) or removes it (sign -1).
func (l links) updateSlotList(list *[]int32, slot int32, sign int64) {
	if sign < 0 {
		if i := slices.Index(*list, slot); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
		}
		return
	}
	i, seq := len(*list), l.s.Attempts().at(slot).Seq
	for i > 0 && seq < l.s.Attempts().at((*list)[i-1]).Seq {
		i--
	}
	*list = slices.Insert(*list, i, slot)
}

// release adds to Releasing, the amount to be freed, of an attempt's node and of its job's tenants.
func (l links) release(a *Attempt, j *Job, more Resources) {
	n := l.s.cluster.nodes[a.Node]
	n.Releasing = n.Releasing.Add(more)
	l.s.tree.addReleasing(j.Spec.Tenant, more)
}

// beginResume sets an attempt to resuming; it then occupies as much as a running attempt.
func (l links) beginResume(a *Attempt, now Time) {
	a.Phase, a.Target, a.Level = AttemptResuming, LevelRunning, LevelRunning
	a.ownDetails().Occupied = Occupancy{Resources: a.Demand, Disk: a.DiskSpace}
	a.Placed = now
}

// bumpNodeVersionsOf changes the version of every node with an attempt of the job, whose predicted end may have changed.
func (l links) bumpNodeVersionsOf(j *Job) {
	if j.Live == 0 {
		return // without reading the stages
	}
	for _, g := range j.Stages {
		for a := range l.s.Attempts().In(g) {
			l.s.cluster.bumpNodeVersion(a.Node)
		}
	}
}

// detachRunning is detach for the common case: an attempt that is not suspended and not migrating.
func (l links) detachRunning(g *Stage, a *Attempt, slot int32) {
	n := l.s.cluster.nodes[a.Node]
	n.occupy(a.Disk, &a.Occupied, -1)
	l.updateSlotList(&n.attempts, slot, -1)
	g.Running--
	l.charge(g.Job, Resources{}.Sub(a.Occupied.Resources), -1)
	l.s.cluster.updateFitIndex(a.Node)
}

// unlinkFromTask removes an attempt from its task. It returns its slot and the task's other attempt, or nil.
func (l links) unlinkFromTask(g *Stage, a *Attempt) (int32, *Attempt) {
	i := a.ID.Index
	slot := g.active.get(i) - 1
	if first := l.s.Attempts().at(slot); first != a {
		slot = first.sibling - 1
		first.sibling = 0
		return slot, first
	}
	g.active.set(i, a.sibling)
	if a.sibling == 0 {
		return slot, nil
	}
	return slot, l.s.Attempts().at(a.sibling - 1)
}
