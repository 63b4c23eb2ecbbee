package threedsf

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// overdueLane serves regular jobs that waited for very long ahead of all others, one task of each. Without it a job
// could wait for ever while others keep coming: one of many tasks behind smaller ones in its queue, one in a late queue
// behind earlier ones, and one of large tasks, of whatever tenant, whose reserved node is broken up by small tasks that
// are next before it is reserved again.
//
// A job is overdue when nothing of it is live and the time since it had something is Config.Aging for each stage that
// is ready. So the jobs that wait become overdue one by one, some Aging apart: what that takes from the order of the
// tenants and queues is about one task in an Aging, whatever the load.
type overdueLane struct {
	c       *cycle
	nodes   *reservedNodes
	placer  *placer
	tenants *tenantOrder

	state    *scheduler.State
	earliest scheduler.Time // no job of state has been waiting since an earlier time, whether a decision is accepted or not
	jobs     []overdueJob
}

// overdueJob is a job and since when it waits.
type overdueJob struct {
	job   *scheduler.Job
	since scheduler.Time
}

// maxOverdue is how many overdue jobs are looked at in a pass, those that wait longest.
const maxOverdue = 64

// begin starts a decision, before it changes the State. O(1) unless a job may be overdue, else O(jobs).
func (l *overdueLane) begin() {
	step, limit := l.threshold()
	if limit == math.MaxInt64 || l.state == l.c.s && step.Sub(l.earliest) < limit {
		return
	}
	// A job is in the State within an Aging of its submission.
	l.state, l.earliest = l.c.s, step.Add(-l.c.cfg.Aging)
	for j := range l.c.s.Jobs() {
		if j.Live == 0 {
			l.earliest = min(l.earliest, waitsSince(j))
		}
	}
}

// threshold returns the time at which jobs are compared, and for how long overdue ones have waited then. Time advances
// in steps of Config.Aging here, so that the decision stays valid until the next one.
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

// serve places a task of each overdue job, those that wait longest first, or reserves a node for it. O(1) unless a job
// may be overdue, else O(jobs).
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

// find lists the overdue jobs, those that wait longest first.
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

// isUnderCaps reports whether caps let a task of a job start: nobody waits for a job that they hold back.
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

// serveJob places a task of a job. If none can be placed, it reserves a node for one of them, if any may still be
// reserved, and returns how many it reserved.
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
