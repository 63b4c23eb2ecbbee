package threedsf

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// guaranteeSurvey is what a decision needs to know about guarantees before it plans.
// begin fills it in anew.
type guaranteeSurvey struct {
	c    *cycle
	jobs *jobCache

	requests     int               // jobs that request a guarantee
	wake         scheduler.Time    // when something about guarantees changes by time alone
	needsReplan  bool              // a reservation cannot stay where it is
	compress     bool              // the schedule is to be compressed, since something ended
	hasGuarantee bool              // some job has a guarantee
	upToDate     bool              // the last compression knew all work done
	cursor       backfill.Position // where the compression resumes
	inProgress   bool              // the compression began in an earlier cycle
	nextCursor   backfill.Position // where the next cycle resumes
	finished     bool              // the compression reached its end

	violations []scheduler.PolicyState          // guarantees that no longer hold
	violated   map[scheduler.ProjectID]struct{} // their owners
	planned    bool                             // something was planned
	deferred   bool                             // a part of that was left to the next cycle
	replanLeft bool                             // of which some was to plan again what was lost
}

// compressStateSlot is the slot of the policy state with the fingerprint that the
// last compression knew. compressCursorSlot is the slot of its position while it is
// in progress.
const (
	compressStateSlot  = 3
	compressCursorSlot = 4
)

// begin finds out whether anything is to be planned, from the job cache.
func (q *guaranteeSurvey) begin() {
	q.requests, q.violations = 0, q.violations[:0]
	clear(q.violated)
	q.wake, q.needsReplan, q.compress, q.upToDate, q.hasGuarantee, q.finished = 0, false, false, false, false, false
	q.planned, q.deferred, q.replanLeft = false, false, false
	q.cursor, q.inProgress = backfill.Position{Submitted: math.MinInt64}, false
	if n, ok := q.c.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressCursorSlot}); ok {
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
	last, _ := q.c.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressStateSlot})
	if last.Value == q.jobs.fingerprint() && !q.inProgress {
		q.upToDate = true
		return
	}
	if due := last.At.Add(q.c.cfg.Guarantees.CompressEvery); q.c.now < due {
		q.wakeAt(due)
	} else {
		q.compress = true
	}
}

// recordPlan notes that something was planned, whether a part of that was left to the next
// cycle, and whether some of that part is to plan again what was lost.
func (q *guaranteeSurvey) recordPlan(deferred, replanLeft bool) {
	q.planned, q.deferred, q.replanLeft = true, deferred, replanLeft
}

// recordCompression notes how far the compression came.
func (q *guaranteeSurvey) recordCompression(next backfill.Position, finished bool) {
	q.nextCursor, q.finished = next, finished
}

// recordCompressState records what the last compression knew and what this cycle
// changed itself since, so that only other changes start the next one. An unfinished
// compression resumes after Guarantees.CompressEvery.
func (q *guaranteeSurvey) recordCompressState() {
	key := scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressStateSlot}
	n, ok := q.c.s.PolicyState(key)
	switch {
	case q.compress:
		value, current := n.Value, q.jobs.fingerprint()
		if !q.inProgress { // changes during a compression are left to the next one
			value = current
		}
		if q.replanLeft { // so is what this cycle had no budget for
			value = ^current
		}
		if !ok || n.Value != value || (n.At != q.c.now && (!q.finished || value != current)) {
			q.c.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: value, At: q.c.now})
		}
		q.recordCompressCursor()
	case (q.planned && (!ok || !q.hasGuarantee)) || (q.upToDate && (len(q.c.states) > 0 || len(q.c.actions) > 0 || q.planned)):
		if current := q.jobs.fingerprint(); !ok || n.Value != current {
			q.c.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: current, At: q.c.now})
		}
	}
}

// recordCompressCursor records where the compression resumes, or forgets it.
func (q *guaranteeSurvey) recordCompressCursor() {
	key := scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressCursorSlot}
	at, ok := q.c.s.PolicyState(key)
	switch {
	case !q.finished && (!ok || at.At != q.nextCursor.Submitted || at.Value != int64(q.nextCursor.ID)):
		q.c.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(q.nextCursor.ID), At: q.nextCursor.Submitted})
	case q.finished && ok:
		q.c.recordState(key.Tombstone())
	}
}

func (q *guaranteeSurvey) wakeAt(at scheduler.Time) {
	if q.wake == 0 || at < q.wake {
		q.wake = at
	}
}

// recordViolation records, once, why the guarantee of a job or its project no longer
// holds.
func (q *guaranteeSurvey) recordViolation(j *scheduler.Job, cause backfill.Cause) {
	q.recordOwnerViolation(backfill.OwnerOf(j), cause)
}

// recordOwnerViolation is recordViolation by owner.
func (q *guaranteeSurvey) recordOwnerViolation(id scheduler.ProjectID, cause backfill.Cause) {
	if _, known := q.violated[id]; known {
		return
	}
	q.violated[id] = struct{}{}
	q.violations = append(q.violations, backfill.ViolatedState(id, cause, q.c.now))
}

// readJobs copies the cache's results into the survey, and records violations by
// tasks that ran past their bound, or failed and are retried too late.
func (q *guaranteeSurvey) readJobs() {
	var over, failed []*scheduler.Job
	for i := range q.jobs.jobs {
		x := &q.jobs.jobs[i]
		switch x.status {
		case statusRequested:
			q.requests++
		case statusGuaranteed:
			q.hasGuarantee = true
			if x.overrunAt <= q.c.now {
				over = append(over, x.job)
			} else if x.overrunAt < scheduler.Never {
				q.wakeAt(x.overrunAt)
			}
			if x.retryDeadline <= q.c.now {
				failed = append(failed, x.job)
			} else if x.retryDeadline < scheduler.Never {
				q.wakeAt(x.retryDeadline)
			}
		}
		q.needsReplan = q.needsReplan || x.needsReplan
		if x.startDeadline < scheduler.Never {
			q.wakeAt(x.startDeadline)
		}
	}
	slices.SortFunc(over, compareSubmission)
	for _, j := range over {
		q.recordViolation(j, backfill.CauseOverrun)
	}
	slices.SortFunc(failed, compareSubmission)
	for _, j := range failed {
		q.recordViolation(j, backfill.CauseFailed)
	}
}
