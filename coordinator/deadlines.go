package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// deadlineCheckPause is the shortest time between two deadline checks.
const deadlineCheckPause = 50 * time.Millisecond

// checkDeadlines is part of step 4. It records once for each live job that its
// deadline has become infeasible, and once that it has passed; the facts then
// apply on_miss. It does so under every policy, and policies that know
// deadlines use the same criterion. It returns when it is due again, zero for
// not before something happens.
func (l *leader) checkDeadlines(ctx context.Context) (time.Time, error) {
	if len(l.deadlines) == 0 {
		l.nextDeadlineCheck = time.Time{} // a check that nobody needs any more is never due
		return time.Time{}, nil
	}
	now := l.c.now()
	state := l.proj.state
	if state.Stamp() == l.deadlineStamp && (l.nextDeadlineCheck.IsZero() || now.Before(l.nextDeadlineCheck)) {
		return l.nextDeadlineCheck, nil
	}
	if due := l.lastDeadlineCheck.Add(deadlineCheckPause); now.Before(due) {
		return due, nil
	}
	l.lastDeadlineCheck, l.deadlineStamp, l.nextDeadlineCheck = now, state.Stamp(), time.Time{}
	at := scheduler.Time(now.UnixNano())
	var missed []*droverv1.Entry
	for _, id := range sortedIDs(l.deadlines) {
		j := state.Job(scheduler.JobID(id))
		if j == nil {
			continue // not yet submitted to State, or already gone
		}
		miss, next := l.deadlineMiss(j, l.deadlines[id], at)
		if miss == nil {
			if next < scheduler.Never {
				l.nextDeadlineCheck = earlier(l.nextDeadlineCheck, time.Unix(0, int64(next)))
			}
			continue
		}
		missed = append(missed, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_DeadlineMiss{DeadlineMiss: miss}})
	}
	if _, err := l.c.replica.ProposeAll(ctx, missed); err != nil {
		return time.Time{}, err
	}
	return l.nextDeadlineCheck, nil
}

// deadlineMiss returns what to record of a deadline now, or when to check
// again.
func (l *leader) deadlineMiss(j *scheduler.Job, recorded missState, now scheduler.Time) (*droverv1.DeadlineMissFact, scheduler.Time) {
	if j.Phase != scheduler.JobActive || j.Spec.Deadline == 0 || recorded.passed {
		return nil, scheduler.Never
	}
	if now > j.Spec.Deadline {
		return &droverv1.DeadlineMissFact{Job: uint64(j.Spec.ID), Passed: true, Reason: "it has passed and " + remainingText(j)}, 0
	}
	if recorded.infeasible {
		return nil, j.Spec.Deadline.Add(1)
	}
	l.slack.Compute(j)
	infeasible, until := l.slack.Infeasible(now)
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

// missState is what has been recorded of a deadline.
type missState struct{ infeasible, passed bool }

// trackDeadline updates the set of live jobs with a deadline.
func (l *leader) trackDeadline(j *facts.Job) {
	if j.Spec.Deadline == nil || j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING {
		delete(l.deadlines, j.ID)
		return
	}
	l.deadlines[j.ID] = missState{j.Miss != nil, j.Miss != nil && (j.Miss.Passed || j.Lowered())}
	l.deadlineStamp = scheduler.Stamp{}
}

func sortedIDs[V any](m map[uint64]V) []uint64 {
	ids := make([]uint64, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, cmp.Compare)
	return ids
}

// guaranteesDeadlines reports whether a scheduler guarantees the deadlines of
// jobs with bounds.
func guaranteesDeadlines(name string, params map[string]string) bool {
	p, err := policies.New(name, params)
	return err == nil && scheduler.DeadlineServiceOf(p).Guarantees
}

// guaranteeCache remembers guaranteesDeadlines of the scheduler asked for last. The
// answer takes the construction of a policy, and a projection needs it for each job.
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

// hasBounds reports whether it is known of each task how long it takes at most: by
// the job's runtime_bound, or by its predictions at submission.
func hasBounds(j *facts.Job) bool {
	return j.Spec.RuntimeBound > 0 || !slices.ContainsFunc(j.Stages, func(s facts.Stage) bool { return s.UpperNS == 0 })
}

// runTime returns a bound or a prediction as State takes it: the log may have longer ones, from before they were refused.
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
		s.Deadline, s.Accepted = d, !guarantee || j.Spec.Project != "" || !hasBounds(j) || j.GuaranteeRefused
		s.OnMiss = scheduler.OnMissContinue
		if j.Spec.OnMiss == jobspec.OnMissStop {
			s.OnMiss = scheduler.OnMissStop
		}
	}
}
