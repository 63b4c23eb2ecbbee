package coordinator

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// levelNode returns a node that supports every level.
func levelNode(name string) *droverv1.NodeInfo {
	i := coordtest.Info(name)
	i.Levels = append(i.Levels, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED)
	i.Swap = 1 << 30
	return i
}

// setLevel requests a level of the job's task main/0.
func (b *testCluster) setLevel(job string, l droverv1.Level, node string) error {
	b.t.Helper()
	_, err := b.client.SetLevel(b.ctx, connect.NewRequest(&droverv1.SetLevelRequest{Job: job, Stage: "main", Level: l, Node: node, Reason: "a test"}))
	if err != nil {
		return wire.FromError(err)
	}
	return nil
}

// lastAttempt returns the last attempt of task main/0.
func (b *testCluster) lastAttempt(job string) *droverv1.TaskAttempt {
	b.t.Helper()
	res, err := b.client.ListTasks(b.ctx, connect.NewRequest(&droverv1.ListTasksRequest{Job: job}))
	if err != nil {
		b.t.Fatal(err)
	}
	if all := res.Msg.Tasks[0].Attempts; len(all) > 0 {
		return all[len(all)-1]
	}
	return &droverv1.TaskAttempt{}
}

func (b *testCluster) waitForLevel(job string, l droverv1.Level) *droverv1.TaskAttempt {
	b.t.Helper()
	b.waitUntil(job+" at "+l.String(), func() bool { x := b.lastAttempt(job).Level; return x.GetLevel() == l && x.GetTarget() == 0 })
	return b.lastAttempt(job)
}

// startHangingTask starts nodes and a task that never ends by itself.
func (b *testCluster) startHangingTask(infos ...*droverv1.NodeInfo) {
	b.t.Helper()
	for _, i := range infos {
		b.addNode(i, coordtest.Hang)
	}
	b.waitUntil("the nodes are up", func() bool {
		for _, n := range b.nodes {
			if id, _ := n.Registered(); id == 0 {
				return false
			}
		}
		return true
	})
	b.submit(groupJob("hang", 1))
	b.waitUntil("it runs", func() bool { return b.lastAttempt("hang").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
}

func TestManualSuspensionLastsUntilManualResume(t *testing.T) {
	b := newTestCluster(t, nil)
	b.startHangingTask(levelNode("n1"))
	for _, l := range []droverv1.Level{droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED} {
		if err := b.setLevel("hang", l, ""); err != nil {
			t.Fatal(err)
		}
		a := b.waitForLevel("hang", l)
		if x := a.Level; x.Reason != "a test" || x.Actor != "local" || x.SinceMs == 0 || x.Suspends != 1 {
			t.Errorf("%v", x)
		}
	}
	// A job placed later proves that cycles have run.
	b.nodes[0].SetBehaviour(func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetSpec().GetJobName() == "other" {
			return coordtest.Succeed(w)
		}
		return nil
	})
	b.submit(groupJob("other", 3))
	b.waitForEnd("other", succeeded)
	if l := b.lastAttempt("hang").Level.GetLevel(); l != droverv1.Level_LEVEL_CHECKPOINTED {
		t.Fatalf("the scheduler resumed it: %v", l)
	}
	b.kill()
	b.start()
	b.waitUntil("the coordinator", func() bool { return b.job("hang") != nil })
	if err := b.setLevel("hang", droverv1.Level_LEVEL_FROZEN, ""); !errors.Is(err, fault.Conflict) {
		t.Errorf("up by suspending: %v", err)
	}
	b.waitUntil("a resume", func() bool { return b.setLevel("hang", droverv1.Level_LEVEL_RUNNING, "") == nil })
	b.waitForLevel("hang", droverv1.Level_LEVEL_RUNNING)
	p := b.job("hang").Preempted
	if p.Suspends != 1 || p.Resumes != 1 || p.CpuMs != 1000 || p.PreservedCpuMs != 1000 || p.LostCpuMs != 0 {
		t.Errorf("preemption totals: %v", p)
	}
	for _, want := range []string{"task.suspending hang main/0.1.1 n1 running to frozen: a test", "task.suspended hang main/0.1.1 n1 checkpointed", "task.resumed hang"} {
		if !strings.Contains(b.eventLog(), want) {
			t.Errorf("no %q in\n%s", want, b.eventLog())
		}
	}
}

// TestFrozenMemoryOverShareEscalates checks that frozen tasks which occupy too
// much memory are escalated, the largest first, to a level that each can reach.
func TestFrozenMemoryOverShareEscalates(t *testing.T) {
	const frozen, swapped, checkpointed = droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for name, c := range map[string]struct {
		share  float64 // of 4 GiB; each of three tasks occupies 1 MiB when frozen
		refuse []droverv1.Level
		want   [3]droverv1.Level
	}{
		"within the share":                    {3.0 / 4096, nil, [3]droverv1.Level{frozen, frozen, frozen}},
		"one is escalated":                    {2.0 / 4096, nil, [3]droverv1.Level{swapped, frozen, frozen}},
		"each of them":                        {1e-9, nil, [3]droverv1.Level{swapped, swapped, swapped}},
		"checkpointed where swap is refused":  {1e-9, []droverv1.Level{swapped}, [3]droverv1.Level{checkpointed, checkpointed, checkpointed}},
		"frozen where all levels are refused": {1e-9, []droverv1.Level{swapped, checkpointed}, [3]droverv1.Level{frozen, frozen, frozen}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestCluster(t, func(c2 *Config) { c2.FrozenShare = c.share })
			n, _ := b.addNode(levelNode("n1"), coordtest.Hang)
			for _, l := range c.refuse {
				n.Refuse(l)
			}
			b.waitForNodes()
			b.submit(groupJob("hang", 3))
			attempts := func() (all []*droverv1.TaskAttempt) {
				res, err := b.client.ListTasks(b.ctx, connect.NewRequest(&droverv1.ListTasksRequest{Job: "hang"}))
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range res.Msg.Tasks {
					all = append(all, x.Attempts...)
				}
				return all
			}
			b.waitUntil("all run", func() bool {
				all := attempts()
				for _, a := range all {
					if a.Seen.GetPhase() != droverv1.Phase_PHASE_RUNNING {
						return false
					}
				}
				return len(all) == 3
			})
			for i := range 3 {
				q := &droverv1.SetLevelRequest{Job: "hang", Stage: "main", Task: int32(i), Level: frozen}
				if _, err := b.client.SetLevel(b.ctx, connect.NewRequest(q)); err != nil {
					t.Fatal(err)
				}
			}
			count := func(of func(int) droverv1.Level, n int) map[droverv1.Level]int {
				m := map[droverv1.Level]int{}
				for i := range n {
					m[of(i)]++
				}
				return m
			}
			want := count(func(i int) droverv1.Level { return c.want[i] }, 3)
			refusals := 3 * len(c.refuse)
			b.waitUntil("the levels", func() bool {
				all := attempts()
				for _, a := range all {
					if a.Level.GetTarget() != 0 {
						return false
					}
				}
				return maps.Equal(want, count(func(i int) droverv1.Level { return all[i].Level.GetLevel() }, len(all))) &&
					strings.Count(b.eventLog(), "task.level_refused") == refusals
			})
			if logged := strings.Contains(b.eventLog(), "of the node's memory, more than the share of"); logged == (want[frozen] == 3 && refusals == 0) {
				t.Errorf("logged %v in\n%s", logged, b.eventLog())
			}
		})
	}
}

// TestLostCheckpointsRestartTasks checks that the checkpoints on a lost node
// are lost: their tasks restart, and the work counts as lost.
func TestLostCheckpointsRestartTasks(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Lease = 300 * time.Millisecond })
	_, stop := b.addNode(levelNode("n1"), coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("hang", 1))
	b.waitUntil("it runs", func() bool { return b.lastAttempt("hang").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
	if err := b.setLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED)
	b.addNode(levelNode("n2"), coordtest.Succeed)
	stop()
	b.waitForEnd("hang", succeeded)
	if a := b.lastAttempt("hang"); a.Key.GetAttempt() != 2 || a.Node != "n2" {
		t.Errorf("attempt %d on %s", a.Key.GetAttempt(), a.Node)
	}
	if p := b.job("hang").Preempted; p.Kills != 1 || p.LostCpuMs != 1000 || p.PreservedCpuMs != 0 {
		t.Errorf("preemption totals: %v", p)
	}
}

// runNode runs a node until leave is called.
func (b *testCluster) runNode(n *coordtest.Node) (leave func()) {
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	return func() { cancel(); <-done }
}

// TestRestartDuringLevelChange restarts the coordinator between the request of
// a level and its confirmation, on the way down and up.
func TestRestartDuringLevelChange(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Lease = time.Hour })
	n := coordtest.New(droverv1connect.NewNodeServiceClient(b.http, "http://c"), levelNode("n1"), b.fs, coordtest.Hang)
	leave := b.runNode(n)
	b.waitUntil("the node", func() bool { id, _ := n.Registered(); return id != 0 })
	b.submit(groupJob("hang", 1))
	b.waitUntil("it runs", func() bool { return b.lastAttempt("hang").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
	const running, frozen, swapped, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for _, l := range []droverv1.Level{frozen, running, swapped, running, frozen, checkpointed, running} {
		leave()
		b.waitUntil("requested", func() bool { return b.setLevel("hang", l, "") == nil })
		b.kill()
		b.start()
		b.waitUntil("the coordinator", func() bool { return b.job("hang") != nil })
		if got := b.lastAttempt("hang").Level.GetTarget(); got != l {
			t.Errorf("after the restart the target is %s, want %s", got, l)
		}
		leave = b.runNode(n)
		b.waitForLevel("hang", l)
	}
	leave()
	if p := b.job("hang").Preempted; p.Suspends != 3 || p.Resumes != 3 || p.LostCpuMs != 0 {
		t.Errorf("preemption totals: %v", p)
	}
}

// TestRestartDuringMigration restarts the coordinator while a task migrates;
// the task must arrive once.
func TestRestartDuringMigration(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Lease = time.Hour })
	b.startHangingTask(levelNode("n1"))
	if err := b.setLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED)
	n := coordtest.New(droverv1connect.NewNodeServiceClient(b.http, "http://c"), levelNode("n2"), b.fs, coordtest.Hang)
	leave := b.runNode(n)
	b.waitUntil("the other node", func() bool { id, _ := n.Registered(); return id != 0 })
	leave() // it learns of the migration only after the restart
	b.waitUntil("requested", func() bool { return b.setLevel("hang", droverv1.Level_LEVEL_RUNNING, "n2") == nil })
	b.kill()
	b.start()
	b.waitUntil("the coordinator", func() bool { return b.job("hang") != nil })
	if a := b.lastAttempt("hang"); a.Node != "n2" || a.Key.GetRun() != 2 || a.Level.GetTarget() != droverv1.Level_LEVEL_RUNNING {
		t.Errorf("after the restart it is on %s, run %d, %v", a.Node, a.Key.GetRun(), a.Level)
	}
	leave = b.runNode(n)
	defer leave()
	a := b.waitForLevel("hang", droverv1.Level_LEVEL_RUNNING)
	if a.Node != "n2" || a.Key.GetRun() != 2 {
		t.Errorf("on %s run %d", a.Node, a.Key.GetRun())
	}
	b.waitUntil("only n2 has it", func() bool { return len(n.Wanted()) == 1 && len(b.nodes[0].Wanted()) == 0 })
	if p := b.job("hang").Preempted; p.Suspends != 1 || p.Migrations != 1 || p.LostCpuMs != 0 {
		t.Errorf("preemption totals: %v", p)
	}
}

func TestRefusedLevelIsReported(t *testing.T) {
	b := newTestCluster(t, nil)
	b.startHangingTask(levelNode("n1"))
	b.nodes[0].Refuse(droverv1.Level_LEVEL_CHECKPOINTED)
	if err := b.setLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.waitUntil("the refusal", func() bool { return strings.Contains(b.eventLog(), "task.level_refused") })
	if a := b.lastAttempt("hang"); a.Level.GetLevel() != droverv1.Level_LEVEL_RUNNING || a.Level.GetTarget() != 0 || !strings.Contains(b.eventLog(), "not checkpointed, it stays running: as the test says") {
		t.Errorf("%v\n%s", a.Level, b.eventLog())
	}
	if err := b.setLevel("hang", droverv1.Level_LEVEL_FROZEN, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("hang", droverv1.Level_LEVEL_FROZEN)
}

// TestRefusedResumeSaysWhatToDo: while a task is suspended by hand, another one may take its place on the node.
func TestRefusedResumeSaysWhatToDo(t *testing.T) {
	b := newTestCluster(t, nil)
	b.startHangingTask(levelNode("n1"))
	if err := b.setLevel("hang", droverv1.Level_LEVEL_FROZEN, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("hang", droverv1.Level_LEVEL_FROZEN)
	b.submit(groupJob("others", 8))
	b.waitUntil("the node is full", func() bool { return b.job("others").Job.TasksRunning == 8 })
	err := b.setLevel("hang", droverv1.Level_LEVEL_RUNNING, "")
	want := "task main/0 of job hang: the node has no free capacity to resume the task: wait until a task on n1 has ended, or suspend one there; `drover node status n1` shows what is in use"
	if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
	if err := b.setLevel("others", droverv1.Level_LEVEL_FROZEN, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("others", droverv1.Level_LEVEL_FROZEN)
	if err := b.setLevel("hang", droverv1.Level_LEVEL_RUNNING, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("hang", droverv1.Level_LEVEL_RUNNING)
}

// TestPreemptionPicksAnotherVictimAfterRefusal checks that a victim that cannot
// be suspended continues, and another is suspended instead.
func TestPreemptionPicksAnotherVictimAfterRefusal(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(levelNode("n1"), coordtest.Hang)
	first := int32(-1) // the task of the first request
	n.RefuseIf(func(w *droverv1.WantedAttempt) bool {
		if w.GetLevel() <= droverv1.Level_LEVEL_RUNNING {
			return false
		}
		if first < 0 {
			first = w.GetKey().GetTask()
		}
		return w.GetKey().GetTask() == first
	})
	b.waitForNodes()
	low := groupJob("low", 8) // occupies the node
	low.Priority = jobspec.PriorityLow
	b.submit(low)
	b.waitUntil("the node is full", func() bool { return b.job("low").Job.TasksRunning == 8 })
	j := withDeadline(groupJob("urgent", 1), time.Minute, jobspec.OnMissContinue)
	j.Priority = jobspec.PriorityHigh
	j.RuntimeBound = jobspec.Duration(20 * time.Second)
	b.submit(j)
	b.waitUntil("the deadline job runs", func() bool { return b.lastAttempt("urgent").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
	story := b.eventLog()
	if refused := strings.Count(story, "task.level_refused low"); refused == 0 || !strings.Contains(story, "it stays running: as the test says") {
		t.Errorf("%d refusals in\n%s", refused, story)
	}
	if p := b.job("low").Preempted; p.Suspends == 0 || p.Kills != 0 || p.LostCpuMs != 0 {
		t.Errorf("preemption totals: %v", p)
	}
}

func TestCheckpointedTaskMigrates(t *testing.T) {
	b := newTestCluster(t, nil)
	b.startHangingTask(levelNode("n1"), levelNode("n2"))
	from := b.lastAttempt("hang").Node
	to := map[string]string{"n1": "n2", "n2": "n1"}[from]
	if err := b.setLevel("hang", droverv1.Level_LEVEL_RUNNING, to); !errors.Is(err, fault.Conflict) {
		t.Errorf("a running task migrated: %v", err)
	}
	if err := b.setLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED)
	if err := b.setLevel("hang", droverv1.Level_LEVEL_RUNNING, to); err != nil {
		t.Fatal(err)
	}
	a := b.waitForLevel("hang", droverv1.Level_LEVEL_RUNNING)
	if a.Node != to || a.Key.Run != 2 {
		t.Errorf("on %s run %d", a.Node, a.Key.Run)
	}
	for _, n := range b.nodes {
		want := 0
		if n.Info.GetName() == to {
			want = 1
		}
		b.waitUntil("only "+to+" has it", func() bool { return len(n.Wanted()) == want })
	}
	if p := b.job("hang").Preempted; p.Migrations != 1 || p.LostCpuMs != 0 {
		t.Errorf("%v", p)
	}
}

func TestFailedRestoreIsRetriedElsewhereThenRestarted(t *testing.T) {
	b := newTestCluster(t, nil)
	b.startHangingTask(levelNode("n1"), levelNode("n2"))
	if err := b.setLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED)
	for _, n := range b.nodes {
		n.Refuse(droverv1.Level_LEVEL_RUNNING)
	}
	if err := b.setLevel("hang", droverv1.Level_LEVEL_RUNNING, ""); err != nil {
		t.Fatal(err)
	}
	b.waitUntil("a second attempt", func() bool { return b.lastAttempt("hang").Key.GetAttempt() == 2 })
	story := b.eventLog()
	if strings.Count(story, "task.restore_failed") != 2 || !strings.Contains(story, "task.migrating") || !strings.Contains(story, "its work is lost (1s of CPU time)") {
		t.Errorf("%s", story)
	}
	if p := b.job("hang").Preempted; p.Kills != 1 || p.LostCpuMs != 1000 || p.PreservedCpuMs != 0 {
		t.Errorf("%v", p)
	}
}

// TestTransientRefusalIsRetried checks that a transient refusal is retried
// after a back-off, also after a restart of the coordinator, and a permanent
// one is not.
func TestTransientRefusalIsRetried(t *testing.T) {
	const frozen, swapped, checkpointed = droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for name, c := range map[string]struct {
		never   []droverv1.Level
		restart bool
		want    droverv1.Level // after the clock has advanced and the node accepts levels
	}{
		"the disk has space again":           {nil, false, swapped},
		"the coordinator restarts":           {nil, true, swapped},
		"all levels are permanently refused": {[]droverv1.Level{swapped, checkpointed}, false, frozen},
		"one level is permanently refused":   {[]droverv1.Level{swapped}, false, checkpointed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ahead atomic.Int64
			var full atomic.Bool
			full.Store(true)
			b := newTestCluster(t, func(c *Config) {
				c.Lease = 24 * time.Hour // the clock jumps
				c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				c.FrozenShare = 1e-9 // every frozen task is to be escalated
			})
			n, _ := b.addNode(levelNode("n1"), coordtest.Hang)
			n.RefuseForGood(c.never...)
			n.RefuseIf(func(w *droverv1.WantedAttempt) bool { return full.Load() && w.GetLevel() > frozen })
			b.waitForNodes()
			b.submit(groupJob("hang", 1))
			b.waitUntil("it runs", func() bool { return b.lastAttempt("hang").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
			if err := b.setLevel("hang", frozen, ""); err != nil {
				t.Fatal(err)
			}
			refused := func() int { return strings.Count(b.eventLog(), "task.level_refused") }
			b.waitUntil("both deeper levels are refused", func() bool { return refused() == 2 })
			b.waitForLevel("hang", frozen)
			full.Store(false)
			b.wakeLoop()
			if a := b.waitForLevel("hang", frozen); refused() != 2 {
				t.Errorf("requested again at once: %v\n%s", a.Level, b.eventLog())
			}
			if c.restart {
				b.kill()
				b.start()
			}
			ahead.Add(int64(facts.RefusalBackoffMin))
			b.waitUntil("the coordinator takes the time", func() bool { return b.tryWakeLoop() == nil })
			if c.want == frozen { // only a manual request retries it
				b.waitUntil("a manual request", func() bool { return b.setLevel("hang", checkpointed, "") == nil })
				b.waitForLevel("hang", checkpointed)
			} else {
				b.waitForLevel("hang", c.want)
			}
			requests := map[droverv1.Level]int{frozen: 2, swapped: 3, checkpointed: 3}[c.want]
			if n := strings.Count(b.eventLog(), " to swapped: frozen tasks occupy") + strings.Count(b.eventLog(), " to checkpointed: frozen tasks occupy"); n != requests {
				t.Errorf("the coordinator requested %d times, want %d:\n%s", n, requests, b.eventLog())
			}
			if len(c.never) < 2 && !strings.Contains(b.eventLog(), "not requested again for 1 min") {
				t.Errorf("the event has no back-off:\n%s", b.eventLog())
			}
		})
	}
}

// TestUnexecutedSuspensionIsWithdrawn checks that a suspension that
// its node has not executed, as of a task that is still being prepared, can be
// withdrawn.
func TestUnexecutedSuspensionIsWithdrawn(t *testing.T) {
	const running, frozen = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN
	b := newTestCluster(t, nil)
	b.startHangingTask(levelNode("n1"))
	b.nodes[0].Preparing(true)
	if err := b.setLevel("hang", frozen, ""); err != nil {
		t.Fatal(err)
	}
	if l := b.lastAttempt("hang").Level; l.GetTarget() != frozen || l.GetLevel() != running {
		t.Fatalf("pending target: %v", l)
	}
	if err := b.setLevel("hang", running, ""); err != nil {
		t.Fatalf("withdrawing it: %v", err)
	}
	b.waitUntil("withdrawn", func() bool { return b.lastAttempt("hang").Level.GetTarget() == 0 })
	if err := b.setLevel("hang", running, ""); !errors.Is(err, fault.Conflict) {
		t.Errorf("withdrawing it twice: %v, want fault.Conflict", err)
	}
	// The node was quicker: the attempt is resumed.
	seen := &droverv1.SeenAttempt{Key: b.lastAttempt("hang").Key, Phase: droverv1.Phase_PHASE_RUNNING, Level: frozen, Occupied: &droverv1.Resources{Memory: 1 << 20}}
	if _, err := b.nodes[0].SendReport(b.ctx, seen); err != nil {
		t.Fatal(err)
	}
	b.waitUntil("the resume is requested", func() bool {
		l := b.lastAttempt("hang").Level
		return l.GetLevel() == frozen && l.GetTarget() == running
	})
	b.nodes[0].Preparing(false)
	b.nodes[0].Advance()
	b.waitForLevel("hang", running)
	if err := b.setLevel("hang", frozen, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("hang", frozen)
}
