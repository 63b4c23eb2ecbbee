package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
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

// handleLevelFailure decides between a retry, the next level, and the end of the
// attempt. It reports whether the failure is handled and no pause is needed.
func (a *attempt) handleLevelFailure(do task.Do, n int, err error) bool {
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) || errors.Is(err, fault.Unavailable) || errors.Is(err, context.DeadlineExceeded) {
		a.container.phase = task.ContainerUnknown // the container has exited or the engine is unreachable: query it again
	}
	if errors.Is(err, fault.Unavailable) && do != task.FetchDump && do != task.Freeze && (do != task.Restore || n < maxTries) {
		return false // an unreachable engine says nothing about the task
	}
	l, tries := task.LevelRunning, maxLevelTries
	switch do {
	case task.Freeze:
		if n < tries || a.suspension.frozen { // frozen, and not yet in the store
			return false
		}
		all := task.Levels(0).With(task.LevelFrozen).With(task.LevelSwapped).With(task.LevelCheckpointed)
		a.suspension.refused |= all
		if errors.Is(err, fault.Unsupported) {
			a.suspension.refusedPermanently |= all
		}
		a.rec.setLevelNote("cannot be frozen: %v", err)
		return true
	case task.Thaw:
		a.rec.setLevelNote("cannot be thawed yet: %v", err)
		return false // retried forever: there is no other step, and the task must not run without its limits
	case task.SwapOut:
		l = task.LevelSwapped
	case task.Checkpoint:
		if a.container.isGone() {
			a.failure = &failure{cause: droverv1.Cause_CAUSE_INFRA, message: fmt.Sprintf("the container ended during a checkpoint and the dump is incomplete; the task's work is lost: %v", err)}
			return true
		}
		l = task.LevelCheckpointed
	case task.Restore:
		if errors.Is(err, fault.NotFound) && a.files.hasImage { // the container's image is missing
			a.files.hasImage = false
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
		a.rec.setLevelNote("cannot be restored on this node: %v", err)
	} else {
		a.rec.setLevelNote("cannot be %s: %v", l, err)
	}
	return true
}

// inDumpSlot runs f, a dump or a restore, in a slot and lends it the node's
// unallocated disk bandwidth.
func (d *daemon) inDumpSlot(ctx context.Context, f func() error) error {
	return d.inSlot(ctx, func() error { return d.unallocatedIO.lendDuring(f) })
}
