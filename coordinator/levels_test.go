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

// levelNode is a node that can do every level.
func levelNode(name string) *droverv1.NodeInfo {
	i := coordtest.Info(name)
	i.Levels = append(i.Levels, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED)
	i.Swap = 1 << 30
	return i
}

// set asks for a level of task main/0 of the job.
func (b *bed) set(job string, l droverv1.Level, node string) error {
	b.t.Helper()
	_, err := b.client.SetLevel(b.ctx, connect.NewRequest(&droverv1.SetLevelRequest{Job: job, Stage: "main", Level: l, Node: node, Reason: "a test"}))
	if err != nil {
		return wire.FromError(err)
	}
	return nil
}

// task gives the last attempt at task main/0.
func (b *bed) task(job string) *droverv1.TaskAttempt {
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

func (b *bed) at(job string, l droverv1.Level) *droverv1.TaskAttempt {
	b.t.Helper()
	b.until(job+" at "+l.String(), func() bool { x := b.task(job).Level; return x.GetLevel() == l && x.GetTarget() == 0 })
	return b.task(job)
}

// running places one task that never ends by itself.
func (b *bed) hanging(infos ...*droverv1.NodeInfo) {
	b.t.Helper()
	for _, i := range infos {
		b.node(i, coordtest.Hang)
	}
	b.until("the nodes are up", func() bool {
		for _, n := range b.nodes {
			if id, _ := n.Registered(); id == 0 {
				return false
			}
		}
		return true
	})
	b.submit(groupJob("hang", 1))
	b.until("it runs", func() bool { return b.task("hang").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
}

func TestASuspensionByHandLastsUntilItIsUndone(t *testing.T) {
	b := newBed(t, nil)
	b.hanging(levelNode("n1"))
	for _, l := range []droverv1.Level{droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED} {
		if err := b.set("hang", l, ""); err != nil {
			t.Fatal(err)
		}
		a := b.at("hang", l)
		if x := a.Level; x.Why != "a test" || x.Actor != "local" || x.SinceMs == 0 || x.Suspends != 1 {
			t.Errorf("%v", x)
		}
	}
	// A job that the scheduler places shows that cycles went by.
	b.nodes[0].Behave(func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetSpec().GetJobName() == "other" {
			return coordtest.Succeed(w)
		}
		return nil
	})
	b.submit(groupJob("other", 3))
	b.ends("other", succeeded)
	if l := b.task("hang").Level.GetLevel(); l != droverv1.Level_LEVEL_CHECKPOINTED {
		t.Fatalf("the scheduler brought it back: %v", l)
	}
	b.kill()
	b.start()
	b.until("the coordinator", func() bool { return b.job("hang") != nil })
	if err := b.set("hang", droverv1.Level_LEVEL_FROZEN, ""); !errors.Is(err, fault.Conflict) {
		t.Errorf("up by suspending: %v", err)
	}
	b.until("a resume", func() bool { return b.set("hang", droverv1.Level_LEVEL_RUNNING, "") == nil })
	b.at("hang", droverv1.Level_LEVEL_RUNNING)
	p := b.job("hang").Preempted
	if p.Suspends != 1 || p.Resumes != 1 || p.CpuMs != 1000 || p.KeptCpuMs != 1000 || p.LostCpuMs != 0 {
		t.Errorf("taken back: %v", p)
	}
	for _, want := range []string{"task.suspending hang main/0.1.1 n1 running to frozen: a test", "task.suspended hang main/0.1.1 n1 checkpointed", "task.resumed hang"} {
		if !strings.Contains(b.story(), want) {
			t.Errorf("no %q in\n%s", want, b.story())
		}
	}
}

// Frozen tasks that together hold too much memory give it, the largest first,
// down to what each can do.
func TestTooMuchFrozenMemoryForcesTheNextLevel(t *testing.T) {
	const frozen, swapped, checkpointed = droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for name, c := range map[string]struct {
		share  float64 // of 4 GiB; each of three tasks holds 1 MiB when frozen
		refuse []droverv1.Level
		want   [3]droverv1.Level
	}{
		"within the share":                     {3.0 / 4096, nil, [3]droverv1.Level{frozen, frozen, frozen}},
		"one gives its memory":                 {2.0 / 4096, nil, [3]droverv1.Level{swapped, frozen, frozen}},
		"each of them":                         {1e-9, nil, [3]droverv1.Level{swapped, swapped, swapped}},
		"checkpointed where swap is refused":   {1e-9, []droverv1.Level{swapped}, [3]droverv1.Level{checkpointed, checkpointed, checkpointed}},
		"and where nothing helps they stay so": {1e-9, []droverv1.Level{swapped, checkpointed}, [3]droverv1.Level{frozen, frozen, frozen}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, func(c2 *Config) { c2.FrozenShare = c.share })
			n, _ := b.node(levelNode("n1"), coordtest.Hang)
			for _, l := range c.refuse {
				n.Refuse(l)
			}
			b.registered()
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
			b.until("all run", func() bool {
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
			b.until("the levels", func() bool {
				all := attempts()
				for _, a := range all {
					if a.Level.GetTarget() != 0 {
						return false
					}
				}
				return maps.Equal(want, count(func(i int) droverv1.Level { return all[i].Level.GetLevel() }, len(all))) &&
					strings.Count(b.story(), "task.level_refused") == refusals
			})
			if said := strings.Contains(b.story(), "of the node's memory, more than the share of"); said == (want[frozen] == 3 && refusals == 0) {
				t.Errorf("said %v in\n%s", said, b.story())
			}
		})
	}
}

// A node that is lost takes its dumps with it: their tasks start again, and the
// work counts as lost.
func TestANodeLostWithDumpsStartsTheirTasksAgain(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Lease = 300 * time.Millisecond })
	_, stop := b.node(levelNode("n1"), coordtest.Hang)
	b.registered()
	b.submit(groupJob("hang", 1))
	b.until("it runs", func() bool { return b.task("hang").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
	if err := b.set("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.at("hang", droverv1.Level_LEVEL_CHECKPOINTED)
	b.node(levelNode("n2"), coordtest.Succeed)
	stop()
	b.ends("hang", succeeded)
	if a := b.task("hang"); a.Key.GetAttempt() != 2 || a.Node != "n2" {
		t.Errorf("attempt %d on %s", a.Key.GetAttempt(), a.Node)
	}
	if p := b.job("hang").Preempted; p.Kills != 1 || p.LostCpuMs != 1000 || p.KeptCpuMs != 0 {
		t.Errorf("taken back: %v", p)
	}
}

// join has a node run until it is told to leave.
func (b *bed) join(n *coordtest.Node) (leave func()) {
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	return func() { cancel(); <-done }
}

// A coordinator that dies between asking for a level and hearing of it goes on
// from there, on the way down and up.
func TestACoordinatorThatRestartsGoesOnWithALevel(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Lease = time.Hour })
	n := coordtest.New(droverv1connect.NewNodeServiceClient(b.http, "http://c"), levelNode("n1"), b.fs, coordtest.Hang)
	leave := b.join(n)
	b.until("the node", func() bool { id, _ := n.Registered(); return id != 0 })
	b.submit(groupJob("hang", 1))
	b.until("it runs", func() bool { return b.task("hang").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
	const running, frozen, swapped, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for _, l := range []droverv1.Level{frozen, running, swapped, running, frozen, checkpointed, running} {
		leave()
		b.until("asked", func() bool { return b.set("hang", l, "") == nil })
		b.kill()
		b.start()
		b.until("the coordinator", func() bool { return b.job("hang") != nil })
		if got := b.task("hang").Level.GetTarget(); got != l {
			t.Errorf("after the restart the target is %s, want %s", got, l)
		}
		leave = b.join(n)
		b.at("hang", l)
	}
	leave()
	if p := b.job("hang").Preempted; p.Suspends != 3 || p.Resumes != 3 || p.LostCpuMs != 0 {
		t.Errorf("taken back: %v", p)
	}
}

// A coordinator that dies while a task moves has it arrive, once.
func TestACoordinatorThatRestartsGoesOnWithAMove(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Lease = time.Hour })
	b.hanging(levelNode("n1"))
	if err := b.set("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.at("hang", droverv1.Level_LEVEL_CHECKPOINTED)
	n := coordtest.New(droverv1connect.NewNodeServiceClient(b.http, "http://c"), levelNode("n2"), b.fs, coordtest.Hang)
	leave := b.join(n)
	b.until("the other node", func() bool { id, _ := n.Registered(); return id != 0 })
	leave() // it hears of the move only after the restart
	b.until("asked", func() bool { return b.set("hang", droverv1.Level_LEVEL_RUNNING, "n2") == nil })
	b.kill()
	b.start()
	b.until("the coordinator", func() bool { return b.job("hang") != nil })
	if a := b.task("hang"); a.Node != "n2" || a.Key.GetRun() != 2 || a.Level.GetTarget() != droverv1.Level_LEVEL_RUNNING {
		t.Errorf("after the restart it is on %s, run %d, %v", a.Node, a.Key.GetRun(), a.Level)
	}
	leave = b.join(n)
	defer leave()
	a := b.at("hang", droverv1.Level_LEVEL_RUNNING)
	if a.Node != "n2" || a.Key.GetRun() != 2 {
		t.Errorf("on %s run %d", a.Node, a.Key.GetRun())
	}
	b.until("only n2 has it", func() bool { return len(n.Wanted()) == 1 && len(b.nodes[0].Wanted()) == 0 })
	if p := b.job("hang").Preempted; p.Suspends != 1 || p.Moves != 1 || p.LostCpuMs != 0 {
		t.Errorf("taken back: %v", p)
	}
}

func TestARefusedLevelIsSaid(t *testing.T) {
	b := newBed(t, nil)
	b.hanging(levelNode("n1"))
	b.nodes[0].Refuse(droverv1.Level_LEVEL_CHECKPOINTED)
	if err := b.set("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.until("the refusal", func() bool { return strings.Contains(b.story(), "task.level_refused") })
	if a := b.task("hang"); a.Level.GetLevel() != droverv1.Level_LEVEL_RUNNING || a.Level.GetTarget() != 0 || !strings.Contains(b.story(), "not checkpointed, it stays running: as the test says") {
		t.Errorf("%v\n%s", a.Level, b.story())
	}
	if err := b.set("hang", droverv1.Level_LEVEL_FROZEN, ""); err != nil {
		t.Fatal(err)
	}
	b.at("hang", droverv1.Level_LEVEL_FROZEN)
}

// A victim that cannot be suspended runs on, and another one gives way in its
// place.
func TestWhereAVictimCannotGiveWayAnotherOneDoes(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.node(levelNode("n1"), coordtest.Hang)
	first := int32(-1) // the task that was asked first
	n.RefuseIf(func(w *droverv1.WantedAttempt) bool {
		if w.GetLevel() <= droverv1.Level_LEVEL_RUNNING {
			return false
		}
		if first < 0 {
			first = w.GetKey().GetTask()
		}
		return w.GetKey().GetTask() == first
	})
	b.registered()
	low := groupJob("low", 8) // takes the node
	low.Priority = jobspec.PriorityLow
	b.submit(low)
	b.until("the node is full", func() bool { return b.job("low").Job.TasksRunning == 8 })
	j := due(groupJob("urgent", 1), time.Minute, jobspec.OnMissContinue)
	j.Priority = jobspec.PriorityHigh
	j.RuntimeBound = jobspec.Duration(20 * time.Second)
	b.submit(j)
	b.until("the deadline job runs", func() bool { return b.task("urgent").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
	story := b.story()
	if refused := strings.Count(story, "task.level_refused low"); refused == 0 || !strings.Contains(story, "it stays running: as the test says") {
		t.Errorf("%d refusals in\n%s", refused, story)
	}
	if p := b.job("low").Preempted; p.Suspends == 0 || p.Kills != 0 || p.LostCpuMs != 0 {
		t.Errorf("taken back: %v", p)
	}
}

func TestACheckpointedTaskMoves(t *testing.T) {
	b := newBed(t, nil)
	b.hanging(levelNode("n1"), levelNode("n2"))
	from := b.task("hang").Node
	to := map[string]string{"n1": "n2", "n2": "n1"}[from]
	if err := b.set("hang", droverv1.Level_LEVEL_RUNNING, to); !errors.Is(err, fault.Conflict) {
		t.Errorf("a running task moved: %v", err)
	}
	if err := b.set("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.at("hang", droverv1.Level_LEVEL_CHECKPOINTED)
	if err := b.set("hang", droverv1.Level_LEVEL_RUNNING, to); err != nil {
		t.Fatal(err)
	}
	a := b.at("hang", droverv1.Level_LEVEL_RUNNING)
	if a.Node != to || a.Key.Run != 2 {
		t.Errorf("on %s run %d", a.Node, a.Key.Run)
	}
	for _, n := range b.nodes {
		want := 0
		if n.Info.GetName() == to {
			want = 1
		}
		b.until("only "+to+" has it", func() bool { return len(n.Wanted()) == want })
	}
	if p := b.job("hang").Preempted; p.Moves != 1 || p.LostCpuMs != 0 {
		t.Errorf("%v", p)
	}
}

func TestWhatCannotBeRestoredIsTriedElsewhereThenStartsAgain(t *testing.T) {
	b := newBed(t, nil)
	b.hanging(levelNode("n1"), levelNode("n2"))
	if err := b.set("hang", droverv1.Level_LEVEL_CHECKPOINTED, ""); err != nil {
		t.Fatal(err)
	}
	b.at("hang", droverv1.Level_LEVEL_CHECKPOINTED)
	for _, n := range b.nodes {
		n.Refuse(droverv1.Level_LEVEL_RUNNING)
	}
	if err := b.set("hang", droverv1.Level_LEVEL_RUNNING, ""); err != nil {
		t.Fatal(err)
	}
	b.until("a second attempt", func() bool { return b.task("hang").Key.GetAttempt() == 2 })
	story := b.story()
	if strings.Count(story, "task.restore_failed") != 2 || !strings.Contains(story, "task.moving") || !strings.Contains(story, "its work is lost (1s of CPU time)") {
		t.Errorf("%s", story)
	}
	if p := b.job("hang").Preempted; p.Kills != 1 || p.LostCpuMs != 1000 || p.KeptCpuMs != 0 {
		t.Errorf("%v", p)
	}
}

// What a node refused for a reason that may pass is asked for again after a
// while, which a coordinator that restarts does not forget; what it never can do
// is not.
func TestARefusedLevelIsAskedForAgainAfterAWhile(t *testing.T) {
	const frozen, swapped, checkpointed = droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for name, c := range map[string]struct {
		never   []droverv1.Level
		restart bool
		want    droverv1.Level // once the clock has moved and the node has room
	}{
		"the disk has room again":             {nil, false, swapped},
		"the coordinator restarts meanwhile":  {nil, true, swapped},
		"the node never can":                  {[]droverv1.Level{swapped, checkpointed}, false, frozen},
		"it never can the first, but another": {[]droverv1.Level{swapped}, false, checkpointed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ahead atomic.Int64
			var full atomic.Bool
			full.Store(true)
			b := newBed(t, func(c *Config) {
				c.Lease = 24 * time.Hour // the clock jumps
				c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				c.FrozenShare = 1e-9 // whatever is frozen is to give its memory
			})
			n, _ := b.node(levelNode("n1"), coordtest.Hang)
			n.Never(c.never...)
			n.RefuseIf(func(w *droverv1.WantedAttempt) bool { return full.Load() && w.GetLevel() > frozen })
			b.registered()
			b.submit(groupJob("hang", 1))
			b.until("it runs", func() bool { return b.task("hang").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
			if err := b.set("hang", frozen, ""); err != nil {
				t.Fatal(err)
			}
			refused := func() int { return strings.Count(b.story(), "task.level_refused") }
			b.until("both deeper levels are refused", func() bool { return refused() == 2 })
			b.at("hang", frozen)
			full.Store(false)
			b.wake()
			if a := b.at("hang", frozen); refused() != 2 {
				t.Errorf("asked for again at once: %v\n%s", a.Level, b.story())
			}
			if c.restart {
				b.kill()
				b.start()
			}
			ahead.Add(int64(facts.BarFirst))
			b.until("the coordinator takes the time", func() bool { return b.tryWake() == nil })
			if c.want == frozen { // only a person asks
				b.until("a person asks", func() bool { return b.set("hang", checkpointed, "") == nil })
				b.at("hang", checkpointed)
			} else {
				b.at("hang", c.want)
			}
			asked := map[droverv1.Level]int{frozen: 2, swapped: 3, checkpointed: 3}[c.want]
			if n := strings.Count(b.story(), " to swapped: frozen tasks hold") + strings.Count(b.story(), " to checkpointed: frozen tasks hold"); n != asked {
				t.Errorf("the coordinator asked %d times, want %d:\n%s", n, asked, b.story())
			}
			if len(c.never) < 2 && !strings.Contains(b.story(), "not asked for again for 1 min") {
				t.Errorf("nothing says for how long:\n%s", b.story())
			}
		})
	}
}
