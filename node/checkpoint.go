package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// checkpoint dumps the frozen container. Steps, each safe to repeat:
//
//  1. Check that the disk has space for all of its memory.
//  2. Record the intent with a folder that no earlier dump used.
//  3. Dump, which ends the processes. The container is removed after the level was reported, if the
//     driver can leave it. A process that was frozen between vfork and exec must first run for a
//     moment, and is frozen again.
//  4. Record that the dump is complete.
//  5. Write the checksums of the attempt's folder, which nobody uses any more. If that fails, the
//     folder is not checked at the restore.
func (s *suspension) checkpoint(ctx context.Context, spec *droverv1.TaskSpec) error {
	c, ok := s.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot checkpoint tasks", s.cfg.Driver.Name())
	}
	if err := s.beginDump(); err != nil {
		return err
	}
	swap := int64(0)
	if s.swapped {
		swap = s.cfg.limitsOf(spec).Memory
	}
	if err := s.cgroup.lift(ctx, spec, swap); err != nil {
		return err
	}
	left, err := s.dump(ctx, c)
	for n := 0; n < maxMoments && errors.Is(err, runtime.ErrMustRun); n++ {
		if e := s.runForAMoment(ctx, spec, swap, min(firstMoment<<n, longestMoment)); e != nil {
			err = fmt.Errorf("%w; nor could it run for a moment: %v", err, e) // of the dump's class: it has done no harm
			break
		}
		left, err = s.dump(ctx, c)
	}
	if err != nil {
		err = errors.Join(err, s.revertCheckpoint(ctx, err))
		if !s.container.isGone() {
			err = errors.Join(err, s.cgroup.writeFrozen(ctx, spec, swap))
		}
		return err
	}
	s.container.phase, s.frozen, s.swapped, s.unrecorded, s.cgroup.swapBytes = left, false, false, false, 0
	s.container.generation++
	s.cgroup.occupied = &droverv1.Resources{}
	return s.finishDump(ctx)
}

// beginDump performs steps 1 and 2 of checkpoint, unless an earlier try has.
func (s *suspension) beginDump() error {
	if s.rec.Dumping {
		return nil
	}
	s.cgroup.read()
	if err := checkSpace(s.cfg.Data, s.cgroup.occupied.GetMemory()+s.cgroup.swapBytes); err != nil {
		return err
	}
	if err := os.MkdirAll(string(s.dumps), 0o700); err != nil {
		return err
	}
	return s.rec.change(func(r *store.Record) { r.DumpNumber, r.Dumping, r.Dumped = r.DumpNumber+1, true, false })
}

// dump performs step 3 of checkpoint. It returns what is left of the container.
func (s *suspension) dump(ctx context.Context, c runtime.Checkpointer) (left task.Container, err error) {
	dump, left := c.Checkpoint, task.ContainerNone
	if d, ok := c.(runtime.Dumper); ok {
		dump, left = d.Dump, task.ContainerStopped
	}
	return left, s.inSlot(ctx, func() error { return dump(ctx, s.id.String(), s.dumps.dir(s.rec.DumpNumber)) })
}

// runForAMoment thaws the container under the limits of a frozen task, freezes it again, and lifts
// the limits again. Its level does not change: a daemon that finds it running freezes it. A task of
// an exclusive stage runs only under the lease, and is registered with the watchdog meanwhile.
func (s *suspension) runForAMoment(ctx context.Context, spec *droverv1.TaskSpec, swap int64, moment time.Duration) error {
	defer runtime.StartPart(ctx, "run for a moment")()
	ctx = runtime.WithTrace(ctx, func(string, time.Duration) {})
	f := s.cfg.freezer()
	if f == nil {
		return fault.New(fault.Unsupported, "nothing here can freeze it again")
	}
	if err := s.cgroup.writeFrozen(ctx, spec, swap); err != nil {
		return err
	}
	err := s.exclusive.add(ctx, s.id, spec)
	if err == nil {
		err = f.Thaw(ctx, s.id.String())
	}
	if err == nil {
		sleep.For(ctx, moment)
	}
	_, again := s.freezeAgain(ctx, f, spec)
	if err = errors.Join(err, again); err != nil {
		return err
	}
	return s.cgroup.lift(ctx, spec, swap)
}

// freezeAgain freezes a container that ran, or may have run, for a moment, and takes it from the
// watchdog, even if ctx has ended. If the freeze does not end in time, freezeAgain returns an
// error; the container stays freezing. It is then not dumped, and recoverLevel freezes it.
func (s *suspension) freezeAgain(ctx context.Context, f runtime.Freezer, spec *droverv1.TaskSpec) (stays bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeStepLimit)
	defer cancel()
	stays, err = s.freezeLasting(ctx, f)
	late := stays && errors.Is(err, fault.Unavailable)
	if (err == nil || late) && s.exclusive.remove(s.id, spec) { // before that, a renewal of the lease could thaw it
		stays, err = s.freezeLasting(ctx, f)
	}
	return stays, err
}

// finishDump performs steps 4 and 5 of checkpoint.
func (s *suspension) finishDump(ctx context.Context) error {
	size, err := dirSize(s.dumps.dir(s.rec.DumpNumber))
	if err != nil {
		return err
	}
	s.stepBytes = size
	if err := s.setLevel(droverv1.Level_LEVEL_CHECKPOINTED, func(r *store.Record) {
		r.Dumped, r.DumpBytes, r.Usage = true, size, cmp.Or(usageToStore(s.cgroup.usage), r.Usage)
	}); err != nil {
		return err
	}
	err = s.inSlot(ctx, func() error { return s.dumps.writeSums(ctx, s.rec.DumpNumber, s.dir) })
	if err != nil { // the task's work is worth more
		s.log.Warn("the folder of a suspended attempt has no checksums", "attempt", s.id, "err", err)
	}
	return nil
}

// checkFolder returns a fault.Corrupt if the folder has changed since the attempt was suspended. It
// skips a folder that is too large to be read in time.
func (s *suspension) checkFolder(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, sumsLimit)
	defer cancel()
	err := s.inSlot(within, func() error { return s.dumps.checkSums(within, s.rec.DumpNumber, s.dir) })
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("the folder of a suspended attempt is not checked: it takes too long", "attempt", s.id, "err", err)
		return nil
	}
	return err
}

// revertCheckpoint clears the recorded intent after a failed dump, if the container is certainly
// still running, or ended by itself before there was a dump. Its end is then classified like any
// other. If it was killed, that may have been by criu, which kills the processes when its dump is
// complete.
func (s *suspension) revertCheckpoint(ctx context.Context, cause error) error {
	if errors.Is(cause, errNoSlot) || errors.Is(cause, fault.Unavailable) || errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled) {
		return nil // it is unknown how this dump, or an earlier one, ended
	}
	all, err := s.cfg.Driver.List(context.WithoutCancel(ctx))
	if err != nil {
		return nil // unknown; the next step gets the engine's error again
	}
	now := runtime.Status{}
	for _, st := range all {
		if st.ID == s.id.String() {
			now = st
		}
	}
	s.container.set(now)
	switch {
	case now.Phase == runtime.PhaseRunning:
		s.frozen = s.isFrozen(context.WithoutCancel(ctx))
	case now.Phase == runtime.PhaseStopped && now.ExitCode != 128+int(syscall.SIGKILL) && !pathExists(s.dumps.dir(s.rec.DumpNumber)):
	default:
		return nil
	}
	if err := s.rec.change(func(r *store.Record) { r.Dumping = false }); err != nil {
		return err
	}
	return os.RemoveAll(s.dumps.dir(s.rec.DumpNumber))
}

// isFrozen reports whether a running container is known to be frozen.
func (s *suspension) isFrozen(ctx context.Context) bool {
	f := s.cfg.freezer()
	if f == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, freezeStepLimit)
	defer cancel()
	frozen, err := f.Frozen(ctx, s.id.String())
	return err == nil && frozen
}

// restore makes the container from its dump. criu works inside the task's cgroup, so CPU and I/O
// limits (not memory) are lifted meanwhile. Then the limits of a running task are written and read
// back, and only then its processes run. If that fails, the task is frozen, and Thaw writes its
// limits again. containerSpec also makes what the container mounts.
func (s *suspension) restore(ctx context.Context, spec *droverv1.TaskSpec, containerSpec func() (runtime.Spec, error)) error {
	c, ok := s.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot restore tasks", s.cfg.Driver.Name())
	}
	if err := s.checkFolder(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dumpStepLimit) // whatever the check took
	defer cancel()
	if err := s.keepUsage(); err != nil {
		return err
	}
	if err := s.cgroup.lift(ctx, spec, 0); err != nil {
		return err
	}
	cs, err := containerSpec() // includes the cgroup, which exists only from here on
	if err != nil {
		return err
	}
	s.stepBytes = s.rec.DumpBytes
	restore := c.Restore
	stopped, canStop := c.(runtime.StoppedRestorer)
	if canStop {
		restore = stopped.RestoreStopped
	} else if err := s.exclusive.add(ctx, s.id, spec); err != nil {
		return err
	}
	err = s.inSlot(ctx, func() error { return restore(ctx, cs, s.dumps.dir(s.rec.DumpNumber)) })
	if err != nil {
		s.exclusive.remove(s.id, spec)
		return err
	}
	s.container.generation++
	s.container.phase, s.cgroup.exists, s.container.stoppedAt = task.ContainerRunning, true, 0
	s.frozen, s.swapped, s.staleDump = false, false, true
	if err = s.cgroup.ensure(ctx, spec); err == nil {
		// Not earlier: a watchdog or a new daemon that freezes the cgroup during criu's work would
		// stop the restore for good.
		err = s.letRun(ctx, spec)
	}
	if err != nil {
		return errors.Join(err, s.freezeRestored(ctx, spec, canStop))
	}
	return nil
}

// keepUsage records the usage in a cgroup that no longer exists, before the next cgroup starts to
// count.
func (s *suspension) keepUsage() error {
	if u := s.rec.Usage; u != nil && !s.cgroup.exists {
		return s.rec.change(func(r *store.Record) { r.PriorUsage = store.PriorUsage(*u) })
	}
	return nil
}

// freezeRestored freezes a container that must not continue yet; Thaw writes its limits again.
// stopped means that its processes have not run since the restore.
func (s *suspension) freezeRestored(ctx context.Context, spec *droverv1.TaskSpec, stopped bool) error {
	if f := s.cfg.freezer(); f != nil {
		s.frozen, _ = s.freezeAgain(ctx, f, spec)
	}
	return s.setLevel(droverv1.Level_LEVEL_FROZEN, func(r *store.Record) {
		clearDumpMarks(r)
		r.Stopped = stopped
	})
}

func clearDumpMarks(r *store.Record) { r.Dumping, r.Dumped, r.Stopped = false, false, false }
