package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/policies"
)

// deadlineCheckPause is the shortest time between two deadline checks.
const deadlineCheckPause = 50 * time.Millisecond

// deadlineWatch watches the live jobs that have a deadline.
type deadlineWatch struct {
	jobs  map[uint64]missState
	slack deadline.Slack
	stamp scheduler.Stamp // State at the last check
	last  time.Time       // time of the last check
	next  time.Time       // when a deadline may become infeasible without an event; zero for never
}

// missState is what has been recorded of a deadline.
type missState struct{ infeasible, passed bool }

// track follows a change of a job.
func (w *deadlineWatch) track(j *facts.Job) {
	if j.Spec.Deadline == nil || j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING {
		delete(w.jobs, j.ID)
		return
	}
	w.jobs[j.ID] = missState{j.Miss != nil, j.Miss != nil && (j.Miss.Passed || j.Lowered())}
	w.stamp = scheduler.Stamp{}
}

// check is part of step 4. It records once for each live job that its
// deadline has become infeasible, and once that it has passed; the facts then
// apply on_miss. It does so under every policy, and policies that know
// deadlines use the same criterion. It returns when it is due again, zero for
// not before something happens.
func (w *deadlineWatch) check(ctx context.Context, c *core, state *scheduler.State) (time.Time, error) {
	if len(w.jobs) == 0 {
		w.next = time.Time{} // a check that nobody needs any more is never due
		return time.Time{}, nil
	}
	now := c.now()
	if state.Stamp() == w.stamp && (w.next.IsZero() || now.Before(w.next)) {
		return w.next, nil
	}
	if due := w.last.Add(deadlineCheckPause); now.Before(due) {
		return due, nil
	}
	w.last, w.stamp, w.next = now, state.Stamp(), time.Time{}
	at := scheduler.Time(now.UnixNano())
	var missed []*droverv1.Entry
	for _, id := range slices.Sorted(maps.Keys(w.jobs)) {
		j := state.Job(scheduler.JobID(id))
		if j == nil {
			continue // not yet submitted to State, or already gone
		}
		miss, next := w.miss(j, w.jobs[id], at)
		if miss == nil {
			if next < scheduler.Never {
				w.next = earlier(w.next, time.Unix(0, int64(next)))
			}
			continue
		}
		missed = append(missed, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_DeadlineMiss{DeadlineMiss: miss}})
	}
	if _, err := c.replica.ProposeAll(ctx, missed); err != nil {
		return time.Time{}, err
	}
	return w.next, nil
}

// miss returns what to record of a deadline now, or when to check
// again.
func (w *deadlineWatch) miss(j *scheduler.Job, recorded missState, now scheduler.Time) (*droverv1.DeadlineMissFact, scheduler.Time) {
	if j.Phase != scheduler.JobActive || j.Spec.Deadline == 0 || recorded.passed {
		return nil, scheduler.Never
	}
	if now > j.Spec.Deadline {
		return &droverv1.DeadlineMissFact{Job: uint64(j.Spec.ID), Passed: true, Reason: "it has passed and " + remainingText(j)}, 0
	}
	if recorded.infeasible {
		return nil, j.Spec.Deadline.Add(1)
	}
	w.slack.Compute(j)
	infeasible, until := w.slack.Infeasible(now)
	if !infeasible {
		return nil, until.Add(1)
	}
	return &droverv1.DeadlineMissFact{Job: uint64(j.Spec.ID), Reason: fmt.Sprintf("the latest start was %s ago and %s", now.Sub(until).Round(time.Millisecond), remainingText(j))}, 0
}

// remainingText names the first stage of a job that is not done.
func remainingText(j *scheduler.Job) string {
	for _, g := range j.Stages {
		if n := g.Remaining(); n > 0 {
			s := fmt.Sprintf("%d of %d tasks of %s are not done", n, g.Spec.Tasks, g.Spec.Name)
			if g.Spec.Estimate > 0 {
				s += fmt.Sprintf(" (about %s each)", g.Spec.Estimate.Round(time.Millisecond))
			}
			return s
		}
	}
	return "its result is not published"
}

// guaranteesDeadlines reports whether a scheduler guarantees the deadlines of
// jobs with bounds.
func guaranteesDeadlines(name string, params map[string]string) bool {
	p, err := policies.New(name, params)
	return err == nil && scheduler.DeadlineServiceOf(p).Guarantees
}

// guaranteeCache caches the result of guaranteesDeadlines for the last scheduler. Computing it
// constructs a policy, and a projection needs it for each job.
type guaranteeCache struct {
	name       string
	params     map[string]string
	guarantees bool
}

func (g *guaranteeCache) get(name string, params map[string]string) bool {
	if g.name != name || !maps.Equal(g.params, params) {
		*g = guaranteeCache{name, maps.Clone(params), guaranteesDeadlines(name, params)}
	}
	return g.guarantees
}

// hasBounds reports whether the run time of every task is bounded, by the job's runtime_bound or by
// the upper predictions at its submission.
func hasBounds(j *facts.Job) bool {
	return j.Spec.RuntimeBound > 0 || !slices.ContainsFunc(j.Stages, func(s facts.Stage) bool { return s.UpperNS == 0 })
}

// runTime returns a bound or prediction clipped to what State accepts: older logs may contain
// longer ones.
func runTime(ns int64) time.Duration { return min(time.Duration(ns), scheduler.MaxRunTime) }

// setDeadlineSpec sets a job's deadline, bound, on_miss and project. A deadline
// counts as accepted by its quote, except where the scheduler is yet to guarantee
// it: the job has bounds, is in no project, and was not refused. Of a project only
// the departure is guaranteed.
func setDeadlineSpec(j *facts.Job, s *scheduler.JobSpec, guarantee bool) {
	s.Bound = runTime(int64(j.Spec.RuntimeBound))
	s.Project = scheduler.ProjectID(j.Project)
	if j.Lowered() {
		s.Priority = scheduler.PriorityLow
		return
	}
	if d := scheduler.Time(j.DeadlineNS()); d > s.Submitted {
		s.Deadline, s.AcceptedByQuote = d, !guarantee || j.Spec.Project != "" || !hasBounds(j) || j.GuaranteeRefused
		s.OnMiss = scheduler.OnMissContinue
		if j.Spec.OnMiss == jobspec.OnMissStop {
			s.OnMiss = scheduler.OnMissStop
		}
	}
}
