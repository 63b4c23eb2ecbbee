package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// SetLevel brings a task to a level manually, or migrates a checkpointed one. A
// task that was suspended manually stays so until it is resumed manually.
func (s *clientService) SetLevel(ctx context.Context, req *connect.Request[droverv1.SetLevelRequest]) (*connect.Response[droverv1.SetLevelResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	q := req.Msg
	var act *droverv1.ActionFact
	var from droverv1.Level
	var err error
	s.core.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = s.core.rights.findJob(ctx, f, q.GetJob()); err == nil {
			err = s.core.rights.needJob(ctx, mayOperate, f, j)
		}
		if err == nil {
			act, from, err = levelAction(f, j, q)
		}
	})
	if err != nil {
		return nil, err
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{act}}}}
	res, err := s.core.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	if len(res.Dropped) > 0 {
		why := res.Dropped[0].Reason
		s.core.view(func(f *facts.Facts) { why += levelCure(f, act, why) })
		return nil, fault.New(fault.Conflict, "task %s/%d of job %s: %s", q.GetStage(), q.GetTask(), clipText(q.GetJob(), 128), why)
	}
	return connect.NewResponse(&droverv1.SetLevelResponse{Key: act.GetKey(), From: from}), nil
}

// levelCure returns what the user can do about a level that was refused because of the attempt's
// node, after a colon; "" if the reason is enough.
func levelCure(f *facts.Facts, act *droverv1.ActionFact, why string) string {
	a := f.Attempt(facts.KeyOf(act.GetKey()))
	if a == nil || f.Node(a.Node) == nil {
		return ""
	}
	node := f.Node(a.Node).Info.GetName()
	switch {
	case why == facts.DropNoCapacity:
		return fmt.Sprintf(": wait until a task on %s has ended, or suspend one there; `drover node status %s` shows what is in use", node, node)
	case strings.HasPrefix(why, facts.DropNoLevel):
		return fmt.Sprintf(": `drover node status %s` says what it lacks", node)
	default:
		return ""
	}
}

// levelAction finds the attempt and encodes the request for the log.
func levelAction(f *facts.Facts, j *facts.Job, q *droverv1.SetLevelRequest) (*droverv1.ActionFact, droverv1.Level, error) {
	k, a, err := findLive(j, q)
	if err != nil {
		return nil, 0, err
	}
	act := &droverv1.ActionFact{Key: k.Proto(a.Run), Level: q.GetLevel(), Reason: clipText(q.GetReason(), 256), Manual: true}
	switch l := q.GetLevel(); {
	case l > droverv1.Level_LEVEL_RUNNING && l <= droverv1.Level_LEVEL_CHECKPOINTED && q.GetNode() == "":
		act.Kind = int32(facts.ActSuspend)
	case l == droverv1.Level_LEVEL_RUNNING && q.GetNode() == "":
		act.Kind = int32(facts.ActResume)
	case l == droverv1.Level_LEVEL_RUNNING:
		n := f.NodeByName(q.GetNode())
		if n == nil {
			return nil, 0, fault.New(fault.NotFound, "there is no node %q: `drover node list` shows them", clipText(q.GetNode(), 128))
		}
		if n.Probation && n.Attempts > 0 { // Apply would move it there
			return nil, 0, fault.New(fault.Conflict, "task %s/%d of job %s: %s, and has one", q.GetStage(), q.GetTask(), j.Name, facts.DropProbation)
		}
		act.Kind, act.Key, act.Node, act.Disk = int32(facts.ActMigrate), k.Proto(a.Run+1), n.ID, n.FirstDisk()
	default:
		return nil, 0, fault.New(fault.Invalid, "level %s: use frozen, swapped or checkpointed, or running with or without a node", facts.LevelName(l))
	}
	return act, a.Level, nil
}

// findLive returns the live attempt of a task, or the live one of that number.
func findLive(j *facts.Job, q *droverv1.SetLevelRequest) (facts.Key, *facts.Attempt, error) {
	for i := range j.Stages {
		if j.Spec.Stages[i].Name != q.GetStage() || q.GetTask() < 0 || q.GetTask() >= j.Stages[i].Tasks {
			continue
		}
		t := j.Stages[i].Task(q.GetTask())
		for n := len(t.Attempts) - 1; n >= 0; n-- {
			a := t.Attempts[n]
			if q.GetAttempt() == a.Attempt || q.GetAttempt() == 0 && a.State == facts.AttemptLive {
				return facts.Key{Job: j.ID, Stage: int32(i), Task: q.GetTask(), Attempt: a.Attempt}, a, nil
			}
		}
		if n := q.GetAttempt(); n != 0 {
			return facts.Key{}, nil, fault.New(fault.NotFound, "task %s/%d of job %s has no attempt %d: leave the number out for the live one", q.GetStage(), q.GetTask(), j.Name, n)
		}
		return facts.Key{}, nil, fault.New(fault.Conflict, "task %s/%d of job %s has no live attempt", q.GetStage(), q.GetTask(), j.Name)
	}
	return facts.Key{}, nil, fault.New(fault.NotFound, "job %s has no task %s/%d; `drover task status %s` lists them", j.Name, clipText(q.GetStage(), 128), q.GetTask(), j.Name)
}

// levelStatus returns the suspension state of an active attempt; nil for one
// that has always been running.
func levelStatus(f *facts.Facts, j *facts.Job, a *facts.Attempt) *droverv1.LevelStatus {
	if !a.State.IsActive() || a.Suspension.LevelSince == 0 && a.Target == 0 {
		return nil
	}
	s := &droverv1.LevelStatus{Level: a.Level, Target: a.Target, SinceMs: a.Suspension.LevelSince / 1e6, Reason: a.Suspension.Reason, Actor: a.Suspension.Actor, Suspends: a.Suspension.Count,
		SuspendedMs: a.Suspension.SuspendedMS, PreservedCpuMs: a.Suspension.PreemptedCPUMS, RequestedMs: a.Suspension.RequestedAt / 1e6}
	if a.Level == droverv1.Level_LEVEL_RUNNING && a.Target == 0 {
		s.Reason, s.Actor = "", "" // they belong to a suspension that is over
	} else {
		s.PreemptorJob = f.JobNameIn(j.Spec.Tenant, a.Suspension.Preemptor)
	}
	if n := f.Node(a.Suspension.ImageNode); n != nil {
		s.MigratingFrom = n.Info.GetName()
	}
	return s
}
