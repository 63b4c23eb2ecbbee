package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
)

// waitForNodes waits until every simulated node has a number.
func (b *testCluster) waitForNodes() {
	b.t.Helper()
	b.waitUntil("the nodes are registered", func() bool {
		for _, n := range b.nodes {
			if id, _ := n.Registered(); id == 0 {
				return false
			}
		}
		return true
	})
}

// crasher crashes a coordinator at its n-th entry, before or after it is in the
// log; the coordinator proposes nothing afterwards.
type crasher struct {
	mu    sync.Mutex
	entry uint64
	point replica.Point
	dead  chan struct{}
	fired bool
}

func (c *crasher) hook(p replica.Point, n uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fired {
		return true
	}
	if c.entry == 0 || n != c.entry || p != c.point {
		return false
	}
	c.fired = true
	close(c.dead)
	return true
}

// TestCrashAtEveryEntryKeepsResult crashes the coordinator at each entry of a
// job's life, before and after it is durable, restarts it on the same folder,
// and expects the job's result, once.
func TestCrashAtEveryEntryKeepsResult(t *testing.T) {
	for _, point := range []replica.Point{replica.Before, replica.After} {
		step := uint64(1)
		if testing.Short() {
			step = 4
		}
		for n := uint64(1) + uint64(point)%step; ; n += step {
			if n > 40 {
				t.Fatal("a small job takes more than 40 entries")
			}
			name := fmt.Sprintf("entry %d point %d", n, point)
			if crashed := crashAt(t, name, n, point); !crashed {
				break // the job ended before its n-th entry
			}
		}
	}
}

func crashAt(t *testing.T, name string, n uint64, point replica.Point) (crashed bool) {
	t.Helper()
	c := &crasher{entry: n, point: point, dead: make(chan struct{})}
	b := newTestCluster(t, func(cfg *Config) { cfg.Crash = c.hook })
	defer b.kill()
	b.fs.Input("hdfs:///in", 2, "n1")
	_, stop := b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	defer stop()
	restart := func() {
		<-c.dead
		b.kill()
		b.cfg.Crash = nil
		b.start()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-c.dead:
			restart()
		case <-b.ctx.Done():
		}
	}()
	b.waitUntil(name+": the job is accepted", func() bool {
		_, err := b.trySubmit(mapReduceJob("wc", 1), "once")
		return err == nil
	})
	got := b.waitForEnd("wc", succeeded)
	c.mu.Lock()
	crashed, c.fired = c.fired, true
	if !crashed {
		close(c.dead)
	}
	c.mu.Unlock()
	<-done
	if files := b.fs.String(); files != "[hdfs:///out/wc/_SUCCESS hdfs:///out/wc/part-00000]" {
		t.Fatalf("%s: files are %s", name, files)
	}
	if got.Job.Job != 1 || got.Job.TasksDone != 3 {
		t.Fatalf("%s: %v", name, got.Job)
	}
	if _, most := b.nodes[0].StartCounts(); most > 1 {
		t.Fatalf("%s: a run was started %d times", name, most)
	}
	return crashed
}

// TestExclusiveTaskRestartsOnlyAfterLease checks that an exclusive task is
// retried only after its node's lease has ended, when the node has frozen it
// (package node).
func TestExclusiveTaskRestartsOnlyAfterLease(t *testing.T) {
	b := newTestCluster(t, func(c *Config) {
		c.Lease, c.Scheduler, c.SchedulerParams = 300*time.Millisecond, "3dsf", map[string]string{"speculate": "1"}
	})
	n1, stop1 := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	alone := groupJob("alone", 1)
	alone.Stages[0].Exclusive = true
	b.submit(alone)
	b.waitUntil("it runs on n1, with the word", func() bool { w := n1.Wanted(); return len(w) == 1 && w[0].GetSpec().GetExclusive() })
	n2, _ := b.addNode(coordtest.Info("n2"), coordtest.Succeed)
	b.waitUntil("n2 is up", func() bool { id, _ := n2.Registered(); return id != 0 })
	if runs, _ := n2.StartCounts(); runs != 0 {
		t.Errorf("n2 runs it beside n1")
	}
	stop1()
	b.waitForEnd("alone", succeeded)
	var lost, placed int
	for i, l := range strings.Split(b.eventLog(), "\n") {
		switch {
		case strings.Contains(l, "node.lost"):
			lost = i
		case strings.Contains(l, "task.placed") && strings.Contains(l, "main/0.2"):
			placed = i
		}
	}
	if lost == 0 || placed < lost {
		t.Errorf("n1 was lost at line %d, the task placed again at line %d of\n%s", lost, placed, b.eventLog())
	}
}

func TestLostNodeReschedulesTasksAndMapOutputs(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Lease = 300 * time.Millisecond })
	b.fs.Input("hdfs:///in", 6, "n1")
	// Maps succeed, reduces hang until told otherwise.
	slow := func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetSpec().GetKind() == "reduce" {
			return nil
		}
		return coordtest.Succeed(w)
	}
	n1, stop1 := b.addNode(coordtest.Info("n1"), slow)
	b.waitForNodes()
	b.submit(mapReduceJob("wc", 2))
	b.waitUntil("the maps are done and the reduces run", func() bool {
		j := b.job("wc")
		return j.Stages[0].Done == 6 && j.Stages[1].Running == 2
	})
	n2, _ := b.addNode(coordtest.Info("n2"), coordtest.Succeed)
	_, epoch := n1.Registered()
	stop1()
	b.waitForEnd("wc", succeeded)
	if runs, _ := n2.StartCounts(); runs != 8 {
		t.Errorf("n2 ran %d, want all 8 tasks again", runs)
	}
	// What the lost maps had counted is not there twice.
	if j := b.job("wc"); j.Counters["app.records"] != 8 || j.Stages[0].MeanTaskMs != 5 {
		t.Errorf("%d records, 5 ms are the mean of %d ms", j.Counters["app.records"], j.Stages[0].MeanTaskMs)
	}
	if !strings.Contains(b.eventLog(), "task.output_lost") {
		t.Errorf("no event of lost outputs:\n%s", b.eventLog())
	}
	// The node returns: it has a new epoch, and nothing of the old one is
	// wanted.
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	back := b.nodes[2]
	b.waitUntil("n1 is back in a new epoch", func() bool { _, e := back.Registered(); return e > epoch })
	b.waitUntil("it is told what is wanted", func() bool { return back.FullSets() > 0 })
	if w := back.Wanted(); len(w) != 0 {
		t.Errorf("of the returned node is wanted %v", w)
	}
}

// Reduces that wait for lost map outputs fill what is left of the cluster: one gives
// way to the map, and goes on when the map is done.
func TestReducesGiveWayToLostMaps(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Lease = 300 * time.Millisecond })
	b.fs.Input("hdfs:///in", 4, "n1")
	hold := func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		for _, o := range w.GetMapOutputs() { // the reduces run until all maps ran again
			if o.GetAttempt() == 1 {
				return nil
			}
		}
		return coordtest.Succeed(w)
	}
	_, stop1 := b.addNode(coordtest.Info("n1"), hold)
	b.waitForNodes()
	b.submit(mapReduceJob("wc", 16))
	b.waitUntil("the maps are done on n1 and its reduces run", func() bool {
		j := b.job("wc")
		return j.Stages[0].Done == 4 && j.Stages[1].Running == 8
	})
	b.addNode(coordtest.Info("n2"), hold)
	b.waitUntil("the reduces fill both nodes", func() bool { return b.job("wc").Stages[1].Running == 16 })
	stop1()
	b.waitForEnd("wc", succeeded)
	if log := b.eventLog(); !strings.Contains(log, "task.suspended") || strings.Contains(log, "task.failed") {
		t.Errorf("want a suspended reduce and no failed attempt:\n%s", log)
	}
}

// With a slow start the reduces of a job run beside its last maps, and are told of their
// outputs a few times before all are there.
func TestReducesStartBesideTheLastMaps(t *testing.T) {
	b := newTestCluster(t, nil)
	const maps = 24
	b.fs.Input("hdfs:///in", maps, "n1")
	var mu sync.Mutex
	allowed := int32(0)     // maps that may end
	known := map[int]bool{} // numbers of outputs that the reduces were told of
	behaviour := func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		mu.Lock()
		defer mu.Unlock()
		if w.GetSpec().GetKind() == "map" {
			if w.GetKey().GetTask() >= allowed {
				return nil
			}
			return coordtest.Succeed(w)
		}
		known[len(w.GetMapOutputs())] = true
		return coordtest.Succeed(w)
	}
	info := coordtest.Info("n1")
	info.Allocatable.Cpu = 16_000
	n1, _ := b.addNode(info, behaviour)
	b.waitForNodes()
	j := mapReduceJob("wc", 2)
	j.Stages[1].SlowStart = 0.25
	b.submit(j)
	for n := int32(1); n <= maps; n++ {
		mu.Lock()
		allowed = n
		mu.Unlock()
		n1.Advance()
		b.waitUntil("a map more is done", func() bool { return b.job("wc").Stages[0].Done == n })
		if n == maps/2 {
			b.waitUntil("the reduces run beside the maps", func() bool { return b.job("wc").Stages[1].Running == 2 })
		}
	}
	b.waitForEnd("wc", succeeded)
	mu.Lock()
	defer mu.Unlock()
	if told := len(known); !known[maps] || told < 3 || told > 8 {
		t.Errorf("the reduces were told of %d numbers of outputs: %v", told, known)
	}
}

func TestFailureClasses(t *testing.T) {
	tests := map[string]struct {
		cause    droverv1.Cause
		tasks    int
		attempts int32 // before the job fails
		message  string
		drained  bool
	}{
		"a command that fails has four attempts":              {droverv1.Cause_CAUSE_EXIT, 1, 4, "4 of 4 attempts failed; the last: boom", false},
		"over the memory limit counts too":                    {droverv1.Cause_CAUSE_MEMORY, 1, 4, "4 of 4 attempts failed", false},
		"what cannot be run at all is not tried again":        {droverv1.Cause_CAUSE_SPEC, 1, 1, "it cannot be run", false},
		"a node on which infrastructure fails is put to rest": {droverv1.Cause_CAUSE_INFRA, 1, 3, "", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newTestCluster(t, nil)
			b.addNode(coordtest.Info("n1"), coordtest.Fail(tc.cause, "boom"))
			b.waitForNodes()
			b.submit(groupJob("j", tc.tasks))
			if tc.drained {
				b.waitUntil("the node takes no new work", func() bool {
					l, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
					return err == nil && l.Msg.Nodes[0].Draining
				})
				j := b.job("j")
				if ended(j.Job.State) || j.Stages[0].FailedAttempts != tc.attempts {
					t.Fatalf("%v", j)
				}
				if !strings.Contains(b.eventLog(), "3 failures of the infrastructure") {
					t.Error(b.eventLog())
				}
				// A healthy node takes over, and the failures do not count
				// against the job.
				b.addNode(coordtest.Info("n2"), coordtest.Succeed)
				b.waitForEnd("j", succeeded)
				return
			}
			got := b.waitForEnd("j", failed)
			if got.Stages[0].FailedAttempts != tc.attempts || !strings.Contains(got.Job.Message, tc.message) {
				t.Errorf("%d failed attempts, message %q; want %d, %q", got.Stages[0].FailedAttempts, got.Job.Message, tc.attempts, tc.message)
			}
			if got.FailureTail != "last words\n" || !strings.HasPrefix(got.FailedTask, "main/0.") {
				t.Errorf("failed task %q with tail %q", got.FailedTask, got.FailureTail)
			}
		})
	}
}

// What one node cannot start another one may: the job fails when two could not, or one twice.
func TestWhatANodeCannotStartIsTriedOnAnother(t *testing.T) {
	refuse := coordtest.Fail(droverv1.Cause_CAUSE_SPEC, "boom")
	for name, tc := range map[string]struct {
		second   coordtest.Behaviour
		tasks    int
		end      droverv1.JobState
		attempts int32 // that failed, at most
		message  string
	}{
		"the other one can":       {coordtest.Succeed, 1, succeeded, 1, ""},
		"of many tasks":           {coordtest.Succeed, 6, succeeded, 6, ""},
		"the other one cannot":    {refuse, 1, failed, 2, "it cannot be run; the last: boom"},
		"nor can it any of these": {refuse, 6, failed, 12, "it cannot be run; the last: boom"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestCluster(t, nil)
			b.addNode(coordtest.Info("n1"), refuse)
			b.waitForNodes()
			b.addNode(coordtest.Info("n2"), tc.second)
			b.waitUntil("two nodes", func() bool { return b.nodeState("n2") == "up" })
			b.submit(groupJob("j", tc.tasks))
			got := b.waitForEnd("j", tc.end)
			if got.Stages[0].FailedAttempts > tc.attempts || !strings.Contains(got.Job.Message, tc.message) {
				t.Errorf("%d attempts failed, at most %d expected; message %q, want %q", got.Stages[0].FailedAttempts, tc.attempts, got.Job.Message, tc.message)
			}
		})
	}
}

// A map output that a reduce cannot fetch is made again, once: a report of the reduce that does not yet know of the
// new one says nothing about it.
func TestUnfetchableMapOutputIsRecomputed(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 3, "n1")
	n, _ := b.addNode(coordtest.Info("n1"), func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetSpec().GetKind() == "reduce" {
			return nil
		}
		return coordtest.Succeed(w)
	})
	b.waitForNodes()
	b.submit(mapReduceJob("wc", 1))
	var reduce *droverv1.WantedAttempt
	waitForOutput := func(attempt int32) {
		b.waitUntil(fmt.Sprint("the reduce task is told of attempt ", attempt), func() bool {
			for _, w := range n.Wanted() {
				if w.GetSpec().GetKind() == "reduce" && w.GetMapOutputsComplete() && slices.ContainsFunc(w.GetMapOutputs(), func(o *droverv1.MapOutput) bool { return o.Task == 1 && o.Attempt == attempt }) {
					reduce = w
					return true
				}
			}
			return false
		})
	}
	missing := func() {
		if _, err := n.SendReport(b.ctx, &droverv1.SeenAttempt{Key: reduce.GetKey(), Phase: droverv1.Phase_PHASE_RUNNING, Level: droverv1.Level_LEVEL_RUNNING, LostOutputs: []*droverv1.MapOutput{{Task: 1, Attempt: 1, Run: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	waitForOutput(1)
	missing()
	waitForOutput(2)
	missing()
	done := coordtest.Succeed(reduce)
	done.Key = reduce.GetKey()
	b.fs.Make(reduce.GetSpec().GetOutput())
	if _, err := n.SendReport(b.ctx, done); err != nil {
		t.Fatal(err)
	}
	b.waitForEnd("wc", succeeded)
	if runs, _ := n.StartCounts(); runs != 5 || b.countEvents("task.output_lost") != 1 {
		t.Errorf("%d runs, want 3 maps, 1 made again, 1 reduce; %d outputs lost, want 1", runs, b.countEvents("task.output_lost"))
	}
}

func TestStaleReportsAreIgnored(t *testing.T) {
	b := newTestCluster(t, nil)
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	other, _ := b.addNode(coordtest.Info("n2"), coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("j", 1))
	var key *droverv1.AttemptKey
	owner := n
	b.waitUntil("the task runs", func() bool {
		for _, x := range b.nodes {
			if w := x.Wanted(); len(w) > 0 {
				key, owner = w[0].Key, x
			}
		}
		return key != nil
	})
	if owner == other {
		other = n
	}
	end := func(change func(*droverv1.AttemptKey)) *droverv1.SeenAttempt {
		k := &droverv1.AttemptKey{Job: key.Job, Stage: key.Stage, Task: key.Task, Attempt: key.Attempt, Run: key.Run}
		change(k)
		return &droverv1.SeenAttempt{Key: k, Phase: droverv1.Phase_PHASE_SUCCEEDED}
	}
	say := func(what string, from *coordtest.Node, s *droverv1.SeenAttempt) {
		t.Helper()
		if _, err := from.SendReport(b.ctx, s); err != nil {
			t.Fatal(err)
		}
		if j := b.job("j"); j.Job.TasksDone != 0 || ended(j.Job.State) {
			t.Fatalf("%s was believed: %v", what, j.Job)
		}
	}
	say("another run", owner, end(func(k *droverv1.AttemptKey) { k.Run = 2 }))
	say("another attempt", owner, end(func(k *droverv1.AttemptKey) { k.Attempt = 2 }))
	say("another node", other, end(func(*droverv1.AttemptKey) {}))
	say("no such job", owner, end(func(k *droverv1.AttemptKey) { k.Job = 99 }))
	res, err := owner.Client.Report(b.ctx, connect.NewRequest(&droverv1.ReportRequest{Node: 1, Epoch: 99, Attempts: []*droverv1.SeenAttempt{end(func(*droverv1.AttemptKey) {})}}))
	if err != nil || !res.Msg.RegisterAgain {
		t.Fatalf("a report of another epoch: %v %v", res, err)
	}
	// A correct report, twice.
	for range 2 {
		if _, err := owner.SendReport(b.ctx, end(func(*droverv1.AttemptKey) {})); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.waitForEnd("j", succeeded); got.Job.TasksDone != 1 {
		t.Fatalf("%v", got.Job)
	}
}

func TestStoppedJobLeavesNothing(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.KeepLogs = -1 })
	b.fs.Input("hdfs:///in", 2, "n1")
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	id := b.submit(mapReduceJob("wc", 1))
	b.waitUntil("maps run", func() bool { return b.job("wc").Stages[0].Running == 2 })
	b.fs.Make(fmt.Sprintf("hdfs:///out/_temporary.wc.x-%d/file", id)) // of another cluster: must remain
	if _, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "wc", Reason: "enough"})); err != nil {
		t.Fatal(err)
	}
	got := b.waitForEnd("wc", stopped)
	if got.Job.Message != "stopped by local: enough" {
		t.Errorf("message %q", got.Job.Message)
	}
	b.waitUntil("the temporary folder was removed", func() bool { return b.fs.RequestCount("delete") == 1 })
	b.waitUntil("nothing is wanted of the node", func() bool { return len(n.Wanted()) == 0 })
	b.waitUntil("name and output are free again", func() bool {
		_, err := b.trySubmit(mapReduceJob("wc", 1), "")
		return err == nil
	})
}

func TestInvalidSubmissionsAreRejected(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.locateLimit = 5 * time.Second })
	b.fs.Input("hdfs:///in", 1, "n1")
	b.fs.Make("hdfs:///out/there")
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("live", 1))
	b.submit(mapReduceJob("holder", 0))
	digest := "sha256:" + strings.Repeat("a", 64)
	tests := map[string]struct {
		spec  string
		class error
		want  string
	}{
		"missing input":            {`{"version":1,"name":"a","tenant":"default","priority":"low","input":{"paths":["hdfs:///none"]},"stages":[{"name":"map","kind":"map","builtin":["identity"]}]}`, fault.NotFound, "input hdfs:///none does not exist"},
		"an output that exists":    {`{"version":1,"name":"a","input":{"paths":["hdfs:///in"]},"output":{"path":"hdfs:///out/there"},"stages":[{"name":"map","kind":"map","builtin":["identity"]}]}`, fault.Exists, "output hdfs:///out/there exists already"},
		"a reserved output":        {`{"version":1,"name":"a","input":{"paths":["hdfs:///in"]},"output":{"path":"hdfs:///out/holder/"},"stages":[{"name":"map","kind":"map","builtin":["identity"]}]}`, fault.Conflict, `reserved by job "holder" (number 2)`},
		"an unknown image":         {`{"version":1,"name":"a","image":{"kind":"oci-archive","source":"x.tar","digest":"` + digest + `"},"stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.NotFound, digest + " is not in the store"},
		"an image from a registry": {`{"version":1,"name":"a","image":{"kind":"registry","source":"evil"},"stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.Denied, "not on the operator's list"},
		"a demand over every node": {`{"version":1,"name":"a","stages":[{"name":"s","kind":"group","command":["x"],"resources":{"cpu":64000,"memory":0,"io":0}}]}`, fault.Exhausted, "no node can run a task of cpu 64,"},
		"an unknown tenant":        {`{"version":1,"name":"a","tenant":"nobody","stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.NotFound, `tenant "nobody" is unknown`},
		"a live name":              {`{"version":1,"name":"live","stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.Conflict, `job "live" is live as number 1`},
		"a deadline in the past":   {`{"version":1,"name":"a","deadline":"2020-01-01T00:00:00Z","stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.Invalid, "deadline 2020-01-01T00:00:00Z is in the past"},
		"a deadline out of range":  {`{"version":1,"name":"a","deadline":"9020-01-01T00:00:00Z","stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.Invalid, "is out of range"},
		"a negative bound":         {`{"version":1,"name":"a","runtime_bound":"-1h0m0s","stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.Invalid, "runtime_bound: negative duration"},
		"an unknown on_miss":       {`{"version":1,"name":"a","deadline":"2100-01-01T00:00:00Z","on_miss":"hope","stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.Invalid, `on_miss "hope" is not known`},
		"on_miss without deadline": {`{"version":1,"name":"a","on_miss":"stop","stages":[{"name":"s","kind":"group","command":["x"]}]}`, fault.Invalid, "on_miss without a deadline"},
		"an invalid job":           {`{"version":1,"name":"a b","stages":[]}`, fault.Invalid, `"a b" is not a valid name`},
		"an unknown field":         {`{"version":1,"nome":"a"}`, fault.Invalid, "unknown field"},
		"an upload of 2 GB":        {`{"version":1,"name":"a","stages":[{"name":"s","kind":"group","command":["x"],"files":[{"name":"f","digest":"` + digest + `","size":2147483648}]}]}`, fault.Invalid, "over the limit of 512MiB"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: tc.spec}))
			err = wire.FromError(err)
			if !errors.Is(err, tc.class) || !strings.Contains(fmt.Sprint(err), tc.want) || strings.Contains(fmt.Sprint(err), "\n") {
				t.Fatalf("got %v\nwant %v with %q on one line", err, tc.class, tc.want)
			}
		})
	}
	t.Run("a NameNode that does not answer", func(t *testing.T) {
		b.fs.FailWith(func(*droverv1.NodeRequest) (error, string) {
			return fault.Unavailable, "the NameNode at nn:8020 does not answer"
		})
		defer b.fs.FailWith(nil)
		_, err := b.trySubmit(mapReduceJob("x", 0), "")
		if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "nn:8020 does not answer") {
			t.Fatal(err)
		}
	})
}

func TestIdempotencyKeyReturnsFirstResponse(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	first, err := b.trySubmit(groupJob("j", 1), "k")
	if err != nil {
		t.Fatal(err)
	}
	b.waitForEnd("j", succeeded)
	b.kill()
	b.start()
	again, err := b.trySubmit(groupJob("j", 1), "k")
	if err != nil || again != first {
		t.Fatalf("the second answer is %d %v, the first was %d", again, err, first)
	}
	if other, err := b.trySubmit(groupJob("j", 1), "k2"); err != nil || other == first {
		t.Fatalf("another key returned %d %v", other, err)
	}
	if _, err := b.trySubmit(groupJob("other", 1), "k"); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), fmt.Sprintf("belongs to job %d (j)", first)) {
		t.Fatalf("another job under the key: %v", err)
	}
}

// A submission breaks off after a node has made the folder for its output, and is sent again.
func TestARepeatedSubmissionHasOneOutputFolder(t *testing.T) {
	for _, key := range []string{"", "k"} {
		b := newTestCluster(t, func(c *Config) { c.locateLimit = time.Second })
		b.fs.Input("hdfs:///in", 1, "n1")
		var mu sync.Mutex
		var made []string
		b.fs.FailWith(func(r *droverv1.NodeRequest) (error, string) {
			mu.Lock()
			defer mu.Unlock()
			if c := r.GetCheckOutput(); c.GetPrepare() {
				if made = append(made, c.GetTemporary()); len(made) == 1 {
					return fault.Denied, "as if the coordinator had ended here"
				}
			}
			return nil, ""
		})
		b.addNode(coordtest.Info("n1"), coordtest.Hang)
		b.waitForNodes()
		if _, err := b.trySubmit(mapReduceJob("wc", 1), key); err == nil {
			t.Fatal("the first submission was accepted")
		}
		for range 2 {
			if _, err := b.trySubmit(mapReduceJob("wc", 1), key); err != nil && key != "" {
				t.Fatal(err)
			}
		}
		mu.Lock()
		if same := len(made) == 2 && made[0] == made[1]; same != (key != "") {
			t.Errorf("key %q: the folders %q", key, made)
		}
		mu.Unlock()
		if n := b.fs.RequestCount("delete"); n != 0 {
			t.Errorf("key %q: a folder was removed %d times", key, n)
		}
	}
}

func TestConcurrentSubmissionsOfOneNameConflict(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = b.trySubmit(groupJob("same", 1), "") })
	}
	wg.Wait()
	accepted := 0
	for _, err := range errs {
		switch {
		case err == nil:
			accepted++
		case !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), `job "same" is`):
			t.Errorf("refused with %v", err)
		}
	}
	if accepted != 1 {
		t.Fatalf("%d of 8 were accepted", accepted)
	}
}

func TestLargeInputIsStagedInChunks(t *testing.T) {
	b := newTestCluster(t, nil)
	const blocks = 25_000 // three pages, more than 1 MiB of splits
	b.fs.Input("hdfs:///in", blocks, "n1", "n2")
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.addNode(coordtest.Info("n2"), coordtest.Hang)
	b.waitForNodes()
	b.submit(mapReduceJob("big", 1))
	if got := b.job("big"); got.Stages[0].Tasks != blocks {
		t.Fatalf("%d tasks, want %d", got.Stages[0].Tasks, blocks)
	}
	if len(b.fs.Requests) < 3 {
		t.Errorf("locate requests %v", b.fs.Requests)
	}
}

func TestTasksRunNearTheirData(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 6, "n1", "n2", "n3")
	for _, n := range []string{"n1", "n2", "n3"} {
		b.addNode(coordtest.Info(n), coordtest.Succeed)
	}
	b.waitForNodes()
	b.submit(mapReduceJob("wc", 1))
	got := b.waitForEnd("wc", succeeded)
	s := got.Stages[0]
	if s.NodeLocal+s.RackLocal+s.Remote != 6 {
		t.Fatalf("%d node, %d rack, %d remote: not all 6 maps are counted", s.NodeLocal, s.RackLocal, s.Remote)
	}
	lines := readHistory(t, b, 1)
	if len(lines) != 1 || len(lines[0].Stages[0].Tasks) != 6 || fmt.Sprint(lines[0].Stages[0].Tasks[1].Hosts) != "[n2]" {
		t.Fatalf("%+v", lines)
	}
}

func TestStaleActionsAreDroppedWithAReason(t *testing.T) {
	f := facts.New()
	apply := func(i uint64, body *droverv1.Entry) facts.Result {
		body.Version = facts.EntryVersion
		return f.Apply(i, body)
	}
	apply(1, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info("n1")}}})
	apply(2, &droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{
		Spec: `{"version":1,"name":"j","tenant":"default","priority":"low","keep_failed":0,"stages":[{"name":"s","kind":"group","command":["x"],"tasks":2,"resources":{"cpu":3000,"memory":1,"io":1},"disk":1,"attempts":4}]}`}}})
	place := func(task, attempt, node int32) *droverv1.ActionFact {
		return &droverv1.ActionFact{Kind: int32(facts.ActPlace), Key: facts.Key{Job: 1, Task: task, Attempt: attempt}.Proto(1), Node: node}
	}
	res := apply(3, &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{
		place(0, 1, 1), place(0, 1, 1), place(1, 1, 1), place(1, 1, 7), place(9, 1, 1), {Kind: 99},
		{Kind: int32(facts.ActKill), Key: facts.Key{Job: 1, Attempt: 1}.Proto(2)},
	}}}})
	var got []string
	for _, d := range res.Dropped {
		got = append(got, fmt.Sprint(d.Index, " ", d.Reason))
	}
	want := []string{"1 the task is not pending", "2 the node has no free capacity", "3 the node is not up", "4 no such task", "5 unknown action 99", "6 run 2, the present one is 1"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("dropped\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
