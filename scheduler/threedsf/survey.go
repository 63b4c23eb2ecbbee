package threedsf

import (
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// guaranteeSurvey is what a decision needs to know about guarantees before it plans.
// surveyGuarantees fills it in anew.
type guaranteeSurvey struct {
	requests     int               // jobs that request a guarantee
	wake         scheduler.Time    // when something about guarantees changes by time alone
	needsReplan  bool              // a reservation cannot stay where it is
	compress     bool              // the schedule is to be compressed, since something ended
	hasGuarantee bool              // some job has a guarantee
	dropped      bool              // an obsolete reservation was dropped
	upToDate     bool              // the last compression knew all work done
	cursor       backfill.Position // where the compression resumes
	inProgress   bool              // the compression began in an earlier cycle
	nextCursor   backfill.Position // where the next cycle resumes
	finished     bool              // the compression reached its end

	violations []scheduler.PolicyState // guarantees that no longer hold
	plan       *plan                   // of this decision, nil if nothing was to be planned
}

// compressStateSlot is the slot of the policy state with the fingerprint that the
// last compression knew. compressCursorSlot is the slot of its position while it is
// in progress.
const (
	compressStateSlot  = 3
	compressCursorSlot = 4
)

// surveyGuarantees finds out whether anything is to be planned, from the job cache.
func (p *Policy) surveyGuarantees() {
	q := &p.survey
	q.requests, q.violations = 0, q.violations[:0]
	q.wake, q.needsReplan, q.compress, q.upToDate, q.plan, q.hasGuarantee, q.finished, q.dropped = 0, false, false, false, nil, false, false, false
	q.cursor, q.inProgress = backfill.Position{Submitted: math.MinInt64}, false
	if n, ok := p.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressCursorSlot}); ok {
		q.cursor, q.inProgress = backfill.Position{Submitted: n.At, ID: scheduler.ProjectID(n.Value)}, true
	}
	if !p.cfg.Guarantees.Enabled {
		return
	}
	p.syncJobCache()
	p.surveyJobs()
	if !q.hasGuarantee {
		return
	}
	last, _ := p.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressStateSlot})
	if last.Value == p.fingerprint() && !q.inProgress {
		q.upToDate = true
		return
	}
	if due := last.At.Add(p.cfg.Guarantees.CompressEvery); p.now < due {
		q.wakeAt(due)
	} else {
		q.compress = true
	}
}

// recordCompressState records what the last compression knew and what this cycle
// changed itself since, so that only other changes start the next one. An unfinished
// compression resumes after Guarantees.CompressEvery.
func (p *Policy) recordCompressState() {
	q := &p.survey
	key := scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressStateSlot}
	n, ok := p.s.PolicyState(key)
	switch {
	case q.compress:
		value, current := n.Value, p.fingerprint()
		if !q.inProgress { // changes during a compression are left to the next one
			value = current
		}
		if q.plan.replanLeft { // so is what this cycle had no budget for
			value = ^current
		}
		if !ok || n.Value != value || (n.At != p.now && (!q.finished || value != current)) {
			p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: value, At: p.now})
		}
		p.recordCompressCursor()
	case (q.plan != nil && (!ok || !q.hasGuarantee)) || (q.upToDate && (len(p.states) > 0 || q.dropped || q.plan != nil)):
		if current := p.fingerprint(); !ok || n.Value != current {
			p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: current, At: p.now})
		}
	}
}

// recordCompressCursor records where the compression resumes, or forgets it.
func (p *Policy) recordCompressCursor() {
	q := &p.survey
	key := scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressCursorSlot}
	at, ok := p.s.PolicyState(key)
	switch {
	case !q.finished && (!ok || at.At != q.nextCursor.Submitted || at.Value != int64(q.nextCursor.ID)):
		p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(q.nextCursor.ID), At: q.nextCursor.Submitted})
	case q.finished && ok:
		key.Kind = scheduler.TombstoneState
		p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(scheduler.CursorState)})
	}
}

func (q *guaranteeSurvey) wakeAt(at scheduler.Time) {
	if q.wake == 0 || at < q.wake {
		q.wake = at
	}
}

// guaranteeStatus is the state of a job's guarantee.
type guaranteeStatus uint8

const (
	statusNone       guaranteeStatus = iota + 1 // never requested, refused, infeasible, or decided elsewhere
	statusRequested                             // to be accepted or refused
	statusGuaranteed                            // accepted, perhaps violated since
)

// guaranteeStatus returns the state of the guarantee of a job or its project.
func (p *Policy) guaranteeStatus(j *scheduler.Job) guaranteeStatus {
	if j.Spec.Project != 0 {
		pr := p.s.Project(j.Spec.Project)
		switch {
		case pr.HasState(scheduler.GuaranteeState):
			return statusGuaranteed
		case pr.HasState(scheduler.RefusedState) || !p.isComplete(pr):
			return statusNone
		default:
			return statusRequested
		}
	}
	switch {
	case j.HasState(scheduler.AcceptedState):
		if p.isInfeasible(j) {
			return statusNone
		}
		return statusGuaranteed
	case j.Spec.Accepted || j.Spec.Open || p.isInfeasible(j) || !p.cfg.Deadlines || p.isRefused(j):
		return statusNone
	default:
		return statusRequested
	}
}

// isRefused reports whether the job's present deadline was refused.
func (p *Policy) isRefused(j *scheduler.Job) bool {
	if !j.HasState(scheduler.RefusedState) {
		return false
	}
	n, _ := p.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.RefusedState, Job: j.Spec.ID})
	return scheduler.Time(n.Value) == j.Spec.Deadline
}

// isComplete reports whether all jobs of a project were submitted.
func (p *Policy) isComplete(pr *scheduler.Project) bool {
	if len(pr.Jobs) < int(pr.Spec.Jobs) {
		return false
	}
	for _, id := range pr.Jobs {
		if p.s.Job(id).Spec.Open {
			return false
		}
	}
	return true
}

// recordViolation records, once, why the guarantee of a job or its project no longer
// holds.
func (p *Policy) recordViolation(j *scheduler.Job, cause backfill.Cause) {
	p.recordOwnerViolation(ownerOf(j), cause)
}

// recordOwnerViolation is recordViolation by owner.
func (p *Policy) recordOwnerViolation(id scheduler.ProjectID, cause backfill.Cause) {
	key := stateKey(scheduler.ViolatedState, id)
	for _, n := range p.survey.violations {
		if n.Job == key.Job && n.Project == key.Project {
			return
		}
	}
	key.Slot = int32(cause)
	p.survey.violations = append(p.survey.violations, scheduler.PolicyState{PolicyStateKey: key, At: p.now})
}

// isPlanned reports whether a reservation belongs to the plan: a guarantee for one
// task on a node.
func isPlanned(r *scheduler.Reservation) bool {
	return r.Kind.IsGuarantee() && r.Job != 0 && r.Stage >= 0 && r.Task >= 0 && r.Node != scheduler.NoNode
}

// isExpired reports whether a planned task that has not started is too late: it
// would run on into the capacity of others.
func (p *Policy) isExpired(r *scheduler.Reservation) bool { return p.now > p.latestStart(r) }

// latestStart returns the last time at which a planned task may start in its
// reservation: a margin after its start, which victims need to leave, but early
// enough for its bound to end with the reservation. Reservation.Latest does not
// matter: it includes the margin, so a task that ends with its reservation departs
// in time.
func (p *Policy) latestStart(r *scheduler.Reservation) scheduler.Time {
	at := min(r.Start.Add(p.cfg.Guarantees.Margin), r.End-1)
	if g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage}); g != nil && g.Bound() > 0 {
		at = min(at, max(r.Start, r.End.Add(-g.Bound())))
	}
	return at
}

// ownerOf returns the project that a job is planned in: its own, or one made of the
// job alone, with the high bit set.
func ownerOf(j *scheduler.Job) scheduler.ProjectID {
	if j.Spec.Project != 0 {
		return j.Spec.Project
	}
	return ownerOfJob(j.Spec.ID)
}

// ownerOfJob returns the owner made of a single job.
func ownerOfJob(id scheduler.JobID) scheduler.ProjectID { return scheduler.ProjectID(id) | 1<<63 }

// stateKey returns the key of a policy state of an owner.
func stateKey(kind scheduler.PolicyStateKind, id scheduler.ProjectID) scheduler.PolicyStateKey {
	if id>>63 == 1 {
		return scheduler.PolicyStateKey{Kind: kind, Job: scheduler.JobID(id &^ (1 << 63))}
	}
	return scheduler.PolicyStateKey{Kind: kind, Project: id}
}

type hash64 uint64

func (f *hash64) add(v uint64) {
	h := (uint64(*f) ^ v) * 0x9e3779b97f4a7c15
	*f = hash64(h ^ h>>29)
}

// taskDuration returns for how long a task of a stage is given capacity: its
// bound, else its predicted run time, plus the margin; 0 if neither is known.
func (p *Policy) taskDuration(g *scheduler.Stage) time.Duration {
	if b := g.Bound(); b > 0 {
		return b + p.cfg.Guarantees.Margin
	}
	p.slack.Compute(g.Job)
	if d := p.slack.TaskRunTime(g.Index); d > 0 {
		return d + p.cfg.Guarantees.Margin
	}
	return 0
}
