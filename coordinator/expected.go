package coordinator

import (
	"context"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline/forecast"
	"github.com/drover-run/drover/scheduler/estimate"
	"github.com/drover-run/drover/scheduler/obstacle"
)

// expected returns when pending stages are expected to start and live jobs to end, simulated with
// predicted run times; see isGuess for what is left out. The result is cached for expectedPause, or for
// expectedFactor times the time the simulation took, whichever is longer. While another call computes it, or if too much is
// pending, expected returns the last result.
func (s *clientService) expected(ctx context.Context) forecast.Expected {
	q := s.core.quoter
	q.mu.Lock()
	last := q.expected
	if s.core.now().Before(q.expectedDue) || q.computing {
		q.mu.Unlock()
		return last
	}
	q.computing = true
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.computing = false
	}()
	planner, done, err := q.acquire(ctx, identity{name: "expected starts"}) // for all
	if err != nil {
		return last
	}
	defer done()
	began := s.core.now()
	var state *scheduler.State
	sources := map[scheduler.StageID]estimate.Source{}
	question := forecast.Query{UnknownRunTime: s.core.predictor.unknownRunTime(), Guessed: func(id scheduler.StageID) bool { return isGuess(sources[id]) }}
	s.core.view(func(f *facts.Facts) {
		addEstimateSources(f, sources)
		p := s.core.newProjection(s.core.locations.resolve)
		if err = p.rebuild(f); err == nil {
			state = p.state
		}
		question.NoDeadlineLane, question.Preempt = laneOptions(s.core.schedulerOf(f))
	})
	var obstacles map[scheduler.StageID]obstacle.Set
	var found *forecast.Expected
	if err == nil {
		obstacles = findObstacles(state, scheduler.Time(began.UnixNano()))
		var x forecast.Expected
		if x, err = planner.Expect(state, question, scheduler.Time(began.UnixNano()), expectedLimit); err == nil {
			found = &x
		}
	}
	if err != nil {
		s.core.log.Debug("no expected starts and ends", "err", err)
	}
	now := s.core.now()
	return q.setExpected(found, obstacles, now.Add(max(expectedPause, expectedFactor*now.Sub(began))))
}

// isGuess reports whether a prediction of this source is no basis for an expected time: nothing like the stage has
// run, only other tasks of its tenant or none. A task of ten minutes would be expected to end as soon as the others did.
func isGuess(s estimate.Source) bool {
	return s != estimate.RuntimeBound && s <= estimate.Tenant // 0 is a stage without a prediction yet
}

// setExpected stores a result and when it is due again, and returns the result in force. A nil
// result could not be computed: the previous one stays.
func (q *quoter) setExpected(found *forecast.Expected, obstacles map[scheduler.StageID]obstacle.Set, due time.Time) forecast.Expected {
	q.mu.Lock()
	defer q.mu.Unlock()
	if found != nil {
		q.expected = *found
	}
	if obstacles != nil {
		q.obstacles = obstacles
	}
	q.expectedDue = due
	return q.expected
}

// addExpected sets when a job's pending stages are expected to start, from the
// scheduler's own plan if it has one, otherwise from the simulation, and when the
// job is expected to end.
func (s *clientService) addExpected(ctx context.Context, r *droverv1.GetJobResponse) {
	if ended(r.Job.State) {
		return
	}
	expected, now := s.expected(ctx), s.core.now()
	s.core.view(func(f *facts.Facts) {
		s.core.jobs.expectedOfJob(f, expected, r.Job, now)
		for i, g := range r.Stages {
			if g.Pending > 0 {
				g.ExpectedStartMs = s.core.jobs.expectedStart(f, expected, r.Job.Job, i, now)
			}
		}
	})
}

// expectedOfJob sets when a job is expected to start, if it has not, and to end.
func (v *jobView) expectedOfJob(f *facts.Facts, expected forecast.Expected, out *droverv1.JobSummary, now time.Time) {
	j := f.Job(out.Job)
	if j == nil || j.HasEnded() {
		return
	}
	if !waitsForUser(f, j) {
		out.ExpectedEndMs = expectedJobEnd(expected, out.Job, now)
		// Also a guess is reason enough to warn.
		if d := f.Deadlines(); out.DeadlineState == deadlineOnTrack && unixMillis(expected.GuessedEnds[scheduler.JobID(out.Job)]) > out.DeadlineMs &&
			(d.LatestDeparture(j) == 0 || d.GuaranteeViolated(j) != "") { // a guarantee holds, whatever is expected without it
			out.DeadlineState = deadlineAtRisk
		}
	}
	if out.StartedMs > 0 {
		return
	}
	for i := range j.Stages {
		if at := v.expectedStart(f, expected, out.Job, i, now); at > 0 && j.Stages[i].Pending > 0 && (out.ExpectedStartMs == 0 || at < out.ExpectedStartMs) {
			out.ExpectedStartMs = at
		}
	}
}

// waitsForUser reports whether a job cannot end until a user resumes one of its tasks, which no
// scheduler does.
func waitsForUser(f *facts.Facts, j *facts.Job) (waits bool) {
	if !slices.ContainsFunc(j.Stages, func(s facts.Stage) bool { return s.Suspended > 0 }) {
		return false
	}
	f.EachActive(j, func(_ facts.Key, _ *facts.Task, a *facts.Attempt) {
		waits = waits || a.Suspension.Parked && !a.Suspension.Drained
	})
	return waits
}

// expectedStart returns when the next pending task of a stage is expected to start,
// Unix ms, 0 if that is not known.
func (v *jobView) expectedStart(f *facts.Facts, expected forecast.Expected, job uint64, stage int, now time.Time) (ms int64) {
	id := stageID(job, int32(stage))
	if at, ok := expected.Starts[id]; ok {
		ms = unixMillis(at)
	}
	if w, ok := v.waits.of(id); ok && w.Reason == scheduler.ReasonLater && w.Until < scheduler.Never {
		ms = unixMillis(w.Until)
	}
	if ms <= now.UnixMilli() || !canStart(f, job, stage) {
		return 0 // what is past was not true, and what cannot start will not
	}
	return ms
}

// expectedJobEnd returns when a live job is expected to end, Unix ms, 0 if unknown. The farther
// away the end, the more coarsely it is rounded up: watchers of the job should not be notified of
// every small change of the prediction.
func expectedJobEnd(expected forecast.Expected, job uint64, now time.Time) int64 {
	at, ok := expected.Ends[scheduler.JobID(job)]
	left := unixMillis(at) - now.UnixMilli()
	if !ok || left <= 0 {
		return 0
	}
	step := time.Second
	switch {
	case left > time.Hour.Milliseconds():
		step = time.Minute
	case left > 5*time.Minute.Milliseconds():
		step = 10 * time.Second
	}
	ms := step.Milliseconds()
	return (unixMillis(at) + ms - 1) / ms * ms
}
