package deadline

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Order is the order in which deadline jobs are served.
type Order uint8

const (
	// EMWTF is earliest maximal waiting time first (3DSF 7.1), which the real-time literature calls least laxity first:
	// by latest start.
	EMWTF Order = iota + 1
	// EDF is earliest deadline first.
	EDF
)

// Slack is the workspace for the predicted times of one job: Compute fills it in for a job, and the
// methods refer to that job until the next Compute.
type Slack struct {
	job       *scheduler.Job
	taskTimes []time.Duration // run time of one task, by stage
	tailTimes []time.Duration // run time of all stages after the stage
	remaining time.Duration   // run time of the incomplete stages
	least     []time.Duration // workspace of leastTimes
	leastTail []time.Duration
}

// leastOfBound is the assumed minimum run time of a task as a part of its bound, which covers prediction errors.
const leastOfBound = 0.1

// LeastRunTime returns the assumed minimum run time of a task, with its estimate and its job's bound, 0
// for none. An estimate equal to the bound only limits the run time from above: there is no history.
func LeastRunTime(estimate, bound time.Duration) time.Duration {
	if estimate < bound || bound <= 0 {
		return estimate
	}
	return time.Duration(leastOfBound * float64(bound))
}

// Compute predicts the times of a job. A stage takes as long as one of its tasks is predicted to.
// If no stage has a prediction, the job's own estimate is divided equally along its longest chain
// of stages; without an estimate the job takes no time. The remaining part of the job's own
// estimate is that of the chain's incomplete stages. O(stages + edges between them).
func (s *Slack) Compute(j *scheduler.Job) {
	s.job = j
	n := len(j.Stages)
	s.taskTimes, s.tailTimes = sized(s.taskTimes, n), sized(s.tailTimes, n)
	known := false
	for i, g := range j.Stages {
		s.taskTimes[i] = g.Spec.Estimate
		known = known || g.Spec.Estimate > 0
	}
	if !known && n > 0 {
		for i := range s.taskTimes {
			s.taskTimes[i] = 1
		}
		chain := s.longestChain(s.taskTimes, s.tailTimes, func(*scheduler.Stage) bool { return true })
		for i := range s.taskTimes {
			s.taskTimes[i] = j.Spec.Estimate / chain
		}
	}
	whole := s.longestChain(s.taskTimes, s.tailTimes, func(*scheduler.Stage) bool { return true })
	s.remaining = s.longestChain(s.taskTimes, s.tailTimes, func(g *scheduler.Stage) bool { return g.Remaining() > 0 })
	if j.Spec.Estimate > whole && whole > 0 {
		s.remaining = time.Duration(float64(s.remaining) / float64(whole) * float64(j.Spec.Estimate))
	}
}

// longestChain returns the duration of the longest chain of the counted stages, with times of one
// task by stage, and stores in tails the duration after each stage.
func (s *Slack) longestChain(times, tails []time.Duration, counts func(*scheduler.Stage) bool) time.Duration {
	longest := time.Duration(0)
	clear(tails)
	for i := len(tails) - 1; i >= 0; i-- {
		g := s.job.Stages[i]
		through := tails[i]
		if counts(g) {
			through = addDurations(through, times[i])
		}
		longest = max(longest, through)
		for _, a := range g.Spec.After {
			tails[a] = max(tails[a], through)
		}
	}
	return longest
}

// LatestStart returns the deadline less the predicted run time of the incomplete stages: the end of the maximal waiting
// time (3DSF 7.1). It changes only when stages end or predictions are updated.
func (s *Slack) LatestStart() scheduler.Time { return s.job.Spec.Deadline.Add(-s.remaining) }

// TaskRunTime returns the predicted run time of one task of stage i, 0 for none.
func (s *Slack) TaskRunTime(i int32) time.Duration { return s.taskTimes[i] }

// SortKey returns the key by which jobs are ordered: smaller first.
func (s *Slack) SortKey(by Order) scheduler.Time {
	if by == EDF {
		return s.job.Spec.Deadline
	}
	return s.LatestStart()
}

// LatestStartOfTasks returns the latest time at which the waiting tasks of stage i can begin on n
// slots, one after another, so that the job is predicted to meet its deadline. It returns Never
// without waiting tasks, and -Never without slots.
func (s *Slack) LatestStartOfTasks(i int32, waiting, n int32) scheduler.Time {
	switch {
	case waiting <= 0:
		return scheduler.Never
	case n <= 0:
		return -scheduler.Never
	}
	waves := (waiting + n - 1) / n
	return s.job.Spec.Deadline.Add(-s.tailTimes[i]).Add(-multiplyDuration(s.taskTimes[i], waves))
}

// TasksInTime returns how many waiting tasks of stage i one slot can run in time one after another
// from a time on; all if they have no prediction.
func (s *Slack) TasksInTime(i int32, from scheduler.Time) int32 {
	left := s.job.Spec.Deadline.Add(-s.tailTimes[i]).Sub(from)
	switch {
	case left < 0:
		return 0
	case s.taskTimes[i] <= 0:
		return s.job.Stages[i].Pending
	}
	return int32(min(int64(left/s.taskTimes[i]), int64(s.job.Stages[i].Pending)))
}

// Infeasible reports whether the job can no longer meet its deadline even if all capacity were
// free: the deadline has passed, or the waiting tasks, run in parallel for at least LeastRunTime,
// would end after it. The job becomes infeasible after until unless an event comes first.
func (s *Slack) Infeasible(now scheduler.Time) (infeasible bool, until scheduler.Time) {
	until = s.job.Spec.Deadline
	times, tails := s.leastTimes()
	for _, g := range s.job.Stages {
		if g.Pending > 0 && g.Open {
			until = min(until, s.job.Spec.Deadline.Add(-tails[g.Index]).Add(-times[g.Index]))
		}
	}
	return now > until, until
}

// leastTimes returns LeastRunTime of each stage, and the least duration of all stages after it.
func (s *Slack) leastTimes() (times, tails []time.Duration) {
	bound := s.job.Spec.Bound
	if bound == 0 {
		return s.taskTimes, s.tailTimes
	}
	s.least, s.leastTail = sized(s.least, len(s.taskTimes)), sized(s.leastTail, len(s.taskTimes))
	for i, t := range s.taskTimes {
		s.least[i] = LeastRunTime(t, bound)
	}
	s.longestChain(s.least, s.leastTail, func(g *scheduler.Stage) bool { return g.Remaining() > 0 })
	return s.least, s.leastTail
}

func addDurations(a, b time.Duration) time.Duration {
	if s := a + b; s >= a {
		return s
	}
	return 1<<63 - 1
}

func multiplyDuration(d time.Duration, n int32) time.Duration {
	if d > 0 && int64(n) > (1<<63-1)/int64(d) {
		return 1<<63 - 1
	}
	return d * time.Duration(n)
}

func sized[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
