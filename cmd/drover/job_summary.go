package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// printSummary tells a person how a job ended: time, tasks, locality, limits,
// peak use against demand with the line to change, counters, output, and for
// a failure the last words and where to see more.
func printSummary(w io.Writer, r *droverv1.GetJobResponse, lines map[string]int, file string) {
	j := r.Job
	took := time.Duration(j.EndedMs-j.SubmittedMs) * time.Millisecond
	if j.EndedMs == 0 {
		took = 0
	}
	fmt.Fprintf(w, "job %d (%s) %s", j.Job, j.Name, stateText(j.State))
	if took > 0 {
		fmt.Fprintf(w, " after %s", spanText(took))
	}
	if r.Emulated {
		fmt.Fprint(w, " (on emulated machines)")
	}
	fmt.Fprintln(w)
	if j.Message != "" {
		fmt.Fprintln(w, "  "+j.Message)
	}
	printPromise(w, j)
	printFailure(w, r)
	fmt.Fprintln(w)
	printStages(w, r)
	printPeaks(w, r, lines, file)
	printCounters(w, r.Counters)
	if r.Output != "" && j.State == droverv1.JobState_JOB_STATE_SUCCEEDED {
		fmt.Fprintf(w, "\noutput  %s (%s)\n", r.Output, jobspec.FormatSize(r.OutputBytes))
	}
}

// printPromise tells how the job stands to its deadline and guarantee.
func printPromise(w io.Writer, j *droverv1.JobSummary) {
	if j.DeadlineMs > 0 {
		fmt.Fprintf(w, "  deadline %s: %s; quoted %.2f at submission\n", msText(j.DeadlineMs), j.DeadlineState, j.Probability)
	}
	if j.PromisedMs > 0 {
		fmt.Fprintf(w, "  guaranteed to end by %s\n", msText(j.PromisedMs))
	}
	if j.ExpectedStartMs > 0 {
		fmt.Fprintf(w, "  expected to start at %s\n", msText(j.ExpectedStartMs))
	}
}

func printFailure(w io.Writer, r *droverv1.GetJobResponse) {
	if r.FailedTask == "" {
		return
	}
	task := withoutRun(r.FailedTask)
	if r.FailureTail == "" {
		fmt.Fprintf(w, "  task %s failed without a word on standard error\n", task)
	} else {
		fmt.Fprintf(w, "  task %s failed; the end of its standard error:\n", task)
		lines := splitLines(r.FailureTail)
		for _, l := range lines[max(0, len(lines)-tailLines):] {
			fmt.Fprintln(w, "    | "+l)
		}
	}
	fmt.Fprintf(w, "  more: drover task logs -stderr %d %s\n", r.Job.Job, task)
}

// tailLines bounds what the summary repeats of a failed task's standard error.
const tailLines = 20

// withoutRun shortens STAGE/INDEX.ATTEMPT.RUN to what a person types.
func withoutRun(task string) string {
	name, rest, ok := strings.Cut(task, ".")
	if !ok {
		return task
	}
	attempt, _, _ := strings.Cut(rest, ".")
	return name + "." + attempt
}

func printStages(w io.Writer, r *droverv1.GetJobResponse) {
	rows := make([][]string, 0, len(r.Stages))
	for _, s := range r.Stages {
		held := "-"
		if s.LimitsChecked > 0 {
			held = fmt.Sprintf("%d read back", s.LimitsChecked)
		}
		rows = append(rows, []string{
			s.Name, s.Kind, fmt.Sprintf("%d/%d", s.Done, s.Tasks), fmt.Sprint(s.FailedAttempts), localityText(s),
			spanText(time.Duration(s.MeanTaskMs) * time.Millisecond), spanText(time.Duration(s.MaxTaskMs) * time.Millisecond),
			spanText(time.Duration(s.CpuMs) * time.Millisecond), held,
		})
	}
	columns(w, []string{"stage", "kind", "tasks", "failed", "locality", "mean", "longest", "cpu", "limits"}, rows)
	for _, s := range r.Stages {
		if l := s.Limits; l != nil && l.CpuMax != "" {
			fmt.Fprintf(w, "limits of %s as the kernel holds them: cpu.max %s, memory.max %s, memory.swap.max %s, io.max %s, pids.max %s\n",
				s.Name, l.CpuMax, l.MemoryMax, l.MemorySwapMax, joinOr(l.IoMax, "-"), l.PidsMax)
		}
	}
}

// localityText says where the data of a stage's tasks was: on their node, in
// their rack, or elsewhere. Empty for tasks without input.
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

// printPeaks compares what tasks used at most with what they asked for.
func printPeaks(w io.Writer, r *droverv1.GetJobResponse, lines map[string]int, file string) {
	for _, s := range r.Stages {
		if s.PeakMemory == 0 || s.Demand == nil || s.Demand.Memory == 0 {
			continue
		}
		fmt.Fprintf(w, "peak memory of %s: %s of %s", s.Name, jobspec.FormatSize(s.PeakMemory), jobspec.FormatSize(s.Demand.Memory))
		if want := roundUp(s.PeakMemory + s.PeakMemory/4); want < s.Demand.Memory*3/4 {
			fmt.Fprintf(w, "; memory = %q would do", jobspec.FormatSize(want))
			if l := lines[fmt.Sprintf("stage[%q].resources.memory", s.Name)]; l > 0 {
				fmt.Fprintf(w, " (%s:%d)", file, l)
			}
		}
		fmt.Fprintln(w)
	}
}

// roundUp gives the next multiple of 16 MiB, and at least the least demand.
func roundUp(b int64) int64 {
	const step = 16 << 20
	return max(jobspec.MinMemory, (b+step-1)/step*step)
}
