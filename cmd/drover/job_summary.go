package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/internal/plain"
	"github.com/drover-run/drover/jobspec"
)

// printSummary prints a job for people: time, tasks, locality, limits, peak use against
// demand with the line to change, counters and output; for a failure the end of the
// standard error and the command that shows more. failed is the attempt that it failed of, if known.
func printSummary(w io.Writer, r *droverv1.GetJobResponse, failed *droverv1.TaskAttempt, lines map[string]int, file string) {
	printHeading(w, r, time.Now())
	printBody(w, r, failed, lines, file)
}

// printHeading prints which job it is, its state, and how long it has waited now if nothing of it has run.
func printHeading(w io.Writer, r *droverv1.GetJobResponse, now time.Time) {
	j := r.Job
	fmt.Fprintf(w, "job %d (%s) %s", j.Job, j.Name, apitext.JobState(j.State))
	if took := time.Duration(j.EndedMs-j.SubmittedMs) * time.Millisecond; took > 0 && j.EndedMs > 0 {
		fmt.Fprintf(w, " after %s", durationText(took))
	}
	if waited := now.Sub(time.UnixMilli(j.SubmittedMs)).Round(time.Second); waited > 0 && j.State == droverv1.JobState_JOB_STATE_PENDING {
		fmt.Fprintf(w, " for %s", waited)
	}
	if r.Emulated {
		fmt.Fprint(w, " (on emulated machines)")
	}
	fmt.Fprintln(w)
	if j.Message != "" && !isPendingReason(r) {
		fmt.Fprintln(w, "  "+plain.Line(j.Message))
	}
}

// isPendingReason reports whether the message of a job is the pending reason of one of its stages.
func isPendingReason(r *droverv1.GetJobResponse) bool {
	return slices.ContainsFunc(r.Stages, func(s *droverv1.StageSummary) bool {
		return s.Waiting != "" && r.Job.Message == s.Name+": "+s.Waiting
	})
}

// printOrigin prints whose job it is, and when it came, began and ended.
func printOrigin(w io.Writer, j *droverv1.JobSummary) {
	fmt.Fprintf(w, "  tenant %s, priority %s, submitted by %s at %s", plain.Line(j.Tenant), plain.Line(j.Priority), plain.Line(j.Submitter), unixMSText(j.SubmittedMs))
	if j.StartedMs > 0 {
		fmt.Fprintf(w, ", started at %s", unixMSText(j.StartedMs))
	}
	if j.EndedMs > 0 {
		fmt.Fprintf(w, ", ended at %s", unixMSText(j.EndedMs))
	}
	fmt.Fprintln(w)
}

func printBody(w io.Writer, r *droverv1.GetJobResponse, failed *droverv1.TaskAttempt, lines map[string]int, file string) {
	j := r.Job
	printDeadline(w, j)
	printAvoided(w, r)
	printFailure(w, r, failed)
	fmt.Fprintln(w)
	printStages(w, r)
	printPeaks(w, r, lines, file)
	printCounters(w, r.Counters)
	if r.Output != "" && j.State == droverv1.JobState_JOB_STATE_SUCCEEDED {
		fmt.Fprintf(w, "\noutput  %s (%s)\n", r.Output, jobspec.FormatSize(r.OutputBytes))
	} else if r.Logs != "" {
		fmt.Fprintln(w)
	}
	printLogsFolder(w, r)
}

// printLogsFolder prints where the logs of an ended job are gathered, and how far that is.
func printLogsFolder(w io.Writer, r *droverv1.GetJobResponse) {
	switch {
	case r.Logs == "" || r.Job.EndedMs == 0:
	case !r.LogsGathered:
		fmt.Fprintf(w, "logs    %s (being gathered; `drover job status %d` says when they are there)\n", r.Logs, r.Job.Job)
	case r.LogsMissing != "":
		fmt.Fprintf(w, "logs    %s (missing: %s)\n", r.Logs, plain.Line(r.LogsMissing))
	default:
		fmt.Fprintf(w, "logs    %s\n", r.Logs)
	}
}

// printDeadline prints the state of the job's deadline and guarantee.
func printDeadline(w io.Writer, j *droverv1.JobSummary) {
	if j.DeadlineMs > 0 {
		fmt.Fprintf(w, "  deadline %s: %s; quoted %.2f at submission\n", unixMSText(j.DeadlineMs), j.DeadlineState, j.Probability)
	}
	switch {
	case j.GuaranteeViolated != "" && j.GuaranteedMs > 0:
		fmt.Fprintf(w, "  was guaranteed to end by %s\n", unixMSText(j.GuaranteedMs))
	case j.GuaranteedMs > 0:
		fmt.Fprintf(w, "  guaranteed to end by %s\n", unixMSText(j.GuaranteedMs))
	}
	if j.GuaranteeViolated != "" {
		fmt.Fprintf(w, "  guarantee violated: %s\n", plain.Line(j.GuaranteeViolated))
	}
	if j.ExpectedStartMs > 0 {
		fmt.Fprintf(w, "  expected to start at %s\n", unixMSText(j.ExpectedStartMs))
	}
	if j.ExpectedEndMs > 0 {
		fmt.Fprintf(w, "  expected to end at %s\n", unixMSText(j.ExpectedEndMs))
	}
}

// maxAvoidedShown bounds the nodes named in the summary.
const maxAvoidedShown = 8

// printAvoided prints the nodes on which the job's tasks alone failed.
func printAvoided(w io.Writer, r *droverv1.GetJobResponse) {
	nodes := r.AvoidedNodes
	if len(nodes) == 0 {
		return
	}
	more := ""
	if n := len(nodes) - maxAvoidedShown; n > 0 {
		nodes, more = nodes[:maxAvoidedShown], fmt.Sprintf(" and %d more", n)
	}
	fmt.Fprintf(w, "  avoids %s%s, where its tasks alone fail: drover events -job %d\n", plain.Line(strings.Join(nodes, ", ")), more, r.Job.Job)
}

// failedAttempt returns the attempt that a job failed of; nil if there is none, or no answer: the summary goes without it.
func failedAttempt(c *cli.Context, cl *client, r *droverv1.GetJobResponse) *droverv1.TaskAttempt {
	if r.FailedTask == "" {
		return nil
	}
	t, err := parseTask(trimRunNumber(r.FailedTask))
	if err != nil {
		return nil
	}
	a, err := findAttempt(c, cl, fmt.Sprint(r.Job.Job), t)
	if err != nil {
		return nil
	}
	return a
}

// printFailure prints how a job's failed attempt ended, and with failed, if that is known, where and when.
func printFailure(w io.Writer, r *droverv1.GetJobResponse, failed *droverv1.TaskAttempt) {
	if r.FailedTask == "" {
		return
	}
	task, where := trimRunNumber(r.FailedTask), ""
	if failed.GetNode() != "" {
		where = " on " + plain.Line(failed.GetNode())
	}
	if at := unixMSText(failed.GetSeen().GetEndedMs()); at != "" {
		where += " at " + at
	}
	if r.FailureTail == "" {
		fmt.Fprintf(w, "  task %s failed%s without output on standard error\n", task, where)
		fmt.Fprintf(w, "  more: drover task status %d %s\n", r.Job.Job, task)
		return
	}
	fmt.Fprintf(w, "  task %s failed%s; the end of its standard error:\n", task, where)
	lines := splitLines(r.FailureTail)
	for _, l := range lines[max(0, len(lines)-summaryTailLines):] {
		fmt.Fprintln(w, "    | "+plain.Text(l))
	}
	fmt.Fprintf(w, "  more: drover task logs -stderr %d %s\n", r.Job.Job, task)
}

// summaryTailLines bounds the lines of a failed task's standard error in the summary.
const summaryTailLines = 20

// trimRunNumber shortens STAGE/INDEX.ATTEMPT.RUN to STAGE/INDEX.ATTEMPT.
func trimRunNumber(task string) string {
	stage, rest, _ := strings.Cut(task, "/") // a stage's name may have dots
	parts := strings.Split(rest, ".")
	if len(parts) < 3 {
		return task
	}
	return stage + "/" + parts[0] + "." + parts[1]
}

func printStages(w io.Writer, r *droverv1.GetJobResponse) {
	rows := make([][]string, 0, len(r.Stages))
	header := []string{"stage", "kind", "tasks", "failed", "locality", "mean", "longest", "cpu", "limits"}
	live := r.Job.EndedMs == 0
	if live {
		header = slices.Insert(header, 3, "running", "pending", "suspended")
	}
	for _, s := range r.Stages {
		limits := "-"
		if s.LimitsChecked > 0 {
			limits = fmt.Sprintf("%d verified", s.LimitsChecked)
		}
		row := []string{
			s.Name, s.Kind, fmt.Sprintf("%d/%d", s.Done, s.Tasks), fmt.Sprint(s.FailedAttempts), localityText(s),
			durationText(time.Duration(s.MeanTaskMs) * time.Millisecond), durationText(time.Duration(s.MaxTaskMs) * time.Millisecond),
			durationText(time.Duration(s.CpuMs) * time.Millisecond), limits,
		}
		if live {
			row = slices.Insert(row, 3, fmt.Sprint(s.Running), fmt.Sprint(s.Pending), fmt.Sprint(s.Suspended))
		}
		rows = append(rows, row)
	}
	printList(w, header, rows, false, "limits", "cpu", "kind", "mean", "longest", "locality")
	for _, s := range r.Stages {
		if l := s.Limits; l != nil && l.CpuMax != "" {
			fmt.Fprintf(w, "limits of %s in the kernel: cpu.max %s, memory.max %s, memory.swap.max %s, io.max %s, pids.max %s\n",
				s.Name, l.CpuMax, l.MemoryMax, l.MemorySwapMax, joinOrDefault(l.IoMax, "-"), l.PidsMax)
		}
	}
}

// localityText formats where the data of a stage's tasks was: on their node, in their
// rack, or elsewhere. It is empty for tasks without input.
func localityText(s *droverv1.StageSummary) string {
	var parts []string
	for _, p := range []struct {
		n    int32
		word string
	}{{s.NodeLocal, "node"}, {s.RackLocal, "rack"}, {s.Remote, "remote"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.word))
		}
	}
	return strings.Join(parts, ", ")
}

// printPeaks compares the peak memory of tasks with their demand. It advises a smaller demand only
// for a stage that is done, because the peak of a task that failed at once says nothing about the
// work. Plain processes have no limit, so their peak may exceed the demand: with a limit such a
// task is killed.
func printPeaks(w io.Writer, r *droverv1.GetJobResponse, lines map[string]int, file string) {
	for _, s := range r.Stages {
		if s.PeakMemory == 0 || s.Demand == nil || s.Demand.Memory == 0 {
			continue
		}
		fmt.Fprintf(w, "peak memory of %s: %s of %s", s.Name, jobspec.FormatSize(s.PeakMemory), jobspec.FormatSize(s.Demand.Memory))
		advice := ""
		switch want := roundUp(s.PeakMemory + s.PeakMemory/4); {
		case s.PeakMemory > s.Demand.Memory && s.LimitsChecked == 0:
			advice = fmt.Sprintf("; no limit was enforced: where one is, memory = %q is needed", jobspec.FormatSize(want))
		case s.Done == s.Tasks && want < s.Demand.Memory*3/4:
			advice = fmt.Sprintf("; memory = %q would suffice", jobspec.FormatSize(want))
		}
		if l := lines[fmt.Sprintf("stage[%q].resources.memory", s.Name)]; advice != "" && l > 0 {
			advice += fmt.Sprintf(" (%s:%d)", file, l)
		}
		fmt.Fprintln(w, advice)
	}
}

// roundUp returns the next multiple of 16 MiB, at least the smallest allowed demand.
func roundUp(b int64) int64 {
	const step = 16 << 20
	return max(jobspec.MinMemory, (b+step-1)/step*step)
}
