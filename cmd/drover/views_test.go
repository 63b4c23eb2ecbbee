package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
)

// The times of these tests: 2026-11-28 08:00:00 UTC, and offsets in seconds from then.
const viewEpochMs = 1_795_852_800_000

func viewMs(second int64) int64 { return viewEpochMs + second*1000 }

// wantText compares what a view prints with the expected text, line by line.
func wantText(t *testing.T, name, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Errorf("%s: line %d differs; got\n%s\nwant\n%s", name, i+1, got, want)
			return
		}
	}
}

// TestJobSummaryShowsWhatAUserNeeds: one summary with everything in it, of a live job and of ended ones.
func TestJobSummaryShowsWhatAUserNeeds(t *testing.T) {
	stage := func(more func(*droverv1.StageSummary)) *droverv1.StageSummary {
		s := &droverv1.StageSummary{Name: "map", Kind: "map", Tasks: 4, Demand: &droverv1.Resources{Cpu: 1000, Memory: 1 << 30}}
		more(s)
		return s
	}
	for name, c := range map[string]struct {
		r    *droverv1.GetJobResponse
		want string
	}{
		"a live job with a deadline": {
			&droverv1.GetJobResponse{
				Job: &droverv1.JobSummary{Job: 7, Name: "sort", State: droverv1.JobState_JOB_STATE_RUNNING, SubmittedMs: viewMs(0), Message: "two\nlines",
					DeadlineMs: viewMs(3600), DeadlineState: "open", Probability: 0.954, GuaranteedMs: viewMs(3000), ExpectedStartMs: viewMs(10), ExpectedEndMs: viewMs(1800)},
				Stages: []*droverv1.StageSummary{stage(func(s *droverv1.StageSummary) {
					s.Done, s.Running, s.Pending, s.Suspended, s.FailedAttempts, s.NodeLocal, s.RackLocal, s.Remote = 1, 1, 1, 1, 2, 3, 2, 1
					s.MeanTaskMs, s.MaxTaskMs, s.CpuMs = 61_000, 125_000, 3_723_000
				})},
			},
			"job 7 (sort) running\n" +
				"  two\\u000alines\n" +
				"  deadline 2026-11-28 09:00:00: open; quoted 0.95 at submission\n" +
				"  guaranteed to end by 2026-11-28 08:50:00\n" +
				"  expected to start at 2026-11-28 08:00:10\n" +
				"  expected to end at 2026-11-28 08:30:00\n" +
				"\n" +
				"STAGE  KIND  TASKS  RUNNING  PENDING  SUSPENDED  FAILED  LOCALITY                  MEAN  LONGEST  CPU     LIMITS\n" +
				"map    map   1/4    1        1        1          2       3 node, 2 rack, 1 remote  1m1s  2m5s     1h2m3s  -\n",
		},
		"a violated guarantee": {
			&droverv1.GetJobResponse{Job: &droverv1.JobSummary{Job: 7, Name: "sort", State: droverv1.JobState_JOB_STATE_RUNNING, SubmittedMs: viewMs(0),
				GuaranteedMs: viewMs(3000), GuaranteeViolated: "a node was lost"}},
			"job 7 (sort) running\n" +
				"  was guaranteed to end by 2026-11-28 08:50:00\n" +
				"  guarantee violated: a node was lost\n" +
				"\n" +
				"STAGE  KIND  TASKS  RUNNING  PENDING  SUSPENDED  FAILED  LOCALITY  MEAN  LONGEST  CPU  LIMITS\n",
		},
		"a job that succeeded on emulated machines": {
			&droverv1.GetJobResponse{
				Job:    &droverv1.JobSummary{Job: 8, Name: "wc", State: droverv1.JobState_JOB_STATE_SUCCEEDED, SubmittedMs: viewMs(0), EndedMs: viewMs(75)},
				Output: "hdfs:///out", OutputBytes: 3 << 20, Emulated: true, Logs: "hdfs:///logs/8", LogsGathered: true,
				Stages: []*droverv1.StageSummary{stage(func(s *droverv1.StageSummary) {
					s.Done, s.LimitsChecked, s.PeakMemory = 4, 4, 100<<20
					s.Limits = &droverv1.Limits{CpuMax: "100000 100000", MemoryMax: "1073741824", MemorySwapMax: "0", PidsMax: "1024"}
				})},
			},
			"job 8 (wc) succeeded after 1m15s (on emulated machines)\n" +
				"\n" +
				"STAGE  KIND  TASKS  FAILED  LOCALITY  MEAN  LONGEST  CPU  LIMITS\n" +
				"map    map   4/4    0       -         0s    0s       0s   4 verified\n" +
				"limits of map in the kernel: cpu.max 100000 100000, memory.max 1073741824, memory.swap.max 0, io.max -, pids.max 1024\n" +
				"peak memory of map: 100MiB of 1GiB; memory = \"128MiB\" would suffice (wc.hcl:12)\n" +
				"\n" +
				"output  hdfs:///out (3MiB)\n" +
				"logs    hdfs:///logs/8\n",
		},
		"memory that is used well is not to be changed": {
			&droverv1.GetJobResponse{
				Job:    &droverv1.JobSummary{Job: 8, Name: "wc", State: droverv1.JobState_JOB_STATE_SUCCEEDED, SubmittedMs: viewMs(0), EndedMs: viewMs(1)},
				Stages: []*droverv1.StageSummary{stage(func(s *droverv1.StageSummary) { s.Done, s.PeakMemory = 4, 700<<20 })},
			},
			"job 8 (wc) succeeded after 1s\n" +
				"\n" +
				"STAGE  KIND  TASKS  FAILED  LOCALITY  MEAN  LONGEST  CPU  LIMITS\n" +
				"map    map   4/4    0       -         0s    0s       0s   -\n" +
				"peak memory of map: 700MiB of 1GiB\n",
		},
		"memory above the demand, as plain processes have": {
			&droverv1.GetJobResponse{
				Job:    &droverv1.JobSummary{Job: 8, Name: "wc", State: droverv1.JobState_JOB_STATE_SUCCEEDED, SubmittedMs: viewMs(0), EndedMs: viewMs(1)},
				Stages: []*droverv1.StageSummary{stage(func(s *droverv1.StageSummary) { s.Done, s.PeakMemory = 4, 2<<30 })},
			},
			"job 8 (wc) succeeded after 1s\n" +
				"\n" +
				"STAGE  KIND  TASKS  FAILED  LOCALITY  MEAN  LONGEST  CPU  LIMITS\n" +
				"map    map   4/4    0       -         0s    0s       0s   -\n" +
				"peak memory of map: 2GiB of 1GiB; no limit was enforced: where one is, memory = \"2.5GiB\" is needed (wc.hcl:12)\n",
		},
		"memory above the demand under a limit that has the harness's share": {
			&droverv1.GetJobResponse{
				Job:    &droverv1.JobSummary{Job: 8, Name: "wc", State: droverv1.JobState_JOB_STATE_SUCCEEDED, SubmittedMs: viewMs(0), EndedMs: viewMs(1)},
				Stages: []*droverv1.StageSummary{stage(func(s *droverv1.StageSummary) { s.Done, s.PeakMemory, s.LimitsChecked = 4, 1100<<20, 4 })},
			},
			"job 8 (wc) succeeded after 1s\n" +
				"\n" +
				"STAGE  KIND  TASKS  FAILED  LOCALITY  MEAN  LONGEST  CPU  LIMITS\n" +
				"map    map   4/4    0       -         0s    0s       0s   4 verified\n" +
				"peak memory of map: 1.1GiB of 1GiB\n",
		},
		"the memory of tasks that failed at once is no advice": {
			&droverv1.GetJobResponse{
				Job:    &droverv1.JobSummary{Job: 8, Name: "wc", State: droverv1.JobState_JOB_STATE_STOPPED, SubmittedMs: viewMs(0), EndedMs: viewMs(1)},
				Stages: []*droverv1.StageSummary{stage(func(s *droverv1.StageSummary) { s.FailedAttempts, s.PeakMemory = 2, 5<<20 })},
			},
			"job 8 (wc) stopped after 1s\n" +
				"\n" +
				"STAGE  KIND  TASKS  FAILED  LOCALITY  MEAN  LONGEST  CPU  LIMITS\n" +
				"map    map   0/4    2       -         0s    0s       0s   -\n" +
				"peak memory of map: 5MiB of 1GiB\n",
		},
		"a job that failed without a word": {
			&droverv1.GetJobResponse{
				Job:        &droverv1.JobSummary{Job: 9, Name: "bad", State: droverv1.JobState_JOB_STATE_FAILED, SubmittedMs: viewMs(0), EndedMs: viewMs(2), Message: "task map/3: 1 of 1 attempts failed"},
				FailedTask: "map/3.1.17", Output: "hdfs:///out",
			},
			"job 9 (bad) failed after 2s\n" +
				"  task map/3: 1 of 1 attempts failed\n" +
				"  task map/3.1 failed without output on standard error\n" +
				"  more: drover task status 9 map/3.1\n" +
				"\n" +
				"STAGE  KIND  TASKS  FAILED  LOCALITY  MEAN  LONGEST  CPU  LIMITS\n",
		},
	} {
		var b bytes.Buffer
		printSummary(&b, c.r, nil, map[string]int{`stage["map"].resources.memory`: 12}, "wc.hcl")
		wantText(t, name, b.String(), c.want)
	}
}

// TestFailureShowsTheEnd: of a long standard error the last lines, none of which can act on the terminal.
func TestFailureShowsTheEnd(t *testing.T) {
	var tail strings.Builder
	for i := range 30 {
		fmt.Fprintf(&tail, "line %d\n", i)
	}
	tail.WriteString("the \x1b[31mend\n")
	var b bytes.Buffer
	printFailure(&b, &droverv1.GetJobResponse{Job: &droverv1.JobSummary{Job: 9}, FailedTask: "map/3.2.17", FailureTail: tail.String()}, &droverv1.TaskAttempt{Node: "n\x1b1", Seen: &droverv1.SeenAttempt{EndedMs: viewMs(0)}})
	got := b.String()
	if n := strings.Count(got, "    | "); n != summaryTailLines {
		t.Errorf("%d lines of standard error, want %d:\n%s", n, summaryTailLines, got)
	}
	for _, want := range []string{"  task map/3.2 failed on n\\u001b1 at 2026-11-28 08:00:00; the end of its standard error:\n    | line 11\n", "    | the \\u001b[31mend\n  more: drover task logs -stderr 9 map/3.2\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestProgressLines: one line for each change, with what each stage does and waits for.
func TestProgressLines(t *testing.T) {
	var b bytes.Buffer
	v := newJobView(&b, false)
	silent := newJobView(&b, true)
	job := &droverv1.JobSummary{Name: "wc", State: droverv1.JobState_JOB_STATE_PENDING}
	for _, s := range []*droverv1.StageSummary{
		{Name: "map", Tasks: 3, Waiting: "no free cpu\non 1 node"},
		{Name: "map", Tasks: 3, Waiting: "no free cpu\non 1 node"},
		{Name: "map", Tasks: 3, Running: 1, Waiting: "no free cpu"},
		{Name: "map", Tasks: 3, Done: 1, Suspended: 2, FailedAttempts: 1},
		{Name: "map", Tasks: 3, Done: 3, FailedAttempts: 2, Waiting: "nothing"},
	} {
		r := &droverv1.GetJobResponse{Job: job, Stages: []*droverv1.StageSummary{s}}
		v.update(r)
		silent.update(r)
		job = &droverv1.JobSummary{Name: "wc", State: droverv1.JobState_JOB_STATE_RUNNING}
		if s.GetWaiting() != "" && s.Running == 0 && s.Done == 0 {
			job.State = droverv1.JobState_JOB_STATE_PENDING
		}
	}
	v.close()
	silent.close()
	wantText(t, "progress", b.String(), "wc pending  map 0/3 (waiting: no free cpu\\u000aon 1 node)\n"+
		"wc pending  map 0/3 (1 running)\n"+
		"wc running  map 1/3 (2 suspended, 1 failed attempt)\n"+
		"wc running  map 3/3 (2 failed attempts)\n")
}

// Of a large job a line stands for a hundredth of its tasks; what it begins, ends and fails with has its own.
func TestProgressOfALargeJobIsShort(t *testing.T) {
	var b bytes.Buffer
	v := newJobView(&b, false)
	show := func(state droverv1.JobState, s *droverv1.StageSummary) {
		s.Name, s.Tasks = "a", 10_000
		v.update(&droverv1.GetJobResponse{Job: &droverv1.JobSummary{Name: "large", State: state}, Stages: []*droverv1.StageSummary{s}})
	}
	show(droverv1.JobState_JOB_STATE_PENDING, &droverv1.StageSummary{})
	for done := range int32(10_000) {
		failed := int32(0)
		if done >= 9_950 {
			failed = 1
		}
		show(droverv1.JobState_JOB_STATE_RUNNING, &droverv1.StageSummary{Done: done, Running: 1 + done%7, FailedAttempts: failed})
	}
	show(droverv1.JobState_JOB_STATE_SUCCEEDED, &droverv1.StageSummary{Done: 10_000, FailedAttempts: 1})
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if n := len(lines); n != 103 {
		t.Fatalf("%d lines, want 100 and those of the start, of the failure and of the end", n)
	}
	wantText(t, "some lines", strings.Join([]string{lines[0], lines[1], lines[2], lines[101], lines[102]}, "\n"),
		"large pending  a 0/10000\n"+
			"large running  a 0/10000 (1 running)\n"+
			"large running  a 100/10000 (3 running)\n"+
			"large running  a 9950/10000 (4 running, 1 failed attempt)\n"+
			"large succeeded  a 10000/10000 (1 failed attempt)")
}

// TestPreemptionTotals: what preemption did to a job or tenant, in one line; nothing where there was none.
func TestPreemptionTotals(t *testing.T) {
	for _, c := range []struct {
		p    *droverv1.PreemptionTotals
		want string
	}{
		{nil, ""},
		{&droverv1.PreemptionTotals{CpuMs: 5}, ""},
		{&droverv1.PreemptionTotals{Suspends: 1}, "1 suspension, 0 resumed; CPU time preempted 0s, preserved 0s, lost 0s"},
		{&droverv1.PreemptionTotals{Suspends: 3, Resumes: 2, Migrations: 1, CpuMs: 90_000, PreservedCpuMs: 60_000, LostCpuMs: 30_000},
			"3 suspensions, 2 resumed (1 on another node); CPU time preempted 1m30s, preserved 1m0s, lost 30s"},
		{&droverv1.PreemptionTotals{Kills: 2, LostCpuMs: 1000}, "0 suspensions, 0 resumed, 2 restarted; CPU time preempted 0s, preserved 0s, lost 1s"},
	} {
		wantText(t, c.p.String(), preemptedText(c.p), c.want)
	}
}

// TestTaskViews: the list of a job's tasks, and one attempt with all that is known of it.
func TestTaskViews(t *testing.T) {
	attempt := func(n int32, level *droverv1.LevelStatus, seen *droverv1.SeenAttempt) []*droverv1.TaskAttempt {
		return []*droverv1.TaskAttempt{{Key: &droverv1.AttemptKey{Attempt: n, Run: 10 + n}, Node: "n1", Locality: "none", Level: level, Seen: seen}}
	}
	running := &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING, Progress: 0.5, RunningMs: 90_000}
	var b bytes.Buffer
	printTasks(&b, []*droverv1.TaskStatus{
		{Stage: "map", Task: 0, State: "pending"},
		{Stage: "map", Task: 1, State: "running", Attempts: attempt(1, nil, running)},
		{Stage: "map", Task: 2, State: "failed", Attempts: attempt(4, nil, &droverv1.SeenAttempt{Cause: droverv1.Cause_CAUSE_EXIT, Message: "exit code 7"})},
		{Stage: "map", Task: 3, State: "running", Attempts: attempt(1, &droverv1.LevelStatus{Level: droverv1.Level_LEVEL_SWAPPED, SinceMs: viewMs(0), PreemptorJob: "urgent", Reason: "a deadline"}, running)},
		{Stage: "map", Task: 4, State: "running", Attempts: attempt(1, &droverv1.LevelStatus{Level: droverv1.Level_LEVEL_CHECKPOINTED, Target: droverv1.Level_LEVEL_RUNNING, MigratingFrom: "n2"}, running)},
		{Stage: "map", Task: 5, State: "running", Attempts: attempt(2, &droverv1.LevelStatus{Level: droverv1.Level_LEVEL_RUNNING, Suspends: 2}, running)},
		{Stage: "map", Task: 6, State: "running", Attempts: attempt(1, nil, &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING, RunningMs: 90_000, Status: "row 7"})},
		{Stage: "map", Task: 7, State: "failed", Attempts: attempt(1, nil, &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_FAILED, Status: "row 7", Cause: droverv1.Cause_CAUSE_EXIT, Message: "exit code 7"})},
	})
	wantText(t, "tasks", b.String(),
		"TASK   STATE       ATTEMPT  NODE  LOCALITY  PROGRESS  TIME   MESSAGE\n"+
			"map/0  pending     -        -     -         -         -      -\n"+
			"map/1  running     1        n1    -         50%       1m30s  -\n"+
			"map/2  failed      4        n1    -         0%        -      exit: exit code 7\n"+
			"map/3  swapped     1        n1    -         50%       1m30s  since 2026-11-28 08:00:00, for job urgent: a deadline\n"+
			"map/4  to running  1        n1    -         50%       1m30s  in progress, from n2\n"+
			"map/5  running     2        n1    -         50%       1m30s  -\n"+
			"map/6  running     1        n1    -         0%        1m30s  row 7\n"+
			"map/7  failed      1        n1    -         0%        -      exit: exit code 7\n")

	b.Reset()
	printAttempt(&b, "map/3", &droverv1.TaskAttempt{
		Key: &droverv1.AttemptKey{Attempt: 2, Run: 12}, Node: "n1", Locality: "node", PlacedMs: viewMs(0),
		Level: &droverv1.LevelStatus{Level: droverv1.Level_LEVEL_SWAPPED, SinceMs: viewMs(60), Reason: "a deadline", PreemptorJob: "urgent", Suspends: 2, SuspendedMs: 30_000, PreservedCpuMs: 45_000},
		Seen: &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING, Level: droverv1.Level_LEVEL_SWAPPED, StartedMs: viewMs(1), RunningMs: 45_000, Progress: 0.25, Status: "sorting", LevelNote: "swap is nearly full",
			Occupied: &droverv1.Resources{Memory: 10 << 20}, SwapOccupied: 500 << 20, ImageOccupied: 1 << 30,
			LevelSteps: []*droverv1.LevelStep{{Step: "swap out", DurationUs: 1_234_567, Bytes: 500 << 20}, {Step: "freeze", DurationUs: 70, Error: "timed out"}},
			Usage:      &droverv1.Usage{CpuMs: 44_000, CpuThrottledMs: 1000, MemoryPeak: 600 << 20, ReadBytes: 1 << 30, WriteBytes: 2 << 20},
			Limits:     &droverv1.Limits{CpuMax: "50000 100000", MemoryMax: "max", MemorySwapMax: "0", IoMax: []string{"8:0 rbps=1", "8:16 rbps=2"}, PidsMax: "64"},
			Counters:   map[string]int64{"g:records": 1234567}, StderrTail: "one\ntwo\n"},
	})
	wantText(t, "attempt", b.String(),
		"task          map/3\n"+
			"attempt       2 (run 12)\n"+
			"node          n1\n"+
			"locality      node\n"+
			"phase         running\n"+
			"level         swapped\n"+
			"placed        2026-11-28 08:00:00\n"+
			"started       2026-11-28 08:00:01\n"+
			"running time  45s\n"+
			"progress      25%\n"+
			"status        sorting\n"+
			"level since         2026-11-28 08:01:00\n"+
			"reason              a deadline\n"+
			"for job             urgent\n"+
			"still occupies      memory 10MiB, swap 500MiB, image 1GiB\n"+
			"suspensions         2\n"+
			"suspended before    30s\n"+
			"cpu time preserved  45s\n"+
			"note                swap is nearly full\n"+
			"swap out            1.23457s, 500MiB\n"+
			"freeze              70µs, failed: timed out\n"+
			"cpu time      44s\n"+
			"throttled     1s\n"+
			"memory peak   600MiB\n"+
			"disk read     1GiB\n"+
			"disk written  2MiB\n"+
			"cpu.max          50000 100000\n"+
			"memory.max       max\n"+
			"memory.swap.max  0\n"+
			"io.max           8:0 rbps=1; 8:16 rbps=2\n"+
			"pids.max         64\n"+
			"\n"+
			"GROUP  COUNTER  VALUE\n"+
			"g      records  1,234,567\n"+
			"\nend of standard error\n  | one\n  | two\n")

	b.Reset()
	printAttempt(&b, "map/0", &droverv1.TaskAttempt{Key: &droverv1.AttemptKey{Attempt: 1, Run: 1}, Node: "n1", Locality: "none"})
	if got := b.String(); !strings.HasPrefix(got, "task      map/0\nattempt   1 (run 1)\nnode      n1\n") || strings.Contains(got, "locality") {
		t.Errorf("an attempt of which the node said nothing yet:\n%s", got)
	}
}

// TestPlanView: what a dry run shows of guarantees, deadlines and the first steps.
func TestPlanView(t *testing.T) {
	step := func(action, task, job, level string) *droverv1.PlannedStep {
		return &droverv1.PlannedStep{Action: action, Task: task, Job: job, Node: "n1", Level: level}
	}
	stages := []*droverv1.PlannedStage{
		{Name: "map", Tasks: 3, EstimateMs: 60_000, BoundMs: 120_000, Source: "history", StartMs: viewMs(5)},
		{Name: "reduce", Tasks: 1, Source: "none", Waiting: "stage map is not done"},
	}
	const table = "job \"wc\" under scheduler 3dsf\n" +
		"STAGE   TASKS  TASK DURATION  AT MOST  ESTIMATE FROM  STARTS               PENDING REASON\n" +
		"map     3      1m0s           2m0s     history        2026-11-28 08:00:05  -\n" +
		"reduce  1      -              -        none           -                    stage map is not done\n"
	for name, c := range map[string]struct {
		r    *droverv1.PlanJobResponse
		want string
	}{
		"tasks of one stage are one line, and a suspension names its level": {
			&droverv1.PlanJobResponse{Steps: []*droverv1.PlannedStep{step("suspend", "main/0", "old", "frozen"), step("place", "map/0", "wc", ""), step("place", "map/1", "wc", ""), step("place", "map/2", "wc", "")},
				Quote: &droverv1.Quote{Basis: "run times from history", P: []float64{0.5, 0.95}, AtMs: []int64{viewMs(60), 0}, GuaranteedMs: viewMs(300)}},
			"\nat once\n  suspend main/0 of job old on n1 to level frozen\n  place 3 tasks of map of job wc on n1\n" +
				"\nends (run times from history)\n  by 2026-11-28 08:01:00 with probability 0.50\n  by never with probability 0.95\n" +
				"guaranteed by 2026-11-28 08:05:00, provided that no task runs longer than its bound (at most)\n",
		},
		"a deadline that can't be met has an offer": {
			&droverv1.PlanJobResponse{Quote: &droverv1.Quote{Basis: "b", NoGuarantee: "too few tasks have ended", DeadlineMs: viewMs(10), Probability: 0.25}, CounterOfferMs: viewMs(90), Warnings: []string{"no node has the image"}},
			"\nno task starts at once\n\nends (b)\nno guarantee: too few tasks have ended\ndeadline 2026-11-28 08:00:10: met with probability 0.25\n" +
				"earliest deadline that can be met: 2026-11-28T08:01:30Z\nwarning: no node has the image\n",
		},
		"one that can be met has none": {
			&droverv1.PlanJobResponse{Quote: &droverv1.Quote{Basis: "b", DeadlineMs: viewMs(100), Probability: 1}, CounterOfferMs: viewMs(90)},
			"\nno task starts at once\n\nends (b)\ndeadline 2026-11-28 08:01:40: met with probability 1.00\n",
		},
	} {
		c.r.Scheduler, c.r.Stages = "3dsf", stages
		var b bytes.Buffer
		printPlan(&b, &jobspec.Job{Name: "wc"}, c.r)
		wantText(t, name, b.String(), table+c.want)
	}
}

// TestGuaranteeText: what a submission says of its guarantee.
func TestGuaranteeText(t *testing.T) {
	for want, q := range map[string]*droverv1.Quote{
		"":                           {},
		"; guaranteed":               {GuaranteedMs: 5, NoGuarantee: "x"},
		"; no guarantee: no history": {NoGuarantee: "no history"},
	} {
		wantText(t, want, guaranteeText(q), want)
	}
}

// TestPairsAndTablesAreOneLineEach: a value with line breaks and control characters stays one line of text.
func TestPairsAndTablesAreOneLineEach(t *testing.T) {
	for name, print := range map[string]func(io.Writer){
		"pairs": func(w io.Writer) { printPairs(w, "a", "x\ny\x1b[2J", "longer", "z", "none", "") },
		"table": func(w io.Writer) { printTable(w, []string{"a", "b"}, [][]string{{"x\ny\x1b[2J", ""}}) },
	} {
		var b bytes.Buffer
		print(&b)
		want := map[string]string{"pairs": "a       x\\u000ay\\u001b[2J\nlonger  z\n", "table": "A                  B\nx\\u000ay\\u001b[2J  -\n"}[name]
		wantText(t, name, b.String(), want)
	}
}

// TestCounters: the harness's own counters by stage kind, then a program's by group, and what is missing.
func TestCounters(t *testing.T) {
	for name, c := range map[string]struct {
		counters map[string]int64
		want     string
	}{
		"none":            {nil, ""},
		"zero is nothing": {map[string]int64{"map:" + harnessCounters[0].key + "_records": 0}, ""},
		"the harness's own": {map[string]int64{"map:" + harnessCounters[0].key + "_records": 1200, "map:" + harnessCounters[0].key + "_bytes": 2048},
			"\nKIND  WHAT   RECORDS  BYTES\nmap   " + harnessCounters[0].text + "  1,200    2KiB\n"},
		"by group, and a name alone": {map[string]int64{"z:b": 1, "a:x": 1234567, "z:a": -5, "alone": 2},
			"\nGROUP  COUNTER  VALUE\n-      alone    2\na      x        1,234,567\nz      a        -5\nz      b        1\n"},
		"names beyond the limit are missed": {map[string]int64{"a:x": 1, facts.CountersDropped: 1},
			"\nGROUP  COUNTER  VALUE\na      x        1\nWARNING: a job has at most 1000 counters; 1 count of tasks with further names are missing above. The totals above are complete.\n"},
	} {
		var b bytes.Buffer
		printCounters(&b, c.counters)
		wantText(t, name, b.String(), c.want)
	}
}

// TestNodeViewShowsTheHarnessMemory: task_cap and admission count it with each task, so a reader can look it up.
func TestNodeViewShowsTheHarnessMemory(t *testing.T) {
	for memory, want := range map[int64]string{0: "", 23 << 20: "harness memory per task  23MiB\n"} {
		var b bytes.Buffer
		c := cli.NewContext(&cli.App{Writer: &b}, nil, nil)
		printNode(c, &droverv1.NodeStatus{State: "up", Info: &droverv1.NodeInfo{Name: "n1", TaskOverheadMemory: memory}})
		if got := b.String(); strings.Contains(got, "harness") != (want != "") || !strings.Contains(got, want) {
			t.Errorf("%d bytes:\n%s\nwant %q", memory, got, want)
		}
	}
}

// A message in a list has no part of a number at its end: exit code 13… was 137.
func TestShortenedMessagesEndWithAWord(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"exit code 137", 13, "exit code 137"},
		{"exit code 137 (killed)", 13, "exit code …"},
		{"exit code 137 (killed)", 14, "exit code 137…"},
		{"größer als 4096", 13, "größer als …"},
		{"/a/path/without/a/blank", 10, "/a/path/w…"},
		{"in /a/path/without/a/blank", 10, "in /a/pat…"},
	} {
		if got := shortened(c.text, c.most); got != c.want {
			t.Errorf("shortened(%q, %d) is %q, want %q", c.text, c.most, got, c.want)
		}
	}
}

// A job of a thousand mappers, which wrote no log, gets one line and not a thousand.
func TestMissingLogsAreToldOnce(t *testing.T) {
	for _, c := range []struct {
		noLogs      int32
		out, stderr string
	}{
		{0, "== s/0 attempt 1 on n1\nof task 0\n== s/1 attempt 1 on n1\nof task 1\n== s/2 attempt 1 on n1\nof task 2\n== s/3 attempt 1 on n1\nof task 3\n", ""},
		{1, "== s/1 attempt 1 on n1\nof task 1\n== s/2 attempt 1 on n1\nof task 2\n== s/3 attempt 1 on n1\nof task 3\n",
			"no logs of s/0.1 are there: it wrote none, or its node keeps them no longer; `drover task logs 7 s/0.1` says more\n"},
		{4, "", "no logs of s/0.1 and 3 other attempts are there: they wrote none, or their nodes keep them no longer; `drover task logs 7 s/0.1` says more\n"},
	} {
		f := &fakeCoordinator{tasks: 4, noLogs: c.noLogs}
		out, stderr, err := f.runBoth(t, t.Context(), "job", "logs", "7")
		if err != nil || out != c.out || stderr != c.stderr {
			t.Errorf("%d without logs: %v\n%s\n%s", c.noLogs, err, out, stderr)
		}
	}
}
