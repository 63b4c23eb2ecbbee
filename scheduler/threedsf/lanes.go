package threedsf

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
)

// laneJob is a job of the deadline lane and its sort key, a latest start or a deadline.
type laneJob struct {
	job *scheduler.Job
	key scheduler.Time
}

// deadlineLane serves jobs with a deadline ahead of all others.
type deadlineLane struct {
	c            *cycle
	cached       *jobCache
	open         *openNodes
	placer       *placer
	waits        *inputWaits
	preemption   *preemption
	reservations *preemptReservations

	jobs           []laneJob // of the pass, in lane order
	slack          deadline.Slack
	withoutVictims []scheduler.DemandClass // demand classes without victims left in this pass
	someInfeasible bool                    // a job that left the lane, in this pass or earlier, has ready work
}

// build fills jobs with the deadline jobs that have ready work, in lane order, and records jobs whose deadline has
// become infeasible. O(jobs with a deadline or a project).
func (dl *deadlineLane) build() {
	dl.jobs, dl.someInfeasible = dl.jobs[:0], false
	dl.cached.sync()
	for i := range dl.cached.jobs {
		if x := &dl.cached.jobs[i]; x.hasDeadline {
			switch j := x.job; {
			case j.Ready == 0:
			case dl.c.inLane(j):
				dl.jobs = append(dl.jobs, laneJob{job: j})
			default:
				dl.someInfeasible = dl.someInfeasible || j.IsInfeasible()
			}
		}
	}
	slices.SortFunc(dl.jobs, func(a, b laneJob) int { return compareSubmission(a.job, b.job) })
	kept := dl.jobs[:0]
	for _, l := range dl.jobs {
		dl.slack.Compute(l.job)
		infeasible, until := dl.slack.Infeasible(dl.c.now)
		if infeasible && dl.c.recordState(scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.InfeasibleState, Job: l.job.Spec.ID}, At: dl.c.now}) {
			dl.someInfeasible = true
			continue
		}
		if !infeasible {
			dl.c.wakeAt(until.Add(1))
		}
		kept = append(kept, laneJob{l.job, dl.slack.SortKey(dl.c.cfg.Order)})
	}
	dl.jobs = kept
	slices.SortFunc(dl.jobs, func(a, b laneJob) int { return cmp.Or(cmp.Compare(a.key, b.key), compareSubmission(a.job, b.job)) })
}

// serve places tasks of deadline jobs (P2), earliest latest start first (EMWTF, least laxity
// first), and then preempts for tasks that cannot wait.
func (dl *deadlineLane) serve() {
	dl.build()
	if len(dl.jobs) == 0 {
		return
	}
	dl.open.beginShrinkOnly()
	for _, l := range dl.jobs {
		for _, g := range l.job.Stages {
			dl.placeStage(g)
		}
	}
	dl.open.shrinkOnly = false
	if dl.c.cfg.Preempt == deadline.None {
		return
	}
	dl.withoutVictims = dl.withoutVictims[:0]
	for _, l := range dl.jobs {
		dl.slack.Compute(l.job)
		for _, g := range l.job.Stages {
			if g.Ready() && dl.c.actionsLeft > 0 {
				dl.preemptForStage(g)
			}
		}
	}
}

// placeStage places as many tasks of a lane stage as fit: those with much input by matching, others unless they wait.
func (dl *deadlineLane) placeStage(g *scheduler.Stage) {
	near := localSearch{stage: g}
	for dl.c.actionsLeft > 0 && g.Ready() && dl.placer.isPlaceable(g) {
		if !dl.c.usesMatching(g) {
			dl.placer.placeAnywhere(g)
			continue
		}
		if !dl.placer.placeLocal(g, &near, func() int32 { return dl.batch(g) }) && !dl.placer.waitOrMove(g, &near, true) {
			return
		}
	}
}

// batch returns how many tasks of a lane stage may be placed at once.
func (dl *deadlineLane) batch(g *scheduler.Stage) int32 {
	n := min(int32(min(dl.c.actionsLeft, maxBatch)), g.Startable())
	if d := g.Spec.Demand; n > 1 && !dl.c.withinCaps(g.Job, d, d.Times(int64(n))) {
		return 1
	}
	return n
}

// preemptForStage frees capacity for the fewest waiting tasks of a deadline stage that keep the predicted end
// before the deadline, and only if they cannot wait for capacity to become free (PDSonQueue Alg. 5 lines 18 to 27).
func (dl *deadlineLane) preemptForStage(g *scheduler.Stage) {
	if dl.waits.of(g).waits {
		return
	}
	// A running task is a slot for tasks that can follow it and still end in time, not for a task that must start now.
	slots, waiting, early := dl.reservations.count(g), g.Pending-dl.countServedByRunning(g, dl.c.now), time.Duration(0)
	if dl.open.guaranteeCount > 0 {
		early = dl.c.cfg.Guarantees.Margin // a guaranteed task may take a slot that becomes free
	}
	if waiting <= 0 { // all can follow; checked again once running tasks have taken too long for that
		dl.c.wakeAt(dl.startableUntil(g, 0, scheduler.Never).Add(1))
		return
	}
	for dl.c.actionsLeft > 0 && slots < g.Pending && g.Startable() > dl.reservations.count(g) {
		if latest := dl.slack.LatestStartOfTasks(g.Index, waiting, slots).Add(-early); latest >= dl.c.now {
			dl.c.wakeAt(min(latest, dl.startableUntil(g, slots, latest.Add(early))).Add(1)) // slots suffice until then
			return
		}
		latest := dl.slack.LatestStartOfTasks(g.Index, waiting, slots+1).Add(-early)
		ok, end := dl.preemptForTask(g, latest)
		if end > 0 && end <= latest {
			end = min(end, dl.startableUntil(g, slots+1, end.Add(early)).Add(1))
		}
		if end > 0 {
			dl.c.wakeAt(end)
		}
		if !ok {
			return
		}
		slots++
	}
}

// countServedByRunning returns how many waiting tasks of a stage can follow its running tasks in their slots and
// still end in time, if the running tasks end as predicted, but not before now. O(running tasks of the stage).
func (dl *deadlineLane) countServedByRunning(g *scheduler.Stage, now scheduler.Time) (n int32) {
	for a := range dl.c.s.Attempts().In(g) {
		if end, known := locality.PredictedEnd(dl.c.s, a); known && a.Phase <= scheduler.AttemptRunning {
			if n += dl.slack.TasksInTime(g.Index, max(end, now)); n >= g.Pending {
				return g.Pending
			}
		}
	}
	return n
}

// startableUntil returns until when, if nothing happens, the waiting tasks of a stage that cannot follow
// its running tasks can be started on slots slots at time at; Never if all can start. They become more as
// running tasks take longer than predicted. O(running tasks x log waiting tasks of the stage).
func (dl *deadlineLane) startableUntil(g *scheduler.Stage, slots int32, at scheduler.Time) scheduler.Time {
	canStart := func(served int32) bool { return dl.slack.LatestStartOfTasks(g.Index, g.Pending-served, slots) >= at }
	if canStart(0) {
		return scheduler.Never
	}
	latest := func(k int) scheduler.Time { return dl.slack.LatestStartOfTasks(g.Index, int32(k)+1, 1) } // after this time a slot serves k tasks
	return latest(sort.Search(int(g.Pending)-1, func(k int) bool { return canStart(dl.countServedByRunning(g, latest(k))) }))
}

// preemptForTask preempts for one task of a stage, which must start by latest, and reserves the
// capacity for it, unless it can wait for capacity to become free. Victims leave memory only if
// that costs less than waiting. until is the end of waiting, 0 if the task does not wait.
func (dl *deadlineLane) preemptForTask(g *scheduler.Stage, latest scheduler.Time) (ok bool, until scheduler.Time) {
	if latest >= dl.c.now {
		if ok, until := dl.preemption.preemptor.CanWait(dl.c.s, g, latest, dl.c.now); ok {
			return false, until
		}
	}
	class := dl.c.s.Cluster().DemandClassOf(g)
	if !dl.c.allows(g) || slices.Contains(dl.withoutVictims, class) {
		return false, 0
	}
	plan, ok := dl.preemption.preemptor.FindVictims(dl.c.s, g, dl.c.now)
	if !ok {
		dl.withoutVictims = append(dl.withoutVictims, class)
		return false, 0
	}
	if ok, until := dl.preemption.preemptor.IsWorthwhile(dl.c.s, g, &plan, latest, dl.c.now); !ok {
		return false, until
	}
	return dl.preemption.apply(g, plan, g.Job.Spec.Deadline.Add(1)), 0
}

// hasWaitingJob reports whether a deadline job still has ready tasks.
func (dl *deadlineLane) hasWaitingJob() bool {
	return slices.ContainsFunc(dl.jobs, func(l laneJob) bool { return l.job.Ready > 0 })
}
