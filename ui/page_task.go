package ui

import (
	"fmt"
	"net/url"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// taskAttempt is an attempt with what its card shows.
type taskAttempt struct {
	*droverv1.TaskAttempt
	Phase          string
	Active, Failed bool
	Levels         []choice // that it can be brought to
	Targets        []string // nodes that it can be moved to, once it is a checkpoint
	Movable        bool     // it is one
	Counters       []counter
	BackoffEndMS   int64 // in phase "back-off": when it starts
}

type taskData struct {
	Job        *droverv1.JobSummary
	Task       *droverv1.TaskStatus
	State      string // of the task in one word
	MayOperate bool
	Attempts   []taskAttempt // the newest first
}

// findTask returns the job and the task in the path: jobs/ID/.../STAGE/INDEX.
func (q *query) findTask() (*droverv1.GetJobResponse, *droverv1.TaskStatus, error) {
	res, err := q.job(q.segment(1))
	if err != nil {
		return nil, nil, err
	}
	index, err := parseIndex(q.segment(4))
	if err != nil || index < 0 {
		return nil, nil, fault.New(fault.NotFound, "there is no task %q", q.segment(4))
	}
	list, err := q.tasks(&droverv1.ListTasksRequest{Job: fmt.Sprint(res.GetJob().GetJob()), Stage: q.segment(3), From: index, Limit: 1})
	if err != nil {
		return nil, nil, err
	}
	if len(list.GetTasks()) == 0 {
		return nil, nil, fault.New(fault.NotFound, "stage %q of job %q has %d tasks, and no task %d", q.segment(3), res.GetJob().GetName(), list.GetTotal(), index)
	}
	return res, list.GetTasks()[0], nil
}

// taskPage shows one task with its attempts.
func (q *query) taskPage() (*view, error) {
	res, task, err := q.findTask()
	if err != nil {
		return nil, err
	}
	d := &taskData{Job: res.GetJob(), Task: task, State: task.GetState(), MayOperate: res.GetMayOperate()}
	nodes, err := q.nodes()
	if err != nil {
		return nil, err
	}
	for _, a := range slices.Backward(task.GetAttempts()) {
		at := newTaskAttempt(a, nodes)
		d.Attempts = append(d.Attempts, at)
		if at.Phase == "back-off" || at.Phase == "suspended" && task.GetState() == "running" {
			d.State = at.Phase
		}
	}
	return &view{Title: fmt.Sprintf("%s/%d of %s", task.GetStage(), task.GetTask(), res.GetJob().GetName()), Nav: "Jobs", Template: "task", Data: d}, nil
}

func newTaskAttempt(a *droverv1.TaskAttempt, nodes []*droverv1.NodeStatus) taskAttempt {
	seen := a.GetSeen()
	t := taskAttempt{TaskAttempt: a, Phase: phaseText(seen), Active: !isOver(seen), Counters: sortedCounters(seen.GetCounters())}
	if t.Phase == "back-off" {
		t.BackoffEndMS = a.GetPlacedMs() + seen.GetStartPauseMs()
	}
	t.Failed = t.Phase == "failed" || t.Phase == "lost"
	if !t.Active {
		return t
	}
	at := slices.IndexFunc(nodes, func(n *droverv1.NodeStatus) bool { return n.GetInfo().GetName() == a.GetNode() })
	if at < 0 {
		return t
	}
	for _, l := range nodes[at].GetInfo().GetLevels() {
		if l == seen.GetLevel() || l == droverv1.Level_LEVEL_RUNNING && t.Phase != "suspended" {
			continue
		}
		label := map[droverv1.Level]string{droverv1.Level_LEVEL_RUNNING: "Resume", droverv1.Level_LEVEL_FROZEN: "Freeze", droverv1.Level_LEVEL_SWAPPED: "Swap out", droverv1.Level_LEVEL_CHECKPOINTED: "Checkpoint"}[l]
		t.Levels = append(t.Levels, choice{Value: levelText(l), Label: label})
	}
	t.Movable = a.GetLevel().GetLevel() == droverv1.Level_LEVEL_CHECKPOINTED && a.GetLevel().GetTarget() == 0
	if slices.Contains(nodes[at].GetInfo().GetLevels(), droverv1.Level_LEVEL_CHECKPOINTED) {
		for _, n := range nodes {
			if n.GetInfo().GetName() != a.GetNode() && shownState(n) == "up" && slices.Contains(n.GetInfo().GetLevels(), droverv1.Level_LEVEL_CHECKPOINTED) && len(t.Targets) < pageRows {
				t.Targets = append(t.Targets, n.GetInfo().GetName())
			}
		}
	}
	return t
}

type logData struct {
	Job             *droverv1.JobSummary
	Stage           string
	Index, Attempt  int32
	Stream          string
	Follow, Command string
	Other           struct{ Address, Label string }
}

// logPage shows the output of an attempt as it comes.
func (q *query) logPage() (*view, error) {
	res, task, err := q.findTask()
	if err != nil {
		return nil, err
	}
	list := task.GetAttempts()
	if len(list) == 0 {
		return nil, fault.New(fault.NotFound, "task %s/%d has not been placed yet: it has no output", task.GetStage(), task.GetTask())
	}
	a := list[len(list)-1]
	if n := int32(q.number("attempt", 0)); n > 0 {
		at := slices.IndexFunc(list, func(a *droverv1.TaskAttempt) bool { return a.GetKey().GetAttempt() == n })
		if at < 0 {
			return nil, fault.New(fault.NotFound, "task %s/%d has no attempt %d", task.GetStage(), task.GetTask(), n)
		}
		a = list[at]
	}
	d := &logData{Job: res.GetJob(), Stage: task.GetStage(), Index: task.GetTask(), Attempt: a.GetKey().GetAttempt(), Stream: "Standard output"}
	stream, other := "stdout", "stderr"
	d.Other.Label = "Standard error"
	if q.values.Get("stream") == "stderr" {
		stream, other, d.Stream, d.Other.Label = "stderr", "stdout", "Standard error", "Standard output"
	}
	k := a.GetKey()
	d.Follow = "/follow?" + url.Values{"job": {fmt.Sprint(k.GetJob())}, "stage": {fmt.Sprint(k.GetStage())}, "task": {fmt.Sprint(k.GetTask())}, "attempt": {fmt.Sprint(k.GetAttempt())}, "stream": {stream}}.Encode()
	d.Other.Address = address(anySlice(q.path)...) + fmt.Sprintf("?attempt=%d&stream=%s", d.Attempt, other)
	d.Command = fmt.Sprintf("drover task logs%s %d %s/%d", map[bool]string{true: " -stderr"}[stream == "stderr"], d.Job.GetJob(), d.Stage, d.Index)
	return &view{Title: fmt.Sprintf("Output of %s/%d", d.Stage, d.Index), Nav: "Jobs", Template: "logs", Scripts: []string{"logs.js"}, Data: d}, nil
}

// attemptKey returns the attempt that an address names.
func attemptKey(v url.Values) (*droverv1.AttemptKey, error) {
	k := &droverv1.AttemptKey{}
	for name, to := range map[string]any{"job": &k.Job, "stage": &k.Stage, "task": &k.Task, "attempt": &k.Attempt} {
		if _, err := fmt.Sscan(v.Get(name), to); err != nil {
			return nil, fault.New(fault.Invalid, "%s is no number: %q", name, v.Get(name))
		}
	}
	return k, nil
}
