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
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// Limits of the steps between levels.
const (
	freezeStepLimit = 30 * time.Second
	swapStepLimit   = 10 * time.Minute
	dumpStepLimit   = 20 * time.Minute
	fetchDumpLimit  = 30 * time.Minute
	levelTries      = 2       // of a step between levels, before its level is barred
	fetchDumpTries  = 6       // of bringing a dump from another node
	dumpSpare       = 1 << 20 // bytes beside the memory that a dump needs
	levelStepsMost  = 32      // that a report names, parts of steps included
)

// suspension is what the loop of an attempt knows of its level.
type suspension struct {
	frozen  bool // its processes stand still
	swapped bool
	swap    int64 // bytes of its memory in swap
	leased  bool  // it may run as far as the lease says
	oldDump bool  // a dump is on the disk that it does not need
	asked   droverv1.Level
	barred  task.Levels
	hard    task.Levels // of barred: trying again cannot help
	steps   []*droverv1.LevelStep
	bytes   int64 // that the present step moved
}

// freezer is what has an attempt's processes stand still: its cgroup where
// there is one, else the driver; nil where neither can.
func (d *daemon) freezer() runtime.Freezer {
	if f, ok := d.cfg.Enforcer.(runtime.Freezer); ok {
		return f
	}
	if f, ok := d.cfg.Driver.(runtime.Freezer); ok && d.cfg.Enforcer == nil {
		return f
	}
	return nil
}

// hearLevel takes in which level is wanted. A new wish tries again what failed
// for the last one, but for what cannot work.
func (a *attempt) hearLevel(w *droverv1.WantedAttempt) {
	l := w.GetLevel()
	if w == nil || l == a.sus.asked {
		return
	}
	a.sus.asked, a.sus.barred, a.sus.steps = l, a.sus.hard, nil
	for _, do := range []task.Do{task.Freeze, task.Thaw, task.SwapOut, task.Checkpoint, task.Restore, task.FetchDump} {
		delete(a.retry, do)
	}
}

// levelStep tells whether a step moves an attempt between levels.
func levelStep(do task.Do) bool { return do >= task.Freeze && do <= task.FetchDump }

// limitOf is how long a step may take.
func limitOf(do task.Do) time.Duration {
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

// level carries out a step between levels and keeps how long it took.
func (a *attempt) level(ctx context.Context, do task.Do, spec *droverv1.TaskSpec) error {
	began, mono := a.d.clock.Now(), a.d.clock.Mono()
	a.sus.bytes = 0
	var err error
	var parts []*droverv1.LevelStep
	ctx = runtime.WithTrace(ctx, func(part string, took time.Duration) {
		parts = append(parts, &droverv1.LevelStep{Step: do.String() + "/" + part, Us: took.Microseconds(), BeganMs: began.UnixMilli()})
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
		err = a.d.spare.during(func() error { return a.fetchDump(ctx, spec) })
	default:
		panic("node: no step between levels: " + do.String())
	}
	s := &droverv1.LevelStep{Step: do.String(), Us: (a.d.clock.Mono() - mono).Microseconds(), Bytes: a.sus.bytes, BeganMs: began.UnixMilli()}
	if err != nil {
		s.Error = oneLine(err.Error())
	}
	all := append(slices.Clip(a.sus.steps), s) // a report may hold the old slice
	all = append(all, parts...)
	a.sus.steps = all[:min(len(all), levelStepsMost)]
	return err
}

// levelFailed decides between another try, the next level, and the end of the
// attempt. It gives whether the failure was settled without a pause.
func (a *attempt) levelFailed(do task.Do, n int, err error) bool {
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) || errors.Is(err, fault.Unavailable) || errors.Is(err, context.DeadlineExceeded) {
		a.container = task.ContainerUnknown // it ended meanwhile, or the engine is gone: look
	}
	if errors.Is(err, fault.Unavailable) && do != task.FetchDump && do != task.Freeze {
		return false // the engine is away: that says nothing of the task
	}
	l, tries := task.LevelRunning, levelTries
	switch do {
	case task.Freeze:
		if n < tries {
			return false
		}
		all := task.Levels(0).With(task.LevelFrozen).With(task.LevelSwapped).With(task.LevelCheckpointed)
		a.sus.barred |= all
		if errors.Is(err, fault.Unsupported) {
			a.sus.hard |= all
		}
		a.say("it cannot be frozen: %v", err)
		return true
	case task.Thaw:
		a.say("it cannot go on yet: %v", err)
		return false // for ever: nothing else leads on, and it must not run without its limits
	case task.SwapOut:
		l = task.LevelSwapped
	case task.Checkpoint:
		if a.lostInDump(err) {
			return true
		}
		l = task.LevelCheckpointed
	case task.Restore:
		if errors.Is(err, fault.NotFound) && a.image { // of the container's image
			a.image = false
		}
	case task.FetchDump:
		tries = fetchDumpTries
	}
	lasting := errors.Is(err, fault.Unsupported) || errors.Is(err, fault.Corrupt) || errors.Is(err, fault.Exhausted) || errors.Is(err, fault.Invalid) || errors.Is(err, fault.Denied)
	if n < tries && !lasting {
		return false
	}
	a.sus.barred = a.sus.barred.With(l)
	if errors.Is(err, fault.Unsupported) && l != task.LevelRunning {
		a.sus.hard = a.sus.hard.With(l)
	}
	if l == task.LevelRunning {
		a.say("it cannot be restored here: %v", err)
	} else {
		a.say("it cannot be %s: %v", l, err)
	}
	return true
}

// lostInDump ends an attempt whose container is gone without a whole dump.
func (a *attempt) lostInDump(err error) bool {
	stopped := a.container == task.ContainerStopped || a.container == task.ContainerNone
	if !stopped {
		return false
	}
	a.fault = &verdict{cause: droverv1.Cause_CAUSE_INFRA, message: fmt.Sprintf("its container ended while it was dumped, and the dump is not whole: its work is lost: %v", err)}
	return true
}

// say keeps why a level was not reached, for people.
func (a *attempt) say(format string, args ...any) {
	a.rec.Note = oneLine(fmt.Sprintf(format, args...))
}

// at makes durable that the attempt reached a level. A task that stands still
// has no running clock: what it ran so far is kept.
func (a *attempt) at(l droverv1.Level, change func(*store.Record)) error {
	rec, now := a.rec, a.d.clock.Mono()
	if l == droverv1.Level_LEVEL_RUNNING {
		if rec.StartMono == 0 {
			rec.StartMono, rec.BootID = max(1, int64(now)), a.d.boot
		}
		rec.Note = ""
	} else if rec.StartMono != 0 {
		rec.RanNS, rec.StartMono, rec.FrozenNS = int64(a.running(now)), 0, 0
	}
	if rec.Level != int32(l) && (rec.Level != 0 || l != droverv1.Level_LEVEL_RUNNING) {
		rec.LevelMS = a.d.clock.Now().UnixMilli()
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

func (a *attempt) freeze(ctx context.Context) error {
	f := a.d.freezer()
	if f == nil {
		return fault.New(fault.Unsupported, "node %s cannot freeze tasks of driver %s", a.d.cfg.Info.GetName(), a.d.cfg.Driver.Name())
	}
	kernel := runtime.Part(ctx, "kernel")
	if err := f.Freeze(ctx, a.id.String()); err != nil {
		return err
	}
	kernel()
	a.unleash()
	a.sus.frozen, a.sus.swapped = true, false
	a.measure()
	return a.at(droverv1.Level_LEVEL_FROZEN, nil)
}

// thaw puts the limits of a running task in force and reads them back before it
// lets it go on: one that cannot be limited does not run.
func (a *attempt) thaw(ctx context.Context, spec *droverv1.TaskSpec) error {
	if err := a.makeCgroup(ctx, spec); err != nil {
		return err
	}
	if err := a.leashed(ctx, spec); err != nil {
		return err
	}
	kernel := runtime.Part(ctx, "kernel")
	if err := a.d.freezer().Thaw(ctx, a.id.String()); err != nil {
		return err
	}
	kernel()
	a.sus.frozen, a.sus.swapped = false, false
	return a.at(droverv1.Level_LEVEL_RUNNING, restored) // the loop measures what runs, once the word is out
}

// swapOut lets the attempt's memory go to swap and pushes it there.
func (a *attempt) swapOut(ctx context.Context, spec *droverv1.TaskSpec) error {
	s, ok := a.d.cfg.Enforcer.(Swapper)
	if !ok {
		return fault.New(fault.Unsupported, "node %s has no cgroups to push memory out of", a.d.cfg.Info.GetName())
	}
	l := a.d.limitsOf(spec)
	l.Swap = l.Memory
	limits, err := a.d.cfg.Enforcer.Make(ctx, a.id.String(), l)
	if err != nil {
		return err
	}
	limits.DiskQuota = spec.GetDisk()
	a.limits = limits
	moved, err := s.SwapOut(ctx, a.id.String())
	a.sus.bytes = moved
	a.measure()
	if err != nil {
		return err
	}
	a.sus.swapped = true
	return a.at(droverv1.Level_LEVEL_SWAPPED, nil)
}

// measure reads what the attempt holds now.
func (a *attempt) measure() {
	e := a.d.cfg.Enforcer
	if e == nil || !a.cgroup {
		return
	}
	if u, held, kills, err := e.Usage(a.id.String()); err == nil {
		a.usage, a.held, a.oomKills = a.withBase(u), held, kills
	}
	if s, ok := e.(Swapper); ok {
		if n, err := s.Swap(a.id.String()); err == nil {
			a.sus.swap = n
		}
	}
}

// withBase adds the CPU time that was used on other nodes.
func (a *attempt) withBase(u *droverv1.Usage) *droverv1.Usage {
	if u != nil {
		u.CpuMs += a.rec.CPUMS
	}
	return u
}

// dumpsOf is the folder of an attempt's dumps. It is not below the attempt's
// own, since a dump is not charged to the tenant's quota and holds what the
// tenant may not see of its own processes.
func (d *daemon) dumpsOf(id store.ID) string { return filepath.Join(d.cfg.Data, "images", id.String()) }

func (a *attempt) dumpDir(n int32) string {
	return filepath.Join(a.d.dumpsOf(a.id), strconv.Itoa(int(n)))
}

// checkpoint dumps the frozen container. Steps, each safe to repeat:
//
//  1. there is room for all of its memory;
//  2. record the intent, with a folder that no dump before it had;
//  3. dump, which ends the container;
//  4. record that the dump is whole.
func (a *attempt) checkpoint(ctx context.Context) error {
	c, ok := a.d.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot dump tasks", a.d.cfg.Driver.Name())
	}
	if !a.rec.Dumping {
		a.measure()
		if err := a.roomForDump(); err != nil {
			return err
		}
		rec := a.rec
		rec.Dump++
		rec.Dumping, rec.Dumped = true, false
		if err := os.MkdirAll(a.d.dumpsOf(a.id), 0o700); err != nil {
			return err
		}
		if err := a.d.store.PutRecord(a.id, rec); err != nil {
			return err
		}
		a.rec = rec
	}
	dir := a.dumpDir(a.rec.Dump)
	if err := a.d.dumpSlot(ctx, func() error { return c.Checkpoint(ctx, a.id.String(), dir) }); err != nil {
		return errors.Join(err, a.undump(err))
	}
	a.container, a.sus.frozen, a.sus.swapped, a.sus.swap = task.ContainerNone, false, false, 0
	a.generation++
	a.held = &droverv1.Resources{}
	size, err := sizeOf(dir)
	if err != nil {
		return err
	}
	a.sus.bytes = size
	return a.at(droverv1.Level_LEVEL_CHECKPOINTED, func(r *store.Record) { r.Dumped, r.DumpBytes = true, size })
}

// dumpSlot runs f, which dumps or restores, in a slot, with what the disk has to
// spare.
func (d *daemon) dumpSlot(ctx context.Context, f func() error) error {
	return d.slot(ctx, func() error { return d.spare.during(f) })
}

// undump takes the intent back after a dump that surely did not end the
// container.
func (a *attempt) undump(cause error) error {
	if errors.Is(cause, fault.Unavailable) || errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled) {
		return nil // what became of it is not known
	}
	all, err := a.d.cfg.Driver.List(context.WithoutCancel(a.life))
	if err != nil {
		return nil // likewise: the error is the engine's, which the next step meets again
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
	a.sus.frozen = a.stands(context.WithoutCancel(a.life))
	rec := a.rec
	rec.Dumping = false
	if err := a.d.store.PutRecord(a.id, rec); err != nil {
		return err
	}
	a.rec = rec
	return os.RemoveAll(a.dumpDir(rec.Dump))
}

// stands tells whether a running container stands still, as far as it can be
// told.
func (a *attempt) stands(ctx context.Context) bool {
	f := a.d.freezer()
	if f == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, freezeStepLimit)
	defer cancel()
	frozen, err := f.Frozen(ctx, a.id.String())
	return err == nil && frozen
}

// roomForDump makes sure that the disk takes all of the memory, and something
// more.
func (a *attempt) roomForDump() error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(a.d.cfg.Data, &st); err != nil {
		return err
	}
	need := (a.held.GetMemory()+a.sus.swap)/10*11 + dumpSpare
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return fault.New(fault.Exhausted, "a dump takes up to %d bytes, and the disk under %s has %d left", need, a.d.cfg.Data, free)
	}
	return nil
}

// restore makes the container from the dump. criu works inside the task's
// cgroup, so CPU and I/O are lifted while it does, and memory is not; then the
// limits of a running task are written and read back. Where that fails, the task
// is stopped at once and its limits are tried again from frozen.
func (a *attempt) restore(ctx context.Context, spec *droverv1.TaskSpec) error {
	c, ok := a.d.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot restore tasks", a.d.cfg.Driver.Name())
	}
	if err := a.liftLimits(ctx, spec); err != nil {
		return err
	}
	cs, err := a.containerSpec(spec) // names the leaf, which is there from here on
	if err != nil {
		return err
	}
	if err := a.leashed(ctx, spec); err != nil {
		return err
	}
	a.sus.bytes = a.rec.DumpBytes
	err = a.d.dumpSlot(ctx, func() error { return c.Restore(ctx, cs, a.dumpDir(a.rec.Dump)) })
	if err != nil {
		a.unleash()
		return err
	}
	a.generation++
	a.container, a.cgroup, a.stoppedAt = task.ContainerRunning, true, 0
	a.sus.frozen, a.sus.swapped, a.sus.oldDump = false, false, true
	if err := a.makeCgroup(ctx, spec); err != nil {
		if f := a.d.freezer(); f != nil && f.Freeze(ctx, a.id.String()) == nil {
			a.sus.frozen = true // Thaw writes the limits again
		}
		return errors.Join(err, a.at(droverv1.Level_LEVEL_FROZEN, restored))
	}
	return a.at(droverv1.Level_LEVEL_RUNNING, restored)
}

func restored(r *store.Record) { r.Dumping, r.Dumped = false, false }

// liftLimits makes the cgroup, whose leaf went with the container, with no limit
// but memory and processes.
func (a *attempt) liftLimits(ctx context.Context, spec *droverv1.TaskSpec) error {
	e := a.d.cfg.Enforcer
	if e == nil {
		return nil
	}
	l := a.d.limitsOf(spec)
	_, err := e.Make(ctx, a.id.String(), Limits{Memory: l.Memory, Pids: l.Pids})
	return err
}

// dropDump removes the dumps that are not the present one.
func (a *attempt) dropDump() error {
	if err := os.RemoveAll(a.d.dumpsOf(a.id)); err != nil {
		return err
	}
	a.sus.oldDump = false
	return nil
}

// sizeOf sums up the files below a folder.
func sizeOf(dir string) (n int64, err error) {
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

// adoptLevel finds out at which level an attempt was left. One that runs though
// the store says that it is suspended was let go when the daemon died, perhaps
// before its limits were written: it is frozen again, and Thaw writes them.
func (a *attempt) adoptLevel(ctx context.Context) {
	a.sus.oldDump = there(a.d.dumpsOf(a.id)) && !a.rec.Dumping
	f := a.d.freezer()
	switch {
	case a.container == task.ContainerNone && a.rec.Dumped:
		a.cgroup = a.cgroup && a.rec.BootID == a.d.boot // a machine that was started again has none
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
		a.d.log.Warn("whether it stands still is not known", "attempt", a.id, "err", err)
	}
	a.sus.frozen = frozen
	a.sus.swapped = frozen && a.rec.Level == int32(droverv1.Level_LEVEL_SWAPPED)
	a.measure()
}

// seenLevel is the level of an attempt as it is.
func (a *attempt) seenLevel(wanted *droverv1.WantedAttempt) droverv1.Level {
	switch {
	case a.container == task.ContainerNone && (a.rec.Dumped || wanted.GetResumeFrom() != "" && !a.rec.Started):
		return droverv1.Level_LEVEL_CHECKPOINTED
	case a.container == task.ContainerUnknown && a.rec.Level != 0:
		return droverv1.Level(a.rec.Level)
	case a.container != task.ContainerRunning || !a.sus.frozen || a.onHold(wanted):
		return droverv1.Level_LEVEL_RUNNING
	case a.sus.swapped:
		return droverv1.Level_LEVEL_SWAPPED
	default:
		return droverv1.Level_LEVEL_FROZEN
	}
}

// reportLevel fills in what concerns the level.
func (a *attempt) reportLevel(s *droverv1.SeenAttempt) {
	wanted, _ := a.goal()
	s.Level, s.LevelSinceMs, s.LevelNote, s.LevelSteps = a.seenLevel(wanted), a.rec.LevelMS, a.rec.Note, a.sus.steps
	if wanted.GetGoal() == droverv1.Goal_GOAL_RUN {
		ask := task.Level(max(wanted.GetLevel(), droverv1.Level_LEVEL_RUNNING))
		if a.sus.barred.Has(ask) && a.settled(ask) {
			s.LevelRefused, s.LevelsNever = droverv1.Level(ask), levelsOf(a.sus.hard)
		}
	}
	switch s.Level {
	case droverv1.Level_LEVEL_RUNNING:
		if a.onHold(wanted) {
			s.LevelNote = noteHold
		}
		return
	case droverv1.Level_LEVEL_CHECKPOINTED:
		s.Held, s.ImageHeld = &droverv1.Resources{}, a.rec.DumpBytes
		s.DiskHeld += a.rec.DumpBytes
		if s.LevelRefused != 0 {
			s.Phase = droverv1.Phase_PHASE_RUNNING // also one that never ran here: it is settled
		}
	default:
		s.Held, s.SwapHeld = &droverv1.Resources{Memory: a.held.GetMemory()}, a.sus.swap
	}
}

// levelsOf lists the levels of a set.
func levelsOf(s task.Levels) (all []droverv1.Level) {
	for l := task.LevelRunning; l <= task.LevelCheckpointed; l++ {
		if s.Has(l) {
			all = append(all, droverv1.Level(l))
		}
	}
	return all
}

// settled tells whether nothing more is done about a level that is barred.
func (a *attempt) settled(ask task.Level) bool {
	to := task.Reach(ask, a.sus.barred)
	if ask == task.LevelRunning {
		return true
	}
	switch to {
	case task.LevelRunning:
		return !a.sus.frozen
	case task.LevelFrozen:
		return a.sus.frozen
	case task.LevelSwapped:
		return a.sus.swapped
	default:
		return false
	}
}
