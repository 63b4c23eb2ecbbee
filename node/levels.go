package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/dump"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// Limits of the steps between levels.
const (
	freezeStepLimit   = 30 * time.Second
	swapStepLimit     = 10 * time.Minute
	dumpStepLimit     = 20 * time.Minute
	fetchDumpLimit    = 30 * time.Minute
	maxLevelTries     = 2       // tries of a step before its level is refused
	maxFetchDumpTries = 6       // tries of fetching a dump from another node
	dumpSpaceMargin   = 1 << 20 // bytes of disk space needed on top of the memory
	maxLevelSteps     = 32      // in a report, parts of steps included
)

// suspension is the level state of an attempt, owned by its loop.
type suspension struct {
	frozen             bool // its processes are frozen
	swapped            bool
	swapBytes          int64 // bytes of its memory in swap
	hasLease           bool  // the lease allows it to run
	staleDump          bool  // the disk holds a dump that the attempt does not need
	requested          droverv1.Level
	refused            task.Levels
	refusedPermanently task.Levels // subset of refused for which a retry cannot help
	steps              []*droverv1.LevelStep
	stepBytes          int64 // moved by the current step
}

// freezer returns what freezes an attempt's processes: its cgroup if there is
// one, otherwise the driver; nil if neither can.
func (d *daemon) freezer() runtime.Freezer {
	if f, ok := d.cfg.Enforcer.(runtime.Freezer); ok {
		return f
	}
	if f, ok := d.cfg.Driver.(runtime.Freezer); ok && d.cfg.Enforcer == nil {
		return f
	}
	return nil
}

// updateRequestedLevel takes over the wanted level. A changed level clears the
// refusals and retries of the last one, except permanent refusals.
func (a *attempt) updateRequestedLevel(w *droverv1.WantedAttempt) {
	l := w.GetLevel()
	if w == nil || l == a.suspension.requested {
		return
	}
	a.suspension.requested, a.suspension.refused, a.suspension.steps = l, a.suspension.refusedPermanently, nil
	for _, do := range []task.Do{task.Freeze, task.Thaw, task.SwapOut, task.Checkpoint, task.Restore, task.FetchDump} {
		delete(a.failures, do)
	}
}

// isLevelStep reports whether a step moves an attempt between levels.
func isLevelStep(do task.Do) bool { return do >= task.Freeze && do <= task.FetchDump }

// stepTimeout returns how long a step may take.
func stepTimeout(do task.Do) time.Duration {
	switch do {
	case task.GetImage, task.GetFiles:
		return imageLimit
	case task.Freeze, task.Thaw:
		return freezeStepLimit
	case task.SwapOut:
		return swapStepLimit
	case task.Checkpoint, task.Restore:
		return dumpStepLimit
	case task.FetchDump:
		return fetchDumpLimit
	default:
		return stepLimit
	}
}

// runLevelStep performs a step between levels and records its duration.
func (a *attempt) runLevelStep(ctx context.Context, do task.Do, spec *droverv1.TaskSpec) error {
	started, startMono := a.d.clock.Now(), a.d.clock.Monotonic()
	a.suspension.stepBytes = 0
	var err error
	var parts []*droverv1.LevelStep
	ctx = runtime.WithTrace(ctx, func(part string, took time.Duration) {
		parts = append(parts, &droverv1.LevelStep{Step: do.String() + "/" + part, DurationUs: took.Microseconds(), StartedMs: started.UnixMilli()})
	})
	switch do {
	case task.Freeze:
		err = a.freeze(ctx)
	case task.Thaw:
		err = a.thaw(ctx, spec)
	case task.SwapOut:
		err = a.swapOut(ctx, spec)
	case task.Checkpoint:
		err = a.checkpoint(ctx)
	case task.Restore:
		err = a.restore(ctx, spec)
	case task.FetchDump:
		err = a.d.unallocatedIO.lendDuring(func() error { return a.fetchDump(ctx, spec) })
	default:
		panic("node: no step between levels: " + do.String())
	}
	s := &droverv1.LevelStep{Step: do.String(), DurationUs: (a.d.clock.Monotonic() - startMono).Microseconds(), Bytes: a.suspension.stepBytes, StartedMs: started.UnixMilli()}
	if err != nil {
		s.Error = oneLine(err.Error())
	}
	all := append(slices.Clip(a.suspension.steps), s) // a report may share the old slice
	all = append(all, parts...)
	a.suspension.steps = all[:min(len(all), maxLevelSteps)]
	return err
}

// handleLevelFailure decides between a retry, the next level, and the end of the
// attempt. It reports whether the failure is handled and no pause is needed.
func (a *attempt) handleLevelFailure(do task.Do, n int, err error) bool {
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) || errors.Is(err, fault.Unavailable) || errors.Is(err, context.DeadlineExceeded) {
		a.container = task.ContainerUnknown // the container has exited or the engine is unreachable: query it again
	}
	if errors.Is(err, fault.Unavailable) && do != task.FetchDump && do != task.Freeze && (do != task.Restore || n < maxTries) {
		return false // an unreachable engine says nothing about the task
	}
	l, tries := task.LevelRunning, maxLevelTries
	switch do {
	case task.Freeze:
		if n < tries {
			return false
		}
		all := task.Levels(0).With(task.LevelFrozen).With(task.LevelSwapped).With(task.LevelCheckpointed)
		a.suspension.refused |= all
		if errors.Is(err, fault.Unsupported) {
			a.suspension.refusedPermanently |= all
		}
		a.setLevelNote("cannot be frozen: %v", err)
		return true
	case task.Thaw:
		a.setLevelNote("cannot be thawed yet: %v", err)
		return false // retried forever: there is no other step, and the task must not run without its limits
	case task.SwapOut:
		l = task.LevelSwapped
	case task.Checkpoint:
		if a.failIfLostInDump(err) {
			return true
		}
		l = task.LevelCheckpointed
	case task.Restore:
		if errors.Is(err, fault.NotFound) && a.hasImage { // the container's image is missing
			a.hasImage = false
		}
	case task.FetchDump:
		tries = maxFetchDumpTries
	}
	lasting := errors.Is(err, fault.Unsupported) || errors.Is(err, fault.Corrupt) || errors.Is(err, fault.Exhausted) || errors.Is(err, fault.Invalid) || errors.Is(err, fault.Denied)
	if n < tries && !lasting {
		return false
	}
	a.suspension.refused = a.suspension.refused.With(l)
	if errors.Is(err, fault.Unsupported) && l != task.LevelRunning {
		a.suspension.refusedPermanently = a.suspension.refusedPermanently.With(l)
	}
	if l == task.LevelRunning {
		a.setLevelNote("cannot be restored on this node: %v", err)
	} else {
		a.setLevelNote("cannot be %s: %v", l, err)
	}
	return true
}

// failIfLostInDump fails an attempt whose container is gone without a complete
// dump, and reports whether it did.
func (a *attempt) failIfLostInDump(err error) bool {
	stopped := a.container == task.ContainerStopped || a.container == task.ContainerNone
	if !stopped {
		return false
	}
	a.failure = &failure{cause: droverv1.Cause_CAUSE_INFRA, message: fmt.Sprintf("the container ended during a checkpoint and the dump is incomplete; the task's work is lost: %v", err)}
	return true
}

// setLevelNote records, for users, why a level was not reached.
func (a *attempt) setLevelNote(format string, args ...any) {
	a.rec.LevelNote = oneLine(fmt.Sprintf(format, args...))
}

// recordLevel stores the level that the attempt has reached and stops its
// running-time clock unless it is running.
func (a *attempt) recordLevel(l droverv1.Level, change func(*store.Record)) error {
	rec, now := a.rec, a.d.clock.Monotonic()
	if l == droverv1.Level_LEVEL_RUNNING {
		if rec.StartMono == 0 {
			rec.StartMono, rec.BootID = max(1, int64(now)), a.d.bootID
		}
		rec.LevelNote = ""
	} else if rec.StartMono != 0 {
		rec.RanNS, rec.StartMono, rec.FrozenNS = int64(a.runningTime(now)), 0, 0
	}
	if rec.Level != int32(l) && (rec.Level != 0 || l != droverv1.Level_LEVEL_RUNNING) {
		rec.LevelSinceMS = a.d.clock.Now().UnixMilli()
	}
	rec.Level = int32(l)
	if change != nil {
		change(&rec)
	}
	if err := a.d.store.PutRecord(a.id, rec); err != nil {
		return err
	}
	a.rec = rec
	return nil
}

// freeze freezes the attempt's processes and stops its running-time clock.
func (a *attempt) freeze(ctx context.Context) error {
	f := a.d.freezer()
	if f == nil {
		return fault.New(fault.Unsupported, "node %s cannot freeze tasks of driver %s", a.d.cfg.Info.GetName(), a.d.cfg.Driver.Name())
	}
	kernel := runtime.StartPart(ctx, "kernel")
	if err := f.Freeze(ctx, a.id.String()); err != nil {
		return err
	}
	kernel()
	a.removeFromWatchdog()
	a.suspension.frozen, a.suspension.swapped = true, false
	a.readCgroupUsage()
	return a.recordLevel(droverv1.Level_LEVEL_FROZEN, nil)
}

// thaw writes the limits of a running task and reads them back before it thaws
// the task: a task that cannot be limited does not run.
func (a *attempt) thaw(ctx context.Context, spec *droverv1.TaskSpec) error {
	if err := a.makeCgroup(ctx, spec); err != nil {
		return err
	}
	if err := a.addToWatchdog(ctx, spec); err != nil {
		return err
	}
	kernel := runtime.StartPart(ctx, "kernel")
	if err := a.d.freezer().Thaw(ctx, a.id.String()); err != nil {
		return err
	}
	kernel()
	if c, ok := a.d.cfg.Driver.(runtime.StoppedRestorer); ok && (a.rec.Stopped || a.rec.Dumped) { // Dumped: the daemon died during the restore
		if err := c.Continue(ctx, a.id.String()); err != nil {
			return err
		}
	}
	a.suspension.frozen, a.suspension.swapped = false, false
	return a.recordLevel(droverv1.Level_LEVEL_RUNNING, clearDumpMarks) // the loop reads the usage after it has reported the level
}

// swapOut allows the attempt to swap and pushes its memory out.
func (a *attempt) swapOut(ctx context.Context, spec *droverv1.TaskSpec) error {
	s, ok := a.d.cfg.Enforcer.(Swapper)
	if !ok {
		return fault.New(fault.Unsupported, "node %s has no cgroups, so it cannot swap out a task", a.d.cfg.Info.GetName())
	}
	l := a.d.limitsOf(spec)
	l.Swap = l.Memory
	limits, err := a.d.cfg.Enforcer.Ensure(ctx, a.id.String(), l)
	if err != nil {
		return err
	}
	limits.DiskQuota = spec.GetDisk()
	a.appliedLimits = limits
	moved, err := s.SwapOut(ctx, a.id.String())
	a.suspension.stepBytes = moved
	a.readCgroupUsage()
	if err != nil {
		return err
	}
	a.suspension.swapped = true
	return a.recordLevel(droverv1.Level_LEVEL_SWAPPED, nil)
}

// readCgroupUsage reads the attempt's current usage and swap from its cgroup.
func (a *attempt) readCgroupUsage() {
	e := a.d.cfg.Enforcer
	if e == nil || !a.hasCgroup {
		return
	}
	if u, occupied, kills, err := e.Usage(a.id.String()); err == nil {
		a.usage, a.occupied, a.oomKills = a.addPriorCPU(u), occupied, kills
	}
	if s, ok := e.(Swapper); ok {
		if n, err := s.SwapBytes(a.id.String()); err == nil {
			a.suspension.swapBytes = n
		}
	}
}

// addPriorCPU adds the CPU time used on other nodes.
func (a *attempt) addPriorCPU(u *droverv1.Usage) *droverv1.Usage {
	if u != nil {
		u.CpuMs += a.rec.PriorCPUMS
	}
	return u
}

// dumpsDir returns the folder of an attempt's dumps. It is not below the
// attempt's folder, since dumps are not charged to the tenant's quota and contain
// data that the tenant may not read.
func (d *daemon) dumpsDir(id store.ID) string {
	return filepath.Join(d.cfg.Data, "images", id.String())
}

func (a *attempt) dumpDir(n int32) string {
	return filepath.Join(a.d.dumpsDir(a.id), strconv.Itoa(int(n)))
}

// checkpoint dumps the frozen container. Steps, each safe to repeat:
//
//  1. check that the disk has space for all of its memory;
//  2. record the intent with a folder that no earlier dump used;
//  3. dump, which ends the container;
//  4. write the checksums of the folder, which nobody uses any more;
//  5. record that the dump is complete.
func (a *attempt) checkpoint(ctx context.Context) error {
	c, ok := a.d.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot checkpoint tasks", a.d.cfg.Driver.Name())
	}
	if !a.rec.Dumping {
		a.readCgroupUsage()
		if err := a.checkDumpSpace(); err != nil {
			return err
		}
		rec := a.rec
		rec.DumpNumber++
		rec.Dumping, rec.Dumped = true, false
		if err := os.MkdirAll(a.d.dumpsDir(a.id), 0o700); err != nil {
			return err
		}
		if err := a.d.store.PutRecord(a.id, rec); err != nil {
			return err
		}
		a.rec = rec
	}
	dir := a.dumpDir(a.rec.DumpNumber)
	_, spec := a.wantedAndSpec()
	swap := int64(0)
	if a.suspension.swapped {
		swap = a.d.limitsOf(spec).Memory
	}
	if err := a.liftLimits(ctx, spec, swap); err != nil {
		return err
	}
	if err := a.d.inDumpSlot(ctx, func() error { return c.Checkpoint(ctx, a.id.String(), dir) }); err != nil {
		return errors.Join(err, a.revertCheckpoint(err), a.restoreFrozenLimits(ctx, spec, swap))
	}
	a.container, a.suspension.frozen, a.suspension.swapped, a.suspension.swapBytes = task.ContainerNone, false, false, 0
	a.generation++
	a.occupied = &droverv1.Resources{}
	a.writeFolderSums(ctx)
	size, err := dirSize(dir)
	if err != nil {
		return err
	}
	a.suspension.stepBytes = size
	return a.recordLevel(droverv1.Level_LEVEL_CHECKPOINTED, func(r *store.Record) { r.Dumped, r.DumpBytes = true, size })
}

// folderSums returns the file with the checksums of the folder of a suspended attempt.
func (a *attempt) folderSums() string { return a.dumpDir(a.rec.DumpNumber) + ".folder" }

// summed are the parts of a suspended attempt's folder that have checksums. Logs have none: they are
// text that nothing but people reads, and old ones may go meanwhile.
var summed = []string{nameTask, nameTmp}

// writeFolderSums writes the checksums of the attempt's folder. Without them the attempt goes on
// unchecked: its work is worth more.
func (a *attempt) writeFolderSums(ctx context.Context) {
	if err := dump.WriteSums(ctx, a.folderSums(), string(a.dir), summed...); err != nil {
		a.d.log.Warn("the folder of a suspended attempt has no checksums", "attempt", a.id, "err", err)
	}
}

// checkFolderSums returns a fault.Corrupt if the attempt's folder is not as it was when the attempt
// was suspended.
func (a *attempt) checkFolderSums(ctx context.Context) error {
	return dump.CheckSums(ctx, a.folderSums(), string(a.dir), summed...)
}

// inDumpSlot runs f, a dump or a restore, in a slot and lends it the node's
// unallocated disk bandwidth.
func (d *daemon) inDumpSlot(ctx context.Context, f func() error) error {
	return d.inSlot(ctx, func() error { return d.unallocatedIO.lendDuring(f) })
}

// revertCheckpoint clears the recorded intent after a failed dump if the
// container is certainly still running.
func (a *attempt) revertCheckpoint(cause error) error {
	if errors.Is(cause, fault.Unavailable) || errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled) {
		return nil // the outcome of the dump is unknown
	}
	all, err := a.d.cfg.Driver.List(context.WithoutCancel(a.loopCtx))
	if err != nil {
		return nil // the outcome is unknown; the next step meets the engine's error again
	}
	now := runtime.Status{}
	for _, st := range all {
		if st.ID == a.id.String() {
			now = st
		}
	}
	a.setStatus(now)
	if now.Phase != runtime.PhaseRunning {
		return nil
	}
	a.suspension.frozen = a.isFrozen(context.WithoutCancel(a.loopCtx))
	rec := a.rec
	rec.Dumping = false
	if err := a.d.store.PutRecord(a.id, rec); err != nil {
		return err
	}
	a.rec = rec
	return os.RemoveAll(a.dumpDir(rec.DumpNumber))
}

// isFrozen reports whether a running container is known to be frozen.
func (a *attempt) isFrozen(ctx context.Context) bool {
	f := a.d.freezer()
	if f == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, freezeStepLimit)
	defer cancel()
	frozen, err := f.Frozen(ctx, a.id.String())
	return err == nil && frozen
}

// checkDumpSpace checks that the disk has space for all of the memory plus a
// margin.
func (a *attempt) checkDumpSpace() error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(a.d.cfg.Data, &st); err != nil {
		return err
	}
	need := (a.occupied.GetMemory()+a.suspension.swapBytes)/10*11 + dumpSpaceMargin
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return fault.New(fault.Exhausted, "a dump takes up to %d bytes, but the disk of %s has %d free", need, a.d.cfg.Data, free)
	}
	return nil
}

// restore makes the container from its dump. criu works inside the task's
// cgroup, so CPU and I/O limits are lifted meanwhile (not memory); then the
// limits of a running task are written and read back, and only then its processes
// run. If that fails, the task is frozen, and Thaw tries to write its limits again.
func (a *attempt) restore(ctx context.Context, spec *droverv1.TaskSpec) error {
	c, ok := a.d.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot restore tasks", a.d.cfg.Driver.Name())
	}
	if err := a.checkFolderSums(ctx); err != nil {
		return err
	}
	if err := a.prepareCgroupForRestore(ctx, spec); err != nil {
		return err
	}
	if err := a.restoreSecretMount(spec); err != nil {
		return err
	}
	cs, err := a.containerSpec(spec) // contains the cgroup, which exists only from here on
	if err != nil {
		return err
	}
	if err := a.addToWatchdog(ctx, spec); err != nil {
		return err
	}
	a.suspension.stepBytes = a.rec.DumpBytes
	restore := c.Restore
	stopped, canStop := c.(runtime.StoppedRestorer)
	if canStop {
		restore = stopped.RestoreStopped
	}
	err = a.d.inDumpSlot(ctx, func() error { return restore(ctx, cs, a.dumpDir(a.rec.DumpNumber)) })
	if err != nil {
		a.removeFromWatchdog()
		return err
	}
	a.generation++
	a.container, a.hasCgroup, a.stoppedAt = task.ContainerRunning, true, 0
	a.suspension.frozen, a.suspension.swapped, a.suspension.staleDump = false, false, true
	err = a.makeCgroup(ctx, spec)
	if err == nil && canStop {
		err = stopped.Continue(ctx, a.id.String())
	}
	if err != nil {
		if f := a.d.freezer(); f != nil && f.Freeze(ctx, a.id.String()) == nil {
			a.suspension.frozen = true // Thaw writes the limits again
		}
		return errors.Join(err, a.recordLevel(droverv1.Level_LEVEL_FROZEN, func(r *store.Record) {
			clearDumpMarks(r)
			r.Stopped = canStop
		}))
	}
	return a.recordLevel(droverv1.Level_LEVEL_RUNNING, clearDumpMarks)
}

func clearDumpMarks(r *store.Record) { r.Dumping, r.Dumped, r.Stopped = false, false, false }

// prepareCgroupForRestore makes the cgroup, whose leaf disappeared with the
// container, with limits on memory and processes only.
func (a *attempt) prepareCgroupForRestore(ctx context.Context, spec *droverv1.TaskSpec) error {
	return a.liftLimits(ctx, spec, 0)
}

// liftLimits lifts the limits on CPU and I/O, with this much swap allowed. A
// process that waits for its throttled disk, or for pages from swap, cannot be
// stopped by criu before it has them.
func (a *attempt) liftLimits(ctx context.Context, spec *droverv1.TaskSpec, swap int64) error {
	e := a.d.cfg.Enforcer
	if e == nil {
		return nil
	}
	l := a.d.limitsOf(spec)
	_, err := e.Ensure(ctx, a.id.String(), Limits{Memory: l.Memory, Pids: l.Pids, Swap: swap})
	return err
}

// restoreFrozenLimits writes the limits of a frozen or swapped task after a failed
// dump. If the container is gone, there is nothing to limit.
func (a *attempt) restoreFrozenLimits(ctx context.Context, spec *droverv1.TaskSpec, swap int64) error {
	e := a.d.cfg.Enforcer
	if e == nil || a.container == task.ContainerNone || a.container == task.ContainerStopped {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimitsTimeout)
	defer cancel()
	l := a.d.limitsOf(spec)
	l.Swap = swap
	limits, err := e.Ensure(ctx, a.id.String(), l)
	if err != nil {
		return err
	}
	limits.DiskQuota = spec.GetDisk()
	a.appliedLimits = limits
	return nil
}

// removeDumps deletes every dump of the attempt.
func (a *attempt) removeDumps() error {
	if err := os.RemoveAll(a.d.dumpsDir(a.id)); err != nil {
		return err
	}
	a.suspension.staleDump = false
	return nil
}

// dirSize returns the total size of the regular files below a folder.
func dirSize(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		st, err := e.Info()
		if err == nil {
			n += st.Size()
		}
		return err
	})
	return n, err
}

// recoverLevel finds out at which level an earlier daemon left an attempt. A
// container that runs although its record says suspended was thawed by a daemon
// that died before it recorded that, perhaps before it wrote the limits: it is
// frozen again, and Thaw writes the limits.
func (a *attempt) recoverLevel(ctx context.Context) {
	a.suspension.staleDump = pathExists(a.d.dumpsDir(a.id)) && !a.rec.Dumping
	f := a.d.freezer()
	switch {
	case a.container == task.ContainerNone && a.rec.Dumped:
		a.hasCgroup = a.hasCgroup && a.rec.BootID == a.d.bootID // a reboot removes all cgroups
		return
	case a.container != task.ContainerRunning || f == nil:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, freezeStepLimit)
	defer cancel()
	frozen, err := f.Frozen(ctx, a.id.String())
	if err == nil && !frozen && a.rec.Level > int32(droverv1.Level_LEVEL_RUNNING) {
		err = f.Freeze(ctx, a.id.String())
		frozen = err == nil
	}
	if err != nil {
		a.d.log.Warn("freezer state of the attempt is unknown", "attempt", a.id, "err", err)
	}
	a.suspension.frozen = frozen
	a.suspension.swapped = frozen && a.rec.Level == int32(droverv1.Level_LEVEL_SWAPPED)
	a.readCgroupUsage()
}

// currentLevel returns the level that the attempt is at.
func (a *attempt) currentLevel(wanted *droverv1.WantedAttempt) droverv1.Level {
	switch {
	case a.container == task.ContainerNone && (a.rec.Dumped || wanted.GetResumeFrom() != "" && !a.rec.Started):
		return droverv1.Level_LEVEL_CHECKPOINTED
	case a.container == task.ContainerUnknown && a.rec.Level != 0 && !a.isPausedForLease(wanted):
		return droverv1.Level(a.rec.Level)
	case a.container != task.ContainerRunning || !a.suspension.frozen || a.isPausedForLease(wanted):
		return droverv1.Level_LEVEL_RUNNING
	case a.suspension.swapped:
		return droverv1.Level_LEVEL_SWAPPED
	default:
		return droverv1.Level_LEVEL_FROZEN
	}
}

// fillLevel fills in the fields of a report that concern the level.
func (a *attempt) fillLevel(s *droverv1.SeenAttempt) {
	wanted, _ := a.wantedAndSpec()
	s.Level, s.LevelSinceMs, s.LevelNote, s.LevelSteps = a.currentLevel(wanted), a.rec.LevelSinceMS, a.rec.LevelNote, a.suspension.steps
	if wanted.GetGoal() == droverv1.Goal_GOAL_RUN {
		requested := task.Level(max(wanted.GetLevel(), droverv1.Level_LEVEL_RUNNING))
		if a.suspension.refused.Has(requested) && a.isFallbackReached(requested) {
			s.TargetRefused, s.LevelsRefused = droverv1.Level(requested), levelList(a.suspension.refusedPermanently)
		}
	}
	switch s.Level {
	case droverv1.Level_LEVEL_RUNNING:
		if a.isPausedForLease(wanted) {
			s.LevelNote = leaseLostNote
		}
		return
	case droverv1.Level_LEVEL_CHECKPOINTED:
		s.Occupied, s.ImageOccupied = &droverv1.Resources{}, a.rec.DumpBytes
		s.DiskOccupied += a.rec.DumpBytes
		if s.TargetRefused != 0 {
			s.Phase = droverv1.Phase_PHASE_RUNNING // also for an attempt that never ran here: its level is decided
		}
	default:
		s.Occupied, s.SwapOccupied = &droverv1.Resources{Memory: a.occupied.GetMemory()}, a.suspension.swapBytes
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
func (a *attempt) isFallbackReached(requested task.Level) bool {
	to := task.ReachableLevel(requested, a.suspension.refused)
	if requested == task.LevelRunning {
		return true
	}
	switch to {
	case task.LevelRunning:
		return !a.suspension.frozen
	case task.LevelFrozen:
		return a.suspension.frozen
	case task.LevelSwapped:
		return a.suspension.swapped
	default:
		return false
	}
}
