package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// suspension owns the level of an attempt, and changes it through the attempt's container, cgroup,
// record and dumps, which the same loop owns. Each level is recorded only once it is reached,
// except running, which is recorded before the task runs. A task runs only under its limits: a
// failure in between leaves it frozen.
type suspension struct {
	frozen             bool // its processes are frozen
	unrecorded         bool // frozen, but the store could not be written: its time still counts as running
	staysFreezing      bool // of an exclusive stage, and the last freeze did not end in time
	swapped            bool
	forLease           bool // it wants to run and was frozen only for want of a lease; its thaw has not failed since
	staleDump          bool // the disk holds a dump that the attempt does not need
	requested          droverv1.Level
	refused            task.Levels
	refusedPermanently task.Levels // subset of refused for which a retry cannot help
	steps              []*droverv1.LevelStep
	stepBytes          int64 // moved by the current step

	id        store.ID
	dir       folder
	dumps     dumpFolder
	source    *dumpSource // which serves them
	cfg       *Config
	rec       *attemptRecord
	container *attemptContainer
	cgroup    *attemptCgroup
	exclusive *exclusiveGuard
	inSlot    func(context.Context, func() error) error // runs a dump or a restore, or reads the folder
	log       *slog.Logger
}

// request takes over the wanted level. A changed level clears the refusals of the previous one,
// except permanent ones. request reports whether the level changed.
func (s *suspension) request(w *droverv1.WantedAttempt) (changed bool) {
	l := w.GetLevel()
	if w == nil || l == s.requested {
		return false
	}
	s.requested, s.refused, s.steps = l, s.refusedPermanently, nil
	return true
}

// refuse adds to the levels that cannot be reached, permanently if the error says that they are
// unsupported. A dump that cannot be restored here may be restored later.
func (s *suspension) refuse(l task.Levels, why error) {
	s.refused |= l
	if errors.Is(why, fault.Unsupported) && !l.Has(task.LevelRunning) {
		s.refusedPermanently |= l
	}
}

// refuseToRestore leaves the attempt at its dump: another node may have what this one lacks.
func (s *suspension) refuseToRestore(do task.Do, err error) {
	f := levelFailures[task.Restore]
	s.refuse(f.refuses, err)
	s.rec.setLevelNote("%s: %s: %v", f.note, do, err)
}

// setLease records whether a task of an exclusive stage that wants to run may run.
func (s *suspension) setLease(hasLease, wantsToRun bool) {
	switch {
	case !wantsToRun || hasLease && !s.frozen:
		s.forLease = false
	case !hasLease:
		s.forLease = true
	}
}

// addSteps adds the durations of a step and its parts to the report.
func (s *suspension) addSteps(step *droverv1.LevelStep, parts ...*droverv1.LevelStep) {
	all := append(slices.Clip(s.steps), step) // a report may share the old slice
	all = append(all, parts...)
	s.steps = all[:min(len(all), maxLevelSteps)]
}

// setLevel records the level that was reached.
func (s *suspension) setLevel(l droverv1.Level, change func(*store.Record)) error {
	return s.rec.setLevel(l, s.container.stoppedAt, change)
}

// removeDumps deletes every dump of the attempt, and stops other nodes from reading them.
func (s *suspension) removeDumps() error {
	s.source.drop(s.id.String())
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
	if err := s.freezeContainer(ctx, f, spec); err != nil {
		return err
	}
	kernel()
	if s.exclusive.remove(s.id, spec) { // before that, a renewal of the lease could thaw it
		if err := s.freezeContainer(ctx, f, spec); err != nil {
			return err
		}
	}
	s.frozen, s.swapped, s.unrecorded = true, false, true
	s.cgroup.read()
	err := s.setLevel(droverv1.Level_LEVEL_FROZEN, nil)
	s.unrecorded = err != nil
	return err
}

// freezeContainer freezes the container. A container that is not frozen in time continues to run,
// unless its stage is exclusive: the node may have no lease, or have been given up, and another
// attempt may run elsewhere. Such a container stays freezing, and counts as frozen and unrecorded.
func (s *suspension) freezeContainer(ctx context.Context, f runtime.Freezer, spec *droverv1.TaskSpec) error {
	if !spec.GetExclusive() {
		return f.Freeze(ctx, s.id.String())
	}
	stays, err := s.freezeLasting(ctx, f)
	if s.staysFreezing = stays && err != nil; s.staysFreezing {
		s.frozen, s.swapped, s.unrecorded = true, false, true
	}
	return err
}

// freezeLasting freezes the container until it is thawed. It reports whether the container stays
// freezing after an error.
func (s *suspension) freezeLasting(ctx context.Context, f runtime.Freezer) (stays bool, err error) {
	l, ok := f.(runtime.LastingFreezer)
	if !ok {
		err = f.Freeze(ctx, s.id.String())
		return err == nil, err
	}
	err = l.FreezeLasting(ctx, s.id.String())
	return !errors.Is(err, fault.NotFound), err
}

// thaw writes the limits of a running task and reads them back before it thaws the task: a task
// that cannot be limited does not run. A task of an exclusive stage that could not be thawed is
// frozen again, because it is already registered with the watchdog, and the next renewal of the
// lease would thaw it.
func (s *suspension) thaw(ctx context.Context, spec *droverv1.TaskSpec) error {
	if err := s.cgroup.ensure(ctx, spec); err != nil {
		return err
	}
	if err := s.letRun(ctx, spec); err != nil {
		if s.frozen && spec.GetExclusive() {
			_, again := s.freezeAgain(ctx, s.cfg.freezer(), spec)
			err = errors.Join(err, again)
		}
		return err
	}
	s.staleDump = s.dumps.exists() // of a restore that has outlived its daemon
	return nil                     // the loop reads the usage after it has reported the level
}

// letRun lets the processes of an attempt run whose limits are written. Steps:
//
//  1. Record that it runs, and that its dump no longer counts. Otherwise what the task does before
//     the record is written would be repeated from the dump, and its time would not count.
//  2. Register it if it is exclusive, thaw it, and continue processes that a restore has left
//     stopped. After an error the record is restored.
//  3. Record that nothing is stopped. A daemon that does not find that record repeats step 2.
func (s *suspension) letRun(ctx context.Context, spec *droverv1.TaskSpec) error {
	c, ok := s.cfg.Driver.(runtime.StoppedRestorer)
	stopped := ok && (s.rec.Stopped || s.rec.Dumped) // Dumped: stopped by a restore that is not recorded yet
	before := s.rec.Record
	if err := s.setLevel(droverv1.Level_LEVEL_RUNNING, func(r *store.Record) {
		clearDumpMarks(r)
		r.Stopped = stopped
	}); err != nil {
		return err
	}
	err := s.exclusive.add(ctx, s.id, spec)
	if err == nil && s.frozen {
		kernel := runtime.StartPart(ctx, "kernel")
		if err = s.cfg.freezer().Thaw(ctx, s.id.String()); err == nil {
			kernel()
		}
	}
	if err == nil && stopped {
		err = c.Continue(ctx, s.id.String())
	}
	if err != nil {
		undo := s.rec.change(func(r *store.Record) { *r = before })
		s.unrecorded = s.unrecorded || undo != nil
		return errors.Join(err, undo)
	}
	s.frozen, s.swapped, s.unrecorded = false, false, false
	if stopped {
		if err := s.rec.change(clearDumpMarks); err != nil {
			s.log.Warn("cannot record that the processes of an attempt go on", "attempt", s.id, "err", err)
		}
	}
	return nil
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

// recoverLevel finds out at which level an earlier daemon left an attempt. It freezes these again:
//
//   - a container that runs although its record says suspended: an earlier daemon died between the
//     thaw and its record, perhaps before it wrote the limits;
//   - a frozen container, because not all of its processes may be frozen;
//   - a container whose processes a restore may have left stopped.
//
// Thaw then writes the limits and continues the processes. A container that is not frozen in time
// stays freezing, perhaps under limits that the earlier daemon had lifted. It counts as frozen and
// unrecorded, so that the next step freezes it, or thaws it under its limits.
func (s *suspension) recoverLevel(ctx context.Context) {
	s.staleDump = s.dumps.exists() && !s.rec.Dumping
	f := s.cfg.freezer()
	if s.container.phase != task.ContainerRunning {
		return
	}
	s.refused &^= task.Levels(0).With(task.LevelRunning) // a restore that was given up with unknown outcome has succeeded
	if f == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, freezeStepLimit)
	defer cancel()
	frozen, err := f.Frozen(ctx, s.id.String())
	refroze := false
	if err == nil && (frozen || s.rec.Stopped || s.rec.Level > int32(droverv1.Level_LEVEL_RUNNING)) {
		_, err = s.freezeLasting(ctx, f)
		frozen, refroze = true, err == nil
	}
	if err != nil {
		s.log.Warn("freezer state of the attempt is unknown", "attempt", s.id, "err", err)
	}
	s.frozen = frozen
	s.unrecorded = frozen && (!refroze || s.rec.Level <= int32(droverv1.Level_LEVEL_RUNNING))
	s.swapped = refroze && s.rec.Level == int32(droverv1.Level_LEVEL_SWAPPED)
	s.cgroup.read()
}
