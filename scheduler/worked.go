package scheduler

// Worked names a job that something happened to, and the project it belongs to;
// or, with Job 0, a project.
type Worked struct {
	Job     JobID
	Project ProjectID
}

// workLog is the jobs and projects that something happened to, in order: a ring,
// as whoever is too far behind looks at all of them. It is no part of what is
// saved.
type workLog struct {
	ring []Worked
	head uint64 // entries ever put in
	seen uint64 // head when somebody last asked for it
}

// leastWork is the length of the ring of a small State.
const leastWork = 1024

// grow makes room for a State of so many jobs: then everybody is too far behind.
func (l *workLog) grow(jobs int) {
	size := max(len(l.ring), leastWork)
	for size < 2*jobs {
		size *= 2
	}
	if size > len(l.ring) {
		l.ring, l.head = make([]Worked, size), l.head+uint64(size)+1
	}
}

func (l *workLog) add(w Worked) {
	if len(l.ring) == 0 {
		l.grow(0)
	}
	mask := uint64(len(l.ring) - 1)
	if l.ring[(l.head-1)&mask] == w && l.seen < l.head {
		return
	}
	l.ring[l.head&mask] = w
	l.head++
}

// worked tells that something of a job changed that a plan may look at: its spec,
// phase, counts, attempts, notes or reservations.
func (s *State) worked(j *Job) { s.work.add(Worked{j.Spec.ID, j.Spec.Project}) }

// Work is a position in the log of what happened to jobs and projects, for
// WorkSince. O(1).
func (s *State) Work() uint64 {
	s.work.seen = s.work.head
	return s.work.head
}

// WorkSince lists the jobs and projects of which anything may have changed since
// a position that Work gave, except progress and what is known of inputs: specs,
// phases, counts, attempts, notes, reservations. Some are listed twice; jobs that
// ended meanwhile, and what was tried and undone, are listed too. False means that
// too much has happened: then all may have changed. O(changes).
func (s *State) WorkSince(at uint64, yield func(Worked)) bool {
	l := &s.work
	if at > l.head || l.head-at > uint64(len(l.ring)) {
		return false
	}
	for ; at < l.head; at++ {
		yield(l.ring[at&uint64(len(l.ring)-1)])
	}
	return true
}

// predictedAnewOf gives the nodes of a job's attempts a new version: when they are
// to be gone may be otherwise now.
func (s *State) predictedAnewOf(j *Job) {
	if j.Live == 0 {
		return
	}
	for _, g := range j.Stages {
		for a := range s.AttemptsIn(g) {
			s.predictedAnew(a.Node)
		}
	}
}
