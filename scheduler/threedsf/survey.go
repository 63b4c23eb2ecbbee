package threedsf

import (
	"cmp"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// guaranteeSurvey is what a decision needs to know about guarantees before it plans (filled by
// begin), and the results of the plan.
type guaranteeSurvey struct {
	c    *cycle
	jobs *jobCache

	requests     int               // jobs that request a guarantee
	needsReplan  bool              // a reservation cannot stay in its place
	compress     bool              // the schedule must be compressed, since something ended
	hasGuarantee bool              // some job has a guarantee
	upToDate     bool              // the last compression knew all work done
	cursor       backfill.Position // where the compression resumes
	inProgress   bool              // the compression began in an earlier cycle
	late         []lateJob         // guaranteed jobs whose time has passed

	nextCursor backfill.Position // where the next cycle resumes the compression
	finished   bool              // the compression reached its end
	planned    bool              // something was planned
	deferred   bool              // a part of the planning was left to the next cycle
	replanLeft bool              // the deferred part includes lost tasks
}

// lateJob is a job that violates its guarantee: a task ran past its bound, or failed and is retried too late.
type lateJob struct {
	job   *scheduler.Job
	cause backfill.Cause
}

// compressStateSlot is the slot of the policy state with the fingerprint at the last compression;
// compressCursorSlot that of the compression's position while it is in progress.
const (
	compressStateSlot  = 3
	compressCursorSlot = 4
)

// begin determines from the job cache whether anything must be planned.
func (q *guaranteeSurvey) begin() {
	*q = guaranteeSurvey{c: q.c, jobs: q.jobs, late: q.late[:0], cursor: backfill.Position{Submitted: math.MinInt64}}
	if n, ok := q.cursorState(compressCursorSlot); ok {
		q.cursor, q.inProgress = backfill.Position{Submitted: n.At, ID: scheduler.ProjectID(n.Value)}, true
	}
	if !q.c.cfg.Guarantees.Enabled {
		return
	}
	q.jobs.sync()
	q.readJobs()
	if !q.hasGuarantee {
		return
	}
	last, _ := q.cursorState(compressStateSlot)
	if last.Value == q.jobs.fingerprint() && !q.inProgress {
		q.upToDate = true
		return
	}
	if due := last.At.Add(q.c.cfg.Guarantees.CompressEvery); q.c.now < due {
		q.c.wakeAt(due)
	} else {
		q.compress = true
	}
}

// cursorState returns the policy state of a slot, false if there is none.
func (q *guaranteeSurvey) cursorState(slot int32) (scheduler.PolicyState, bool) {
	return q.c.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: slot})
}

// putCursorState records the policy state of a slot.
func (q *guaranteeSurvey) putCursorState(slot int32, value int64, at scheduler.Time) {
	q.c.recordState(scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: slot}, Value: value, At: at})
}

// recordCompressState records the fingerprint of the last compression, updated with this cycle's own changes, so
// that only other changes start the next one. An unfinished compression resumes after Guarantees.CompressEvery.
func (q *guaranteeSurvey) recordCompressState() {
	n, ok := q.cursorState(compressStateSlot)
	switch {
	case q.compress:
		value, current := n.Value, q.jobs.fingerprint()
		if !q.inProgress { // changes during a compression are left to the next one
			value = current
		}
		if q.replanLeft { // so is what exceeded this cycle's budget
			value = ^current
		}
		if !ok || n.Value != value || (n.At != q.c.now && (!q.finished || value != current)) {
			q.putCursorState(compressStateSlot, value, q.c.now)
		}
		at, ok := q.cursorState(compressCursorSlot)
		if next := q.nextCursor; !q.finished && (!ok || at.At != next.Submitted || at.Value != int64(next.ID)) {
			q.putCursorState(compressCursorSlot, int64(next.ID), next.Submitted)
		} else if q.finished && ok {
			q.c.recordState(at.Tombstone())
		}
	case (q.planned && (!ok || !q.hasGuarantee)) || (q.upToDate && (len(q.c.states) > 0 || len(q.c.actions) > 0 || q.planned)):
		if current := q.jobs.fingerprint(); !ok || n.Value != current {
			q.putCursorState(compressStateSlot, current, q.c.now)
		}
	}
}

// recordLate records the violations of late jobs, those by tasks past their bound first.
func (q *guaranteeSurvey) recordLate() {
	slices.SortFunc(q.late, func(a, b lateJob) int { return cmp.Or(cmp.Compare(a.cause, b.cause), compareSubmission(a.job, b.job)) })
	for _, x := range q.late {
		q.recordViolation(x.job, x.cause)
	}
}

// recordViolation records, once, why the guarantee of a job or its project no longer holds.
func (q *guaranteeSurvey) recordViolation(j *scheduler.Job, cause backfill.Cause) {
	if !q.c.s.Reservations().IsViolated(j) {
		q.c.recordState(backfill.ViolatedState(backfill.OwnerOf(j), cause, q.c.now))
	}
}

// readJobs copies the cache's results into the survey.
func (q *guaranteeSurvey) readJobs() {
	for i := range q.jobs.jobs {
		x := &q.jobs.jobs[i]
		switch x.status {
		case statusRequested:
			q.requests++
		case statusGuaranteed:
			q.hasGuarantee = true
			q.await(x.job, backfill.CauseOverrun, x.overrunAt)
			q.await(x.job, backfill.CauseFailed, x.retryDeadline)
		}
		q.needsReplan = q.needsReplan || x.needsReplan
		q.c.wakeAt(x.startDeadline)
	}
}

// await lists a job as late if a time has come, and else requests a cycle for it.
func (q *guaranteeSurvey) await(j *scheduler.Job, cause backfill.Cause, at scheduler.Time) {
	if at > q.c.now {
		q.c.wakeAt(at)
		return
	}
	q.late = append(q.late, lateJob{j, cause})
}
