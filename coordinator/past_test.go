package coordinator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/jobspec"
)

func (b *testCluster) history() droverv1connect.HistoryServiceClient {
	return droverv1connect.NewHistoryServiceClient(b.http, "http://c")
}

// pastJobs returns the names of past jobs, the last ended first.
func (b *testCluster) pastJobs(q *droverv1.ListPastJobsRequest) (names []string) {
	b.t.Helper()
	res, err := b.history().ListPastJobs(b.ctx, connect.NewRequest(q))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, j := range res.Msg.GetJobs() {
		names = append(names, j.GetName())
	}
	return names
}

func (b *testCluster) usage(groups ...droverv1.UsageGroup) []*droverv1.UsageRow {
	b.t.Helper()
	res, err := b.history().Usage(b.ctx, connect.NewRequest(&droverv1.UsageRequest{Groups: groups}))
	if err != nil {
		b.t.Fatal(err)
	}
	return res.Msg.GetRows()
}

// A job that the coordinator has forgotten is answered from the history as it was
// before: listed, its status, its tasks.
func TestForgottenJobIsStillThere(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.retainJobs, c.KeepLogs = 1, -1 })
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	first := groupJob("first", 3)
	first.GatherLogs = "hdfs:///logs"
	b.submit(first)
	before := b.waitForEnd("first", succeeded)
	for i := range 3 {
		b.submit(groupJob(fmt.Sprint("later", i), 1))
		b.waitForEnd(fmt.Sprint("later", i), succeeded)
	}
	b.waitUntil("it is forgotten", func() bool {
		_, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "first"}))
		return err != nil
	})
	after := b.job("first")
	if after == nil || after.Job.GetJob() != before.Job.GetJob() || after.Spec != before.Spec || after.Job.GetEndedMs() != before.Job.GetEndedMs() ||
		after.Job.GetTasksDone() != 3 || after.Stages[0].GetDone() != 3 || after.Job.GetSubmitter() != "local" || after.Logs != "hdfs:///logs/first-1" || !after.LogsGathered {
		t.Errorf("status from the history: %v\nbefore: %v", after, before)
	}
	tasks, err := b.client.ListTasks(b.ctx, connect.NewRequest(&droverv1.ListTasksRequest{Job: "first"}))
	if err != nil || len(tasks.Msg.GetTasks()) != 3 {
		t.Fatalf("tasks: %v, %v", tasks, err)
	}
	for _, x := range tasks.Msg.GetTasks() {
		if x.GetState() != "done" || len(x.GetAttempts()) != 1 || x.GetAttempts()[0].GetNode() != "n1" || !x.GetAttempts()[0].GetCommitted() {
			t.Errorf("task %v", x)
		}
	}
	part, err := b.client.ListTasks(b.ctx, connect.NewRequest(&droverv1.ListTasksRequest{Job: "first", From: 1, Limit: 1}))
	if err != nil || part.Msg.GetTotal() != 3 || len(part.Msg.GetTasks()) != 1 || part.Msg.GetTasks()[0].GetTask() != 1 || len(part.Msg.GetTasks()[0].GetAttempts()) != 1 {
		t.Errorf("one of its tasks: %v, %v", part, err)
	}
	if !after.GetMaySubmit() || after.GetMayOperate() {
		t.Errorf("it can be run again, and no more stopped: %v", after)
	}
	all, err := b.client.ListJobs(b.ctx, connect.NewRequest(&droverv1.ListJobsRequest{All: true}))
	if err != nil || len(all.Msg.GetJobs()) != 4 || all.Msg.GetMore() != 0 {
		t.Errorf("all jobs: %v, %v", all, err)
	}
	some, err := b.client.ListJobs(b.ctx, connect.NewRequest(&droverv1.ListJobsRequest{All: true, Limit: 3}))
	if err != nil || len(some.Msg.GetJobs()) != 3 || some.Msg.GetMore() != 1 {
		t.Errorf("three of all jobs: %v, %v", some, err)
	}
	attempts, err := b.history().ListPastAttempts(b.ctx, connect.NewRequest(&droverv1.ListPastAttemptsRequest{Job: "first", Limit: 2}))
	if err != nil || len(attempts.Msg.GetAttempts()) != 2 || attempts.Msg.GetNextPage() == "" {
		t.Fatalf("attempts: %v, %v", attempts, err)
	}
	a := attempts.Msg.GetAttempts()[0]
	if sum := a.GetStartingMs() + a.GetRunningMs() + a.GetSuspendedMs() + a.GetCommittingMs(); sum != a.GetEndedMs()-a.GetPlacedMs() || a.GetWaitingMs() < 0 || a.GetDemand().GetCpu() == 0 {
		t.Errorf("phases of %d ms, the attempt took %d ms: %v", sum, a.GetEndedMs()-a.GetPlacedMs(), a)
	}
}

// A job that the history has dropped before the coordinator forgot it is forgotten all the same.
func TestJobsThatTheHistoryDroppedAreForgotten(t *testing.T) {
	b := newTestCluster(t, func(c *Config) {
		c.retainJobs, c.KeepLogs, c.HistoryAge, c.SampleEvery = 1, -1, time.Millisecond, 2*time.Millisecond
	})
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	b.submit(groupJob("first", 1))
	b.waitForEnd("first", succeeded)
	b.waitUntil("the history has its usage and dropped the job", func() bool {
		return len(b.usage()) > 0 && len(b.pastJobs(&droverv1.ListPastJobsRequest{})) == 0
	})
	b.submit(groupJob("second", 1))
	b.waitForEnd("second", succeeded)
	b.waitUntil("the first is forgotten", func() bool {
		_, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "first"}))
		return connect.CodeOf(err) == connect.CodeNotFound
	})
}

// watchedContext calls a function before each look at one of its values.
type watchedContext struct {
	context.Context
	look func()
}

// Value implements context.Context.
func (c watchedContext) Value(key any) any {
	c.look()
	return c.Context.Value(key)
}

// A job that is forgotten while a list is made, after the facts were read and before the history is, is listed or counted once.
func TestJobForgottenDuringAListIsListedOnce(t *testing.T) {
	for limit, want := range map[int32]struct{ listed, more int }{0: {2, 0}, 1: {1, 1}} {
		l := newTestLeader(t, nil)
		for id, name := range []string{"a", "b"} {
			j := groupJob(name, 1)
			jobspec.SetDefaults(j)
			if res, err := (&submitter{l.c}).propose(t.Context(), identity{}, j, "", "", &located{}, jobForecast{}); err != nil || res.Err != nil {
				t.Fatal(err, res.Err)
			}
			mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: uint64(id + 1)}}})
		}
		if err := l.c.recorder.flush(); err != nil {
			t.Fatal(err)
		}
		forget := sync.OnceFunc(func() {
			mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_JobsForgotten{JobsForgotten: &droverv1.JobsForgottenFact{Jobs: []uint64{1, 2}}}})
		})
		ctx := watchedContext{context.WithValue(t.Context(), identityKey{}, identity{kind: kindLocal}), func() {
			if calledBy("(*clientService).addPastJobs") {
				forget()
			}
		}}
		res, err := newClientService(l.c).ListJobs(ctx, connect.NewRequest(&droverv1.ListJobsRequest{All: true, Limit: limit}))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(res.Msg.GetJobs()); n != want.listed || int(res.Msg.GetMore()) != want.more {
			t.Errorf("limit %d: %d jobs are listed and %d more counted, want %d and %d", limit, n, res.Msg.GetMore(), want.listed, want.more)
		}
		l.c.view(func(f *facts.Facts) {
			if f.Job(1) != nil || f.Job(2) != nil {
				t.Error("they were not forgotten")
			}
		})
	}
}

// The schedule of the past has the attempts of forgotten jobs, after a restart too.
func TestScheduleOfForgottenJobs(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.retainJobs, c.KeepLogs = 1, -1 })
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	for i := range 3 {
		b.submit(groupJob(fmt.Sprint("j", i), 2))
		b.waitForEnd(fmt.Sprint("j", i), succeeded)
	}
	forgotten := func() bool {
		_, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "j0"}))
		return err != nil
	}
	b.waitUntil("the first is forgotten", forgotten)
	check := func(req *droverv1.GetScheduleRequest, attempts int) {
		t.Helper()
		res, err := b.client.GetSchedule(b.ctx, connect.NewRequest(req))
		if err != nil || len(res.Msg.GetAttempts()) != attempts {
			t.Fatalf("%v: %v, want %d attempts (%v)", req, res, attempts, err)
		}
		for _, a := range res.Msg.GetAttempts() {
			if a.GetState() != "succeeded" || a.GetNode() != res.Msg.GetNodes()[0].GetNode() || a.GetEndMs() < a.GetPlacedMs() {
				t.Errorf("%v", a)
			}
		}
		jobs := map[uint64]string{}
		for _, j := range res.Msg.GetJobs() {
			jobs[j.GetJob()] = j.GetName() + " " + strings.Join(j.GetStages(), ",")
		}
		if len(jobs) != attempts/2 || jobs[1] != "j0 main" {
			t.Errorf("jobs %v", jobs)
		}
	}
	check(&droverv1.GetScheduleRequest{}, 6)
	check(&droverv1.GetScheduleRequest{Job: "1"}, 2)
	check(&droverv1.GetScheduleRequest{Node: "n1", Tenant: "default"}, 6)
	b.kill()
	b.start()
	b.waitUntil("it leads again", forgotten)
	check(&droverv1.GetScheduleRequest{}, 6)
	_, err := b.client.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{Job: "none"}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a job that never was: %v", err)
	}
}

// Whatever the file of the history misses after a crash comes from the log, and
// nothing is counted twice.
func TestHistoryMissesNothingAfterACrash(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	path := filepath.Join(b.cfg.Dir, "past", past.FileName)
	jobs := 0
	run := func(n int) {
		for range n {
			name := fmt.Sprint("j", jobs)
			b.submit(groupJob(name, 4))
			b.waitForEnd(name, succeeded)
			jobs++
		}
	}
	check := func(what string) {
		t.Helper()
		b.waitUntil(what+": every job is there", func() bool { return len(b.pastJobs(&droverv1.ListPastJobsRequest{Limit: 1000})) == jobs })
		rows := b.usage()
		if len(rows) != 1 || rows[0].GetAttempts() != int64(4*jobs) {
			t.Fatalf("%s: %d jobs of 4 tasks ran, usage is %v", what, jobs, rows)
		}
	}
	run(3)
	b.kill()
	early, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b.start()
	run(3)
	check("at first")
	b.kill()
	// As after kill -9 when the last jobs had ended and were not written yet.
	if err := os.WriteFile(path, early, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	check("after a crash")
	b.kill()
	b.start()
	check("after an orderly stop")
	b.kill()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b.start()
	check("after the file was lost")
}

// A snapshot of the log, after which entries are dropped, waits for the history; and
// a history that is gone gets what the snapshot still has.
func TestSnapshotsDoNotPassTheHistory(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.SnapshotEntries = 10 })
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	for i := range 6 {
		b.submit(groupJob(fmt.Sprint("j", i), 4))
		b.waitForEnd(fmt.Sprint("j", i), succeeded)
	}
	b.waitUntil("there is a snapshot", func() bool {
		found, _ := filepath.Glob(filepath.Join(b.cfg.Dir, "raft", "snapshots", "*", "meta.crc32c"))
		return len(found) > 0
	})
	b.kill()
	dir := filepath.Join(b.cfg.Dir, "past")
	s, err := past.Open(dir, past.Options{})
	if err != nil {
		t.Fatal(err)
	}
	applied := s.Applied()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	found, _ := filepath.Glob(filepath.Join(b.cfg.Dir, "raft", "snapshots", "*"))
	for _, name := range found {
		var term, index uint64
		// Raft's own entries end a snapshot, too: the history has the last of ours.
		if _, err := fmt.Sscanf(filepath.Base(name), "%d-%d-", &term, &index); err != nil || applied+8 < index {
			t.Errorf("snapshot %s, the history has everything to entry %d (%v)", filepath.Base(name), applied, err)
		}
	}
	for _, damage := range []func() error{
		func() error { return os.Remove(filepath.Join(dir, past.FileName)) },
		func() error {
			data, err := os.ReadFile(filepath.Join(dir, past.FileName))
			if err != nil {
				return err
			}
			for i := range 32 { // a meta page
				data[4096+i] ^= 0x55
			}
			return os.WriteFile(filepath.Join(dir, past.FileName), data, 0o600)
		},
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		b.start()
		b.waitUntil("every job is there", func() bool { return len(b.pastJobs(&droverv1.ListPastJobsRequest{})) == 6 })
		if rows := b.usage(); len(rows) != 1 || rows[0].GetAttempts() != 24 {
			t.Errorf("6 jobs of 4 tasks ran, usage is %v", rows)
		}
		status, err := b.client.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
		aside, _ := filepath.Glob(filepath.Join(dir, past.FileName+".damaged-*"))
		if err != nil || len(status.Msg.GetWarnings()) != len(aside) {
			t.Errorf("%d damaged files were moved aside, and the status says %v (%v)", len(aside), status.Msg.GetWarnings(), err)
		}
		b.kill()
	}
	if aside, _ := filepath.Glob(filepath.Join(dir, past.FileName+".damaged-*")); len(aside) != 1 {
		t.Errorf("the damaged file is not kept: %v", aside)
	}
}

// Users see their own jobs and those of tenants that they may read.
func TestHistoryIsKeptApart(t *testing.T) {
	b, as, base := secure(t)
	root := droverv1connect.NewClientServiceClient(as("user/root"), base)
	if _, err := root.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{
		{Name: "a", Submit: []string{"alice"}, Read: []string{"reader"}}, {Name: "b", Submit: []string{"bob", "alice"}}, {Name: "default"}}})); err != nil {
		t.Fatal(err)
	}
	submit := func(user, tenant, name string) {
		j := groupJob(name, 1)
		j.Tenant = tenant
		c := droverv1connect.NewClientServiceClient(as("user/"+user), base)
		if _, err := c.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: encoded(t, j)})); err != nil {
			t.Fatal(err)
		}
		if _, err := root.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: name})); err != nil {
			t.Fatal(err)
		}
	}
	submit("alice", "a", "one")
	submit("bob", "b", "two")
	submit("alice", "b", "three")
	list := func(user string, q *droverv1.ListPastJobsRequest) string {
		res, err := droverv1connect.NewHistoryServiceClient(as("user/"+user), base).ListPastJobs(b.ctx, connect.NewRequest(q))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, j := range res.Msg.GetJobs() {
			names = append(names, j.GetName())
		}
		return fmt.Sprint(names)
	}
	b.waitUntil("all jobs are in the history", func() bool { return list("root", &droverv1.ListPastJobsRequest{}) == "[three two one]" })
	for _, c := range []struct {
		user string
		q    *droverv1.ListPastJobsRequest
		want string
	}{
		{"alice", &droverv1.ListPastJobsRequest{}, "[three two one]"},
		{"bob", &droverv1.ListPastJobsRequest{}, "[three two]"},
		{"reader", &droverv1.ListPastJobsRequest{}, "[one]"},
		{"stranger", &droverv1.ListPastJobsRequest{}, "[]"},
		{"root", &droverv1.ListPastJobsRequest{User: "alice"}, "[three one]"},
		{"root", &droverv1.ListPastJobsRequest{User: "alice", Tenant: "b"}, "[three]"},
		{"root", &droverv1.ListPastJobsRequest{Tenant: "b"}, "[three two]"},
		{"root", &droverv1.ListPastJobsRequest{NamePrefix: "t"}, "[three two]"},
		{"root", &droverv1.ListPastJobsRequest{States: []droverv1.JobState{droverv1.JobState_JOB_STATE_FAILED}}, "[]"},
		{"root", &droverv1.ListPastJobsRequest{States: []droverv1.JobState{droverv1.JobState_JOB_STATE_STOPPED}}, "[three two one]"},
		{"root", &droverv1.ListPastJobsRequest{UntilMs: 1}, "[]"},
		{"root", &droverv1.ListPastJobsRequest{SinceMs: time.Now().Add(time.Hour).UnixMilli()}, "[]"},
	} {
		if got := list(c.user, c.q); got != c.want {
			t.Errorf("%s asks for %v: %s, want %s", c.user, c.q, got, c.want)
		}
	}
	_, err := droverv1connect.NewHistoryServiceClient(as("user/bob"), base).GetPastJob(b.ctx, connect.NewRequest(&droverv1.GetPastJobRequest{Job: "1"}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("bob asks for a job of another tenant: %v", err)
	}
}

func encoded(t *testing.T, j *jobspec.Job) string {
	t.Helper()
	jobspec.SetDefaults(j)
	text, err := jobspec.Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Samples of the cluster and of tenants with live jobs are taken and listed.
func TestSamplesOverTime(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.SampleEvery = 20 * time.Millisecond })
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("j", 1000))
	list := func(tenant string) []*droverv1.PastSample {
		res, err := b.history().ListPastSamples(b.ctx, connect.NewRequest(&droverv1.ListPastSamplesRequest{Tenant: tenant}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.GetSamples()
	}
	b.waitUntil("the tenant has a sample with its share", func() bool {
		l := list("default")
		return len(l) > 0 && l[len(l)-1].GetShare() > 0.5 && l[len(l)-1].GetFairShare() == 1 && l[len(l)-1].GetTasksWaiting() > 100
	})
	l := list("")
	last := l[len(l)-1]
	if last.GetNodesUp() != 1 || last.GetCapacity().GetCpu() == 0 || last.GetTasksRunning() < 1 || last.GetJobsLive() != 1 {
		t.Errorf("sample of the cluster: %v", last)
	}
}

// The history is brought back to its size at the next sample, not only after sixty of them.
func TestHistoryIsKeptToItsSizeAtEachSample(t *testing.T) {
	const every = 2 * time.Second
	b := newTestCluster(t, func(c *Config) { c.SampleEvery, c.HistoryBytes, c.retainJobs, c.KeepLogs = every, 512<<10, 1, -1 })
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	for began, i := time.Now(), 0; i == 0 || slices.Contains(b.pastJobs(&droverv1.ListPastJobsRequest{Limit: 1000}), "j0"); i++ {
		if time.Since(began) > 50*every {
			t.Fatalf("after %d jobs of 200 tasks the first one is still in the history", i)
		}
		name := fmt.Sprint("j", i)
		b.submit(groupJob(name, 200))
		b.waitForEnd(name, succeeded)
		b.waitUntil("it is in the history", func() bool {
			return slices.Contains(b.pastJobs(&droverv1.ListPastJobsRequest{Limit: 1}), name)
		})
	}
}

// The events of a job stay readable when the coordinator has forgotten it, after a restart too.
func TestEventsOfForgottenJobs(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.retainJobs, c.KeepLogs = 1, -1 })
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	for _, name := range []string{"first", "second", "third"} {
		b.submit(groupJob(name, 60)) // more events than are kept of one job
		b.waitForEnd(name, succeeded)
	}
	forgotten := func() bool {
		_, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "first"}))
		return err != nil
	}
	check := func() {
		t.Helper()
		k := b.eventKinds("first")
		if n := len(k); n != 100 || k[0] != "job.accepted" || k[n-1] != "job.succeeded" || count(k, "task.placed") == 0 {
			t.Errorf("%d events: %v", len(k), k)
		}
	}
	b.waitUntil("the first is forgotten", forgotten)
	check()
	b.kill()
	b.start()
	b.waitUntil("it leads again", forgotten)
	check()
	st, err := b.client.Events(b.ctx, connect.NewRequest(&droverv1.EventsRequest{Job: "first", Limit: 3}))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for st.Receive() {
		n++
	}
	if n != 3 || st.Err() != nil {
		t.Errorf("%d of the last three events, %v", n, st.Err())
	}
}

// A list of the jobs in a state that jobs do not have is refused with the states that they have. It was empty.
func TestListsOfUnknownStatesAreRefused(t *testing.T) {
	b := newTestCluster(t, nil)
	for _, state := range []droverv1.JobState{droverv1.JobState_JOB_STATE_UNSPECIFIED, 7, -1} {
		states := []droverv1.JobState{succeeded, state}
		_, live := b.client.ListJobs(b.ctx, connect.NewRequest(&droverv1.ListJobsRequest{States: states}))
		_, past := b.history().ListPastJobs(b.ctx, connect.NewRequest(&droverv1.ListPastJobsRequest{States: states}))
		for what, err := range map[string]error{"live": live, "past": past} {
			if err == nil || connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), fmt.Sprintf("no state %d: want some of JOB_STATE_PENDING, JOB_STATE_RUNNING, ", state)) ||
				!strings.HasSuffix(err.Error(), "JOB_STATE_STOPPED") {
				t.Errorf("%s jobs in state %d: %v", what, state, err)
			}
		}
	}
}
