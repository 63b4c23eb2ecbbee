package threedsf

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// overdueLane serves one task of each regular job that has waited very long, ahead of all others.
// Without it a job could wait for ever while others keep coming: a job of many tasks behind smaller
// jobs in its queue, a job in a late queue, or a job of large tasks whose reserved node small tasks
// fill before it is reserved again.
//
// A job is overdue when it has no live attempt and has had none for Config.Aging times the number
// of ready stages. So waiting jobs become overdue one by one, about one per Aging. The order of
// tenants and queues thus loses about one task per Aging, whatever the load.
type overdueLane struct {
	c       *cycle
	nodes   *reservedNodes
	placer  *placer
	tenants *tenantOrder

	state    *scheduler.State
	earliest scheduler.Time // no job of state has waited since before this time, whether a decision is accepted or not
	jobs     []overdueJob
}

// overdueJob is a job and the start of its wait.
type overdueJob struct {
	job   *scheduler.Job
	since scheduler.Time
}

// maxOverdue bounds the overdue jobs that a pass examines: those that have waited longest.
const maxOverdue = 64

// begin starts a decision, before it changes the State. O(1) unless a job may be overdue, else O(jobs).
func (l *overdueLane) begin() {
	step, limit := l.threshold()
	if limit == math.MaxInt64 || l.state == l.c.s && step.Sub(l.earliest) < limit {
		return
	}
	// A job is in the State within Config.Aging of its submission.
	l.state, l.earliest = l.c.s, step.Add(-l.c.cfg.Aging)
	for j := range l.c.s.Jobs() {
		if j.Live == 0 {
			l.earliest = min(l.earliest, waitsSince(j))
		}
	}
}

// threshold returns the reference time of comparison, and how long a job must have waited by then to be
// overdue. The time advances in steps of Config.Aging, so that the decision stays valid until the next step.
func (l *overdueLane) threshold() (step scheduler.Time, limit time.Duration) {
	aging, waiting := l.c.cfg.Aging, time.Duration(l.c.s.Queue().Ready())
	if aging <= 0 || waiting == 0 {
		return 0, math.MaxInt64
	}
	if limit = math.MaxInt64 / 2; aging < limit/waiting {
		limit = aging * waiting
	}
	return l.c.now - l.c.now%scheduler.Time(aging), limit
}

// serve places a task of each overdue job, longest wait first, or reserves a node for it. O(1)
// unless a job may be overdue, else O(jobs).
func (l *overdueLane) serve() {
	step, limit := l.threshold()
	if limit == math.MaxInt64 {
		return
	}
	l.c.wakeAt(step.Add(l.c.cfg.Aging))
	if step.Sub(l.earliest) < limit {
		return
	}
	l.find(step, limit)
	reservable := max(1, len(l.c.s.Nodes())/16)
	for _, o := range l.jobs[:min(len(l.jobs), maxOverdue)] {
		if l.c.actionsLeft == 0 {
			return
		}
		reservable -= l.serveJob(o.job, reservable)
	}
}

// find lists the overdue jobs, longest wait first.
func (l *overdueLane) find(step scheduler.Time, limit time.Duration) {
	l.jobs = l.jobs[:0]
	for j := range l.c.s.Jobs() {
		if j.Live > 0 || j.Ready == 0 {
			continue
		}
		since := waitsSince(j)
		if class := l.c.classOf(j); (class == classHigh || class == classLow) && step.Sub(since) >= limit && l.isUnderCaps(j) {
			l.jobs = append(l.jobs, overdueJob{j, since})
		}
	}
	slices.SortFunc(l.jobs, func(a, b overdueJob) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.job.Spec.ID, b.job.Spec.ID))
	})
}

// isUnderCaps reports whether caps let a task of a job start: other jobs do not wait for one that caps stop.
func (l *overdueLane) isUnderCaps(j *scheduler.Job) bool {
	return slices.ContainsFunc(j.Stages, func(g *scheduler.Stage) bool { return g.Ready() && l.c.allows(g) })
}

// waitsSince returns when a job without a live attempt had one last, or else was submitted.
func waitsSince(j *scheduler.Job) scheduler.Time {
	since := j.Spec.Submitted
	for _, g := range j.Begun() {
		since = max(since, g.CountedUntil())
	}
	return since
}

// serveJob places a task of a job. If none can be placed and reservable is above 0, it reserves a node
// for one of them. It returns how many nodes it reserved.
func (l *overdueLane) serveJob(j *scheduler.Job, reservable int) int {
	for _, g := range j.Stages {
		if g.Ready() && l.placer.isPlaceable(g) {
			l.placer.placeAnywhere(g)
			return 0
		}
	}
	if !l.c.cfg.ReserveNodes || reservable == 0 {
		return 0
	}
	for _, g := range j.Stages {
		if l.tenants.shouldReserveNode(g) && l.nodes.reserveForOne(g) {
			return 1
		}
	}
	return 0
}
