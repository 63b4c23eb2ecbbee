package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
)

// ListJobs returns the jobs that the caller may read, newest first.
func (s *clientService) ListJobs(ctx context.Context, req *connect.Request[droverv1.ListJobsRequest]) (*connect.Response[droverv1.ListJobsResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if err := checkStates(req.Msg.GetStates()); err != nil {
		return nil, err
	}
	limit := int(req.Msg.GetLimit())
	if limit <= 0 || limit > MaxListed {
		limit = MaxListed
	}
	res := &droverv1.ListJobsResponse{}
	withEnded, known := listsEnded(req.Msg), map[uint64]bool{} // jobs that are listed or counted already
	expected, now := s.expected(ctx), s.core.now()
	s.core.view(func(f *facts.Facts) {
		ids := f.JobIDs()
		slices.Reverse(ids)
		for _, id := range ids {
			j := f.Job(id)
			if !isListed(req.Msg, j, caller(ctx).name) || s.core.rights.needJob(ctx, mayRead, f, j) != nil {
				continue
			}
			if withEnded {
				known[id] = true
			}
			if len(res.Jobs) < limit {
				res.Jobs = append(res.Jobs, s.core.jobs.summary(f, j))
				s.core.jobs.expectedOfJob(f, expected, res.Jobs[len(res.Jobs)-1], now)
			} else {
				res.More++
			}
		}
	})
	if withEnded {
		if err := s.addPastJobs(ctx, req.Msg, limit, known, res); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(res), nil
}

// checkStates returns an error if a list is restricted to a state that no job can have. The error
// names the states that exist.
func checkStates(states []droverv1.JobState) error {
	for _, s := range states {
		if _, known := droverv1.JobState_name[int32(s)]; known && s != droverv1.JobState_JOB_STATE_UNSPECIFIED {
			continue
		}
		var names []string
		for n := range int32(len(droverv1.JobState_name)) - 1 {
			names = append(names, droverv1.JobState(n+1).String())
		}
		return fault.New(fault.Invalid, "jobs have no state %d: want some of %s", s, strings.Join(names, ", "))
	}
	return nil
}

// listsEnded reports whether a list contains ended jobs.
func listsEnded(q *droverv1.ListJobsRequest) bool {
	return len(q.GetStates()) == 0 && q.GetAll() || slices.ContainsFunc(q.GetStates(), ended)
}

// isListed reports whether a job matches the filters of a list.
func isListed(q *droverv1.ListJobsRequest, j *facts.Job, caller string) bool {
	switch {
	case len(q.GetStates()) > 0 && !slices.Contains(q.GetStates(), j.State),
		len(q.GetStates()) == 0 && j.HasEnded() && !q.GetAll(),
		q.GetTenant() != "" && q.GetTenant() != j.Spec.Tenant,
		q.GetMine() && j.Actor != caller:
		return false
	}
	return strings.HasPrefix(j.Name, q.GetNamePrefix())
}

// GetJob returns the status of a job.
func (s *clientService) GetJob(ctx context.Context, req *connect.Request[droverv1.GetJobRequest]) (*connect.Response[droverv1.GetJobResponse], error) {
	res, err := s.getJob(ctx, req.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
}

func (s *clientService) getJob(ctx context.Context, name string) (res *droverv1.GetJobResponse, err error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	s.core.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = s.core.rights.findJob(ctx, f, name); err == nil {
			err = s.core.rights.needJob(ctx, mayRead, f, j)
		}
		if err == nil {
			res = s.core.jobs.status(f, j)
			res.MayOperate = s.core.rights.needJob(ctx, mayOperate, f, j) == nil
			t := f.Tenant(j.Spec.Tenant)
			res.MaySubmit = t != nil && s.core.rights.need(ctx, maySubmit, t.Spec) == nil
		}
	})
	if err == nil {
		s.addExpected(ctx, res)
	}
	if errors.Is(err, fault.NotFound) {
		j, pastErr := s.core.pastJobs.find(ctx, name)
		switch {
		case pastErr == nil:
			return s.core.pastJobs.status(ctx, j), nil
		case !errors.Is(pastErr, fault.NotFound):
			return nil, pastErr
		}
	}
	return res, err
}

// WatchJob streams a job's status when it changes, at most every watchGap while
// it runs, and its end at once.
func (s *clientService) WatchJob(ctx context.Context, req *connect.Request[droverv1.GetJobRequest], stream *connect.ServerStream[droverv1.GetJobResponse]) error {
	name := req.Msg.GetJob()
	var last *droverv1.GetJobResponse
	for {
		changes, ends, read := s.core.changed.next(), s.core.jobEnded.next(), time.Now() // taken before the read, so that no change is missed
		now, err := s.watchedJob(ctx, name)
		if err != nil {
			return err
		}
		jobEnded := ended(now.GetJob().GetState())
		if jobEnded || !proto.Equal(last, now) {
			if err := stream.Send(now); err != nil || jobEnded {
				return err
			}
			last = now
		}
		name = fmt.Sprint(now.GetJob().GetJob()) // another job may take the name later
		if err := s.waitForJob(ctx, changes, ends, now.GetJob().GetJob(), read.Add(watchGap)); err != nil {
			return err
		}
	}
}

// watchedJob is getJob in the caller's turn: every change, of whatever job, wakes all watches.
func (s *clientService) watchedJob(ctx context.Context, name string) (*droverv1.GetJobResponse, error) {
	done, err := s.core.watchTurns.wait(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	return s.getJob(ctx, name)
}

// waitForJob waits for a change. Before until it waits only for jobs that end: otherwise every
// change would wake every watch.
func (s *clientService) waitForJob(ctx context.Context, changes, ends <-chan struct{}, job uint64, until time.Time) error {
	due := time.NewTimer(time.Until(until))
	defer due.Stop()
	for passed := false; !passed; {
		select {
		case <-ends:
			ends = s.core.jobEnded.next()
			over := false
			s.core.view(func(f *facts.Facts) { j := f.Job(job); over = j == nil || j.HasEnded() })
			if over {
				return nil
			}
		case <-due.C:
			passed = true
		case <-ctx.Done():
			return errStreamEnded
		}
	}
	select {
	case <-changes:
		return nil
	case <-ctx.Done():
		return errStreamEnded
	}
}

func ended(s droverv1.JobState) bool {
	j := facts.Job{State: s}
	return j.HasEnded()
}

// StopJob stops a live job. One whose result is being published is stopped only if that fails.
// Stopping an ended one succeeds.
func (s *clientService) StopJob(ctx context.Context, req *connect.Request[droverv1.StopJobRequest]) (*connect.Response[droverv1.StopJobResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if plain.HasControl(req.Msg.GetReason()) {
		return nil, fault.New(fault.Invalid, "the reason has a control character or is no UTF-8: give one line of text")
	}
	var id uint64
	var err error
	s.core.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = s.core.rights.findJob(ctx, f, req.Msg.GetJob()); err == nil {
			id, err = j.ID, s.core.rights.needJob(ctx, mayOperate, f, j)
		}
	})
	if err != nil {
		return nil, err
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: id, Reason: req.Msg.GetReason(), AfterCommit: true}}}
	res, err := s.core.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.StopJobResponse{}), nil
}

// ListTasks returns the tasks of a job with their attempts.
func (s *clientService) ListTasks(ctx context.Context, req *connect.Request[droverv1.ListTasksRequest]) (*connect.Response[droverv1.ListTasksResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.ListTasksResponse{}
	var err error
	gone := false // not in the facts
	s.core.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = s.core.rights.findJob(ctx, f, req.Msg.GetJob()); err == nil {
			err = s.core.rights.needJob(ctx, mayRead, f, j)
		}
		if err == nil {
			err = s.core.jobs.addTasks(f, j, req.Msg, res)
		}
		gone = j == nil && errors.Is(err, fault.NotFound)
	})
	if gone {
		j, pastErr := s.core.pastJobs.find(ctx, req.Msg.GetJob())
		if pastErr == nil {
			res, err = s.core.pastJobs.tasks(j, req.Msg)
		} else if !errors.Is(pastErr, fault.NotFound) {
			err = pastErr
		}
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
}
