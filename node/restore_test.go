package node

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

// watchedDriver records the limits in force when criu dumps and when a restored
// container is let run.
type watchedDriver struct {
	*fake.Driver
	k *levelKernel

	mu                         sync.Mutex
	atDump, atContinue         []Limits
	dumpErrors, continueErrors []error // errors of the next calls
}

func (d *watchedDriver) limits(id string) Limits {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	return d.k.groups[id]
}

func (d *watchedDriver) Dump(ctx context.Context, id, dir string) error {
	d.mu.Lock()
	d.atDump = append(d.atDump, d.limits(id))
	if len(d.dumpErrors) > 0 {
		err := d.dumpErrors[0]
		d.dumpErrors = d.dumpErrors[1:]
		d.mu.Unlock()
		return err
	}
	d.mu.Unlock()
	return d.Driver.Dump(ctx, id, dir)
}

func (d *watchedDriver) Continue(ctx context.Context, id string) error {
	d.mu.Lock()
	d.atContinue = append(d.atContinue, d.limits(id))
	if len(d.continueErrors) > 0 {
		err := d.continueErrors[0]
		d.continueErrors = d.continueErrors[1:]
		d.mu.Unlock()
		return err
	}
	d.mu.Unlock()
	return d.Driver.Continue(ctx, id)
}

var _ runtime.StoppedRestorer = (*watchedDriver)(nil)

// criu works without limits on CPU and I/O; no process runs before they are back.
func TestRestoredTaskStandsStillUntilItsLimitsAreBack(t *testing.T) {
	for name, failures := range map[string][]error{
		"at once":                         nil,
		"after a failure, by way of thaw": {errors.New("no such process")},
	} {
		t.Run(name, func(t *testing.T) {
			b, k := newLevelTestNode(t)
			d := &watchedDriver{Driver: b.engine.Driver(), k: k, continueErrors: failures}
			b.config.Driver = d
			b.start()
			w := groupTask(0, "count")
			b.put(w)
			b.await(t, w, running)
			b.awaitCounting(w)
			b.requestLevel(w, levelCheckpointed)
			b.awaitLevel(w, levelCheckpointed)
			b.requestLevel(w, levelRunning)
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(d.atDump) != 1 || d.atDump[0].CPU != 0 || d.atDump[0].io != 0 || d.atDump[0].Memory == 0 {
				t.Errorf("limits during the dump: %+v", d.atDump)
			}
			if len(d.atContinue) != 1+len(failures) {
				t.Errorf("continued %d times", len(d.atContinue))
			}
			for _, l := range d.atContinue {
				if l.CPU != 100 || l.io != 1<<20 || l.Memory == 0 || l.swap != 0 {
					t.Errorf("limits when it goes on: %+v", l)
				}
			}
		})
	}
}

// outlivedDriver restores a container, and never says so.
type outlivedDriver struct {
	*fake.Driver
	restored chan struct{}
}

func (d outlivedDriver) RestoreStopped(ctx context.Context, s runtime.Spec, dir string) error {
	if err := d.Driver.RestoreStopped(ctx, s, dir); err != nil {
		return err
	}
	close(d.restored)
	<-ctx.Done()
	return ctx.Err()
}

// A restore that outlives its daemon is completed by the next one, which also removes the dump.
func TestRestoreThatOutlivesItsDaemon(t *testing.T) {
	b, _ := newLevelTestNode(t)
	d := outlivedDriver{b.engine.Driver(), make(chan struct{})}
	b.config.Driver = d
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.awaitCounting(w)
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	b.requestLevel(w, levelRunning)
	<-d.restored
	b.stopDaemon()
	b.config.Driver = b.engine.Driver()
	b.start()
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
	poll(t, "no dump", func() bool { return !pathExists(filepath.Join(b.config.Data, "images", idOf(w))) })
}

// lostAnswerDriver fails to restore, and restores at the second try with an engine that stops answering before it can say so.
type lostAnswerDriver struct {
	*fake.Driver
	fail func(try int32)
	try  *atomic.Int32
}

func (d lostAnswerDriver) RestoreStopped(ctx context.Context, s runtime.Spec, dir string) error {
	try := d.try.Add(1)
	if try > 1 {
		if err := d.Driver.RestoreStopped(ctx, s, dir); err != nil {
			return err
		}
	}
	d.fail(try)
	return fault.New(fault.Conflict, "try %d has failed", try)
}

// While it is unknown whether the last try of a restore succeeded, it is not refused: another node would restore the task too.
func TestRestoreWithALostAnswerIsNotRefused(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.config.Driver = lostAnswerDriver{b.engine.Driver(), func(try int32) { b.engine.Down(try > 1) }, new(atomic.Int32)}
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.awaitCounting(w)
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	b.requestLevel(w, levelRunning)
	poll(t, "the second try", func() bool { return b.engine.Calls(fake.Restore) > 0 })
	lists := b.engine.Calls(fake.List)
	poll(t, "an engine that does not answer", func() bool { return b.engine.Calls(fake.List) > lists+1 })
	n := b.reports()
	poll(t, "reports", func() bool { return b.reports() > n+2 })
	if s := b.get(w); s.GetTargetRefused() != 0 {
		t.Errorf("refused while nobody knows: %s", s.GetLevelNote())
	}
	b.engine.Down(false)
	if s := b.awaitLevel(w, levelRunning); s.GetTargetRefused() != 0 {
		t.Errorf("it runs, and is refused: %s", s.GetLevelNote())
	}
	b.awaitCounting(w)
}

// A dump that fails for a moment is tried again and refused for a while, not for
// good; meanwhile the frozen task has its limits again.
func TestDumpThatFailsForAMoment(t *testing.T) {
	b, k := newLevelTestNode(t)
	blocked := fault.New(fault.Conflict, "process 7 waits for a disk (state D)")
	d := &watchedDriver{Driver: b.engine.Driver(), k: k, dumpErrors: []error{blocked, blocked}}
	b.config.Driver = d
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.awaitCounting(w)
	b.requestLevel(w, levelCheckpointed)
	s := b.awaitRefusal(w, levelCheckpointed)
	for _, l := range s.GetLevelsRefused() {
		if l == levelCheckpointed {
			t.Error("refused for good")
		}
	}
	if l := d.limits(idOf(w)); l.CPU != 100 || l.io != 1<<20 {
		t.Errorf("limits after the failed dump: %+v", l)
	}
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
}

// reboot stops the daemon and takes from the machine what a reboot does: containers and cgroups. Dumps stay. The record
// of the attempt is of another boot then. listed: the engine still lists what was stopped.
func (b *testNode) reboot(w *droverv1.WantedAttempt, used *droverv1.Usage, listed bool) (before store.Record) {
	b.t.Helper()
	b.stopDaemon()
	b.changeRecord(w, func(r *store.Record) {
		before = *r
		r.BootID = "another boot"
	})
	if !listed {
		old := b.engine
		b.engine = fake.New(nil, programs())
		b.engine.ShareDumps(old)
		b.t.Cleanup(b.engine.Close)
	}
	b.engine.Heal()
	b.config.Driver, b.config.Enforcer = b.engine.Driver(), &usedKernel{newLevelKernel(b), used}
	b.mu.Lock()
	clear(b.seen)
	b.mu.Unlock()
	b.start()
	return before
}

// A task that is checkpointed when its machine is rebooted stays so, with all that it has used, and goes on from its dump: also if the
// reboot came before its container was removed. What runs is lost with the next reboot, by the boot in which it was restored.
func TestCheckpointedTaskOutlivesAReboot(t *testing.T) {
	first, second := &droverv1.Usage{CpuMs: 1000, MemoryPeak: 9 << 20, ReadBytes: 100}, &droverv1.Usage{CpuMs: 10, MemoryPeak: 1 << 20, ReadBytes: 1}
	both := &droverv1.Usage{CpuMs: 1010, MemoryPeak: 9 << 20, ReadBytes: 101}
	for name, listed := range map[string]bool{"without a container": false, "beside its container": true} {
		t.Run(name, func(t *testing.T) {
			b, k := newLevelTestNode(t)
			b.config.Enforcer, b.config.SampleEvery = &usedKernel{k, first}, 5*time.Millisecond
			if listed {
				b.engine.Inject(fake.Fault{Verb: fake.Delete, Err: fault.New(fault.Unavailable, "not now")})
			}
			b.start()
			w := groupTask(0, "count")
			b.put(w)
			b.await(t, w, running)
			b.awaitCounting(w)
			b.requestLevel(w, levelCheckpointed)
			dumped := b.awaitLevel(w, levelCheckpointed)
			poll(t, "the container, or none", func() bool {
				all, err := b.engine.Driver().List(t.Context())
				return err == nil && (len(all) == 1) == listed
			})
			started := b.engine.Calls(fake.Start)
			b.reboot(w, second, listed)
			if !listed {
				started = 0
			}
			s := b.awaitLevel(w, levelCheckpointed)
			if s.GetRunningMs() != dumped.GetRunningMs() || s.GetLevelSinceMs() != dumped.GetLevelSinceMs() || s.GetOccupied().GetMemory() != 0 || !proto.Equal(s.GetUsage(), first) {
				t.Errorf("after the reboot: %v, before: %v", s, dumped)
			}
			b.requestLevel(w, levelRunning)
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
			poll(t, "the usage before the reboot and after it", func() bool { return proto.Equal(b.get(w).GetUsage(), both) })
			if n := b.engine.Calls(fake.Start); n != started {
				t.Errorf("%d starts", n-started)
			}
			if r := b.reboot(w, second, false); r.BootID != bootID() || r.Dumped {
				t.Errorf("it runs with the record %+v", r)
			}
			if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_REBOOT {
				t.Errorf("%s %q", s.GetCause(), s.GetMessage())
			}
			b.removeAndCheckClean(t, w)
		})
	}
}
