package coordinator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// A job with a deadline and no runtime_bound gets a guarantee once it is known by how much
// predictions are off, and a submission that requires a quote says what it went by. Before, and
// under a scheduler without guarantees, the quote says why there is none.
func TestQuotedDeadlineIsGuaranteed(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	submit := func(name string, require float64) *droverv1.SubmitJobResponse {
		t.Helper()
		j := withDeadline(groupJob(name, 4), time.Hour, "")
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		res, err := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text), RequireQuote: require}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg
	}
	got := submit("job", 0.1)
	if q := got.Quote; q.GuaranteedMs != 0 || !strings.Contains(q.NoGuarantee, "too few tasks have ended") || got.AcceptedBy != "quote" {
		t.Errorf("without history: %v, accepted by %q", q, got.AcceptedBy)
	}
	b.waitForEnd("job", succeeded)
	for i := range 40 { // each completes a stage, whose error is recorded
		b.submit(groupJob("job", 4))
		b.waitForEnd("job", succeeded)
		if i < 17 {
			continue
		}
		n.SetBehaviour(coordtest.Hang)
		if got = submit("job", 0.1); got.Quote.GuaranteedMs > 0 {
			break
		}
		n.SetBehaviour(coordtest.Succeed)
		b.waitForEnd("job", succeeded)
	}
	if q := got.Quote; q.GuaranteedMs != q.DeadlineMs || q.NoGuarantee != "" || got.AcceptedBy != "guarantee" {
		t.Fatalf("with history: %v, accepted by %q", q, got.AcceptedBy)
	}
	id := fmt.Sprint(got.Job)
	b.waitUntil("the scheduler guarantees it", func() bool { return count(b.eventKinds(id), "job.deadline_guaranteed") == 1 })
	b.kill() // the bounds survive
	b.start()
	b.waitUntil("it is still guaranteed", func() bool { j := b.job(id); return j != nil && j.Job.GuaranteedMs > 0 })
	if got := submit("none", 0); got.AcceptedBy != "" {
		t.Errorf("nothing was required, and it was accepted by %q", got.AcceptedBy)
	}
	if _, err := b.client.SetScheduler(b.ctx, connect.NewRequest(&droverv1.SetSchedulerRequest{Name: "edf"})); err != nil {
		t.Fatal(err)
	}
	if got := submit("edf", 0.1); got.Quote.GuaranteedMs != 0 || !strings.Contains(got.Quote.NoGuarantee, "scheduler edf guarantees no deadlines") || got.AcceptedBy != "quote" {
		t.Errorf("under edf: %v, accepted by %q", got.Quote, got.AcceptedBy)
	}
	n.SetBehaviour(coordtest.Succeed)
	for _, name := range []string{id, "none", "edf"} {
		b.waitForEnd(name, succeeded)
	}
}

// A guarantee that a task violates by running past its bound is no longer told as one: an event, the status and a metric
// say that it was violated and why.
func TestViolatedGuaranteeIsTold(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	j := withDeadline(groupJob("overruns", 1), 4*time.Second, jobspec.OnMissContinue)
	j.RuntimeBound = jobspec.Duration(time.Second)
	id := fmt.Sprint(b.submit(j))
	b.waitUntil("the guarantee is violated", func() bool { return count(b.eventKinds(id), "job.guarantee_violated") == 1 })
	if k := b.eventKinds(id); count(k, "job.deadline_guaranteed") != 1 {
		t.Errorf("events %v", k)
	}
	got := b.job(id).Job
	if text := b.events("job.guarantee_violated"); got.GuaranteedMs == 0 || got.GuaranteeViolated != backfill.CauseOverrun.String() || text[0] != got.GuaranteeViolated {
		t.Errorf("guaranteed by %d, violated: %q, events %q", got.GuaranteedMs, got.GuaranteeViolated, text)
	}
	b.waitUntil("it is counted", func() bool { return b.metric("drover_guarantees_violated_total") == 1 })
	n.SetBehaviour(coordtest.Succeed)
	b.waitForEnd(id, succeeded)
	got = b.job(id).Job
	if got.GuaranteedMs != got.DeadlineMs || got.GuaranteeViolated != backfill.CauseOverrun.String() {
		t.Errorf("after its end: guaranteed by %d, deadline %d, violated: %q", got.GuaranteedMs, got.DeadlineMs, got.GuaranteeViolated)
	}
}

// The facts tell the causes of violated guarantees in the words of the scheduler, whose numbers are in the log.
func TestCausesOfViolationsAreThoseOfTheScheduler(t *testing.T) {
	l := newTestLeader(t, nil)
	told := 0
	for cause := backfill.CauseOverrun; cause <= backfill.CauseSuspended; cause++ {
		j := groupJob(fmt.Sprint("j", cause), 1)
		j.Tenant = facts.DefaultTenant
		res, err := (&submitter{l.c}).propose(t.Context(), identity{}, j, "", "", &located{}, jobForecast{})
		if err != nil || res.Err != nil {
			t.Fatal(err, res.Err)
		}
		decision := &droverv1.DecisionFact{PolicyStates: []*droverv1.PolicyStateFact{{Kind: int32(scheduler.ViolatedState), Job: res.Job, Slot: int32(cause)}}}
		mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: decision}})
		l.c.view(func(f *facts.Facts) {
			if got := f.Deadlines().GuaranteeViolated(f.Job(res.Job)); got != cause.String() {
				t.Errorf("cause %d is told as %q, want %q", cause, got, cause)
			}
		})
		told++
	}
	if told != 5 {
		t.Errorf("%d causes, want 5", told)
	}
}

// A job that joins a project is told the project's guarantee, at its submission and later, if that includes it.
func TestJobThatJoinsAProjectIsToldItsGuarantee(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	submit := func(bound time.Duration) (string, int64) {
		t.Helper()
		j := withDeadline(groupJob("job"+bound.String(), 1), 2*time.Hour, jobspec.OnMissContinue)
		j.Project, j.RuntimeBound = "p", jobspec.Duration(bound)
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		res, err := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text)}))
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint(res.Msg.Job)
		b.waitUntil("it runs", func() bool { return b.job(id).Job.TasksRunning == 1 })
		return id, res.Msg.Quote.GuaranteedMs
	}
	first, latest := submit(20 * time.Minute)
	told := b.job(first).Job.GuaranteedMs // of a submission a moment later than the quote's
	if latest == 0 || told == 0 {
		t.Fatalf("the project is guaranteed to end by %d, its status says %d", latest, told)
	}
	for bound, want := range map[time.Duration]int64{10 * time.Minute: told, time.Hour: 0} {
		id, quoted := submit(bound)
		b.waitUntil("its request is decided", func() bool { return b.job(id).Job.GuaranteedMs == want })
		if got := b.job(id).Job.GuaranteedMs; quoted != want || got != want {
			t.Errorf("bound %v: the quote says guaranteed by %d, the status %d, want %d", bound, quoted, got, want)
		}
	}
	if got := b.job(first).Job.GuaranteedMs; got != told {
		t.Errorf("the guarantee of the first job became %d, was %d", got, told)
	}
}

// The guarantee of a project fulfils what a submission requires only if later ones may not delay the project past the
// deadline. The deadline also counts without a guarantee, as that of any job with a quote.
func TestGuaranteeOfAProjectKeepsTheDeadline(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	for name, x := range map[string]struct {
		in          time.Duration
		wantInTime  bool
		wantAtLeast time.Duration // of the latest departure, from now
	}{
		"the slack ends after the deadline":  {in: 25 * time.Minute, wantInTime: true, wantAtLeast: 24 * time.Minute},
		"the slack ends before the deadline": {in: 2 * time.Hour, wantInTime: true, wantAtLeast: 29 * time.Minute},
		"the bound ends after the deadline":  {in: 15 * time.Minute, wantAtLeast: 29 * time.Minute},
	} {
		j := withDeadline(groupJob("job", 1), x.in, jobspec.OnMissContinue)
		j.Project, j.RuntimeBound = "p", jobspec.Duration(20*time.Minute)
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		res, err := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text), RequireQuote: 0.01}))
		if err != nil {
			t.Fatal(name, err)
		}
		q, by := res.Msg.Quote, res.Msg.AcceptedBy
		if at := time.UnixMilli(q.GuaranteedMs); (q.GuaranteedMs <= q.DeadlineMs) != x.wantInTime || (by == "guarantee") != x.wantInTime || at.Before(now.Add(x.wantAtLeast)) {
			t.Errorf("%s: guaranteed by %s, deadline %s, accepted by %q", name, at, time.UnixMilli(q.DeadlineMs), by)
		}
		id := fmt.Sprint(res.Msg.Job)
		b.waitUntil("it runs", func() bool { return b.job(id).Job.TasksRunning == 1 })
		b.waitUntil("its project's guarantee is an event", func() bool { return count(b.eventKinds(id), "project.guaranteed") == 1 })
		plan, err := b.client.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{}))
		if err != nil {
			t.Fatal(name, err)
		}
		shown := []int64{b.job(id).Job.GuaranteedMs}
		for _, job := range plan.Msg.Jobs {
			if job.Job == res.Msg.Job {
				shown = append(shown, job.GuaranteedMs)
			}
		}
		for _, got := range shown {
			if at := time.UnixMilli(got); x.wantInTime && got > q.DeadlineMs || at.Before(now.Add(x.wantAtLeast)) || len(shown) != 2 {
				t.Errorf("%s: the status or schedule says guaranteed by %s of %d, deadline %s", name, at, len(shown), time.UnixMilli(q.DeadlineMs))
			}
		}
		if _, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: id})); err != nil {
			t.Fatal(err)
		}
		b.waitForEnd(id, stopped)
		if at := b.job(id).Job.GuaranteedMs; at != 0 {
			t.Errorf("%s: after its end the status says guaranteed by %s", name, time.UnixMilli(at))
		}
		b.waitUntil("the node is free", func() bool { return b.metric("drover_attempts_live") == 0 })
	}
	deadline := time.Now().Add(time.Hour)
	for name, x := range map[string]struct {
		project string
		refused bool
		want    bool
	}{"alone": {}, "alone and refused": {refused: true, want: true}, "in a project": {project: "p", want: true}} {
		j := &facts.Job{Spec: &jobspec.Job{Deadline: &deadline, Project: x.project, RuntimeBound: jobspec.Duration(time.Minute)}, GuaranteeRefused: x.refused}
		var s scheduler.JobSpec
		setDeadlineSpec(j, &s, true)
		if s.Deadline == 0 || s.AcceptedByQuote != x.want {
			t.Errorf("%s: deadline %d, accepted %v, want %v", name, s.Deadline, s.AcceptedByQuote, x.want)
		}
	}
}
