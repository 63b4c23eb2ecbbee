package threedsf

import (
	"github.com/drover-run/drover/scheduler"
)

// suspendedLane resumes suspended tasks.
type suspendedLane struct {
	c            *cycle
	open         *openNodes
	reservations *preemptReservations

	anySuspended   bool                      // some attempt was suspended at the beginning of the pass
	resumeReserved map[scheduler.NodeID]bool // nodes reserved for a suspended task
}

// serve resumes suspended tasks (P3), longest suspended first, where their node has free capacity again.
func (l *suspendedLane) serve() {
	attempts := l.c.s.Attempts().Resumable()
	if l.c.cfg.Migrate {
		attempts = l.c.s.Attempts().Suspended() // another node may have the capacity that their own lacks
	}
	for a := range attempts {
		if l.c.actionsLeft <= 0 {
			return
		}
		l.tryResume(a)
	}
}

// resumeLongSuspended resumes, ahead of all lanes but P1, tasks suspended for half of MaxSuspended. On
// each node it reserves capacity for the first that does not fit yet, unless that could not resume with
// it either; two such reservations could block each other for ever. If the first does not fit where
// nothing runs, other suspended tasks block it, so these may resume despite its reservation.
func (l *suspendedLane) resumeLongSuspended() {
	clear(l.resumeReserved)
	l.anySuspended = false
	for a := range l.c.s.Attempts().Suspended() {
		l.anySuspended = true
		due := a.SuspendedAt.Add(l.c.cfg.MaxSuspended / 2)
		if l.c.now < due {
			l.c.wakeAt(due) // the following attempts were suspended later
			return
		}
		if l.c.actionsLeft <= 0 {
			return
		}
		g := l.c.s.StageOf(a)
		if l.tryResume(a) || l.tryResumeDespiteReservations(a) || l.c.actionsLeft <= 0 || l.resumeReserved[a.Node] || !l.open.mayReserveToResume(a, g) {
			continue
		}
		if l.reservations.isFor(a) {
			l.resumeReserved[a.Node] = true
			continue
		}
		if !l.reservations.areLeft() {
			continue
		}
		l.resumeReserved[a.Node] = true
		more := a.Demand.Sub(a.Occupied.Resources).Max(scheduler.Resources{})
		l.reservations.reserve(g, a.ID.Index, a.Node, more, max(a.DiskSpace-a.Occupied.Disk, 0), scheduler.Never)
	}
}

// tryResumeDespiteReservations resumes a task on a node reserved for a task suspended earlier, if
// nothing runs there: the earlier task then waits for what other suspended tasks occupy.
func (l *suspendedLane) tryResumeDespiteReservations(a *scheduler.Attempt) bool {
	if !l.resumeReserved[a.Node] || l.c.s.Node(a.Node).Used()[scheduler.CPU] > 0 {
		return false
	}
	l.open.ignoreResumeReservations = true
	defer func() { l.open.ignoreResumeReservations = false }()
	return l.tryResume(a)
}

// tryResume resumes an attempt on its node, or migrates it to a node where its checkpoint can be restored; it migrates
// first if its own node is not schedulable. It returns false if neither has free capacity or the job must not continue.
func (l *suspendedLane) tryResume(a *scheduler.Attempt) bool {
	n := l.c.s.Node(a.Node)
	if !l.c.cfg.Migrate && !a.FitsBack(n) {
		return false // the usual case, decided without touching the job
	}
	more := a.Demand.Sub(a.Occupied.Resources)
	g := l.c.s.StageOf(a)
	if g.WaitsForInput() || g.Job.Phase != scheduler.JobActive || l.c.isStoppedByMiss(g.Job) || !l.c.withinCaps(g.Job, a.Demand, more) {
		return false
	}
	if !n.Schedulable() && l.tryMigrate(a, g, more) {
		return true
	}
	if a.FitsBack(n) && l.open.mayResume(n, g, a) {
		l.c.apply(a.Act(scheduler.ActResume))
		l.c.shares.charge(g.Job.Spec.Tenant, more)
		return true
	}
	return n.Schedulable() && l.tryMigrate(a, g, more)
}

// tryMigrate migrates a checkpointed attempt to another node where it fits and can be restored, if
// the policy allows it. It returns false if it did not.
func (l *suspendedLane) tryMigrate(a *scheduler.Attempt, g *scheduler.Stage, more scheduler.Resources) bool {
	if !l.c.cfg.Migrate || a.Level != scheduler.LevelCheckpointed {
		return false
	}
	from := &l.c.s.Node(a.Node).Spec
	for id, k := l.c.s.Cluster().NextNodeFor(a.Demand, a.DiskSpace, 0), 0; id != scheduler.NoNode && k < maxIdlestCompared; id, k = l.c.s.Cluster().NextNodeFor(a.Demand, a.DiskSpace, id+1), k+1 {
		m := l.c.s.Node(id)
		disk, ok := m.Fits(a.Demand, a.DiskSpace)
		if id == a.Node || !ok || l.c.s.Cluster().Avoids(g, id) || !scheduler.CanRestore(from, &m.Spec) || !l.open.respectsReservations(m, g, a.Demand, a.DiskSpace, disk, a) {
			continue
		}
		l.c.apply(scheduler.Action{Kind: scheduler.ActMigrate, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run + 1, Node: id, Disk: disk})
		l.c.shares.charge(g.Job.Spec.Tenant, more)
		return true
	}
	return false
}
