package coordinator

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler/estimate"
	"github.com/drover-run/drover/scheduler/policies"
)

// withDeadline sets a job's deadline, relative to now.
func withDeadline(j *jobspec.Job, in time.Duration, miss jobspec.OnMiss) *jobspec.Job {
	at := time.Now().Add(in).UTC()
	j.Deadline, j.OnMiss = &at, miss
	return j
}

// eventKinds returns the kinds of a job's events.
func (b *testCluster) eventKinds(job string) (kinds []string) {
	b.t.Helper()
	s, err := b.client.Events(b.ctx, connect.NewRequest(&droverv1.EventsRequest{Job: job}))
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
		kinds = append(kinds, s.Msg().GetKind())
	}
	if err := s.Err(); err != nil {
		b.t.Fatal(err)
	}
	return kinds
}

func count(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}

func TestMissedDeadlineAppliesOnMiss(t *testing.T) {
	t.Parallel() // it waits for deadlines that a submission does not take
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	for _, miss := range []jobspec.OnMiss{jobspec.OnMissContinue, jobspec.OnMissLower, jobspec.OnMissStop} {
		b.submit(withDeadline(groupJob(string(miss), 1), 3*time.Second, miss))
	}
	got := b.waitForEnd("stop", stopped)
	if !strings.HasPrefix(got.Job.Message, "stopped by on_miss: ") || got.Job.DeadlineState != "missed" {
		t.Errorf("%q, %q", got.Job.Message, got.Job.DeadlineState)
	}
	for _, name := range []string{"continue", "lower"} {
		b.waitUntil(name+" missed its deadline", func() bool { return b.job(name).Job.DeadlineState == "missed" })
		if st := b.job(name).Job.State; ended(st) {
			t.Errorf("%s is %v", name, st)
		}
		if k := b.eventKinds(name); count(k, "job.deadline_missed") != 1 {
			t.Errorf("events of %s: %v", name, k)
		}
	}
	// Neither a restart nor the job's end repeats the event, and calibration
	// counts all jobs.
	b.kill()
	b.start()
	n.SetBehaviour(coordtest.Succeed)
	for _, name := range []string{"continue", "lower"} {
		if got := b.waitForEnd(name, succeeded); got.Job.DeadlineState != "missed" {
			t.Errorf("%s: %s", name, got.Job.DeadlineState)
		}
		if k := b.eventKinds(name); count(k, "job.deadline_missed") != 1 {
			t.Errorf("events of %s: %v", name, k)
		}
	}
	res, err := b.client.Calibration(b.ctx, connect.NewRequest(&droverv1.CalibrationRequest{}))
	if err != nil || res.Msg.Jobs != 3 || res.Msg.BaseRate != 0 || res.Msg.Open != 0 {
		t.Errorf("%v %v", res, err)
	}
	for _, j := range readHistory(t, b, 3) {
		if !j.Missed || j.DeadlineMS == 0 || j.OnMiss != j.Name || j.Quote == nil {
			t.Errorf("history: %+v", j)
		}
	}
}

func TestInfeasibleDeadlineIsReportedBeforeItPasses(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("a", 8)) // occupies the node
	b.waitUntil("it runs", func() bool { return b.job("a").Job.TasksRunning == 8 })
	j := withDeadline(groupJob("late", 4), 2*time.Hour, jobspec.OnMissStop)
	j.RuntimeBound = jobspec.Duration(30 * time.Hour) // of which it takes a tenth at least
	id := b.submit(j)
	got := b.waitForEnd("late", stopped)
	if !strings.Contains(got.Job.Message, "the latest start was") || !strings.Contains(got.Job.Message, "4 of 4 tasks of main are not done (about 30h0m0s each)") {
		t.Errorf("%q", got.Job.Message)
	}
	if k := b.eventKinds(fmt.Sprint(id)); count(k, "job.deadline_infeasible") != 1 {
		t.Errorf("%v", k)
	}
	n.SetBehaviour(coordtest.Succeed)
	b.waitForEnd("a", succeeded)
}

// A deadline that can be met, before which the job is not expected to end, is not said to be on track, wherever a job is shown.
func TestDeadlineBeforeTheExpectedEndIsAtRisk(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	info := coordtest.Info("n1")
	info.Levels = []droverv1.Level{droverv1.Level_LEVEL_RUNNING} // nothing gives way
	n, _ := b.addNode(info, coordtest.Hang)
	b.waitForNodes()
	long := groupJob("long", 8)
	long.RuntimeBound = jobspec.Duration(100 * time.Hour)
	b.submit(long)
	b.waitUntil("it runs", func() bool { return b.job("long").Job.TasksRunning == 8 })
	short := withDeadline(groupJob("short", 1), 2*time.Hour, jobspec.OnMissContinue)
	short.RuntimeBound = jobspec.Duration(time.Minute)
	b.submit(short)
	b.waitUntil("an end after the deadline is expected", func() bool { got := b.job("short").Job; return got.ExpectedEndMs > got.DeadlineMs })
	if got := b.job("short").Job; got.DeadlineState != "at risk" {
		t.Errorf("the deadline is %s: %s", got.DeadlineState, got.Message)
	}
	res, err := b.client.ListJobs(b.ctx, connect.NewRequest(&droverv1.ListJobsRequest{NamePrefix: "short"}))
	if err != nil || len(res.Msg.Jobs) != 1 || res.Msg.Jobs[0].DeadlineState != "at risk" {
		t.Errorf("%v, %v", res, err)
	}
	n.SetBehaviour(coordtest.Succeed)
	if got := b.waitForEnd("short", succeeded).Job; got.DeadlineState != "met" {
		t.Errorf("it ended, and the deadline is %s", got.DeadlineState)
	}
}

// A job of which only the bound is known is not stopped by on_miss since the bound is longer than the deadline: it may take
// less, as its quote says. It starts on a node that is free.
func TestBoundBeyondTheDeadlineStopsNoJob(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	j := withDeadline(groupJob("quick", 4), 2*time.Hour, jobspec.OnMissStop)
	j.RuntimeBound = jobspec.Duration(3 * time.Hour)
	id := fmt.Sprint(b.submit(j))
	b.waitUntil("it runs", func() bool { got := b.job(id).Job; return got.TasksRunning == 4 || got.EndedMs > 0 })
	if got := b.job(id).Job; got.Probability < 0.4 || got.DeadlineState != deadlineOnTrack && got.DeadlineState != deadlineAtRisk {
		t.Errorf("quoted %.2f, the deadline is %s: %s", got.Probability, got.DeadlineState, got.Message)
	}
	n.SetBehaviour(coordtest.Succeed)
	b.waitForEnd(id, succeeded)
}

// A job of which only the bound is known is not stopped by on_miss once one of its tasks has ended: how long that took is known
// then, and the bound says nothing of the others but how long they take at most.
func TestFirstTaskToEndStopsNoJob(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetKey().GetTask() == 0 {
			return coordtest.Succeed(w)
		}
		return coordtest.Hang(w)
	})
	b.waitForNodes()
	j := withDeadline(groupJob("quick", 16), 2*time.Hour, jobspec.OnMissStop)
	j.RuntimeBound = jobspec.Duration(3 * time.Hour)
	id := fmt.Sprint(b.submit(j))
	b.waitUntil("its estimate comes from its own task", func() bool { return b.job(id).Stages[0].EstimateSource == "own tasks" })
	b.waitUntil("a task runs in the place of the ended one", func() bool {
		got := b.job(id).Job
		return got.TasksDone == 1 && got.TasksRunning == 8 || got.EndedMs > 0
	})
	if got := b.job(id); got.Job.DeadlineState != deadlineOnTrack && got.Job.DeadlineState != deadlineAtRisk || got.Stages[0].EstimateMs > time.Hour.Milliseconds() {
		t.Errorf("its tasks take about %d ms, the deadline is %s: %s", got.Stages[0].EstimateMs, got.Job.DeadlineState, got.Job.Message)
	}
	n.SetBehaviour(coordtest.Succeed)
	b.waitForEnd(id, succeeded)
}

// recordRunTimes gives the coordinator a history of tasks that ran for at least a time.
func (b *testCluster) recordRunTimes(n *coordtest.Node, name string, least time.Duration) {
	b.t.Helper()
	n.SetBehaviour(coordtest.Hang)
	b.submit(groupJob(name, 4))
	b.waitUntil("it runs", func() bool { return b.job(name).Job.TasksRunning == 4 })
	started := time.Now()
	b.waitUntil(least.String(), func() bool { return time.Since(started) > least })
	n.SetBehaviour(coordtest.Succeed)
	b.waitForEnd(name, succeeded)
}

func TestRunTimePredictionsSurviveRestart(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.recordRunTimes(n, "again", 250*time.Millisecond)
	n.SetBehaviour(coordtest.Hang)
	b.submit(groupJob("again", 4))
	b.submit(groupJob("other", 1))
	// The next cycle after the end of the first job learns from it.
	predicted := func(name string) bool { return b.job(name).Stages[0].EstimateSource != "none" }
	b.waitUntil("the first job is learnt", func() bool { return predicted("again") && predicted("other") })
	check := func() {
		t.Helper()
		if s := b.job("again").Stages[0]; s.EstimateSource != "history" || s.EstimateMs < 250 || s.EstimateMs > 20_000 {
			t.Errorf("estimate %d ms from %q", s.EstimateMs, s.EstimateSource)
		}
		if s := b.job("other").Stages[0]; s.EstimateSource != "tenant" {
			t.Errorf("estimate %d ms from %q", s.EstimateMs, s.EstimateSource)
		}
	}
	check()
	b.kill()
	b.start()
	b.waitUntil("it answers", func() bool { return b.job("again") != nil })
	check()
}

// A job is predicted, waits for the folder of its output, and is accepted when the tasks that its tenant has
// completed meanwhile have been learnt from.
func TestJobAcceptedAfterItsPredictionIsPredictedAgain(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	small := coordtest.Info("small") // has room for one task, and answers for the folder when the test says so
	small.Allocatable.Cpu = 600
	b.addNode(small, coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("other", 1))
	b.waitUntil("it runs", func() bool { return b.job("other").Job.TasksRunning == 1 })
	predicted, learnt := make(chan struct{}), make(chan struct{})
	learn := sync.OnceFunc(func() { close(learnt) })
	defer learn()
	var first sync.Once
	b.fs.FailWith(func(r *droverv1.NodeRequest) (error, string) {
		if r.GetCheckOutput().GetPrepare() {
			first.Do(func() { close(predicted); <-learnt })
		}
		return nil, ""
	})
	b.fs.Input("hdfs:///in", 1, "n1")
	accepted := make(chan error, 1)
	go func() {
		j := mapReduceJob("late", 0)
		j.Stages[0].Resources.CPU = 100
		_, err := b.trySubmit(j, "")
		accepted <- err
	}()
	select {
	case <-predicted:
	case err := <-accepted:
		t.Fatalf("the output is not checked: %v", err)
	}
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitUntil("n1 is up", func() bool { return b.nodeIsUp("n1") })
	b.recordRunTimes(n, "before", 250*time.Millisecond)
	n.SetBehaviour(coordtest.Hang)
	b.waitUntil("the job before is learnt", func() bool { return b.job("other").Stages[0].EstimateSource == "tenant" })
	learn()
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	b.waitUntil("the late job is predicted again", func() bool { return b.job("late").Stages[0].EstimateSource == "tenant" })
}

func TestWeakQuoteIsRejectedWithCounterOffer(t *testing.T) {
	t.Parallel() // it waits for tasks that take longer than a submission
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.recordRunTimes(n, "job", 4*time.Second)
	n.SetBehaviour(coordtest.Hang)
	submit := func(name string, in time.Duration, require float64) (*droverv1.SubmitJobResponse, error) {
		j := withDeadline(groupJob(name, 4), in, "")
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		res, err := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text), RequireQuote: require}))
		if err != nil {
			return nil, wire.FromError(err)
		}
		return res.Msg, nil
	}
	_, err := submit("job", 2*time.Second, 0.95)
	if !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "the earliest deadline that holds is ") {
		t.Fatalf("%v", err)
	}
	res, err := submit("job", time.Hour, 0.95)
	if err != nil || res.Quote.GetProbability() < 0.95 || res.Quote.GetSamples() < minSamples {
		t.Fatalf("%v %v", res, err)
	}
	if got := b.job("job").Job; got.Probability != res.Quote.Probability || got.DeadlineState != "on track" {
		t.Errorf("%v", got)
	}
	if res, err = submit("weak", 2*time.Second, 0); err != nil || len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "the deadline is met with probability 0") {
		t.Errorf("%v %v", res, err)
	}
	for _, p := range []float64{-1, 2} {
		if _, err := submit("bad", time.Hour, p); !errors.Is(err, fault.Invalid) {
			t.Errorf("%g: %v", p, err)
		}
	}
}

// The counter-offer to a refused deadline holds: the same job with it is accepted. On a node that is busy for hours the refused
// deadline is infeasible, and the job would go behind all that waits; with the offered one it preempts.
func TestCounterOfferIsAcceptedWhenSubmitted(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	filler := groupJob("filler", 40)
	filler.RuntimeBound = jobspec.Duration(8 * time.Hour)
	b.submit(filler)
	b.waitUntil("the node is full", func() bool { return b.job("filler").Job.TasksRunning == 8 })
	submit := func(at time.Time) (*droverv1.SubmitJobResponse, error) {
		j := groupJob("urgent", 1)
		j.Deadline, j.RuntimeBound = &at, jobspec.Duration(100*time.Second)
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		res, err := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text), RequireQuote: 0.95}))
		if err != nil {
			return nil, wire.FromError(err)
		}
		return res.Msg, nil
	}
	_, err := submit(time.Now().Add(5 * time.Second).UTC())
	if !errors.Is(err, fault.Exhausted) {
		t.Fatalf("an infeasible deadline is accepted: %v", err)
	}
	_, rest, _ := strings.Cut(err.Error(), "the earliest deadline that holds is ")
	text, _, _ := strings.Cut(rest, ";")
	offered, wrong := time.Parse(time.RFC3339, text)
	if in := time.Until(offered); wrong != nil || in < 5*time.Second || in > 5*time.Minute {
		t.Fatalf("offered %v, %v: %v", offered, wrong, err)
	}
	res, err := submit(offered)
	if err != nil || res.Quote.GetProbability() < 0.95 && res.AcceptedBy != "guarantee" {
		t.Errorf("with the offered deadline: %v %v", res, err)
	}
	n.SetBehaviour(coordtest.Succeed)
	b.waitForEnd("urgent", succeeded)
}

func TestPlanJobNamesVictimsAndChangesNothing(t *testing.T) {
	t.Parallel() // it waits for tasks that take longer than a plan
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.recordRunTimes(n, "job", 1250*time.Millisecond)
	n.SetBehaviour(coordtest.Hang)
	b.submit(groupJob("filler", 20))
	b.waitUntil("the node is full", func() bool { return b.job("filler").Job.TasksRunning == 8 })
	j := groupJob("job", 2)
	jobspec.SetDefaults(j)
	var text []byte
	var index uint64
	b.waitUntil("a plan suspends", func() bool { // when it is urgent depends on the clock
		var err error
		if text, err = jobspec.Encode(withDeadline(j, 2*time.Second, "")); err != nil {
			t.Fatal(err)
		}
		res, err := b.client.PlanJob(b.ctx, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(text)}))
		if errors.Is(wire.FromError(err), fault.Invalid) { // it came after its deadline
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range res.Msg.Steps {
			if s.Action == "suspend" && s.Job == "filler" && s.Node == "n1" && s.Level == "frozen" {
				return res.Msg.Quote.Probability > 0
			}
		}
		return false
	})
	st, err := b.client.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	index = st.Msg.Index
	if _, err := b.client.PlanJob(b.ctx, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(text)})); err != nil && !errors.Is(wire.FromError(err), fault.Invalid) {
		t.Fatal(err)
	}
	if st, err = b.client.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{})); err != nil || st.Msg.Index != index {
		t.Errorf("PlanJob changed the log index from %d to %d (%v)", index, st.Msg.Index, err)
	}
}

func TestWaitingJobHasReasonAndExpectedStart(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.recordRunTimes(n, "job", 250*time.Millisecond)
	n.SetBehaviour(coordtest.Hang)
	b.submit(groupJob("job", 8))
	b.waitUntil("the node is full", func() bool { return b.job("job").Job.TasksRunning == 8 })
	waits := groupJob("waits", 1)
	waits.RuntimeBound = jobspec.Duration(time.Minute) // without it, its end would not be known
	b.submit(waits)
	b.waitUntil("it says why and when", func() bool {
		got := b.job("waits")
		return got.Stages[0].Waiting != "" && got.Stages[0].ExpectedStartMs > 0 && got.Job.ExpectedStartMs == got.Stages[0].ExpectedStartMs
	})
	b.waitUntil("the list says when it starts, and when both end", func() bool {
		res, err := b.client.ListJobs(b.ctx, connect.NewRequest(&droverv1.ListJobsRequest{}))
		if err != nil || len(res.Msg.Jobs) != 2 {
			t.Fatal(res.Msg, err)
		}
		waits, runs := res.Msg.Jobs[0], res.Msg.Jobs[1]
		return waits.ExpectedStartMs > 0 && waits.ExpectedEndMs > waits.ExpectedStartMs && runs.ExpectedStartMs == 0 && runs.ExpectedEndMs > 0
	})
}

// TestNoTimeIsExpectedByGuesses: nobody knows when tasks end that run for the first time. The guess of a minute is reason to warn
// of a deadline, which also shows that the times were computed.
func TestNoTimeIsExpectedByGuesses(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	info := coordtest.Info("n1")
	info.Levels = []droverv1.Level{droverv1.Level_LEVEL_RUNNING} // nothing gives way
	b.addNode(info, coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("new", 8))
	b.waitUntil("the node is full", func() bool { return b.job("new").Job.TasksRunning == 8 })
	b.submit(withDeadline(groupJob("waits", 1), 100*time.Second, jobspec.OnMissContinue))
	b.waitUntil("its deadline is at risk", func() bool { return b.job("waits").Job.DeadlineState == deadlineAtRisk })
	if got := b.job("waits"); got.Stages[0].Waiting == "" || got.Stages[0].ExpectedStartMs != 0 || got.Job.ExpectedStartMs != 0 || got.Job.ExpectedEndMs != 0 {
		t.Errorf("times are expected: %v, %v", got.Job, got.Stages[0])
	}
	if got := b.job("new").Job; got.ExpectedEndMs != 0 {
		t.Errorf("an end is expected: %v", got)
	}
	res, err := b.client.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{}))
	if err != nil || len(res.Msg.Attempts) != 8 || res.Msg.Attempts[0].EndMs != 0 || res.Msg.Waiting[0].ExpectedStartMs != 0 {
		t.Errorf("%v, %v", res, err)
	}
}

func TestGuesses(t *testing.T) {
	for source, want := range map[estimate.Source]bool{
		0: true, estimate.None: true, estimate.Tenant: true, estimate.RuntimeBound: false, estimate.History: false, estimate.Model: false, estimate.OwnTasks: false,
	} {
		if got := isGuess(source); got != want {
			t.Errorf("%d: %v", source, got)
		}
	}
}

// TestNoEndIsExpectedOfWhatAUserSuspended: no scheduler resumes such a task, so nobody knows when its job ends.
func TestNoEndIsExpectedOfWhatAUserSuspended(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(levelNode("n1"), coordtest.Hang)
	b.waitForNodes()
	b.recordRunTimes(n, "job", 250*time.Millisecond)
	n.SetBehaviour(coordtest.Hang)
	b.submit(groupJob("job", 2))
	ends := func() bool { return b.job("job").Job.ExpectedEndMs > 0 }
	b.waitUntil("its end is expected", ends)
	if err := b.setLevel("job", droverv1.Level_LEVEL_FROZEN, ""); err != nil {
		t.Fatal(err)
	}
	b.waitUntil("one task is suspended", func() bool { return b.job("job").Stages[0].Suspended == 1 })
	if ends() {
		t.Error("an end is expected")
	}
	if err := b.setLevel("job", droverv1.Level_LEVEL_RUNNING, ""); err != nil {
		t.Fatal(err)
	}
	b.waitUntil("its end is expected again", ends)
}

// TestSchedulerChangesWhileJobsRun checks that every live scheduler can take
// over while jobs run, and that jobs of all kinds end under each.
func TestSchedulerChangesWhileJobsRun(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 3, "n1")
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.addNode(coordtest.Info("n2"), coordtest.Succeed)
	b.waitForNodes()
	k := 0
	for _, info := range policies.All() {
		if info.SimOnly {
			continue
		}
		k++
		n.SetBehaviour(coordtest.Hang)
		names := []string{fmt.Sprint("plain", k), fmt.Sprint("mr", k), fmt.Sprint("due", k), fmt.Sprint("bound", k)}
		b.submit(groupJob(names[0], 30))
		b.submit(mapReduceJob(names[1], 2))
		b.submit(withDeadline(groupJob(names[2], 3), time.Hour, ""))
		bound := groupJob(names[3], 3)
		bound.RuntimeBound, bound.Project = jobspec.Duration(time.Minute), "p"
		b.submit(bound)
		b.waitUntil("something runs", func() bool { return b.job(names[0]).Job.TasksRunning > 0 || b.job(names[0]).Job.TasksDone > 0 })
		if _, err := b.client.SetScheduler(b.ctx, connect.NewRequest(&droverv1.SetSchedulerRequest{Name: info.Name})); err != nil {
			t.Fatalf("%s: %v", info.Name, err)
		}
		n.SetBehaviour(coordtest.Succeed)
		for _, name := range names {
			b.waitForEnd(name, succeeded)
		}
	}
	if k < 12 {
		t.Errorf("only %d schedulers", k)
	}
	if k := b.eventKinds(""); count(k, "project.opened") != count(k, "scheduler.set") {
		t.Errorf("projects stayed open: %v", k)
	}
}

func TestCalibrate(t *testing.T) {
	list := []facts.Outcome{{Probability: 0.95, OnTime: true}, {Probability: 0.95, OnTime: true}, {Probability: 0.95}, {Probability: 0.5}, {Probability: 0, OnTime: true}, {Probability: 1, OnTime: true}, {Excluded: true, Probability: 1}}
	got := calibrate(list)
	if got.Jobs != 6 || got.Excluded != 1 || got.Bins[5].Jobs != 4 || got.Bins[0].Jobs != 2 || got.Bins[5].OnTime != 0.75 {
		t.Errorf("%v", got)
	}
	if want := (0.05*0.05*2 + 0.95*0.95 + 0.25 + 1) / 6; got.Brier < want-1e-12 || got.Brier > want+1e-12 {
		t.Errorf("Brier %v, want %v", got.Brier, want)
	}
	if b := got.Bins[5]; b.Low < 0.3 || b.Low > 0.31 || b.High < 0.95 || b.High > 0.96 {
		t.Errorf("Wilson's interval of 3 of 4: %v to %v", b.Low, b.High)
	}
}

func TestSpeculativeAttemptOvertakesHangingOne(t *testing.T) {
	b := newTestCluster(t, func(c *Config) {
		c.Scheduler, c.SchedulerParams = "3dsf", map[string]string{"speculate": "3"}
	})
	hangFirst := func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetKey().GetTask() == 0 && w.GetKey().GetAttempt() == 1 {
			return nil
		}
		return coordtest.Succeed(w)
	}
	b.addNode(coordtest.Info("n1"), hangFirst)
	b.addNode(coordtest.Info("n2"), hangFirst)
	b.waitForNodes()
	b.submit(groupJob("j", 6))
	got := b.waitForEnd("j", succeeded)
	if got.Job.TasksDone != 6 {
		t.Errorf("%v", got.Job)
	}
	res, err := b.client.ListTasks(b.ctx, connect.NewRequest(&droverv1.ListTasksRequest{Job: "j"}))
	if err != nil {
		t.Fatal(err)
	}
	a := res.Msg.Tasks[0].Attempts
	if len(a) != 2 || a[0].Committed || !a[1].Committed || a[0].Node == a[1].Node {
		t.Errorf("attempts at task 0: %v", a)
	}
}

// A leader whose last job with a deadline had ended looked at the deadline that was next again and
// again, and kept a processor busy, until another job with a deadline came.
func TestNoDeadlineIsNeverDue(t *testing.T) {
	w := deadlineWatch{next: time.Unix(1, 0)}
	if at, err := w.check(t.Context(), &core{cfg: Config{Now: time.Now}}, newProjection(nil).state); !at.IsZero() || err != nil {
		t.Errorf("without a job with a deadline the next check is at %s, %v", at, err)
	}
}

func TestMeasuredBandwidthIsPassedToPolicyUnlessSet(t *testing.T) {
	l := &leader{bandwidth: 7_000_000}
	for what, c := range map[string]struct {
		name   string
		params map[string]string
		want   string
	}{
		"it counts":               {"3dsf", nil, "7000000"},
		"beside other parameters": {"3dsf", map[string]string{"lev": "2"}, "7000000"},
		"the operator's wins":     {"3dsf", map[string]string{"bandwidth": "1"}, "1"},
		"a policy that has none":  {"fifo", nil, ""},
	} {
		got := l.withBandwidth(c.name, c.params)
		if got["bandwidth"] != c.want || got["lev"] != c.params["lev"] {
			t.Errorf("%s: %v", what, got)
		}
		if _, err := policies.New(c.name, got); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The remembered answer is that of the scheduler asked for, whichever it was before.
func TestGuaranteeCache(t *testing.T) {
	var g guaranteeCache
	off := map[string]string{"no_such_parameter": "1"}
	for i, ask := range []struct {
		name   string
		params map[string]string
	}{{"fifo", nil}, {"3dsf", nil}, {"3dsf", nil}, {"3dsf", off}, {"3dsf", map[string]string{}}, {"no such policy", nil}, {"two_tier", nil}, {"fifo", nil}} {
		if got, want := g.get(ask.name, ask.params), guaranteesDeadlines(ask.name, ask.params); got != want {
			t.Errorf("question %d, %s %v: %t, want %t", i, ask.name, ask.params, got, want)
		}
	}
	if !guaranteesDeadlines("3dsf", nil) || guaranteesDeadlines("3dsf", off) {
		t.Error("the table does not have both answers of one scheduler")
	}
}
