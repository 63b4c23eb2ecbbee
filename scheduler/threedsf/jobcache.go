package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// jobCache caches what each cycle needs to know of the jobs with a project, a
// deadline or a guarantee: who requests a guarantee, who has one, how far it is
// done, and when that changes by time alone. A job is inspected again when the
// State's log names it or a cached time has passed.
type jobCache struct {
	state       *scheduler.State
	workSeen    uint64 // State.ChangePosition when it was synchronised
	nodeChanges uint64 // State.NodeChangeCount then
	syncedAt    scheduler.Time
	index       map[scheduler.JobID]int32
	jobs        []cachedJob
	dirty       []scheduler.JobID     // scratch
	recent      [2048]scheduler.JobID // scratch: the last dirty job for each id modulo the length
}

// cachedJob is what is known of one job.
type cachedJob struct {
	id          scheduler.JobID
	status      guaranteeStatus // statusNone if guarantees are disabled
	fingerprint uint64          // of the work done, if the job has a guarantee
	// overrunAt is when the first of its tasks runs past its bound, startDeadline
	// when the first planned task is too late for its reservation. After
	// retryDeadline a failed task without a place in the plan can no longer be rerun
	// within the guarantee. All are Never for none.
	overrunAt, startDeadline, retryDeadline scheduler.Time
	firstStart                              scheduler.Time // of its first reservation, 0 if a task waits without one

	needsReplan    bool  // a reservation cannot stay where it is
	overReserved   bool  // more may be reserved than waits
	reservedInVain int32 // planned reservations without a waiting task
	admitsOwnTasks bool  // a guarantee of its own may not exclude all its tasks: it is not for one task, or for a later stage
}

// syncJobCache synchronises the cache with the State. O(changes), and O(jobs) if
// nodes changed or the log of changes has wrapped.
func (p *Policy) syncJobCache() {
	w := &p.jobCache
	w.dirty = w.dirty[:0]
	clear(w.recent[:])
	touch := func(x scheduler.ChangedOwner) {
		switch {
		case x.ProgressOnly: // nothing here depends on it
		case x.Job != 0:
			// Most jobs are listed several times in close succession.
			if last := &w.recent[x.Job%scheduler.JobID(len(w.recent))]; *last != x.Job {
				*last = x.Job
				w.dirty = append(w.dirty, x.Job)
			}
		default:
			if pr := p.s.Project(x.Project); pr != nil {
				w.dirty = append(w.dirty, pr.Jobs...)
			}
		}
	}
	if w.state != p.s || p.now < w.syncedAt || w.nodeChanges != p.s.Cluster().ChangeCount() || !p.s.ChangeLog().Since(w.workSeen, touch) {
		w.state, w.nodeChanges = p.s, p.s.Cluster().ChangeCount()
		w.index, w.jobs, w.dirty = map[scheduler.JobID]int32{}, w.jobs[:0], w.dirty[:0]
		for j := range p.s.Jobs() {
			p.refreshJob(j.Spec.ID)
		}
	}
	w.workSeen, w.syncedAt = p.s.ChangeLog().Position(), p.now
	for _, id := range w.dirty {
		p.refreshJob(id)
	}
	for i := range w.jobs {
		if w.jobs[i].startDeadline <= p.now {
			p.refreshJob(w.jobs[i].id)
		}
	}
}

// refreshJob inspects one job again, or drops it if it is not cached any more.
func (p *Policy) refreshJob(id scheduler.JobID) {
	w := &p.jobCache
	j := p.s.Job(id)
	i, known := w.index[id]
	if j == nil || (j.Spec.Project == 0 && j.Spec.Deadline == 0 && j.Guarantees == 0) {
		if known {
			last := len(w.jobs) - 1
			w.jobs[i] = w.jobs[last]
			w.index[w.jobs[i].id] = i
			w.jobs = w.jobs[:last]
			delete(w.index, id)
		}
		return
	}
	if !known {
		i = int32(len(w.jobs))
		w.index[id] = i
		w.jobs = append(w.jobs, cachedJob{})
	}
	w.jobs[i] = p.inspectJob(j)
}

// inspectJob computes the cached values of a job.
func (p *Policy) inspectJob(j *scheduler.Job) cachedJob {
	x := cachedJob{id: j.Spec.ID, status: statusNone, overrunAt: scheduler.Never, startDeadline: scheduler.Never, retryDeadline: scheduler.Never}
	waiting := int32(0)
	for _, g := range j.Stages {
		waiting += g.Pending
	}
	active := j.Phase == scheduler.JobActive
	x.admitsOwnTasks = slices.ContainsFunc(j.Reservations(), func(r *scheduler.Reservation) bool { return r.Kind.IsGuarantee() && (!isPlanned(r) || r.Stage > 0) })
	x.overReserved = j.Guarantees > 0 && (j.Guarantees > waiting || !active || (j.Spec.Project == 0 && p.isInfeasible(j)))
	if !p.cfg.Guarantees.Enabled {
		return x
	}
	if active && (j.Spec.Project != 0 || j.Spec.Deadline != 0) {
		x.status = p.guaranteeStatus(j)
	}
	x.overReserved = x.overReserved || (j.Guarantees > 0 && x.status == statusNone && p.wasRefused(j))
	if x.status == statusGuaranteed {
		x.fingerprint = jobFingerprint(j, waiting)
		x.overrunAt = p.overrunTime(j)
	}
	lost, starts := waiting, scheduler.Never // lost counts the waiting tasks without a place
	for _, r := range j.Reservations() {
		if !isPlanned(r) {
			continue
		}
		if g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage}); g != nil && g.IsPending(r.Task) {
			lost--
			starts = min(starts, r.Start)
		} else {
			x.reservedInVain++
		}
		if late := p.isExpired(r); late || !p.canStayOn(r) {
			g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
			x.needsReplan = x.needsReplan || (g != nil && g.IsPending(r.Task) && (p.s.Cluster().SchedulableNodes() > 0 || late))
		} else {
			x.startDeadline = min(x.startDeadline, p.latestStart(r).Add(1))
		}
	}
	x.overReserved = x.overReserved || x.reservedInVain >= manyObsolete
	if lost <= 0 {
		x.firstStart = starts
	}
	if x.status == statusGuaranteed && lost > 0 && !isViolated(p.s, j) {
		x.retryDeadline = p.retryDeadline(j)
	}
	return x
}

// canStayOn reports whether the node of a planned reservation can be there for it.
func (p *Policy) canStayOn(r *scheduler.Reservation) bool {
	n := p.s.Node(r.Node)
	return p.s.Cluster().Plannable(n) && !n.AwayWithin(max(r.Start, p.now), r.End)
}

// jobFingerprint hashes the work done of a job and the number of its waiting tasks
// without a place.
func jobFingerprint(j *scheduler.Job, waiting int32) uint64 {
	sum := hash64(1)
	sum.add(uint64(j.Spec.ID))
	for _, g := range j.Stages {
		sum.add(uint64(g.Done)<<32 | uint64(uint32(g.Failed)))
	}
	sum.add(uint64(uint32(waiting - j.Guarantees)))
	return uint64(sum)
}

// overrunTime returns when the first task of a guaranteed job runs past its bound,
// which violates the guarantee of its own project or job (two-tier 4.6). It returns
// Never if the guarantee is violated already.
func (p *Policy) overrunTime(j *scheduler.Job) scheduler.Time {
	first := scheduler.Never
	if j.Live == 0 || isViolated(p.s, j) {
		return first
	}
	for _, g := range j.Stages {
		if g.Running == 0 || g.Bound() <= 0 {
			continue
		}
		for a := range p.s.Attempts().In(g) {
			if a.Level == scheduler.LevelRunning {
				first = min(first, boundEnd(a, g).Add(p.cfg.Guarantees.Margin))
			}
		}
	}
	return first
}

// retryDeadline returns from when on a waiting task of a job without a place cannot end in
// time any more, Never without bounds.
func (p *Policy) retryDeadline(j *scheduler.Job) scheduler.Time {
	at := scheduler.Never
	for _, g := range j.Stages {
		if b := g.Bound(); g.Pending > 0 && b > 0 {
			at = min(at, p.guaranteedEnd(j).Add(1-b))
		}
	}
	return at
}

// guaranteedEnd returns by when a job with a guarantee must have ended.
func (p *Policy) guaranteedEnd(j *scheduler.Job) scheduler.Time {
	if j.Spec.Project == 0 {
		return j.Spec.Deadline
	}
	n, _ := p.s.PolicyState(stateKey(scheduler.LatestDepartureState, j.Spec.Project))
	return n.At
}

// surveyJobs copies the cache's results into the survey, and records violations by
// tasks that ran past their bound, or failed and are retried too late.
func (p *Policy) surveyJobs() {
	q := &p.survey
	var over, failed []*scheduler.Job
	for i := range p.jobCache.jobs {
		x := &p.jobCache.jobs[i]
		switch x.status {
		case statusRequested:
			q.requests++
		case statusGuaranteed:
			q.hasGuarantee = true
			if x.overrunAt <= p.now {
				over = append(over, p.s.Job(x.id))
			} else if x.overrunAt < scheduler.Never {
				q.wakeAt(x.overrunAt)
			}
			if x.retryDeadline <= p.now {
				failed = append(failed, p.s.Job(x.id))
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
		p.recordViolation(j, backfill.CauseOverrun)
	}
	slices.SortFunc(failed, compareSubmission)
	for _, j := range failed {
		p.recordViolation(j, backfill.CauseFailed)
	}
}

func compareSubmission(a, b *scheduler.Job) int {
	return cmp.Or(cmp.Compare(a.Spec.Submitted, b.Spec.Submitted), cmp.Compare(a.Spec.ID, b.Spec.ID))
}

// fingerprint hashes the work done of guaranteed jobs and the nodes. While it is
// unchanged, nothing was released that a compression could use.
func (p *Policy) fingerprint() int64 {
	p.syncJobCache()
	jobs := uint64(0)
	for i := range p.jobCache.jobs {
		jobs += p.jobCache.jobs[i].fingerprint
	}
	sum := hash64(1)
	sum.add(jobs)
	sum.add(uint64(p.s.Cluster().SchedulableNodes()))
	for _, v := range p.s.Cluster().Total() {
		sum.add(uint64(v))
	}
	return int64(sum)
}
