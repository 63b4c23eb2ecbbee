package threedsf

import (
	"cmp"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
)

// laneJob is a job of the deadline lane and its sort key, a latest start or a
// deadline.
type laneJob struct {
	job *scheduler.Job
	key scheduler.Time
}

// inLane reports whether a job is in the deadline lane (P2).
func (p *Policy) inLane(j *scheduler.Job) bool {
	return p.assumptions.inLane(p.s, j)
}

// isInfeasible reports whether a job left the lane because its deadline can no
// longer be met.
func (p *Policy) isInfeasible(j *scheduler.Job) bool {
	return j.HasState(scheduler.InfeasibleState)
}

// isStoppedByMiss reports whether a job must not continue: its deadline is
// infeasible and its on_miss is stop. The job's owner ends it.
func (p *Policy) isStoppedByMiss(j *scheduler.Job) bool {
	return j.Spec.OnMiss == scheduler.OnMissStop && j.Spec.Deadline > 0 && p.cfg.Deadlines && p.isInfeasible(j)
}

// buildLane fills laneJobs with the deadline jobs that have ready work, in lane
// order, and records jobs whose deadline has become infeasible.
func (p *Policy) buildLane() {
	p.laneJobs = p.laneJobs[:0]
	for j, at := p.s.Queue().Next(0); j != nil; j, at = p.s.Queue().Next(at) {
		if j.Spec.Deadline == 0 || !p.inLane(j) {
			continue
		}
		p.slack.Compute(j)
		infeasible, until := p.slack.Infeasible(p.now)
		if infeasible && p.recordState(scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.InfeasibleState, Job: j.Spec.ID}, At: p.now}) {
			continue
		}
		if !infeasible {
			p.wakeAt(until.Add(1))
		}
		p.laneJobs = append(p.laneJobs, laneJob{j, p.slack.SortKey(p.cfg.Order)})
	}
	slices.SortFunc(p.laneJobs, func(a, b laneJob) int { return cmp.Or(cmp.Compare(a.key, b.key), compareSubmission(a.job, b.job)) })
}

// deadlineLane places tasks of deadline jobs (P2), earliest latest start first
// (EMWTF, least laxity first), and then preempts for those that cannot wait.
func (p *Policy) deadlineLane() {
	p.buildLane()
	if len(p.laneJobs) == 0 {
		return
	}
	p.beginShrinkOnly()
	for _, l := range p.laneJobs {
		for _, g := range l.job.Stages {
			p.placeLaneStage(g)
		}
	}
	p.shrinkOnly = false
	if p.cfg.Preempt == deadline.None {
		return
	}
	p.withoutVictims = p.withoutVictims[:0]
	for _, l := range p.laneJobs {
		p.slack.Compute(l.job)
		for _, g := range l.job.Stages {
			if g.Ready() && p.actionsLeft > 0 {
				p.preemptForStage(g)
			}
		}
	}
}

// placeLaneStage places as many tasks of a lane stage as fit: tasks with much input
// by matching, others unless they wait for their input.
func (p *Policy) placeLaneStage(g *scheduler.Stage) {
	near := localSearch{stage: g}
	for p.actionsLeft > 0 && g.Ready() && p.isPlaceable(g) {
		if !p.usesMatching(g) {
			p.placeAnywhere(g)
			continue
		}
		if !p.placeLocal(g, &near, func() int32 { return p.laneBatch(g) }) && !p.waitOrMove(g, &near, true) {
			return
		}
	}
}

// laneBatch returns how many tasks of a lane stage may be placed at once.
func (p *Policy) laneBatch(g *scheduler.Stage) int32 {
	n := min(int32(min(p.actionsLeft, maxBatch)), g.Startable())
	if d := g.Spec.Demand; n > 1 && !p.s.TenantTree().WithinCaps(g.Job, d, d.Times(int64(n))) {
		return 1
	}
	return n
}

// preemptForStage frees capacity for the waiting tasks of a deadline stage: for the
// fewest that keep the predicted end before the deadline, and only if they cannot
// wait for capacity to become free (PDSonQueue Alg. 5 lines 18 to 27).
func (p *Policy) preemptForStage(g *scheduler.Stage) {
	if _, waits := p.dataWaits[g]; waits {
		return
	}
	slots, waiting := g.Running+p.countPreemptReservations(g), g.Pending
	limit, early := slots+g.Pending-p.countPreemptReservations(g), time.Duration(0)
	if p.guaranteeCount > 0 {
		// A slot that becomes free may be taken by a guaranteed task, so running
		// tasks do not count as slots for the next ones, and preemption begins a
		// margin earlier.
		slots, early = p.countPreemptReservations(g), p.cfg.Guarantees.Margin
		waiting -= p.countServedByRunning(g)
		limit = g.Pending
	}
	for p.actionsLeft > 0 && slots < limit && g.Startable() > p.countPreemptReservations(g) {
		if latest := p.slack.LatestStartOfTasks(g.Index, waiting, slots).Add(-early); latest >= p.now {
			p.wakeAt(latest.Add(1)) // slots suffice until then
			return
		}
		latest := p.slack.LatestStartOfTasks(g.Index, waiting, slots+1).Add(-early)
		if latest >= p.now {
			if ok, until := p.preemptor.CanWait(p.s, g, latest, p.now); ok {
				p.wakeAt(until)
				return
			}
		}
		if !p.preemptForTask(g, latest) {
			return
		}
		slots++
	}
}

// countServedByRunning returns how many waiting tasks of a stage can run in the
// slots of its running tasks after these and still end in time.
func (p *Policy) countServedByRunning(g *scheduler.Stage) (n int32) {
	for a := range p.s.Attempts().In(g) {
		if end, known := locality.PredictedEnd(p.s, a); known && a.Phase <= scheduler.AttemptRunning {
			n += p.slack.TasksInTime(g.Index, max(end, p.now))
		}
	}
	return min(n, g.Pending)
}

// preemptForTask preempts for one task of a stage, which must start by latest, and
// reserves the capacity for it. Victims are moved out of memory only where that
// costs less than waiting.
func (p *Policy) preemptForTask(g *scheduler.Stage, latest scheduler.Time) bool {
	if _, _, _, ok := p.s.TenantTree().UnderCaps(g); !ok {
		return false
	}
	for _, b := range p.withoutVictims {
		if b == p.demandClass(g) {
			return false
		}
	}
	plan, ok := p.preemptor.FindVictims(p.s, g, p.now)
	if !ok {
		p.withoutVictims = append(p.withoutVictims, p.demandClass(g))
		return false
	}
	if ok, until := p.preemptor.IsWorthwhile(p.s, g, &plan, latest, p.now); !ok {
		p.wakeAt(until)
		return false
	}
	return p.applyPreemption(g, plan, g.Job.Spec.Deadline.Add(1))
}

// applyPreemption preempts the plan's victims and reserves the capacity for a task
// of the stage until end. It returns false if the cycle has no actions left; the
// next cycle then continues.
func (p *Policy) applyPreemption(g *scheduler.Stage, plan deadline.PreemptionPlan, end scheduler.Time) bool {
	if len(plan.Victims) == 0 && p.s.Node(plan.Node).Releasing.IsZero() {
		return false // the task fits already: something other than capacity is in the way
	}
	for _, v := range plan.Victims {
		if p.actionsLeft == 0 {
			return false
		}
		a := v.Attempt
		act := scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: v.Level}
		if v.Kill {
			act.Kind, act.Level = scheduler.ActKill, 0
		}
		p.apply(act)
	}
	if p.actionsLeft == 0 {
		return false
	}
	p.reserveForPreemption(g, -1, plan.Node, g.Spec.Demand, g.Spec.Disk, end)
	return true
}

// suspendedLane resumes suspended tasks (P3), longest suspended first, where their
// node has free capacity again.
func (p *Policy) suspendedLane() {
	for _, a := range p.suspended {
		if p.actionsLeft <= 0 {
			return
		}
		if a.Phase == scheduler.AttemptSuspended {
			p.tryResume(a)
		}
	}
}

// resumeOverdue resumes, ahead of all lanes but P1, tasks suspended for half of
// MaxSuspended. On each node it reserves capacity for the first that does not fit
// yet; with two such reservations each could block the other for ever. Where nothing
// runs and the first still does not fit, it is blocked by other suspended tasks, so
// these may resume despite its reservation.
func (p *Policy) resumeOverdue() {
	p.suspended = p.suspended[:0]
	clear(p.resumeReserved)
	if p.s.Attempts().SuspendedCount() == 0 {
		return
	}
	for a := range p.s.Attempts().Suspended() {
		p.suspended = append(p.suspended, a)
	}
	for _, a := range p.suspended {
		due := a.SuspendedAt.Add(p.cfg.MaxSuspended / 2)
		if p.now < due {
			p.wakeAt(due) // the following were suspended later
			return
		}
		if p.actionsLeft <= 0 {
			return
		}
		g := p.s.StageOf(a)
		if p.tryResume(a) || p.tryResumeDespiteReservations(a) || g.Job.Phase != scheduler.JobActive || p.isStoppedByMiss(g.Job) ||
			p.actionsLeft <= 0 || !p.s.Node(a.Node).Schedulable() || p.resumeReserved[a.Node] {
			continue
		}
		p.resumeReserved[a.Node] = true
		if p.hasReservationFor(a) {
			continue
		}
		more := a.Demand.Sub(a.Occupied.Resources).Max(scheduler.Resources{})
		p.reserveForPreemption(g, a.ID.Index, a.Node, more, max(a.DiskSpace-a.Occupied.Disk, 0), scheduler.Never)
	}
}

// tryResumeDespiteReservations resumes a task on a node whose capacity is reserved
// for one suspended earlier, if nothing runs there: the earlier one then waits for
// what other suspended tasks occupy.
func (p *Policy) tryResumeDespiteReservations(a *scheduler.Attempt) bool {
	if !p.resumeReserved[a.Node] || p.s.Node(a.Node).Used()[scheduler.CPU] > 0 {
		return false
	}
	p.ignoreResumeReservations = true
	defer func() { p.ignoreResumeReservations = false }()
	return p.tryResume(a)
}

// tryResume resumes an attempt on its node, or migrates it to a node where its
// checkpoint can be restored. It returns false if neither has free capacity or the
// job must not continue.
func (p *Policy) tryResume(a *scheduler.Attempt) bool {
	n := p.s.Node(a.Node)
	more := a.Demand.Sub(a.Occupied.Resources)
	if more[scheduler.CPU] > n.Free[scheduler.CPU] && !p.cfg.Migrate {
		return false // the usual case, decided without touching the job
	}
	g := p.s.StageOf(a)
	if g.Job.Phase != scheduler.JobActive || p.isStoppedByMiss(g.Job) {
		return false
	}
	if n.Schedulable() && p.canResume(n, a, g, more) && p.s.TenantTree().WithinCaps(g.Job, a.Demand, more) {
		p.apply(scheduler.Action{Kind: scheduler.ActResume, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run})
		p.shares.charge(g.Job.Spec.Tenant, more)
		return true
	}
	if !p.cfg.Migrate || a.Level != scheduler.LevelCheckpointed || !p.s.TenantTree().WithinCaps(g.Job, a.Demand, more) {
		return false
	}
	for id, k := p.s.Cluster().NextNodeFor(a.Demand, a.DiskSpace, 0), 0; id != scheduler.NoNode && k < maxIdlestCompared; id, k = p.s.Cluster().NextNodeFor(a.Demand, a.DiskSpace, id+1), k+1 {
		m := p.s.Node(id)
		disk, ok := m.Fits(a.Demand, a.DiskSpace)
		if id == a.Node || !ok || p.s.Cluster().Avoids(g, id) || !scheduler.CanRestore(&n.Spec, &m.Spec) || !p.respectsReservations(m, g, a.Demand, a.DiskSpace, disk) {
			continue
		}
		p.apply(scheduler.Action{Kind: scheduler.ActMigrate, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run + 1, Node: id, Disk: disk})
		p.shares.charge(g.Job.Spec.Tenant, more)
		return true
	}
	return false
}

// canResume reports whether a suspended attempt fits on its node again. more is what
// it needs beyond what it occupies.
func (p *Policy) canResume(n *scheduler.Node, a *scheduler.Attempt, g *scheduler.Stage, more scheduler.Resources) bool {
	more = more.Max(scheduler.Resources{})
	space := max(a.DiskSpace-a.Occupied.Disk, 0)
	if more[scheduler.CPU] > n.Free[scheduler.CPU] || more[scheduler.Memory] > n.Free[scheduler.Memory] {
		return false
	}
	if a.Disk >= 0 && (more[scheduler.IO] > n.Disks[a.Disk].FreeIO || space > n.Disks[a.Disk].FreeSpace) {
		return false
	}
	return p.respectsReservations(n, g, more, space, a.Disk)
}
