package node

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/drover-run/drover/internal/fault"
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
