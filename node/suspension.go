package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// suspension owns the level of an attempt, and moves it from one to another by its
// container, cgroup, record and dumps, which the same loop owns. Each level is
// recorded only once it is reached, and a task runs only under its limits: what
// fails in between leaves it frozen.
type suspension struct {
	frozen             bool // its processes are frozen
	unrecorded         bool // frozen, but the store could not be told: its time still counts as running
	swapped            bool
	staleDump          bool // the disk holds a dump that the attempt does not need
	requested          droverv1.Level
	refused            task.Levels
	refusedPermanently task.Levels // subset of refused for which a retry cannot help
	steps              []*droverv1.LevelStep
	stepBytes          int64 // moved by the current step

	id        store.ID
	dir       folder
	dumps     dumpFolder
	cfg       *Config
	rec       *attemptRecord
	container *attemptContainer
	cgroup    *attemptCgroup
	exclusive *exclusiveGuard
	inSlot    func(context.Context, func() error) error // runs a dump or a restore
	log       *slog.Logger
}

// request takes over the wanted level. A changed level clears the refusals of the
// last one, except permanent refusals; it reports whether it did.
func (s *suspension) request(w *droverv1.WantedAttempt) (changed bool) {
	l := w.GetLevel()
	if w == nil || l == s.requested {
		return false
	}
	s.requested, s.refused, s.steps = l, s.refusedPermanently, nil
	return true
}

// addSteps adds what is reported of a step and its parts.
func (s *suspension) addSteps(step *droverv1.LevelStep, parts ...*droverv1.LevelStep) {
	all := append(slices.Clip(s.steps), step) // a report may share the old slice
	all = append(all, parts...)
	s.steps = all[:min(len(all), maxLevelSteps)]
}

// setLevel records the level that was reached.
func (s *suspension) setLevel(l droverv1.Level, change func(*store.Record)) error {
	return s.rec.setLevel(l, s.container.stoppedAt, change)
}

// removeDumps deletes every dump of the attempt.
func (s *suspension) removeDumps() error {
	if err := s.dumps.remove(); err != nil {
		return err
	}
	s.staleDump = false
	return nil
}

// freeze freezes the attempt's processes and stops its running-time clock.
func (s *suspension) freeze(ctx context.Context, spec *droverv1.TaskSpec) error {
	f := s.cfg.freezer()
	if f == nil {
		return fault.New(fault.Unsupported, "node %s cannot freeze tasks of driver %s", s.cfg.Info.GetName(), s.cfg.Driver.Name())
	}
	kernel := runtime.StartPart(ctx, "kernel")
	if err := f.Freeze(ctx, s.id.String()); err != nil {
		return err
	}
	kernel()
	if s.exclusive.remove(s.id, spec) { // until then a renewal of the lease could thaw it
		if err := f.Freeze(ctx, s.id.String()); err != nil {
			return err
		}
	}
	s.frozen, s.swapped, s.unrecorded = true, false, true
	s.cgroup.read()
	err := s.setLevel(droverv1.Level_LEVEL_FROZEN, nil)
	s.unrecorded = err != nil
	return err
}

// thaw writes the limits of a running task and reads them back before it thaws
// the task: a task that cannot be limited does not run.
func (s *suspension) thaw(ctx context.Context, spec *droverv1.TaskSpec) error {
	if err := s.cgroup.ensure(ctx, spec); err != nil {
		return err
	}
	if err := s.exclusive.add(ctx, s.id, spec); err != nil {
		return err
	}
	kernel := runtime.StartPart(ctx, "kernel")
	if err := s.cfg.freezer().Thaw(ctx, s.id.String()); err != nil {
		return err
	}
	kernel()
	if c, ok := s.cfg.Driver.(runtime.StoppedRestorer); ok && (s.rec.Stopped || s.rec.Dumped) { // Dumped: the daemon died during the restore
		if err := c.Continue(ctx, s.id.String()); err != nil {
			return err
		}
	}
	s.frozen, s.swapped, s.unrecorded = false, false, false
	return s.setLevel(droverv1.Level_LEVEL_RUNNING, clearDumpMarks) // the loop reads the usage after it has reported the level
}

// swapOut allows the attempt to swap and pushes its memory out.
func (s *suspension) swapOut(ctx context.Context, spec *droverv1.TaskSpec) error {
	w, ok := s.cfg.Enforcer.(Swapper)
	if !ok {
		return fault.New(fault.Unsupported, "node %s has no cgroups, so it cannot swap out a task", s.cfg.Info.GetName())
	}
	l := s.cfg.limitsOf(spec)
	l.swap = l.Memory
	if err := s.cgroup.write(ctx, spec, l); err != nil {
		return err
	}
	moved, err := w.SwapOut(ctx, s.id.String())
	s.stepBytes = moved
	s.cgroup.read()
	if err == nil {
		err = s.setLevel(droverv1.Level_LEVEL_SWAPPED, nil)
	}
	s.swapped = err == nil
	return err
}

// checkpoint dumps the frozen container. Steps, each safe to repeat:
//
//  1. check that the disk has space for all of its memory;
//  2. record the intent with a folder that no earlier dump used;
//  3. dump, which ends the processes; the container is removed after the level was
//     reported, if the driver can leave it;
//  4. write the checksums of the folder, which nobody uses any more;
//  5. record that the dump is complete.
func (s *suspension) checkpoint(ctx context.Context, spec *droverv1.TaskSpec) error {
	c, ok := s.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot checkpoint tasks", s.cfg.Driver.Name())
	}
	if !s.rec.Dumping {
		s.cgroup.read()
		if err := checkSpace(s.cfg.Data, s.cgroup.occupied.GetMemory()+s.cgroup.swapBytes); err != nil {
			return err
		}
		if err := os.MkdirAll(string(s.dumps), 0o700); err != nil {
			return err
		}
		if err := s.rec.change(func(r *store.Record) { r.DumpNumber, r.Dumping, r.Dumped = r.DumpNumber+1, true, false }); err != nil {
			return err
		}
	}
	dir := s.dumps.dir(s.rec.DumpNumber)
	swap := int64(0)
	if s.swapped {
		swap = s.cfg.limitsOf(spec).Memory
	}
	if err := s.cgroup.lift(ctx, spec, swap); err != nil {
		return err
	}
	dump, left := c.Checkpoint, task.ContainerNone
	if d, ok := c.(runtime.Dumper); ok {
		dump, left = d.Dump, task.ContainerStopped
	}
	if err := s.inSlot(ctx, func() error { return dump(ctx, s.id.String(), dir) }); err != nil {
		err = errors.Join(err, s.revertCheckpoint(ctx, err))
		if !s.container.isGone() {
			err = errors.Join(err, s.cgroup.writeFrozen(ctx, spec, swap))
		}
		return err
	}
	s.container.phase, s.frozen, s.swapped, s.unrecorded, s.cgroup.swapBytes = left, false, false, false, 0
	s.container.generation++
	s.cgroup.occupied = &droverv1.Resources{}
	if err := s.dumps.writeSums(ctx, s.rec.DumpNumber, s.dir); err != nil { // it goes on unchecked: its work is worth more
		s.log.Warn("the folder of a suspended attempt has no checksums", "attempt", s.id, "err", err)
	}
	size, err := dirSize(dir)
	if err != nil {
		return err
	}
	s.stepBytes = size
	return s.setLevel(droverv1.Level_LEVEL_CHECKPOINTED, func(r *store.Record) { r.Dumped, r.DumpBytes = true, size })
}

// revertCheckpoint clears the recorded intent after a failed dump if the
// container is certainly still running.
func (s *suspension) revertCheckpoint(ctx context.Context, cause error) error {
	if errors.Is(cause, fault.Unavailable) || errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled) {
		return nil // the outcome of the dump is unknown
	}
	all, err := s.cfg.Driver.List(context.WithoutCancel(ctx))
	if err != nil {
		return nil // the outcome is unknown; the next step meets the engine's error again
	}
	now := runtime.Status{}
	for _, st := range all {
		if st.ID == s.id.String() {
			now = st
		}
	}
	s.container.set(now)
	if now.Phase != runtime.PhaseRunning {
		return nil
	}
	s.frozen = s.isFrozen(context.WithoutCancel(ctx))
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

// restore makes the container from its dump. criu works inside the task's
// cgroup, so CPU and I/O limits are lifted meanwhile (not memory); then the
// limits of a running task are written and read back, and only then its processes
// run. If that fails, the task is frozen, and Thaw tries to write its limits again.
// containerSpec also makes what the container has mounted.
func (s *suspension) restore(ctx context.Context, spec *droverv1.TaskSpec, containerSpec func() (runtime.Spec, error)) error {
	c, ok := s.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot restore tasks", s.cfg.Driver.Name())
	}
	if err := s.dumps.checkSums(ctx, s.rec.DumpNumber, s.dir); err != nil {
		return err
	}
	if err := s.cgroup.lift(ctx, spec, 0); err != nil {
		return err
	}
	cs, err := containerSpec() // contains the cgroup, which exists only from here on
	if err != nil {
		return err
	}
	if err := s.exclusive.add(ctx, s.id, spec); err != nil {
		return err
	}
	s.stepBytes = s.rec.DumpBytes
	restore := c.Restore
	stopped, canStop := c.(runtime.StoppedRestorer)
	if canStop {
		restore = stopped.RestoreStopped
	}
	err = s.inSlot(ctx, func() error { return restore(ctx, cs, s.dumps.dir(s.rec.DumpNumber)) })
	if err != nil {
		s.exclusive.remove(s.id, spec)
		return err
	}
	s.container.generation++
	s.container.phase, s.cgroup.exists, s.container.stoppedAt = task.ContainerRunning, true, 0
	s.frozen, s.swapped, s.staleDump = false, false, true
	err = s.cgroup.ensure(ctx, spec)
	if err == nil && canStop {
		err = stopped.Continue(ctx, s.id.String())
	}
	if err != nil {
		if f := s.cfg.freezer(); f != nil && f.Freeze(ctx, s.id.String()) == nil {
			s.frozen = true // Thaw writes the limits again
		}
		return errors.Join(err, s.setLevel(droverv1.Level_LEVEL_FROZEN, func(r *store.Record) {
			clearDumpMarks(r)
			r.Stopped = canStop
		}))
	}
	return s.setLevel(droverv1.Level_LEVEL_RUNNING, clearDumpMarks)
}

func clearDumpMarks(r *store.Record) { r.Dumping, r.Dumped, r.Stopped = false, false, false }

// recoverLevel finds out at which level an earlier daemon left an attempt. A
// container that runs although its record says suspended was thawed by a daemon
// that died before it recorded that, perhaps before it wrote the limits: it is
// frozen again, and Thaw writes the limits. So is one that is frozen: not all of its
// processes may be.
func (s *suspension) recoverLevel(ctx context.Context) {
	s.staleDump = s.dumps.exists() && !s.rec.Dumping
	f := s.cfg.freezer()
	switch {
	case s.container.isGone() && s.rec.Dumped:
		s.cgroup.exists = s.cgroup.exists && s.rec.BootID == s.rec.bootID // a reboot removes all cgroups
		return
	case s.container.phase != task.ContainerRunning || f == nil:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, freezeStepLimit)
	defer cancel()
	frozen, err := f.Frozen(ctx, s.id.String())
	if err == nil && (frozen || s.rec.Level > int32(droverv1.Level_LEVEL_RUNNING)) {
		err = f.Freeze(ctx, s.id.String())
		frozen = err == nil
	}
	if err != nil {
		s.log.Warn("freezer state of the attempt is unknown", "attempt", s.id, "err", err)
	}
	s.frozen = frozen
	s.unrecorded = frozen && s.rec.Level <= int32(droverv1.Level_LEVEL_RUNNING)
	s.swapped = frozen && s.rec.Level == int32(droverv1.Level_LEVEL_SWAPPED)
	s.cgroup.read()
}

// level returns the level that the attempt is at.
func (s *suspension) level(wanted *droverv1.WantedAttempt) droverv1.Level {
	switch {
	case s.container.isGone() && s.rec.Dumped, s.container.phase == task.ContainerNone && wanted.GetResumeFrom() != "" && !s.rec.Started:
		return droverv1.Level_LEVEL_CHECKPOINTED
	case s.container.phase == task.ContainerUnknown && s.rec.Level != 0 && !s.isPausedForLease(wanted):
		return droverv1.Level(s.rec.Level)
	case s.container.phase != task.ContainerRunning || !s.frozen || s.isPausedForLease(wanted):
		return droverv1.Level_LEVEL_RUNNING
	case s.swapped:
		return droverv1.Level_LEVEL_SWAPPED
	default:
		return droverv1.Level_LEVEL_FROZEN
	}
}

// isPausedForLease reports whether the attempt is frozen only because the node
// has no lease. It is reported to the coordinator as running, the requested
// level.
func (s *suspension) isPausedForLease(wanted *droverv1.WantedAttempt) bool {
	return s.frozen && wanted.GetSpec().GetExclusive() && wanted.GetGoal() == droverv1.Goal_GOAL_RUN && wanted.GetLevel() <= droverv1.Level_LEVEL_RUNNING
}

// fill fills in the fields of a report that concern the level.
func (s *suspension) fill(r *droverv1.SeenAttempt, wanted *droverv1.WantedAttempt) {
	r.Level, r.LevelSinceMs, r.LevelNote, r.LevelSteps = s.level(wanted), s.rec.LevelSinceMS, s.rec.LevelNote, s.steps
	if wanted.GetGoal() == droverv1.Goal_GOAL_RUN {
		requested := task.Level(max(wanted.GetLevel(), droverv1.Level_LEVEL_RUNNING))
		if s.refused.Has(requested) && s.isFallbackReached(requested) {
			r.TargetRefused, r.LevelsRefused = droverv1.Level(requested), levelList(s.refusedPermanently)
		}
	}
	switch r.Level {
	case droverv1.Level_LEVEL_RUNNING:
		if s.isPausedForLease(wanted) {
			r.LevelNote = leaseLostNote
		}
		return
	case droverv1.Level_LEVEL_CHECKPOINTED:
		r.Occupied, r.ImageOccupied = &droverv1.Resources{}, s.rec.DumpBytes
		r.DiskOccupied += s.rec.DumpBytes
		if r.TargetRefused != 0 {
			r.Phase = droverv1.Phase_PHASE_RUNNING // also for an attempt that never ran here: its level is decided
		}
	default:
		r.Occupied, r.SwapOccupied = &droverv1.Resources{Memory: s.cgroup.occupied.GetMemory()}, s.cgroup.swapBytes
	}
}

// levelList returns the levels of a set in order.
func levelList(s task.Levels) (all []droverv1.Level) {
	for l := task.LevelRunning; l <= task.LevelCheckpointed; l++ {
		if s.Has(l) {
			all = append(all, droverv1.Level(l))
		}
	}
	return all
}

// isFallbackReached reports whether the attempt is at the level that remains
// after refusals, so that no further step follows.
func (s *suspension) isFallbackReached(requested task.Level) bool {
	to := task.ReachableLevel(requested, s.refused)
	if requested == task.LevelRunning {
		return true
	}
	switch to {
	case task.LevelRunning:
		return !s.frozen
	case task.LevelFrozen:
		return s.frozen
	case task.LevelSwapped:
		return s.swapped
	default:
		return false
	}
}
