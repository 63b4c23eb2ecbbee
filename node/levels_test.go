package node

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

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

const (
	levelRunning      = droverv1.Level_LEVEL_RUNNING
	levelFrozen       = droverv1.Level_LEVEL_FROZEN
	levelSwapped      = droverv1.Level_LEVEL_SWAPPED
	levelCheckpointed = droverv1.Level_LEVEL_CHECKPOINTED
)

// levelKernel freezes through the fake engine and swaps in memory. It records the
// limits in force at each thaw.
type levelKernel struct {
	*fakeKernel
	runtime.Freezer
	swapErr error
	swapped map[string]int64
	smu     sync.Mutex
	thawed  []Limits
	onThaw  func() // before a thaw
	held    int64  // bytes of memory reported for a task; 0: fakeKernel's value
}

func (k *levelKernel) Usage(id string) (*droverv1.Usage, *droverv1.Resources, OOMKills, error) {
	u, held, kills, err := k.fakeKernel.Usage(id)
	if err == nil && k.held > 0 {
		held.Memory = k.held
	}
	return u, held, kills, err
}

func newLevelKernel(b *testNode) *levelKernel {
	return &levelKernel{fakeKernel: newFakeKernel(), Freezer: b.engine.Driver(), swapped: map[string]int64{}}
}

func (k *levelKernel) Thaw(ctx context.Context, id string) error {
	k.mu.Lock()
	k.thawed = append(k.thawed, k.groups[id])
	before := k.onThaw
	k.mu.Unlock()
	if before != nil {
		before()
	}
	return k.Freezer.Thaw(ctx, id)
}

func (k *levelKernel) setOnThaw(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.onThaw = f
}

func (k *levelKernel) SwapOut(_ context.Context, id string) (int64, error) {
	k.smu.Lock()
	defer k.smu.Unlock()
	if k.swapErr != nil {
		return 0, k.swapErr
	}
	k.swapped[id] = 4
	return 4, nil
}

func (k *levelKernel) SwapBytes(id string) (int64, error) {
	k.smu.Lock()
	defer k.smu.Unlock()
	return k.swapped[id], nil
}

// newLevelTestNode returns a node whose engine has "count", a program that can be
// frozen.
func newLevelTestNode(t *testing.T) (*testNode, *levelKernel) {
	p := programs()
	p["count"] = func(ctx context.Context, p *fake.Process) int {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			if p.Gate(ctx) != nil {
				return 1
			}
			fmt.Fprintln(p.Stdout, i)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return 1
			}
		}
	}
	b := newTestNode(t, p)
	k := newLevelKernel(b)
	b.config.Enforcer = k
	return b, k
}

// requestLevel makes the coordinator request a level.
func (b *testNode) requestLevel(w *droverv1.WantedAttempt, l droverv1.Level) {
	c := proto.CloneOf(w)
	c.Level = l
	b.put(c)
}

func idOf(w *droverv1.WantedAttempt) string { return string(store.IDOf(w.GetKey())) }

func (b *testNode) awaitLevel(w *droverv1.WantedAttempt, l droverv1.Level) *droverv1.SeenAttempt {
	b.t.Helper()
	poll(b.t, fmt.Sprintf("%s at %s", idOf(w), l), func() bool {
		s := b.get(w)
		return s.GetPhase() == running && s.GetLevel() == l
	})
	return b.get(w)
}

func (b *testNode) awaitRefusal(w *droverv1.WantedAttempt, l droverv1.Level) *droverv1.SeenAttempt {
	b.t.Helper()
	poll(b.t, fmt.Sprintf("%s refused by %s", l, idOf(w)), func() bool { return b.get(w).GetTargetRefused() == l })
	return b.get(w)
}

// countLogLines returns the number of lines in the task's log.
func (b *testNode) countLogLines(w *droverv1.WantedAttempt) int {
	text, _ := os.ReadFile(filepath.Join(b.attemptFolder(w), "logs", "stdout.log"))
	return strings.Count(string(text), "\n")
}

// awaitCounting waits until the task continues counting, and checks that it has
// never started over.
func (b *testNode) awaitCounting(w *droverv1.WantedAttempt) {
	b.t.Helper()
	from := b.countLogLines(w)
	poll(b.t, "counting on", func() bool { return b.countLogLines(w) > from+3 })
	text, err := os.ReadFile(filepath.Join(b.attemptFolder(w), "logs", "stdout.log"))
	if err != nil {
		b.t.Fatal(err)
	}
	for i, line := range strings.Fields(string(text)) {
		if line != fmt.Sprint(i) {
			b.t.Fatalf("line %d of the log is %q: it started over", i, line)
		}
	}
}

// awaitNotCounting waits until the task has stopped counting: its log is the same in many polls in
// succession, and for much longer than a task that counts waits for a processor.
func (b *testNode) awaitNotCounting(w *droverv1.WantedAttempt) {
	b.t.Helper()
	last, same, since := -1, 0, time.Now()
	poll(b.t, "standing still", func() bool {
		if now := b.countLogLines(w); now != last {
			last, same, since = now, 0, time.Now()
			return false
		}
		same++
		return same >= 50 && time.Since(since) >= 100*time.Millisecond
	})
}

func TestAllLevelsAndBack(t *testing.T) {
	for _, l := range []droverv1.Level{levelFrozen, levelSwapped, levelCheckpointed} {
		t.Run(l.String(), func(t *testing.T) {
			b, k := newLevelTestNode(t)
			b.start()
			w := groupTask(0, "count")
			b.put(w)
			b.await(t, w, running)
			for range 3 {
				b.awaitCounting(w)
				b.requestLevel(w, l)
				s := b.awaitLevel(w, l)
				b.awaitNotCounting(w)
				if s.GetOccupied().GetCpu() != 0 || s.GetTargetRefused() != 0 || len(s.GetLevelSteps()) == 0 || s.GetLevelSteps()[0].GetStep() != "freeze" {
					t.Errorf("it occupies %v, steps %v, refused %v", s.GetOccupied(), s.GetLevelSteps(), s.GetTargetRefused())
				}
				poll(t, "the engine having the container unless it was dumped", func() bool { // it is removed after the report
					all, err := b.engine.Driver().List(t.Context())
					return err == nil && (len(all) == 0) == (l == levelCheckpointed)
				})
				b.requestLevel(w, levelRunning)
				s = b.awaitLevel(w, levelRunning)
				if got := s.GetLimits().GetMemoryMax(); got != fmt.Sprint(64<<20) {
					t.Errorf("memory.max is %q after a resume", got)
				}
			}
			b.awaitCounting(w)
			if n := b.engine.Calls(fake.Start); n != 1 {
				t.Errorf("%d starts", n)
			}
			k.mu.Lock()
			for _, x := range k.thawed {
				if x.CPU != 100 || x.swap != 0 || x.io != 1<<20 {
					t.Errorf("it was thawed under %+v", x)
				}
			}
			k.mu.Unlock()
			b.removeAndCheckClean(t, w)
		})
	}
}

// removeAndCheckClean removes an attempt and checks that nothing of it is left on
// the node, including dumps.
func (b *testNode) removeAndCheckClean(t *testing.T, w *droverv1.WantedAttempt) {
	t.Helper()
	b.remove(w)
	b.await(t, w, gone)
	b.checkNothingLeft()
	if left, err := os.ReadDir(filepath.Join(b.config.Data, "images")); err != nil || len(left) != 0 {
		t.Errorf("dumps left: %v, %v", left, err)
	}
}

func TestEscalatesWithoutRunning(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.awaitCounting(w)
	for _, l := range []droverv1.Level{levelFrozen, levelSwapped, levelCheckpointed} {
		b.requestLevel(w, l)
		b.awaitLevel(w, l)
		b.awaitNotCounting(w)
	}
	if n := b.engine.Calls(fake.Thaw); n != 0 {
		t.Errorf("it was thawed %d times on the way down", n)
	}
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
}

func TestFailedLevelFallsBack(t *testing.T) {
	bad := fault.New(fault.Unsupported, "criu: no such luck")
	for name, c := range map[string]struct {
		verb   fake.Verb
		swap   error
		held   int64
		want   droverv1.Level // requested
		get    droverv1.Level
		note   string
		counts bool
		never  []droverv1.Level // as the coordinator is told
	}{
		"a dump that fails leaves it swapped":         {verb: fake.Checkpoint, want: levelCheckpointed, get: levelSwapped, note: "no such luck", never: []droverv1.Level{levelCheckpointed}},
		"or frozen where there is no swap":            {verb: fake.Checkpoint, swap: fault.New(fault.Exhausted, "no swap"), want: levelCheckpointed, get: levelFrozen, note: "no swap", never: []droverv1.Level{levelCheckpointed}},
		"a disk without free space leaves it swapped": {held: 1 << 60, want: levelCheckpointed, get: levelSwapped, note: "a dump takes up to"},
		"swap that is full leaves it frozen":          {swap: fault.New(fault.Exhausted, "no swap"), want: levelSwapped, get: levelFrozen, note: "no swap"},
		"one that cannot be frozen runs on":           {verb: fake.Freeze, want: levelFrozen, get: levelRunning, note: "cannot be frozen", counts: true, never: []droverv1.Level{levelFrozen, levelSwapped, levelCheckpointed}},
		"and is not dumped running":                   {verb: fake.Freeze, want: levelCheckpointed, get: levelRunning, note: "cannot be frozen", counts: true, never: []droverv1.Level{levelFrozen, levelSwapped, levelCheckpointed}},
	} {
		t.Run(name, func(t *testing.T) {
			b, k := newLevelTestNode(t)
			k.swapErr, k.held = c.swap, c.held
			if c.verb != 0 {
				b.engine.Inject(fake.Fault{Verb: c.verb, Err: bad})
			}
			b.start()
			w := groupTask(0, "count")
			b.put(w)
			b.await(t, w, running)
			b.requestLevel(w, c.want)
			s := b.awaitRefusal(w, c.want)
			if s.GetLevel() != c.get || !strings.Contains(s.GetLevelNote(), c.note) {
				t.Errorf("at %s, %q; want %s, %q", s.GetLevel(), s.GetLevelNote(), c.get, c.note)
			}
			if !slices.Equal(s.GetLevelsRefused(), c.never) {
				t.Errorf("it can never be %v, want %v", s.GetLevelsRefused(), c.never)
			}
			if c.counts {
				b.awaitCounting(w)
			} else {
				b.awaitNotCounting(w)
			}
			b.requestLevel(w, c.get) // the coordinator's reaction
			poll(t, "no refusal any more", func() bool { return b.get(w).GetTargetRefused() == 0 })
			b.engine.Heal()
			b.requestLevel(w, levelRunning)
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
		})
	}
}

func TestTransientLevelFailures(t *testing.T) {
	for _, verb := range []fake.Verb{fake.Freeze, fake.Thaw, fake.Checkpoint, fake.Restore, fake.Continue} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, acted %v", verb, after), func(t *testing.T) {
				b, _ := newLevelTestNode(t)
				b.engine.Inject(fake.Fault{Verb: verb, Nth: 1, Err: fault.New(fault.Unavailable, "the answer is lost"), ActFirst: after})
				b.start()
				w := groupTask(0, "count")
				b.put(w)
				b.await(t, w, running)
				for _, l := range []droverv1.Level{levelCheckpointed, levelRunning, levelFrozen, levelRunning} {
					b.requestLevel(w, l)
					b.awaitLevel(w, l)
				}
				b.awaitCounting(w)
			})
		}
	}
}

// TestUnreachableEngineCountsApart: a try of a restore that the engine did not answer is none of the two after which
// another node is to restore the task.
func TestUnreachableEngineCountsApart(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	b.engine.Inject(fake.Fault{Verb: fake.Restore, Nth: 1, Err: fault.New(fault.Unavailable, "it starts again")})
	b.engine.Inject(fake.Fault{Verb: fake.Restore, Nth: 2, Err: fault.New(fault.Conflict, "once")})
	b.requestLevel(w, levelRunning)
	poll(t, "running, or a refusal", func() bool {
		return b.get(w).GetLevel() == levelRunning || b.get(w).GetTargetRefused() != 0
	})
	if s := b.awaitLevel(w, levelRunning); s.GetTargetRefused() != 0 {
		t.Errorf("refused: %q", s.GetLevelNote())
	}
	b.awaitCounting(w)
}

// mustRun is a dump that fails because a parent waits, frozen, for the exec of its frozen child.
func mustRun(nth int) fake.Fault {
	return fake.Fault{Verb: fake.Checkpoint, Nth: nth, Err: fault.New(fault.Conflict, "not now: %w", runtime.ErrMustRun)}
}

// What a freeze has caught between vfork and exec is dumped once it has run for a moment, under its limits, and its
// level stays as it was meanwhile. One that never gets there goes on at its level, and can be dumped later.
func TestDumpThawsForAMoment(t *testing.T) {
	b, k := newLevelTestNode(t)
	b.engine.Inject(mustRun(1))
	b.engine.Inject(mustRun(2))
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelSwapped)
	since := b.awaitLevel(w, levelSwapped).GetLevelSinceMs()
	k.setOnThaw(func() {
		if s := b.get(w); s.GetLevel() != levelSwapped || s.GetLevelSinceMs() != since {
			t.Errorf("it is shown as %s since %d", s.GetLevel(), s.GetLevelSinceMs())
		}
	})
	b.requestLevel(w, levelCheckpointed)
	if s := b.awaitLevel(w, levelCheckpointed); s.GetLevelNote() != "" {
		t.Errorf("note %q", s.GetLevelNote())
	}
	k.setOnThaw(nil)
	k.mu.Lock()
	if len(k.thawed) != 2 {
		t.Errorf("thawed %d times, want twice", len(k.thawed))
	}
	for _, x := range k.thawed {
		if x.CPU != 100 || x.io != 1<<20 || x.swap != x.Memory {
			t.Errorf("it ran for a moment under %+v", x)
		}
	}
	k.mu.Unlock()
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)

	b.engine.Inject(mustRun(0))
	b.requestLevel(w, levelCheckpointed)
	if s := b.awaitRefusal(w, levelCheckpointed); s.GetLevel() != levelSwapped || len(s.GetLevelsRefused()) > 0 {
		t.Errorf("at %s, never %v: want it swapped, and a dump later", s.GetLevel(), s.GetLevelsRefused())
	}
	b.awaitNotCounting(w)
	b.engine.Heal()
	b.requestLevel(w, levelSwapped)
	poll(t, "no refusal any more", func() bool { return b.get(w).GetTargetRefused() == 0 })
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
}

// A moment that does not end in time ends in a freeze: nothing is dumped before.
func TestMomentThatDoesNotEndInTime(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.engine.Inject(mustRun(1))
	b.engine.Inject(fake.Fault{Verb: fake.Freeze, Nth: 2, Err: fault.New(fault.Unavailable, "not frozen in time")})
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	if froze, dumped := b.engine.Calls(fake.Freeze), b.engine.Calls(fake.Checkpoint); froze != 3 || dumped != 2 {
		t.Errorf("%d freezes and %d dumps, want a third freeze before the second dump", froze, dumped)
	}
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
}

// exitingKernel has the task end between the intent to dump it and its dump.
type exitingKernel struct {
	*levelKernel
	exit func()
}

func (k *exitingKernel) Ensure(ctx context.Context, id string, l Limits) (*droverv1.Limits, error) {
	if l.CPU == 0 { // lifted for a dump
		k.exit()
	}
	return k.levelKernel.Ensure(ctx, id, l)
}

// A task that ends before criu begins ends as it did by itself; one that was killed may have been so by criu.
func TestEndBeforeADump(t *testing.T) {
	for name, c := range map[string]struct {
		code  int
		phase droverv1.Phase
		cause droverv1.Cause
	}{
		"with success":  {0, succeeded, 0},
		"with an error": {3, failed, droverv1.Cause_CAUSE_EXIT},
		"with a KILL":   {137, failed, droverv1.Cause_CAUSE_INFRA},
	} {
		t.Run(name, func(t *testing.T) {
			end := make(chan struct{})
			p := programs()
			p["end"] = func(context.Context, *fake.Process) int { <-end; return c.code }
			b := newTestNode(t, p)
			w := groupTask(0, "end")
			b.config.Enforcer = &exitingKernel{newLevelKernel(b), sync.OnceFunc(func() {
				close(end)
				if _, err := b.engine.Driver().Wait(t.Context(), idOf(w)); err != nil {
					t.Error(err)
				}
			})}
			b.start()
			b.put(w)
			b.await(t, w, running)
			b.requestLevel(w, levelCheckpointed)
			if s := b.await(t, w, c.phase); s.GetCause() != c.cause {
				t.Errorf("it ended with %v: %s, want %v", s.GetCause(), s.GetMessage(), c.cause)
			}
			b.removeAndCheckClean(t, w)
		})
	}
}

// A dump counts before its container is removed, whatever becomes of the removal:
// the next daemon removes it, and so does a resume.
func TestDumpCountsBeforeItsContainerIsRemoved(t *testing.T) {
	for name, restart := range map[string]bool{"the daemon dies before": true, "it is resumed before": false} {
		t.Run(name, func(t *testing.T) {
			b, _ := newLevelTestNode(t)
			b.start()
			w := groupTask(0, "count")
			b.put(w)
			b.await(t, w, running)
			b.awaitCounting(w)
			b.engine.Inject(fake.Fault{Verb: fake.Delete, Err: fault.New(fault.Unavailable, "containerd is busy")})
			b.requestLevel(w, levelCheckpointed)
			s := b.awaitLevel(w, levelCheckpointed)
			if all, err := b.engine.Driver().List(t.Context()); err != nil || len(all) != 1 || all[0].Phase != runtime.PhaseStopped {
				t.Errorf("containers %v, %v, want the one that the dump has ended", all, err)
			}
			if s.GetPhase() != running || s.GetOccupied().GetMemory() != 0 {
				t.Errorf("reported %v, it occupies %v", s.GetPhase(), s.GetOccupied())
			}
			if restart {
				b.stopDaemon()
				b.mu.Lock()
				clear(b.seen)
				b.mu.Unlock()
				b.config.Driver = b.engine.Driver()
				b.start()
				b.awaitLevel(w, levelCheckpointed)
			} else {
				b.requestLevel(w, levelRunning)
			}
			b.engine.Heal()
			if restart {
				poll(t, "the container being gone", func() bool {
					all, err := b.engine.Driver().List(t.Context())
					return err == nil && len(all) == 0
				})
				b.requestLevel(w, levelRunning)
			}
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
			b.removeAndCheckClean(t, w)
		})
	}
}

// A restarted daemon finds every level unchanged and continues with what was
// requested meanwhile.
func TestLevelsAcrossRestarts(t *testing.T) {
	for _, l := range []droverv1.Level{levelFrozen, levelSwapped, levelCheckpointed} {
		t.Run(l.String(), func(t *testing.T) {
			b, _ := newLevelTestNode(t)
			b.start()
			w := groupTask(0, "count")
			b.put(w)
			b.await(t, w, running)
			b.requestLevel(w, l)
			before := b.awaitLevel(w, l)
			restart := func() {
				b.stopDaemon()
				b.mu.Lock()
				clear(b.seen)
				b.mu.Unlock()
				b.config.Driver = b.engine.Driver()
				b.start()
			}
			restart()
			s := b.awaitLevel(w, l)
			b.awaitNotCounting(w)
			if s.GetLevelSinceMs() != before.GetLevelSinceMs() || s.GetRunningMs() != before.GetRunningMs() {
				t.Errorf("since %d, ran %d ms; before the restart %d, %d", s.GetLevelSinceMs(), s.GetRunningMs(), before.GetLevelSinceMs(), before.GetRunningMs())
			}
			b.requestLevel(w, levelRunning)
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
			restart()
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
		})
	}
}

// A daemon that died between thawing a task and recording it has the task frozen
// again until its limits are written. Nor does it run on without them if it cannot be frozen, whatever level is wanted then.
func TestAdoptedWithoutLimits(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted droverv1.Level
		freeze error // of the daemon's first freeze
	}{
		{"frozen again", levelRunning, nil},
		{"not frozen, to run", levelRunning, fault.New(fault.Unavailable, "a process waits for its disk; the container is running")},
		{"not frozen, to be frozen", levelFrozen, fault.New(fault.Unavailable, "a process waits for its disk; the container is running")},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, k := newLevelTestNode(t)
			b.start()
			w := groupTask(0, "count")
			b.put(w)
			b.await(t, w, running)
			b.requestLevel(w, levelFrozen)
			b.awaitLevel(w, levelFrozen)
			b.stopDaemon()
			if err := b.engine.Driver().Thaw(t.Context(), idOf(w)); err != nil {
				t.Fatal(err)
			}
			k.mu.Lock()
			k.groups[idOf(w)] = Limits{Memory: 1 << 30}
			k.mu.Unlock()
			if c.freeze != nil {
				b.engine.Inject(fake.Fault{Verb: fake.Freeze, Err: c.freeze})
			}
			b.config.Driver = b.engine.Driver()
			b.mu.Lock()
			w.Level = c.wanted
			b.wanted["1.0.0.1.1"] = w
			b.revision += 10
			clear(b.seen)
			b.mu.Unlock()
			b.start()
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
			k.mu.Lock()
			defer k.mu.Unlock()
			if got := k.groups[idOf(w)]; got.CPU != 100 || got.io != 1<<20 {
				t.Errorf("it runs under %+v", got)
			}
		})
	}
}

func TestStopAndRemoveAtEveryLevel(t *testing.T) {
	for _, l := range []droverv1.Level{levelFrozen, levelSwapped, levelCheckpointed} {
		for _, stop := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stop %v", l, stop), func(t *testing.T) {
				b, _ := newLevelTestNode(t)
				b.start()
				w := groupTask(0, "count")
				b.put(w)
				b.await(t, w, running)
				b.requestLevel(w, l)
				b.awaitLevel(w, l)
				if stop {
					b.put(&droverv1.WantedAttempt{Key: w.GetKey(), Goal: droverv1.Goal_GOAL_STOP})
					if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_STOPPED {
						t.Errorf("%s %q", s.GetCause(), s.GetMessage())
					}
				}
				b.removeAndCheckClean(t, w)
			})
		}
	}
}

func TestDumpThatIsDamagedIsRefused(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	name := filepath.Join(b.config.Data, "images", idOf(w), "1", "dump.json")
	if err := os.WriteFile(name, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.requestLevel(w, levelRunning)
	s := b.awaitRefusal(w, levelRunning)
	if s.GetLevel() != levelCheckpointed || !strings.Contains(s.GetLevelNote(), "damaged") {
		t.Errorf("at %s, %q", s.GetLevel(), s.GetLevelNote())
	}
	if n := b.engine.Calls(fake.Restore); n != 1 {
		t.Errorf("%d tries to restore a damaged dump", n)
	}
}

func TestFrozenTimeDoesNotCount(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelFrozen)
	s := b.awaitLevel(w, levelFrozen)
	// The limit is set while the task is frozen: it has run for as long as it took this machine to freeze it.
	w = with(proto.CloneOf(w), func(w *droverv1.WantedAttempt) { w.Spec.TimeLimitMs = s.GetRunningMs() + 400 })
	b.requestLevel(w, levelFrozen)
	began := time.Now()
	poll(t, "longer than the time limit", func() bool { return time.Since(began) > 500*time.Millisecond })
	if now := b.get(w); now.GetPhase() != running || now.GetRunningMs() != s.GetRunningMs() {
		t.Errorf("%s, ran %d ms, before %d", now.GetPhase(), now.GetRunningMs(), s.GetRunningMs())
	}
	b.requestLevel(w, levelRunning)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_TIME || s.GetRunningMs() < w.GetSpec().GetTimeLimitMs() {
		t.Errorf("%s after %d ms of %d", s.GetCause(), s.GetRunningMs(), w.GetSpec().GetTimeLimitMs())
	}
}
