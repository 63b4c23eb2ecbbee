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
	lrunning      = droverv1.Level_LEVEL_RUNNING
	lfrozen       = droverv1.Level_LEVEL_FROZEN
	lswapped      = droverv1.Level_LEVEL_SWAPPED
	lcheckpointed = droverv1.Level_LEVEL_CHECKPOINTED
)

// levelKernel is a kernel that freezes through the fake engine and swaps in
// memory. It says which limits were in force whenever a task was let go.
type levelKernel struct {
	*fakeKernel
	runtime.Freezer
	swapErr error
	swapped map[string]int64
	smu     sync.Mutex
	thawed  []Limits
	held    int64 // bytes of memory that a task is said to hold; 0 as the fake has it
}

func (k *levelKernel) Usage(id string) (*droverv1.Usage, *droverv1.Resources, int64, error) {
	u, held, kills, err := k.fakeKernel.Usage(id)
	if err == nil && k.held > 0 {
		held.Memory = k.held
	}
	return u, held, kills, err
}

func newLevelKernel(b *bench) *levelKernel {
	return &levelKernel{fakeKernel: newKernel(), Freezer: b.engine.Driver(), swapped: map[string]int64{}}
}

func (k *levelKernel) Thaw(ctx context.Context, id string) error {
	k.mu.Lock()
	k.thawed = append(k.thawed, k.groups[id])
	k.mu.Unlock()
	return k.Freezer.Thaw(ctx, id)
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

func (k *levelKernel) Swap(id string) (int64, error) {
	k.smu.Lock()
	defer k.smu.Unlock()
	return k.swapped[id], nil
}

// levelBench is a bench whose programs stand still when they are told to.
func levelBench(t *testing.T) (*bench, *levelKernel) {
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
	b := newBench(t, p)
	k := newLevelKernel(b)
	b.config.Enforcer = k
	return b, k
}

// at wants an attempt at a level.
func (b *bench) at(w *droverv1.WantedAttempt, l droverv1.Level) {
	c := proto.CloneOf(w)
	c.Level = l
	b.put(c)
}

func idOf(w *droverv1.WantedAttempt) string { return string(store.IDOf(w.GetKey())) }

func (b *bench) awaitLevel(w *droverv1.WantedAttempt, l droverv1.Level) *droverv1.SeenAttempt {
	b.t.Helper()
	poll(b.t, fmt.Sprintf("%s at %s", idOf(w), l), func() bool {
		s := b.get(w)
		return s.GetPhase() == running && s.GetLevel() == l
	})
	return b.get(w)
}

func (b *bench) awaitRefusal(w *droverv1.WantedAttempt, l droverv1.Level) *droverv1.SeenAttempt {
	b.t.Helper()
	poll(b.t, fmt.Sprintf("%s refused by %s", l, idOf(w)), func() bool { return b.get(w).GetLevelRefused() == l })
	return b.get(w)
}

// lines of the task's log.
func (b *bench) lines(w *droverv1.WantedAttempt) int {
	text, _ := os.ReadFile(filepath.Join(b.folder(w), "logs", "stdout.log"))
	return strings.Count(string(text), "\n")
}

// counts waits until the task counts on, and makes sure that it never counted
// anew.
func (b *bench) counts(w *droverv1.WantedAttempt) {
	b.t.Helper()
	from := b.lines(w)
	poll(b.t, "counting on", func() bool { return b.lines(w) > from+3 })
	text, err := os.ReadFile(filepath.Join(b.folder(w), "logs", "stdout.log"))
	if err != nil {
		b.t.Fatal(err)
	}
	for i, line := range strings.Fields(string(text)) {
		if line != fmt.Sprint(i) {
			b.t.Fatalf("line %d of the log is %q: it began anew", i, line)
		}
	}
}

// still makes sure that the task does not count.
func (b *bench) still(w *droverv1.WantedAttempt) {
	b.t.Helper()
	before := -1
	poll(b.t, "standing still", func() bool {
		now := b.lines(w)
		same := now == before
		before = now
		return same
	})
}

func TestThroughAllLevelsAndBack(t *testing.T) {
	for _, l := range []droverv1.Level{lfrozen, lswapped, lcheckpointed} {
		t.Run(l.String(), func(t *testing.T) {
			b, k := levelBench(t)
			b.start()
			w := group(0, "count")
			b.put(w)
			b.await(t, w, running)
			for range 3 {
				b.counts(w)
				b.at(w, l)
				s := b.awaitLevel(w, l)
				b.still(w)
				if s.GetHeld().GetCpu() != 0 || s.GetLevelRefused() != 0 || len(s.GetLevelSteps()) == 0 || s.GetLevelSteps()[0].GetStep() != "freeze" {
					t.Errorf("it holds %v, steps %v, refused %v", s.GetHeld(), s.GetLevelSteps(), s.GetLevelRefused())
				}
				all, err := b.engine.Driver().List(t.Context())
				if gone := len(all) == 0; err != nil || gone != (l == lcheckpointed) {
					t.Errorf("containers %v, %v", all, err)
				}
				b.at(w, lrunning)
				s = b.awaitLevel(w, lrunning)
				if got := s.GetLimits().GetMemoryMax(); got != fmt.Sprint(64<<20) {
					t.Errorf("memory.max is %q after a resume", got)
				}
			}
			b.counts(w)
			if n := b.engine.Calls(fake.Start); n != 1 {
				t.Errorf("%d starts", n)
			}
			k.mu.Lock()
			for _, x := range k.thawed {
				if x.CPU != 100 || x.Swap != 0 || x.IO != 1<<20 {
					t.Errorf("it was let go under %+v", x)
				}
			}
			k.mu.Unlock()
			b.endsClean(t, w)
		})
	}
}

// endsClean removes an attempt and holds the node to keeping nothing of it, dumps
// included.
func (b *bench) endsClean(t *testing.T, w *droverv1.WantedAttempt) {
	t.Helper()
	b.remove(w)
	b.await(t, w, gone)
	b.nothingLeft()
	if left, err := os.ReadDir(filepath.Join(b.config.Data, "images")); err != nil || len(left) != 0 {
		t.Errorf("dumps left: %v, %v", left, err)
	}
}

func TestDeeperWithoutRunning(t *testing.T) {
	b, _ := levelBench(t)
	b.start()
	w := group(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.counts(w)
	for _, l := range []droverv1.Level{lfrozen, lswapped, lcheckpointed} {
		b.at(w, l)
		b.awaitLevel(w, l)
		b.still(w)
	}
	if n := b.engine.Calls(fake.Thaw); n != 0 {
		t.Errorf("it was let go %d times on the way down", n)
	}
	b.at(w, lrunning)
	b.awaitLevel(w, lrunning)
	b.counts(w)
}

func TestWhatFailsFallsBack(t *testing.T) {
	bad := fault.New(fault.Unsupported, "criu: no such luck")
	for name, c := range map[string]struct {
		verb   fake.Verb
		swap   error
		held   int64
		want   droverv1.Level // asked for
		get    droverv1.Level
		note   string
		counts bool
		never  []droverv1.Level // as the coordinator is told
	}{
		"a dump that fails leaves it swapped": {verb: fake.Checkpoint, want: lcheckpointed, get: lswapped, note: "no such luck", never: []droverv1.Level{lcheckpointed}},
		"or frozen where there is no swap":    {verb: fake.Checkpoint, swap: fault.New(fault.Exhausted, "no swap"), want: lcheckpointed, get: lfrozen, note: "no swap", never: []droverv1.Level{lcheckpointed}},
		"nor does a disk without room for it": {held: 1 << 60, want: lcheckpointed, get: lswapped, note: "a dump takes up to"},
		"swap that is full leaves it frozen":  {swap: fault.New(fault.Exhausted, "no swap"), want: lswapped, get: lfrozen, note: "no swap"},
		"one that cannot be frozen runs on":   {verb: fake.Freeze, want: lfrozen, get: lrunning, note: "cannot be frozen", counts: true, never: []droverv1.Level{lfrozen, lswapped, lcheckpointed}},
		"and is not dumped running":           {verb: fake.Freeze, want: lcheckpointed, get: lrunning, note: "cannot be frozen", counts: true, never: []droverv1.Level{lfrozen, lswapped, lcheckpointed}},
	} {
		t.Run(name, func(t *testing.T) {
			b, k := levelBench(t)
			k.swapErr, k.held = c.swap, c.held
			if c.verb != 0 {
				b.engine.Inject(fake.Fault{Verb: c.verb, Err: bad})
			}
			b.start()
			w := group(0, "count")
			b.put(w)
			b.await(t, w, running)
			b.at(w, c.want)
			s := b.awaitRefusal(w, c.want)
			if s.GetLevel() != c.get || !strings.Contains(s.GetLevelNote(), c.note) {
				t.Errorf("at %s, %q; want %s, %q", s.GetLevel(), s.GetLevelNote(), c.get, c.note)
			}
			if !slices.Equal(s.GetLevelsNever(), c.never) {
				t.Errorf("it can never be %v, want %v", s.GetLevelsNever(), c.never)
			}
			if c.counts {
				b.counts(w)
			} else {
				b.still(w)
			}
			b.at(w, c.get) // what the coordinator makes of it
			poll(t, "no refusal any more", func() bool { return b.get(w).GetLevelRefused() == 0 })
			b.engine.Heal()
			b.at(w, lrunning)
			b.awaitLevel(w, lrunning)
			b.counts(w)
		})
	}
}

func TestPassingFailuresBetweenLevels(t *testing.T) {
	for _, verb := range []fake.Verb{fake.Freeze, fake.Thaw, fake.Checkpoint, fake.Restore} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, acted %v", verb, after), func(t *testing.T) {
				b, _ := levelBench(t)
				b.engine.Inject(fake.Fault{Verb: verb, Nth: 1, Err: fault.New(fault.Unavailable, "the answer is lost"), After: after})
				b.start()
				w := group(0, "count")
				b.put(w)
				b.await(t, w, running)
				for _, l := range []droverv1.Level{lcheckpointed, lrunning, lfrozen, lrunning} {
					b.at(w, l)
					b.awaitLevel(w, l)
				}
				b.counts(w)
			})
		}
	}
}

// A daemon that dies and comes back finds every level as it was, and goes on
// with what was wanted meanwhile.
func TestLevelsAcrossRestarts(t *testing.T) {
	for _, l := range []droverv1.Level{lfrozen, lswapped, lcheckpointed} {
		t.Run(l.String(), func(t *testing.T) {
			b, _ := levelBench(t)
			b.start()
			w := group(0, "count")
			b.put(w)
			b.await(t, w, running)
			b.at(w, l)
			before := b.awaitLevel(w, l)
			restart := func() {
				b.halt()
				b.mu.Lock()
				clear(b.seen)
				b.mu.Unlock()
				b.config.Driver = b.engine.Driver()
				b.start()
			}
			restart()
			s := b.awaitLevel(w, l)
			b.still(w)
			if s.GetLevelSinceMs() != before.GetLevelSinceMs() || s.GetRunningMs() != before.GetRunningMs() {
				t.Errorf("since %d, ran %d ms; before the restart %d, %d", s.GetLevelSinceMs(), s.GetRunningMs(), before.GetLevelSinceMs(), before.GetRunningMs())
			}
			b.at(w, lrunning)
			b.awaitLevel(w, lrunning)
			b.counts(w)
			restart()
			b.awaitLevel(w, lrunning)
			b.counts(w)
		})
	}
}

// What died between letting a task go and writing so down has it stand still
// until its limits are written.
func TestAdoptedWithoutLimits(t *testing.T) {
	b, k := levelBench(t)
	b.start()
	w := group(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.at(w, lfrozen)
	b.awaitLevel(w, lfrozen)
	b.halt()
	if err := b.engine.Driver().Thaw(t.Context(), idOf(w)); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.groups[idOf(w)] = Limits{Memory: 1 << 30}
	k.mu.Unlock()
	b.config.Driver = b.engine.Driver()
	b.mu.Lock()
	b.wanted["1.0.0.1.1"] = w
	b.revision += 10
	clear(b.seen)
	b.mu.Unlock()
	b.start()
	b.awaitLevel(w, lrunning)
	b.counts(w)
	k.mu.Lock()
	defer k.mu.Unlock()
	if got := k.groups[idOf(w)]; got.CPU != 100 || got.IO != 1<<20 {
		t.Errorf("it runs under %+v", got)
	}
}

func TestStopAndRemoveAtEveryLevel(t *testing.T) {
	for _, l := range []droverv1.Level{lfrozen, lswapped, lcheckpointed} {
		for _, stop := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stop %v", l, stop), func(t *testing.T) {
				b, _ := levelBench(t)
				b.start()
				w := group(0, "count")
				b.put(w)
				b.await(t, w, running)
				b.at(w, l)
				b.awaitLevel(w, l)
				if stop {
					b.put(&droverv1.WantedAttempt{Key: w.GetKey(), Goal: droverv1.Goal_GOAL_STOP})
					if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_STOPPED {
						t.Errorf("%s %q", s.GetCause(), s.GetMessage())
					}
				}
				b.endsClean(t, w)
			})
		}
	}
}

func TestDumpThatIsDamagedIsRefused(t *testing.T) {
	b, _ := levelBench(t)
	b.start()
	w := group(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.at(w, lcheckpointed)
	b.awaitLevel(w, lcheckpointed)
	name := filepath.Join(b.config.Data, "images", idOf(w), "1", "dump.json")
	if err := os.WriteFile(name, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.at(w, lrunning)
	s := b.awaitRefusal(w, lrunning)
	if s.GetLevel() != lcheckpointed || !strings.Contains(s.GetLevelNote(), "damaged") {
		t.Errorf("at %s, %q", s.GetLevel(), s.GetLevelNote())
	}
	if n := b.engine.Calls(fake.Restore); n != 1 {
		t.Errorf("%d tries to restore what is damaged", n)
	}
}

func TestStandingStillCostsNoTime(t *testing.T) {
	b, _ := levelBench(t)
	b.start()
	w := with(group(0, "count"), func(w *droverv1.WantedAttempt) { w.Spec.TimeLimitMs = 400 })
	b.put(w)
	b.await(t, w, running)
	b.at(w, lfrozen)
	s := b.awaitLevel(w, lfrozen)
	began := time.Now()
	poll(t, "longer than the time limit", func() bool { return time.Since(began) > 500*time.Millisecond })
	if now := b.get(w); now.GetPhase() != running || now.GetRunningMs() != s.GetRunningMs() {
		t.Errorf("%s, ran %d ms, before %d", now.GetPhase(), now.GetRunningMs(), s.GetRunningMs())
	}
	b.at(w, lrunning)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_TIME || s.GetRunningMs() < 400 {
		t.Errorf("%s after %d ms", s.GetCause(), s.GetRunningMs())
	}
}
