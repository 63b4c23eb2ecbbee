package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Limits of the failed attempts on a job's page.
const (
	shownFailures   = 5      // the last to end
	searchedForThem = 10_000 // tasks: more are searched with the filter of tasks
)

// failedAttempt is an attempt that failed, with the end of its standard error.
type failedAttempt struct {
	Task, Address, Node, Message, Tail string
	Attempt                            int32
	EndedMS                            int64
}

// lastFailures returns the attempts of a job that failed last and left something to
// read, the last first.
func lastFailures(q *query, res *droverv1.GetJobResponse) ([]failedAttempt, error) {
	failed, tasks := int32(0), int32(0)
	for _, s := range res.GetStages() {
		failed, tasks = failed+s.GetFailedAttempts(), tasks+s.GetTasks()
	}
	if failed == 0 || tasks > searchedForThem {
		return nil, nil
	}
	var out []failedAttempt
	for from := int32(0); ; {
		part, err := q.tasks(&droverv1.ListTasksRequest{Job: fmt.Sprint(res.GetJob().GetJob()), From: from})
		if err != nil {
			return nil, err
		}
		for _, t := range part.GetTasks() {
			for _, f := range failuresOf(res.GetJob().GetJob(), t) {
				if !strings.HasPrefix(res.GetFailedTask(), fmt.Sprintf("%s.%d.", f.Task, f.Attempt)) { // the page begins with that one
					out = append(out, f)
				}
			}
		}
		from += int32(len(part.GetTasks()))
		if len(part.GetTasks()) == 0 || from >= part.GetTotal() {
			break
		}
	}
	slices.SortStableFunc(out, func(a, b failedAttempt) int { return cmp.Compare(b.EndedMS, a.EndedMS) })
	return out[:min(len(out), shownFailures)], nil
}

// failuresOf returns the failed attempts at a task that left something to read.
func failuresOf(job uint64, t *droverv1.TaskStatus) (out []failedAttempt) {
	for _, a := range t.GetAttempts() {
		seen := a.GetSeen()
		if seen.GetPhase() != droverv1.Phase_PHASE_FAILED || seen.GetCause() == droverv1.Cause_CAUSE_STOPPED || seen.GetStderrTail() == "" && seen.GetMessage() == "" {
			continue
		}
		out = append(out, failedAttempt{Task: fmt.Sprintf("%s/%d", t.GetStage(), t.GetTask()), Address: address("jobs", job, "tasks", t.GetStage(), t.GetTask()), Node: a.GetNode(),
			Message: seen.GetMessage(), Tail: seen.GetStderrTail(), Attempt: a.GetKey().GetAttempt(), EndedMS: seen.GetEndedMs()})
	}
	return out
}
