package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// Limits of the steps between levels.
const (
	freezeStepLimit   = 30 * time.Second
	swapStepLimit     = 10 * time.Minute
	dumpStepLimit     = 20 * time.Minute
	sumsLimit         = 30 * time.Minute // of the check of a folder before a restore
	fetchDumpLimit    = 30 * time.Minute
	maxLevelTries     = 2       // tries of a step before its level is refused
	maxFetchDumpTries = 6       // tries of fetching a dump from another node
	maxUnreachable    = 10      // tries in which the other node does not answer: half a minute, in which its daemon may restart
	dumpSpaceMargin   = 1 << 20 // bytes of disk space needed on top of the memory
	maxLevelSteps     = 32      // in a report, parts of steps included
)

// How long a process that no dump can stop may run before it is frozen again, in one try of a dump.
const (
	maxMoments    = 10
	firstMoment   = 10 * time.Millisecond // each is twice as long as the previous one, up to
	longestMoment = 100 * time.Millisecond
)

// levelSteps are the steps that move an attempt between levels.
var levelSteps = []task.Do{task.Freeze, task.Thaw, task.SwapOut, task.Checkpoint, task.Restore, task.FetchDump}

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
	case task.Checkpoint:
		return dumpStepLimit
	case task.Restore:
		return sumsLimit + dumpStepLimit
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
		err = a.suspension.freeze(ctx, spec)
	case task.Thaw:
		err = a.suspension.thaw(ctx, spec)
	case task.SwapOut:
		err = a.suspension.swapOut(ctx, spec)
	case task.Checkpoint:
		err = a.suspension.checkpoint(ctx, spec)
	case task.Restore:
		err = a.suspension.restore(ctx, spec, func() (runtime.Spec, error) {
			if err := a.secrets.restoreMount(spec); err != nil {
				return runtime.Spec{}, err
			}
			return a.layout().containerSpec(spec, a.reuseKey(spec))
		})
	case task.FetchDump:
		err = a.d.unallocatedIO.lendDuring(func() error { return a.fetchDump(ctx, spec) })
	default:
		panic("node: no step between levels: " + do.String())
	}
	s := &droverv1.LevelStep{Step: do.String(), DurationUs: (a.d.clock.Monotonic() - startMono).Microseconds(), Bytes: a.suspension.stepBytes, StartedMs: started.UnixMilli()}
	if err != nil {
		s.Error = oneLine(err.Error())
	}
	a.suspension.addSteps(s, parts...)
	return err
}

// forever is more tries than any step makes.
const forever = math.MaxInt

// levelFailure is what follows from failures of a step between levels.
type levelFailure struct {
	tries       int         // after which the step is given up
	engineTries int         // tries in which the engine or a node is unreachable, which says nothing about the task, are counted apart, up to this many; 0: with the others
	sameAgain   bool        // the step is given up at once if the same error would follow again
	refuses     task.Levels // when it is given up
	note        string      // for users
}

var suspendedLevels = task.Levels(0).With(task.LevelFrozen).With(task.LevelSwapped).With(task.LevelCheckpointed)

// levelFailures has an entry for every step of levelSteps. A thaw is never given up: there is no
// alternative, and the task must not run without its limits.
var levelFailures = map[task.Do]levelFailure{
	task.Freeze:     {tries: maxLevelTries, refuses: suspendedLevels, note: "cannot be frozen"},
	task.Thaw:       {tries: forever, engineTries: forever, note: "cannot be thawed yet"},
	task.SwapOut:    {tries: maxLevelTries, engineTries: forever, sameAgain: true, refuses: task.Levels(0).With(task.LevelSwapped), note: "cannot be swapped"},
	task.Checkpoint: {tries: maxLevelTries, engineTries: forever, sameAgain: true, refuses: task.Levels(0).With(task.LevelCheckpointed), note: "cannot be checkpointed"},
	task.Restore:    {tries: maxLevelTries, engineTries: maxTries, sameAgain: true, refuses: task.Levels(0).With(task.LevelRunning), note: "cannot be restored on this node"},
	task.FetchDump:  {tries: maxFetchDumpTries, engineTries: maxUnreachable, sameAgain: true, refuses: task.Levels(0).With(task.LevelRunning), note: "cannot be restored on this node"},
}

// isOver reports whether a step is given up after n failures, the last with err.
func (f *levelFailure) isOver(n failures, err error) bool {
	switch {
	case f.sameAgain && isLasting(err):
		return true
	case f.engineTries == 0:
		return n.all() >= f.tries
	case errors.Is(err, fault.Unavailable):
		return n.unreachable >= f.engineTries
	default:
		return n.others >= f.tries
	}
}

// handleLevelFailure decides after n failures whether to retry the step, fall back to another
// level, or end the attempt. It returns true if the failure is handled and no pause is needed.
func (a *attempt) handleLevelFailure(do task.Do, n failures, err error) bool {
	gone := a.container.isGone() && !errors.Is(err, context.DeadlineExceeded) // as the step has left it
	if leavesContainerUnknown(err) {
		a.container.phase = task.ContainerUnknown
	}
	f := levelFailures[do]
	if errors.Is(err, fault.Unavailable) && n.unreachable < f.engineTries {
		return false
	}
	switch {
	case do == task.Freeze && (errors.Is(err, store.ErrUnwritable) || a.suspension.staysFreezing): // it runs no more
		return false
	case do == task.Thaw:
		a.suspension.forLease = false
		a.rec.setLevelNote("%s: %v", f.note, err)
		return false
	case do == task.Checkpoint && gone && a.rec.Dumping:
		a.failure = &failure{cause: droverv1.Cause_CAUSE_INFRA, message: fmt.Sprintf("the container ended during a checkpoint and the dump is incomplete; the task's work is lost: %v", err)}
		if a.rec.isOfEarlierBoot() {
			a.failure.cause = droverv1.Cause_CAUSE_REBOOT
		}
		return true
	case do == task.Restore && errors.Is(err, fault.NotFound):
		a.files.hasImage = false // the container's image is missing
	}
	if !f.isOver(n, err) {
		return false
	}
	a.suspension.refuse(f.refuses, err)
	a.rec.setLevelNote("%s: %v", f.note, err)
	return true
}

// leavesContainerUnknown reports whether after this error of a step the container may have exited
// or the engine is unreachable, so that the engine must be queried again.
func leavesContainerUnknown(err error) bool {
	return errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) || errors.Is(err, fault.Unavailable) || errors.Is(err, context.DeadlineExceeded)
}

// isLasting reports whether a step between levels would fail in the same way if it were repeated soon.
func isLasting(err error) bool {
	for _, class := range []error{fault.Unsupported, fault.Corrupt, fault.Exhausted, fault.Invalid, fault.Denied} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// inDumpSlot runs f, which dumps, restores or reads a suspended task's folder, in a dump slot, and
// lends it the node's unallocated disk bandwidth.
func (d *daemon) inDumpSlot(ctx context.Context, f func() error) error {
	return inSlot(ctx, d.dumpSlots, func() error { return d.unallocatedIO.lendDuring(f) })
}
