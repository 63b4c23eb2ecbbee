package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime/fake"
)

// fakeKernel is an Enforcer in memory. It can fail calls of Ensure and report OOM
// kills.
type fakeKernel struct {
	mu       sync.Mutex
	groups   map[string]Limits
	oom      map[string]OOMKills
	failures int   // number of Ensure calls that fail
	err      error // their error
	made     int
	killed   []string // attempts whose helpers were killed
	killErr  error    // of the next calls of KillHelpers
	vanishes int      // the next group is gone when it is looked for so often
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{groups: map[string]Limits{}, oom: map[string]OOMKills{}}
}

func (k *fakeKernel) Ensure(_ context.Context, id string, l Limits) (*droverv1.Limits, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.made++; k.made <= k.failures {
		return nil, k.err
	}
	k.groups[id] = l
	return k.limitsAsRead(l), nil
}

func (k *fakeKernel) limitsAsRead(l Limits) *droverv1.Limits {
	return &droverv1.Limits{CpuMax: fmt.Sprintf("%d 100000", l.CPU*100), MemoryMax: fmt.Sprint(l.Memory), PidsMax: fmt.Sprint(l.Pids)}
}

func (k *fakeKernel) Limits(id string) (*droverv1.Limits, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.limitsAsRead(k.groups[id]), nil
}

func (k *fakeKernel) ContainerCgroup(id string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.vanishes--; k.vanishes == 0 {
		delete(k.groups, id)
	}
	if _, ok := k.groups[id]; !ok {
		return ""
	}
	return "/drover/tasks/" + id + "/container"
}

func (k *fakeKernel) OpenHelperLeaf(string) (*os.File, error) {
	return nil, errors.New("no leaf in memory")
}

func (k *fakeKernel) Usage(id string) (*droverv1.Usage, *droverv1.Resources, OOMKills, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.groups[id]
	if !ok {
		return nil, nil, OOMKills{}, fault.New(fault.NotFound, "no group %s", id)
	}
	if kills := k.oom[id]; kills != (OOMKills{}) {
		return &droverv1.Usage{MemoryPeak: l.Memory}, &droverv1.Resources{}, kills, nil
	}
	return &droverv1.Usage{CpuMs: 7}, &droverv1.Resources{Memory: 5}, OOMKills{}, nil
}

func (k *fakeKernel) KillHelpers(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.killErr != nil {
		return k.killErr
	}
	k.killed = append(k.killed, id)
	return nil
}

func (k *fakeKernel) Remove(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.groups, id)
	return nil
}

func (k *fakeKernel) List() ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ids []string
	for id := range k.groups {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (k *fakeKernel) empty() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.groups) == 0
}

func TestLimitsAreReadBackAndRemoved(t *testing.T) {
	b, k := newTestNode(t, programs()), newFakeKernel()
	b.config.Enforcer, b.config.Info.TaskOverheadMemory = k, 16<<20
	b.start()
	w := groupTask(0, "hang")
	b.put(w)
	s := b.await(t, w, running)
	if got := s.GetLimits(); got.GetMemoryMax() != fmt.Sprint(80<<20) || got.GetCpuMax() != "10000 100000" || got.GetPidsMax() == "" {
		t.Errorf("limits as reported: %v", got)
	}
	poll(t, "its usage", func() bool { return b.get(w).GetUsage().GetCpuMs() == 7 })
	b.stopDaemon()
	k.mu.Lock()
	made := k.made
	k.mu.Unlock()
	b.config.Driver = b.engine.Driver()
	b.mu.Lock()
	clear(b.seen)
	b.mu.Unlock()
	b.start()
	if s := b.await(t, w, running); s.GetLimits().GetMemoryMax() != fmt.Sprint(80<<20) {
		t.Errorf("limits after a restart: %v", s.GetLimits())
	}
	poll(t, "its usage after a restart", func() bool { return b.get(w).GetUsage().GetCpuMs() == 7 })
	k.mu.Lock()
	if k.made != made {
		t.Error("limits of a running task are written at its adoption, whatever its level")
	}
	k.mu.Unlock()
	if !slices.Equal(k.killed, []string{"1.0.0.1.1"}) {
		t.Errorf("helpers of the dead daemon that were ended: %v", k.killed)
	}
	b.remove(w)
	b.await(t, w, gone)
	b.checkNothingLeft()
	if !k.empty() {
		t.Errorf("cgroups left: %v", k.groups)
	}
}

// A helper of a dead daemon that does not die, as while its disk hangs, keeps only its own attempt from going on:
// before another one starts, it must be gone.
func TestHelpersThatDoNotDie(t *testing.T) {
	b, k := newTestNode(t, programs()), newFakeKernel()
	b.config.Enforcer = k
	b.start()
	w := groupTask(0, "hang")
	b.put(w)
	b.await(t, w, running)
	b.stopDaemon()
	k.killErr = fault.New(fault.Unavailable, "helpers [7] were killed but do not exit")
	b.config.Driver = b.engine.Driver()
	b.start()
	other := groupTask(1, "true")
	b.put(other)
	b.await(t, other, succeeded)

	mail := &mailbox{inbox: make(chan func(), 10)}
	x := &attemptHelpers{
		fetch: helperState{work: task.WorkIdle}, strays: true, ctx: t.Context(), id: "1.0.0.1.1", dir: folder(t.TempDir()),
		cfg: &b.config, runner: &helperRunner{enforcer: k}, mail: mail, clock: newClock(nil, nil), log: slog.New(slog.DiscardHandler),
	}
	start := func() error { return x.startFetch(&droverv1.TaskSpec{Kind: kindReduce}, nil, func(*failure) {}) }
	if err := start(); !errors.Is(err, fault.Unavailable) || x.fetch.work != task.WorkIdle {
		t.Errorf("a helper starts beside another: %v, %s", err, x.fetch.work)
	}
	k.mu.Lock()
	k.killErr = nil
	k.mu.Unlock()
	if err := start(); err != nil || !slices.Contains(k.killed, "1.0.0.1.1") {
		t.Errorf("once the other is dead: %v", err)
	}
	x.wg.Wait()
}

// Ended tasks that the node keeps, for their logs and outputs, have no cgroup; what
// it counted is in their record, also for the next daemon.
func TestEndedTasksKeepNoCgroup(t *testing.T) {
	b, k := newTestNode(t, programs()), newFakeKernel()
	b.config.Enforcer, b.config.parallel = k, 16
	b.start()
	count := 1000
	if testing.Short() {
		count = 200
	}
	var all []*droverv1.WantedAttempt
	for i := range count {
		program := "true"
		if i%10 == 0 {
			program = "fail"
		}
		all = append(all, groupTask(int32(i), program))
	}
	b.put(all...)
	poll(t, "the end of all tasks", func() bool {
		for _, w := range all {
			if b.get(w).GetPhase() < succeeded {
				return false
			}
		}
		return true
	})
	poll(t, "no cgroup", k.empty)
	b.stopDaemon()
	b.config.Driver = b.engine.Driver()
	b.mu.Lock()
	clear(b.seen)
	b.mu.Unlock()
	b.start()
	for i, w := range all {
		s := b.await(t, w, b.endOf(w))
		if s.GetUsage().GetCpuMs() != 7 || s.GetLimits().GetPidsMax() == "" || (s.GetPhase() == failed) != (i%10 == 0) {
			t.Fatalf("after a restart: %v", s)
		}
	}
	if !k.empty() {
		t.Errorf("cgroups after a restart: %v", k.groups)
	}
}

// endOf waits until the attempt is reported as ended and returns how.
func (b *testNode) endOf(w *droverv1.WantedAttempt) droverv1.Phase {
	b.t.Helper()
	poll(b.t, "its end", func() bool { return b.get(w).GetPhase() >= succeeded })
	return b.get(w).GetPhase()
}

func TestOverMemory(t *testing.T) {
	b, k := newTestNode(t, map[string]fake.Program{"hog": func(context.Context, *fake.Process) int { return 137 }}), newFakeKernel()
	b.config.Enforcer, b.config.Info.TaskOverheadMemory = k, 16<<20
	k.oom["1.0.0.1.1"] = OOMKills{atLimit: 1}
	b.start()
	w := groupTask(0, "hog")
	w.Spec.HarnessMemory = 24 << 20 // which the scheduler counted
	b.put(w)
	s := b.await(t, w, failed)
	if s.GetCause() != droverv1.Cause_CAUSE_MEMORY || s.GetExitCode() != 137 {
		t.Errorf("%s, exit %d", s.GetCause(), s.GetExitCode())
	}
	for _, want := range []string{`memory = "64MiB"`, "with the harness 88MiB", "peak was 88MiB", `set memory = "128MiB"`} {
		if !strings.Contains(s.GetMessage(), want) {
			t.Errorf("%q does not say %q", s.GetMessage(), want)
		}
	}
}

// The kernel counts in one number whom it killed at the task's limit and whom because the machine had no memory.
func TestOOMKillsByWhatLacked(t *testing.T) {
	for name, c := range map[string]struct {
		stats cgroups.Stats
		want  OOMKills
	}{
		"nobody":      {cgroups.Stats{}, OOMKills{}},
		"at limit":    {cgroups.Stats{OOMs: 1, OOMKills: 3}, OOMKills{atLimit: 3}},
		"the machine": {cgroups.Stats{OOMKills: 2}, OOMKills{outside: 2}},
	} {
		if got := oomKillsOf(c.stats); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestLimitsThatDoNotReadBack(t *testing.T) {
	b, k := newTestNode(t, programs()), newFakeKernel()
	k.failures, k.err = 2, errors.New("memory.max reads back as max")
	b.config.Enforcer = k
	b.start()
	w := groupTask(0, "true")
	b.put(w)
	b.await(t, w, succeeded) // the third time they read back
	k.mu.Lock()
	k.failures = 1000
	k.mu.Unlock()
	w = groupTask(1, "true")
	b.put(w)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_INFRA || !strings.Contains(s.GetMessage(), "reads back") {
		t.Errorf("limits that never stick: %s %q", s.GetCause(), s.GetMessage())
	}
	if n := b.engine.Calls(fake.Create); n != 1 {
		t.Errorf("%d containers, want 1: none without limits", n)
	}
}

// A cgroup that cannot be made or has vanished, as when the unit around it was restarted, is no fault of the job.
func TestCgroupsThatVanish(t *testing.T) {
	cgroup := ""
	p := programs()
	p["true"] = func(_ context.Context, f *fake.Process) int { cgroup = f.Spec.Cgroup; return 0 }
	b, k := newTestNode(t, p), newFakeKernel()
	k.failures, k.err = 1000, fault.New(fault.NotFound, "cgroup of 1.0.0.1.1: no such file or directory")
	b.config.Enforcer = k
	b.start()
	w := groupTask(0, "true")
	b.put(w)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_INFRA {
		t.Errorf("one that cannot be made: %s %q", s.GetCause(), s.GetMessage())
	}
	for i, when := range []string{"before its files", "before its container"} {
		k.mu.Lock()
		k.failures, k.vanishes, cgroup = 0, i+1, ""
		before := k.made
		k.mu.Unlock()
		w = groupTask(int32(i+1), "true")
		w.Spec.Demand.Cpu = 2000
		b.put(w)
		b.await(t, w, succeeded)
		k.mu.Lock()
		if n := k.made - before; n != 2 || cgroup == "" {
			t.Errorf("%s: made %d times, want 2; it ran in %q", when, n, cgroup)
		}
		k.mu.Unlock()
	}
}

// noteLimits returns the programs with one more, look, which notes the limits that are in force when it starts.
func noteLimits(k *fakeKernel, atStart *Limits) map[string]fake.Program {
	p := programs()
	p["look"] = func(_ context.Context, f *fake.Process) int {
		k.mu.Lock()
		defer k.mu.Unlock()
		*atStart = k.groups[f.Spec.ID]
		return 0
	}
	return p
}

// A cgroup that a daemon had made and not limited when it was killed is limited by the next one before the program
// runs, also when it must be made again after a reboot.
func TestLimitsOfACgroupThatWasBegunAreWritten(t *testing.T) {
	for name, c := range map[string]struct{ created, gone bool }{
		"before the container": {}, "a start was recorded": {created: true}, "and the cgroup is gone": {created: true, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFakeKernel()
			var atStart Limits
			b := newTestNode(t, noteLimits(k, &atStart))
			b.config.Enforcer = k
			w := groupTask(0, "look")
			w.Spec.Demand.Cpu = 2000 // no limit is lifted for its start
			if c.created {
				w.Spec.StartPauseMs = time.Hour.Milliseconds()
			} else {
				k.failures, k.err = 1<<30, fault.New(fault.Unavailable, "no limit can be written")
			}
			b.start()
			b.put(w)
			poll(t, "what is prepared", func() bool {
				all, err := b.engine.Driver().List(t.Context())
				k.mu.Lock()
				defer k.mu.Unlock()
				return err == nil && k.made > 0 && (!c.created || len(all) == 1)
			})
			b.stopDaemon()
			if c.created {
				b.changeRecord(w, func(r *store.Record) { r.Started = true })
			}
			k.mu.Lock()
			k.failures = 0
			delete(k.groups, idOf(w))
			if !c.gone {
				k.groups[idOf(w)] = Limits{}
			}
			k.mu.Unlock()
			b.config.Driver = b.engine.Driver()
			b.start()
			b.await(t, w, succeeded)
			k.mu.Lock()
			defer k.mu.Unlock()
			if want := b.config.limitsOf(w.GetSpec()); atStart != want {
				t.Errorf("its program began under %+v, want %+v", atStart, want)
			}
		})
	}
}

// The CPU limit of a small task is lifted while the engine prepares its start, and
// is in force before its program runs, also after a failed preparation.
func TestTheCPULimitIsLiftedUntilTheProgramStarts(t *testing.T) {
	for name, failing := range map[string]bool{"it succeeds": false, "the first try fails": true} {
		t.Run(name, func(t *testing.T) {
			k := newFakeKernel()
			var atStart Limits
			b := newTestNode(t, noteLimits(k, &atStart))
			var prepared []Limits
			b.config.Enforcer = k
			b.config.Driver = preparing{b.engine.Driver(), func(id string) {
				k.mu.Lock()
				defer k.mu.Unlock()
				prepared = append(prepared, k.groups[id])
			}}
			if failing {
				b.engine.Inject(fake.Fault{Verb: fake.Prepare, Nth: 1, Err: context.DeadlineExceeded})
			}
			b.start()
			w := groupTask(0, "look")
			b.put(w)
			b.await(t, w, succeeded)
			limited := Limits{CPU: 100, Memory: 64 << 20, io: 1 << 20, Pids: maxPids}
			lifted := limited
			lifted.CPU = startCPU
			for _, l := range prepared {
				if l != lifted {
					t.Errorf("prepared under %+v, want %+v", l, lifted)
				}
			}
			if want := map[bool]int{false: 1, true: 2}[failing]; len(prepared) != want {
				t.Errorf("prepared %d times, want %d", len(prepared), want)
			}
			if atStart != limited {
				t.Errorf("its program began under %+v, want %+v", atStart, limited)
			}
		})
	}
}

// preparing is a driver that reports its Prepare calls.
type preparing struct {
	*fake.Driver
	hear func(id string)
}

func (p preparing) Prepare(ctx context.Context, id string) error {
	p.hear(id)
	return p.Driver.Prepare(ctx, id)
}

func TestShareOfInodes(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct{ disk, size, inodes, want int64 }{
		"a sixteenth of the disk has a sixteenth": {gib, 16 * gib, 262_144, 16_384},
		"a small task has the least":              {1 << 20, 16 * gib, 262_144, minFiles},
		"a large one at most a million":           {900 * gib, 1000 * gib, 1 << 30, maxFiles},
		"no limit on disk space":                  {0, 16 * gib, 262_144, maxFiles},
		"a disk that makes inodes as needed":      {gib, 16 * gib, 0, maxFiles},
	} {
		if got := shareOfInodes(c.disk, c.size, c.inodes); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A task without a demand is refused: zero written as a limit would be no limit.
func TestDemandOfNothingIsRefused(t *testing.T) {
	b, k := newTestNode(t, programs()), newFakeKernel()
	b.config.Enforcer = k
	b.start()
	for i, clear := range []func(*droverv1.Resources){
		func(r *droverv1.Resources) { r.Cpu = 0 }, func(r *droverv1.Resources) { r.Memory = 0 }, func(r *droverv1.Resources) { r.Io = 0 },
	} {
		w := groupTask(int32(i), "true")
		clear(w.GetSpec().GetDemand())
		b.put(w)
		if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_SPEC || !strings.Contains(s.GetMessage(), "must be above zero") {
			t.Errorf("%v: %s %q", w.GetSpec().GetDemand(), s.GetCause(), s.GetMessage())
		}
	}
	if n := b.engine.Calls(fake.Create); n != 0 {
		t.Errorf("%d containers were made", n)
	}
}

// An attempt is limited on every disk that it reads, each once; work of the node only on those that were measured.
func TestAttemptsAreLimitedOnTheDisksOfTheirImages(t *testing.T) {
	data, images := cgroups.Device{Major: 8}, cgroups.Device{Major: 8, Minor: 16}
	e := CgroupEnforcer{disks: []cgroups.Device{data}, imageDisks: []cgroups.Device{images, data}}
	dir := t.TempDir()
	want := []cgroups.Device{data, images}
	if d, err := cgroups.DiskOf(dir); err == nil { // a temporary folder may be in memory
		want = append(want, d)
	}
	for rootfs, want := range map[string][]cgroups.Device{"": {data, images}, "/no/such/folder": {data, images}, "/proc": {data, images}, dir: want} {
		if got := e.disksOf(Limits{rootfs: rootfs}); !slices.Equal(got, want) {
			t.Errorf("with root %q: %v, want %v", rootfs, got, want)
		}
	}
	if len(e.disks) != 1 {
		t.Errorf("work of the node is limited on %v", e.disks)
	}
	if err := e.LimitImages("/proc"); !errors.Is(err, fault.Unsupported) || len(e.imageDisks) != 2 {
		t.Errorf("a folder on no disk: %v, disks %v", err, e.imageDisks)
	}
	spec := &droverv1.TaskSpec{Image: &droverv1.ImageRef{Kind: "rootfs", Source: "/srv/images/a"}, Demand: &droverv1.Resources{Io: 1 << 20}}
	cfg := Config{Info: &droverv1.NodeInfo{}}
	if l := cfg.limitsOf(spec); l.rootfs != "/srv/images/a" {
		t.Errorf("the limits of a task with a folder for its root: %+v", l)
	}
	if l := cgroupLimits(Limits{io: 5}, want); len(l.Disks) != len(want) || l.Disks[1] != (cgroups.DiskLimit{Device: images, ReadBPS: 5, WriteBPS: 5}) {
		t.Errorf("limits %v", l.Disks)
	}
}
