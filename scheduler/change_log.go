package scheduler

// ChangedOwner names a job that changed, with the project it belongs to; with Job 0 it names a
// project.
type ChangedOwner struct {
	Job     JobID
	Project ProjectID
	// ProgressOnly says that nothing but the progress of its attempts changed.
	ProgressOnly bool
}

// changeLog is a ring of the jobs and projects that changed, in order. A reader that is too
// far behind examines all of them. It is not saved.
type changeLog struct {
	ring   []ChangedOwner
	head   uint64 // number of entries ever added
	readTo uint64 // head at the last call of ChangePosition
}

// minChangeLog is the length of the ring of a small State.
const minChangeLog = 1024

// grow enlarges the ring for this number of jobs. Afterwards all readers are too far behind.
func (l *changeLog) grow(jobs int) {
	size := max(len(l.ring), minChangeLog)
	for size < 2*jobs {
		size *= 2
	}
	if size > len(l.ring) {
		l.ring, l.head = make([]ChangedOwner, size), l.head+uint64(size)+1
	}
}

// add logs an owner. It drops an immediate repetition, also of progress after another change
// of the job, unless a reader has already read the entry.
func (l *changeLog) add(w ChangedOwner) {
	if len(l.ring) == 0 {
		l.grow(0)
	}
	mask := uint64(len(l.ring) - 1)
	if last := l.ring[(l.head-1)&mask]; l.readTo < l.head && last.Job == w.Job && last.Project == w.Project && (w.ProgressOnly || !last.ProgressOnly) {
		return
	}
	l.ring[l.head&mask] = w
	l.head++
}

// recordJobChange logs a change of a job that a plan may depend on: its spec, phase, counts,
// attempts, policy states or reservations.
func (s *State) recordJobChange(j *Job) {
	s.changeLog.add(ChangedOwner{Job: j.Spec.ID, Project: j.Spec.Project})
}

// ChangePosition returns the current position in the change log, for ChangedSince. O(1).
func (s *State) ChangePosition() uint64 {
	s.changeLog.readTo = s.changeLog.head
	return s.changeLog.head
}

// ChangedSince yields the jobs and projects that may have changed since a position returned by
// ChangePosition: their specs, phases, counts, attempts, progress, policy states or
// reservations, but not input locations. It may yield one twice, and it yields jobs that have ended
// and changes of tries that were rolled back. It returns false if the log has wrapped: then
// all may have changed. O(changes).
func (s *State) ChangedSince(at uint64, yield func(ChangedOwner)) bool {
	l := &s.changeLog
	if at > l.head || l.head-at > uint64(len(l.ring)) {
		return false
	}
	for ; at < l.head; at++ {
		yield(l.ring[at&uint64(len(l.ring)-1)])
	}
	return true
}

// bumpNodeVersionsOf changes the version of every node with an attempt of the job, whose
// predicted end may have changed.
func (s *State) bumpNodeVersionsOf(j *Job) {
	if j.Live == 0 {
		return
	}
	for _, g := range j.Stages {
		for a := range s.AttemptsIn(g) {
			s.bumpNodeVersion(a.Node)
		}
	}
}

// bumpNodeVersionsOfOwner is bumpNodeVersionsOf for the job or the jobs of the project that a
// policy state is about.
func (s *State) bumpNodeVersionsOfOwner(k PolicyStateKey) {
	if j := s.jobs[k.Job]; j != nil {
		s.bumpNodeVersionsOf(j)
	} else if p := s.projects[k.Project]; p != nil {
		for _, id := range p.Jobs {
			s.bumpNodeVersionsOf(s.jobs[id])
		}
	}
}
