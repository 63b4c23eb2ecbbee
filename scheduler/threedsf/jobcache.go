package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// jobCache caches what each cycle reads of the jobs with a project, a deadline or a guarantee:
// whether one is requested or exists, its progress, and when that changes by time alone. A job is
// inspected again when the State's log names it or a cached time has passed.
type jobCache struct {
	v           *view
	state       *scheduler.State
	workSeen    uint64 // ChangeLog.Position at the last sync
	nodeChanges uint64 // Cluster.ChangeCount at the last sync
	syncedAt    scheduler.Time
	index       map[scheduler.JobID]int32
	jobs        []cachedJob
	projects    map[scheduler.ProjectID]cachedProject
	syncs       uint64                // calls of sync
	dirty       []scheduler.JobID     // scratch
	recent      [2048]scheduler.JobID // scratch: the last dirty job for each id modulo the length
}

// cachedProject is the status of a project at its jobs' inspection, and the last sync that made all its jobs dirty.
type cachedProject struct {
	status  guaranteeStatus
	touched uint64
}

// cachedJob is the cached facts of one job.
type cachedJob struct {
	job         *scheduler.Job
	status      guaranteeStatus // statusNone if guarantees are disabled
	accepted    scheduler.Time  // planned end in its AcceptedState, if the deadline has a guarantee
	fingerprint uint64          // hash of the work done, if the job has a guarantee
	// overrunAt is when the first of its tasks runs past its bound, startDeadline when the first
	// planned task is too late for its reservation. After retryDeadline a failed task without a
	// place in the plan can no longer be rerun within the guarantee. Each is Never for none.
	overrunAt, startDeadline, retryDeadline scheduler.Time

	hasDeadline    bool
	needsReplan    bool  // a reservation cannot stay where it is
	overReserved   bool  // more tasks may be reserved for than wait
	reservedInVain int32 // planned reservations without a waiting task
	admitsOwnTasks bool  // some of its tasks may start despite a guarantee of its own, for a later stage
}

// sync synchronises the cache with the State. O(changes), O(jobs) if nodes changed or the log has wrapped.
func (w *jobCache) sync() {
	w.dirty = w.dirty[:0]
	clear(w.recent[:])
	w.syncs++
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
			w.touchProject(x.Project)
		}
	}
	if w.state != w.v.s || w.v.now < w.syncedAt || w.nodeChanges != w.v.s.Cluster().ChangeCount() || !w.v.s.ChangeLog().Since(w.workSeen, touch) {
		w.state, w.nodeChanges = w.v.s, w.v.s.Cluster().ChangeCount()
		w.index, w.projects = map[scheduler.JobID]int32{}, map[scheduler.ProjectID]cachedProject{}
		w.jobs, w.dirty = w.jobs[:0], w.dirty[:0]
		for j := range w.v.s.Jobs() {
			if isCached(j) {
				w.refresh(j.Spec.ID)
			}
		}
	}
	w.workSeen, w.syncedAt = w.v.s.ChangeLog().Position(), w.v.now
	for i := 0; i < len(w.dirty); i++ { // checkProject may add more
		if project := w.refresh(w.dirty[i]); project != 0 {
			w.checkProject(project)
		}
	}
	for i := range w.jobs {
		if w.jobs[i].startDeadline <= w.v.now {
			w.refresh(w.jobs[i].job.Spec.ID)
		}
	}
}

// touchProject makes all jobs of a project dirty, at most once per sync. O(jobs of the project).
func (w *jobCache) touchProject(id scheduler.ProjectID) {
	pr := w.v.s.Project(id)
	x := w.projects[id]
	if pr == nil {
		delete(w.projects, id)
	} else if x.touched != w.syncs {
		x.touched = w.syncs
		w.projects[id] = x
		w.dirty = append(w.dirty, pr.Jobs...)
	}
}

// checkProject makes all jobs of a project dirty if its status has changed: whether a job requests
// a guarantee depends on all of them, including new and ended jobs.
func (w *jobCache) checkProject(id scheduler.ProjectID) {
	pr, x := w.v.s.Project(id), w.projects[id]
	if pr == nil || !w.v.cfg.Guarantees.Enabled {
		return
	}
	if status := w.v.projectStatus(pr); status != x.status {
		x.status = status
		w.projects[id] = x
		w.touchProject(id)
	}
}

// isCached reports whether a job may have a guarantee, or request one.
func isCached(j *scheduler.Job) bool {
	return j.Spec.Project != 0 || j.Spec.Deadline != 0 || j.Guarantees != 0
}

// refresh inspects one job again, or drops it if it need not be cached. It returns the job's
// project, present or at its last inspection; 0 for none.
func (w *jobCache) refresh(id scheduler.JobID) (project scheduler.ProjectID) {
	j := w.v.s.Job(id)
	i, known := w.index[id]
	if known {
		project = w.jobs[i].job.Spec.Project
	}
	if j == nil || !isCached(j) {
		if known {
			last := len(w.jobs) - 1
			w.jobs[i] = w.jobs[last]
			w.index[w.jobs[i].job.Spec.ID] = i
			w.jobs = w.jobs[:last]
			delete(w.index, id)
		}
		return project
	}
	if !known {
		i = int32(len(w.jobs))
		w.index[id] = i
		w.jobs = append(w.jobs, cachedJob{})
	}
	w.jobs[i] = w.inspect(j)
	return max(project, j.Spec.Project)
}

// inspect computes the cached values of a job.
func (w *jobCache) inspect(j *scheduler.Job) cachedJob {
	x := cachedJob{job: j, hasDeadline: j.Spec.Deadline != 0, status: statusNone, overrunAt: scheduler.Never, startDeadline: scheduler.Never, retryDeadline: scheduler.Never}
	waiting := int32(0)
	for _, g := range j.Stages {
		waiting += g.Pending
	}
	active := j.Phase == scheduler.JobActive
	x.admitsOwnTasks = slices.ContainsFunc(j.Reservations(), func(r *scheduler.Reservation) bool { return r.Kind.IsGuarantee() && r.Stage > 0 })
	x.overReserved = j.Guarantees > 0 && (j.Guarantees > waiting || !active || (j.Spec.Project == 0 && j.IsInfeasible()))
	if !w.v.cfg.Guarantees.Enabled {
		return x
	}
	if active && (j.Spec.Project != 0 || j.Spec.Deadline != 0) {
		x.status = w.v.guaranteeStatus(j)
	}
	placed := w.inspectReservations(&x)
	x.overReserved = x.overReserved || x.reservedInVain >= manyObsolete || (j.Guarantees > 0 && x.status == statusNone && w.v.wasRefused(j))
	if x.status != statusGuaranteed {
		return x
	}
	x.fingerprint = jobFingerprint(j, waiting)
	x.overrunAt = w.overrunTime(j)
	accepted, _ := w.v.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.AcceptedState, Job: j.Spec.ID})
	x.accepted = accepted.At
	if placed < waiting && !w.v.s.Reservations().IsViolated(j) {
		x.retryDeadline = w.retryDeadline(j)
	}
	return x
}

// inspectReservations computes the values that depend on a job's planned reservations, and counts those of waiting tasks.
func (w *jobCache) inspectReservations(x *cachedJob) (placed int32) {
	for _, r := range x.job.Reservations() {
		if !isPlanned(r) {
			continue
		}
		g := w.v.s.Stage(r.StageID())
		waits := g != nil && g.IsPending(r.Task)
		if waits {
			placed++
		} else {
			x.reservedInVain++
		}
		if w.v.isExpired(r) || !w.v.canStayOn(r) && w.v.s.Cluster().SchedulableNodes() > 0 {
			x.needsReplan = x.needsReplan || waits
		} else { // also if it cannot stay and no node is schedulable: its task is planned again when late
			x.startDeadline = min(x.startDeadline, w.v.latestStart(r).Add(1))
		}
	}
	return placed
}

// jobFingerprint hashes the work done of a job and the number of its waiting tasks without a place.
func jobFingerprint(j *scheduler.Job, waiting int32) uint64 {
	sum := hash64(1 << 63) // no job has this id, so that no job's hash begins with 0
	sum.add(uint64(j.Spec.ID))
	for _, g := range j.Stages {
		sum.add(uint64(g.Done)<<32 | uint64(uint32(g.Failed)))
	}
	sum.add(uint64(uint32(waiting - j.Guarantees)))
	return uint64(sum)
}

// overrunTime returns when the first task of a job runs past its bound, which violates its project's or
// its own guarantee (two-tier 4.6). It returns Never if the guarantee is violated already.
func (w *jobCache) overrunTime(j *scheduler.Job) scheduler.Time {
	first := scheduler.Never
	if j.Live == 0 || w.v.s.Reservations().IsViolated(j) {
		return first
	}
	for _, g := range j.Stages {
		if g.Running == 0 || g.Bound() <= 0 {
			continue
		}
		for a := range w.v.s.Attempts().In(g) {
			if a.Level == scheduler.LevelRunning {
				first = min(first, overrunsAt(a, g).Add(w.v.cfg.Guarantees.Margin))
			}
		}
	}
	return first
}

// retryDeadline returns from when on a job's waiting task without a place cannot end in time, Never without bounds.
func (w *jobCache) retryDeadline(j *scheduler.Job) scheduler.Time {
	at, end := scheduler.Never, j.Spec.Deadline
	if j.Spec.Project != 0 {
		end = backfill.GuaranteeOf(w.v.s, j.Spec.Project).Latest
	}
	for _, g := range j.Stages {
		if b := g.Bound(); g.Pending > 0 && b > 0 {
			at = min(at, end.Add(1-b))
		}
	}
	return at
}

// fingerprint hashes the nodes and the work done of guaranteed jobs. While it is unchanged, no
// capacity was released that a compression could use.
func (w *jobCache) fingerprint() int64 {
	w.sync()
	jobs := uint64(0)
	for i := range w.jobs {
		jobs += w.jobs[i].fingerprint
	}
	sum := hash64(1)
	sum.add(jobs)
	sum.add(uint64(w.v.s.Cluster().SchedulableNodes()))
	for _, v := range w.v.s.Cluster().Total() {
		sum.add(uint64(v))
	}
	return int64(sum)
}

// manyObsolete is the number of obsolete planned reservations from which they are dropped before
// the plan is read: reading one costs more than reading a valid one.
const manyObsolete = 256

type hash64 uint64

func (f *hash64) add(v uint64) {
	h := (uint64(*f) ^ v) * 0x9e3779b97f4a7c15
	*f = hash64(h ^ h>>29)
}
