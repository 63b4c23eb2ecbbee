package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// deadlinePause is the shortest time between two looks at the deadlines.
const deadlinePause = 50 * time.Millisecond

// watchDeadlines is a step of the loop: it says of each live job with a
// deadline, once, that it cannot be met any more, and once that it has passed.
// What becomes of the job is a matter of the facts (on_miss). It holds under
// every policy: policies that know deadlines judge alike. It gives when it is
// due again, zero for not before something happens.
func (l *leader) watchDeadlines(ctx context.Context) (time.Time, error) {
	now := l.c.now()
	state := l.proj.state
	if len(l.deadlines) == 0 || (state.Stamp() == l.judged && (l.judgeAt.IsZero() || now.Before(l.judgeAt))) {
		return l.judgeAt, nil
	}
	if due := l.lastJudged.Add(deadlinePause); now.Before(due) {
		return due, nil
	}
	l.lastJudged, l.judged, l.judgeAt = now, state.Stamp(), time.Time{}
	at := scheduler.Time(now.UnixNano())
	for _, id := range sortedIDs(l.deadlines) {
		j := state.Job(scheduler.JobID(id))
		if j == nil {
			continue // it is about to come, or has left
		}
		miss, next := l.judge(j, l.deadlines[id], at)
		if miss == nil {
			if t := time.Unix(0, int64(next)); next < scheduler.Never && (l.judgeAt.IsZero() || t.Before(l.judgeAt)) {
				l.judgeAt = t
			}
			continue
		}
		if _, err := l.c.replica.Propose(ctx, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_Deadline{Deadline: miss}}); err != nil {
			return time.Time{}, err
		}
	}
	return l.judgeAt, nil
}

// judge tells what is to be said of a deadline now, or when to look again.
func (l *leader) judge(j *scheduler.Job, known missed, now scheduler.Time) (*droverv1.DeadlineFact, scheduler.Time) {
	if j.Phase != scheduler.JobActive || j.Spec.Deadline == 0 || known.passed {
		return nil, scheduler.Never
	}
	if now > j.Spec.Deadline {
		return &droverv1.DeadlineFact{Job: uint64(j.Spec.ID), Passed: true, Why: "it has passed and " + remains(j)}, 0
	}
	if known.hopeless {
		return nil, j.Spec.Deadline.Add(1)
	}
	l.outlook.Of(j)
	hopeless, until := l.outlook.Hopeless(now)
	if !hopeless {
		return nil, until.Add(1)
	}
	return &droverv1.DeadlineFact{Job: uint64(j.Spec.ID), Why: fmt.Sprintf("the latest start was %s ago and %s", now.Sub(until).Round(time.Millisecond), remains(j))}, 0
}

// remains says what of a job is not done.
func remains(j *scheduler.Job) string {
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

// missed is what was said of a deadline.
type missed struct{ hopeless, passed bool }

// followDeadline keeps track of the live jobs with a deadline.
func (l *leader) followDeadline(j *facts.Job) {
	if j.Spec.Deadline == nil || j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING {
		delete(l.deadlines, j.ID)
		return
	}
	l.deadlines[j.ID] = missed{j.Miss != nil, j.Miss != nil && (j.Miss.Passed || j.Lowered())}
	l.judged = scheduler.Stamp{}
}

func sortedIDs[V any](m map[uint64]V) []uint64 {
	ids := make([]uint64, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, cmp.Compare)
	return ids
}

// guarantees tells whether a scheduler promises deadlines by itself: then it is
// asked about jobs with a runtime_bound, and its promise is a guarantee.
func guarantees(name string, params map[string]string) bool {
	i, err := policies.Get(name)
	return err == nil && params["promises"] != "false" && slices.ContainsFunc(i.Params, func(p policies.Param) bool { return p.Name == "promises" })
}

// promiseOf fills in what a job was promised and asks for: deadline, bound,
// what a miss means, project. A deadline counts as accepted by its quote,
// unless the scheduler is to guarantee it and has not refused.
func promiseOf(j *facts.Job, s *scheduler.JobSpec, guarantee bool) {
	s.Bound = time.Duration(j.Spec.RuntimeBound)
	s.Project = scheduler.ProjectID(j.Project)
	if j.Lowered() {
		s.Priority = scheduler.PriorityLow
		return
	}
	if d := scheduler.Time(j.DeadlineNS()); d > s.Submitted {
		s.Deadline, s.Accepted = d, !guarantee || s.Bound == 0 || j.Refused
		s.OnMiss = scheduler.OnMissContinue
		if j.Spec.OnMiss == jobspec.OnMissStop {
			s.OnMiss = scheduler.OnMissStop
		}
	}
}
