package node

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// A step that fails with the same error again is given up before one that fails with others.
func TestRetries(t *testing.T) {
	one, other := errors.New("one"), errors.New("other")
	for name, c := range map[string]struct {
		do   task.Do
		errs []error
		want int // the try after which it is given up; 0: never
	}{
		"the same error":      {task.Start, []error{one, one, one}, 2},
		"changing errors":     {task.Start, []error{one, other, one, other}, 3},
		"a step of no start":  {task.GetFiles, []error{one, one, one, one}, 0},
		"creating, then over": {task.CreateContainer, []error{one, other, other}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var r retries
			got := 0
			for _, err := range c.errs {
				if n := r.add(c.do, err).all(); r.recordStart(c.do, n, err) && got == 0 {
					got = n
				}
			}
			if got != c.want {
				t.Errorf("given up at try %d, want %d", got, c.want)
			}
			r.clear(c.do)
			if n := r.add(c.do, one).all(); n != 1 {
				t.Errorf("after a success it is try %d", n)
			}
			r.clearAll()
			if n := r.add(c.do, one).all(); n != 1 {
				t.Errorf("after a rest it is try %d", n)
			}
		})
	}
	var r retries
	for range 60 {
		r.add(task.GetFiles, fault.New(fault.Unavailable, "away"))
	}
	if n := r.add(task.GetFiles, one); n.others != 1 || n.all() != 61 {
		t.Errorf("after a long time without the coordinator: %+v", n)
	}
	r.clearAll()
	if r.pause(1) != firstPause || r.pause(2) != 2*firstPause || r.pause(1000) != maxPause {
		t.Errorf("pauses %v, %v, %v", r.pause(1), r.pause(2), r.pause(1000))
	}
}

// A helper is started again after errors that may pass, a few times, and its time adds up.
func TestHelperFinish(t *testing.T) {
	ended := func(err error) *failure { return &failure{message: err.Error()} }
	lost, wrong := fault.New(fault.Unavailable, "lost"), fault.New(fault.Denied, "wrong")
	h := helperState{work: task.WorkIdle}
	if h.finish(0, lost, ended) || h.work != task.WorkIdle {
		t.Error("a helper that was stopped has failed")
	}
	for try := 1; try <= maxHelperTries; try++ {
		h.work, h.began = task.WorkBusy, time.Duration(10*try)*time.Second
		if !h.finish(h.began+time.Second, lost, ended) {
			t.Fatal("an error is no failure")
		}
		if last := try == maxHelperTries; (h.work == task.WorkFailed) != last || (h.failure != nil) != last {
			t.Errorf("after try %d: work %v, failure %v", try, h.work, h.failure)
		}
	}
	if took := h.elapsed(time.Hour); took != maxHelperTries*time.Second {
		t.Errorf("it took %v", took)
	}
	h = helperState{work: task.WorkBusy}
	if h.finish(0, wrong, ended); h.work != task.WorkFailed {
		t.Errorf("an error that stays: work %v", h.work)
	}
	h = helperState{work: task.WorkBusy}
	if h.finish(0, nil, ended) || h.work != task.WorkDone {
		t.Errorf("success: work %v", h.work)
	}
}

// What an engine without cgroups measured is the task's usage; an observed exit does not move.
func TestContainerStatus(t *testing.T) {
	now := 50 * time.Second
	g := &attemptCgroup{cfg: &Config{}}
	c := &attemptContainer{clock: testClock{time.Now, func() time.Duration { return now }}, cgroup: g}
	for st, want := range map[runtime.Phase]task.Container{
		0: task.ContainerNone, runtime.PhaseCreated: task.ContainerCreated, runtime.PhaseRunning: task.ContainerRunning, 99: task.ContainerUnknown,
	} {
		if c.set(runtime.Status{Phase: st}); c.phase != want || c.isGone() != (want == task.ContainerNone) {
			t.Errorf("engine's phase %v: %v, gone %v", st, c.phase, c.isGone())
		}
	}
	c.set(runtime.Status{Phase: runtime.PhaseStopped, CPU: 3 * time.Second, PeakMemory: 7, ExitCode: 2})
	now += time.Second
	c.set(runtime.Status{Phase: runtime.PhaseStopped, ExitCode: 2})
	if c.phase != task.ContainerStopped || c.stoppedAt != 50*time.Second || !c.isGone() || c.status.ExitCode != 2 {
		t.Errorf("stopped: %+v", c)
	}
	if g.usage.GetCpuMs() != 3000 || g.usage.GetMemoryPeak() != 7 {
		t.Errorf("usage %v", g.usage)
	}
	g.cfg.Enforcer = newFakeKernel()
	g.takeStatus(runtime.Status{CPU: time.Hour})
	if g.usage.GetCpuMs() != 3000 {
		t.Error("the engine's figures replace those of the cgroup")
	}
}

// A failed measurement or write of limits leaves what is known as it was.
func TestCgroupLimits(t *testing.T) {
	k := newFakeKernel()
	cfg := &Config{Enforcer: k, Info: &droverv1.NodeInfo{TaskOverheadMemory: 16 << 20}}
	g := &attemptCgroup{id: "1.0.0.1.1", cfg: cfg, io: newUnallocatedIO(cfg, func() int64 { return 0 }), rec: &attemptRecord{}}
	limits := func() Limits {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.groups[g.id]
	}
	if err := g.ensure(t.Context(), &droverv1.TaskSpec{}); !errors.Is(err, fault.Invalid) || g.exists {
		t.Errorf("a demand of nothing: %v, exists %v", err, g.exists)
	}
	spec := &droverv1.TaskSpec{Disk: 5, Demand: &droverv1.Resources{Cpu: 500, Memory: 64 << 20, Io: 1 << 20}}
	if err := g.ensure(t.Context(), spec); err != nil || !g.exists || g.limits.GetDiskQuota() != 5 {
		t.Fatalf("%v, %+v", err, g.limits)
	}
	if l := limits(); l.Memory != 80<<20 || l.CPU != 500 || l.io != 1<<20 {
		t.Errorf("limits %+v", l)
	}
	for share, want := range map[int64]int64{0: 80 << 20, 8 << 20: 72 << 20, 40 << 20: 104 << 20} {
		counted := proto.CloneOf(spec)
		counted.HarnessMemory = share
		if err := g.ensure(t.Context(), counted); err != nil || limits().Memory != want {
			t.Errorf("the scheduler counted %d bytes of the harness: %v, limits %+v", share, err, limits())
		}
	}
	if err := g.ensure(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := g.lift(t.Context(), spec, 9); err != nil {
		t.Fatal(err)
	}
	if l := limits(); l.CPU != 0 || l.io != 0 || l.Memory != 80<<20 || l.swap != 9 {
		t.Errorf("lifted limits %+v", l)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.writeFrozen(over, spec, 9); err != nil {
		t.Errorf("after the step's time is over: %v", err)
	}
	if l := limits(); l.CPU != 500 || l.swap != 9 {
		t.Errorf("frozen limits %+v", l)
	}
	if err := g.remove(t.Context()); err != nil || g.exists {
		t.Errorf("%v, exists %v", err, g.exists)
	}
	before := g.usage
	if g.read(); g.usage != before {
		t.Error("usage of a cgroup that is gone")
	}
}

// A folder that changed while its attempt was suspended is found.
func TestDumpFolder(t *testing.T) {
	cfg := &Config{Data: t.TempDir()}
	if err := makeFolders(cfg.Data); err != nil {
		t.Fatal(err)
	}
	dumps, dir := cfg.dumpsOf("1.0.0.1.1"), folder(t.TempDir())
	if dumps.exists() {
		t.Error("a folder before the first dump")
	}
	for _, d := range []string{dumps.dir(1), dir.task(), dir.join(nameTmp), dir.logs()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(dir.join(nameTask, "f"), "one")
	if err := dumps.writeSums(t.Context(), 1, dir); err != nil {
		t.Fatal(err)
	}
	write(dir.join(nameLogs, "stdout.log"), "logs may change")
	if err := dumps.checkSums(t.Context(), 1, dir); err != nil {
		t.Errorf("unchanged: %v", err)
	}
	write(dir.join(nameTask, "f"), "two")
	if err := dumps.checkSums(t.Context(), 1, dir); !errors.Is(err, fault.Corrupt) {
		t.Errorf("changed: %v", err)
	}
	if err := checkSpace(cfg.Data, 1<<60); !errors.Is(err, fault.Exhausted) {
		t.Errorf("a dump of an exbibyte: %v", err)
	}
	if err := checkSpace(cfg.Data, 0); err != nil {
		t.Errorf("a dump of nothing: %v", err)
	}
	if err := dumps.remove(); err != nil || dumps.exists() {
		t.Errorf("%v, exists %v", err, dumps.exists())
	}
}
