package policies

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// rigidJob needs so many cores for a fixed time.
type rigidJob struct {
	submit  scheduler.Time
	runTime time.Duration // at most bound
	bound   time.Duration
	need    int64
}

// rigidMachine simulates jobs on one pool of cores in the obvious way: a list of reservations,
// summed up for each question. It shares no code with the policies.
type rigidMachine struct {
	total    int64
	jobs     []rigidJob
	at       []scheduler.Time // start of each job, planned or real; Never: not planned
	started  []bool
	finished []bool
}

// startsUnder returns the start of each of jobs, which are in order of submission, under EASY or conservative
// backfilling. Events at the same time come in the order submission, end, start.
func startsUnder(easy bool, total int64, jobs []rigidJob) []scheduler.Time {
	m := &rigidMachine{total: total, jobs: jobs, at: slices.Repeat([]scheduler.Time{scheduler.Never}, len(jobs)), started: make([]bool, len(jobs)), finished: make([]bool, len(jobs))}
	next, wake := 0, scheduler.Never
	for {
		now := wake
		if next < len(jobs) {
			now = min(now, jobs[next].submit)
		}
		for i := range next {
			if m.started[i] && !m.finished[i] {
				now = min(now, m.at[i].Add(jobs[i].runTime))
			}
		}
		if now == scheduler.Never {
			return m.at
		}
		for ; next < len(jobs) && jobs[next].submit <= now; next++ {
			if easy {
				m.startWaiting(next+1, now)
			} else {
				m.at[next] = m.earliest(next, now)
			}
		}
		for i := range next {
			if m.started[i] && !m.finished[i] && m.at[i].Add(jobs[i].runTime) <= now {
				m.finished[i] = true
				if easy {
					m.startWaiting(next, now)
				} else {
					m.compress(next, now)
				}
			}
		}
		wake = scheduler.Never
		for i := range next {
			switch {
			case m.started[i] || m.at[i] == scheduler.Never:
			case m.at[i] <= now:
				m.started[i] = true
			default:
				wake = min(wake, m.at[i])
			}
		}
	}
}

// reserved returns the cores reserved at an instant for others than job i.
func (m *rigidMachine) reserved(i int, at scheduler.Time) (sum int64) {
	for k := range m.jobs {
		if k != i && m.at[k] != scheduler.Never && !m.finished[k] && m.at[k] <= at && at < m.at[k].Add(m.jobs[k].bound) {
			sum += m.jobs[k].need
		}
	}
	return sum
}

// fits reports whether job i could run from an instant for its bound.
func (m *rigidMachine) fits(i int, from scheduler.Time) bool {
	free := m.total - m.jobs[i].need
	if m.reserved(i, from) > free {
		return false
	}
	for k := range m.jobs { // more is reserved only where a job starts
		if from < m.at[k] && m.at[k] < from.Add(m.jobs[i].bound) && m.reserved(i, m.at[k]) > free {
			return false
		}
	}
	return true
}

// earliest returns when job i can start.
func (m *rigidMachine) earliest(i int, now scheduler.Time) scheduler.Time {
	instants := []scheduler.Time{now}
	for k := range m.jobs {
		if k != i && m.at[k] != scheduler.Never && !m.finished[k] {
			instants = append(instants, max(now, m.at[k].Add(m.jobs[k].bound)))
		}
	}
	slices.Sort(instants)
	return instants[slices.IndexFunc(instants, func(at scheduler.Time) bool { return m.fits(i, at) })]
}

// compress lets each submitted waiting job start earlier if it can, in order of submission.
func (m *rigidMachine) compress(submitted int, now scheduler.Time) {
	for i := range submitted {
		if !m.started[i] {
			m.at[i] = min(m.at[i], m.earliest(i, now))
		}
	}
}

// startWaiting starts jobs from the head of the queue while they fit, then those that fit beside a reservation for the
// head at its earliest start.
func (m *rigidMachine) startWaiting(submitted int, now scheduler.Time) {
	head := -1
	for i := range submitted {
		switch {
		case m.started[i]:
		case m.fits(i, now):
			m.at[i], m.started[i] = now, true
		case head < 0:
			head = i
			m.at[i] = m.earliest(i, now)
		}
	}
	if head >= 0 {
		m.at[head] = scheduler.Never
	}
}
