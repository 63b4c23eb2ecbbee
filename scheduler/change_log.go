package scheduler

// ChangedOwner names a job that changed, with its project; with Job 0 it names a project.
type ChangedOwner struct {
	Job     JobID
	Project ProjectID
	// ProgressOnly: only the progress of its attempts changed.
	ProgressOnly bool
}

// ChangeLog is a ring of the jobs and projects that changed, in order. A reader that is too far
// behind must examine all of them. It is not saved.
type ChangeLog struct {
	ring   []ChangedOwner
	head   uint64 // number of entries ever added
	readTo uint64 // head at the last call of Position
}

const minChangeLog = 1024 // the length of the ring of a small State

// grow enlarges the ring for this number of jobs. Afterwards all readers are too far behind.
func (l *ChangeLog) grow(jobs int) {
	size := max(len(l.ring), minChangeLog)
	for size < 2*jobs {
		size *= 2
	}
	if size > len(l.ring) {
		l.ring, l.head = make([]ChangedOwner, size), l.head+uint64(size)+1
	}
}

// add logs an owner. It drops an immediate repetition, unless a reader has already read the entry.
func (l *ChangeLog) add(w ChangedOwner) {
	if len(l.ring) == 0 {
		l.grow(0)
	}
	mask := uint64(len(l.ring) - 1)
	if last := l.ring[(l.head-1)&mask]; l.readTo < l.head && last == w {
		return
	}
	l.ring[l.head&mask] = w
	l.head++
}

// recordJob logs a change that plans depend on: a job's spec, phase, counts, attempts, policy
// states or reservations.
func (l *ChangeLog) recordJob(j *Job) { l.record(j, false) }

// record logs a job, or only the progress of its attempts, unless an unread entry names the job already.
func (l *ChangeLog) record(j *Job, progressOnly bool) {
	if j.plannedUntil = 0; j.Ready > 0 {
		j.tenant.ReadyChanges++
	}
	if at := j.loggedAt; at > l.readTo && l.head-at < uint64(len(l.ring)) {
		if w := &l.ring[(at-1)&uint64(len(l.ring)-1)]; w.Job == j.Spec.ID && w.Project == j.Spec.Project {
			w.ProgressOnly = w.ProgressOnly && progressOnly
			return
		}
	}
	l.add(ChangedOwner{Job: j.Spec.ID, Project: j.Spec.Project, ProgressOnly: progressOnly})
	j.loggedAt = l.head
}

// Position returns the current position in the change log, for Since. O(1).
func (l *ChangeLog) Position() uint64 {
	l.readTo = l.head
	return l.head
}

// Since yields the jobs and projects that may have changed, except in input locations, since a position
// returned by Position. It may yield a job twice, and yields ended jobs and changes of rolled-back
// tries. It returns false if the log has wrapped: then everything may have changed. O(changes).
func (l *ChangeLog) Since(at uint64, yield func(ChangedOwner)) bool {
	if at > l.head || l.head-at > uint64(len(l.ring)) {
		return false
	}
	for ; at < l.head; at++ {
		yield(l.ring[at&uint64(len(l.ring)-1)])
	}
	return true
}
