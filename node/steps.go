package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/internal/rotate"
	"github.com/drover-run/drover/internal/tree"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
)

// Limits of the steps: how long a step may take, and how often a preparing step is tried before the
// attempt fails with cause INFRA. Tries in which something did not answer do not count, except for
// the steps that create or start the container: those are tried only while the engine answers.
// Steps that end or remove something are retried forever, with pauses up to maxPause.
const (
	stepLimit            = time.Minute
	imageLimit           = 15 * time.Minute
	maxTries             = 5
	maxStartTries        = 3    // of a step that creates or starts the container
	maxSameErrorTries    = 2    // of such a step, if the same error follows again
	startCPU             = 1000 // millicores that a container has at least until the task's program starts
	firstPause           = 100 * time.Millisecond
	maxPause             = 10 * time.Second
	restoreLimitsTimeout = 5 * time.Second // for restoring the limits after an interrupted start
	maxPids              = 4096
	maxFiles             = 1_000_000              // files and folders of one attempt, even if its share of the disk allows more
	minFiles             = 1000                   // files and folders that every attempt may have
	logsLimit            = 300 * time.Millisecond // for the last lines of a task's log: a stray process may keep it open
	quotaSlack           = 256 << 10              // bytes below the quota within which a failed write counts as over it
)

// performStep performs one step; after a failure it handles the error and pauses.
func (a *attempt) performStep(ctx context.Context, do task.Do) {
	start := a.d.clock.Monotonic()
	run := func() error {
		ctx, cancel := context.WithTimeout(ctx, stepTimeout(do)) // from when it has its slot
		defer cancel()
		return a.runStep(ctx, do)
	}
	var err error
	if needsSlot(do) {
		err = a.d.inEngineSlot(ctx, stepTimeout(do), run)
	} else {
		err = run()
	}
	if err != nil || changesFolder(do) {
		a.place.forget()
	}
	a.d.metrics.observeStep(do, err, a.d.clock.Monotonic()-start)
	if err == nil {
		a.retries.clear(do)
		return
	}
	if ctx.Err() != nil {
		return // the daemon is stopping; the next one continues
	}
	a.handleStepFailure(ctx, do, err)
}

// needsSlot reports whether a step makes the engine work on a container; the number of such steps
// at once is limited. Dumps and restores have slots of their own.
func needsSlot(do task.Do) bool {
	switch do {
	case task.CreateContainer, task.Start, task.DeleteContainer, task.RemoveDumped:
		return true
	default:
		return false
	}
}

// handleStepFailure decides between a retry and the end of the attempt. A step that got no slot,
// and a start without a lease, have not been tried: that the node is busy or cut off is no failure
// of the step, and ends no attempt.
func (a *attempt) handleStepFailure(ctx context.Context, do task.Do, err error) {
	if errors.Is(err, errNoSlot) || do == task.Start && errors.Is(err, errNoLease) {
		a.d.log.Info("step waits", "attempt", a.id, "step", do, "err", err)
		a.mail.pause(ctx, firstPause)
		return
	}
	n := a.retries.add(do, err)
	prepares := do >= task.MakeFolder && do <= task.Start || do == task.StartUpload
	unavailable := errors.Is(err, fault.Unavailable)
	a.d.log.Warn("step failed", "attempt", a.id, "step", do, "try", n.all(), "err", err)
	vanished := do == task.Start && errors.Is(err, fault.NotFound)
	cause := causeOf(do, err)
	cut := errors.Is(err, context.DeadlineExceeded)
	if (unavailable || vanished || cut) && isEngineStep(do) {
		a.container.phase = task.ContainerUnknown // the effect of the step is unknown
	}
	if isLevelStep(do) && a.handleLevelFailure(do, n, err) {
		return
	}
	if prepares && (cause == droverv1.Cause_CAUSE_SPEC || n.others >= maxTries && !unavailable) { // repeated, what is asked for is the same
		if wanted, _ := a.mail.wantedAndSpec(); a.rec.Dumped || isToBeFetched(wanted, &a.rec) {
			a.suspension.refuseToRestore(do, err)
			a.retries.clear(do)
			return
		}
		a.failure = &failure{cause: cause, message: fmt.Sprintf("%s: %v", do, err)}
		return
	}
	if !errors.Is(err, store.ErrUnwritable) && a.retries.recordStart(do, n.all(), err) {
		a.failure = &failure{cause: droverv1.Cause_CAUSE_INFRA, message: fmt.Sprintf("the container did not start on node %s in %d tries: %s: %v", a.d.cfg.Info.GetName(), n.all(), do, err)}
		return
	}
	a.mail.pause(ctx, a.retries.pause(n.all()))
}

// isToBeFetched reports whether the attempt continues from a dump that only another node has.
func isToBeFetched(wanted *droverv1.WantedAttempt, rec *attemptRecord) bool {
	return wanted.GetResumeFrom() != "" && !rec.Started
}

// isEngineStep reports whether the step changes a container.
func isEngineStep(do task.Do) bool {
	switch do {
	case task.CreateContainer, task.Start, task.Terminate, task.Kill, task.DeleteContainer, task.RemoveDumped:
		return true
	default:
		return false
	}
}

// runStep performs one step; every case is safe to repeat.
func (a *attempt) runStep(ctx context.Context, do task.Do) error {
	wanted, spec := a.mail.wantedAndSpec()
	id := a.id.String()
	driver := a.d.cfg.Driver
	switch do {
	case task.MakeFolder:
		return a.makeFolder(ctx, spec)
	case task.GetImage:
		return a.files.getImage(ctx, spec.GetImage())
	case task.GetFiles:
		if e := a.d.cfg.Enforcer; e != nil && e.ContainerCgroup(id) == "" {
			return a.cgroup.vanished()
		}
		return a.files.getFiles(ctx, spec, a.layout())
	case task.MakeCgroup:
		return a.cgroup.ensure(ctx, spec)
	case task.StartFetch:
		return a.helpers.startFetch(spec, wanted, func(f *failure) { a.failure = a.disk.failureOfInput(a.helpers.ctx, spec, f) })
	case task.CreateContainer:
		cs, err := a.layout().containerSpec(spec, a.reuseKey(spec))
		if err != nil {
			return err
		}
		if a.d.cfg.Enforcer != nil && cs.Cgroup == "" {
			return a.cgroup.vanished()
		}
		return a.container.create(ctx, cs)
	case task.Start:
		err := a.startContainer(ctx)
		if err != nil {
			err = a.stopSharing(ctx, spec, err)
		}
		return err
	case task.Terminate:
		a.termSent, a.termSentAt = true, a.d.clock.Monotonic()
		return driver.Kill(ctx, id, syscall.SIGTERM)
	case task.Kill:
		return a.container.kill(ctx)
	case task.ClassifyExit:
		return a.classifyExit(ctx, spec)
	case task.StartUpload:
		return a.helpers.startUpload(spec, a.output)
	case task.RecordEnd:
		return a.recordEnd(a.finalFailure(wanted, spec))
	case task.StopHelpers:
		return a.helpers.stop(ctx)
	case task.DeleteContainer:
		return a.deleteContainer(ctx)
	case task.Trim:
		if goalOf(wanted) == task.GoalStop {
			return a.dir.trimToLogs(ctx)
		}
		return a.dir.trim(ctx)
	case task.RemoveFolder:
		return a.removeFolder(ctx)
	case task.DeleteRecord:
		if err := a.rec.remove(); err != nil {
			return err
		}
		a.outcome = nil
		return nil
	case task.RemoveDumps:
		return a.suspension.removeDumps()
	case task.RemoveCgroup:
		return errors.Join(a.secrets.drop(), a.cgroup.remove(ctx)) // of one that has ended without a container
	case task.RemoveDumped:
		return a.container.remove(ctx)
	case task.Freeze, task.Thaw, task.SwapOut, task.Checkpoint, task.Restore, task.FetchDump:
		return a.runLevelStep(ctx, do, spec)
	default:
		panic("node: cannot do " + do.String())
	}
}

// makeFolder records the attempt, and then makes its folder with owner and quota.
func (a *attempt) makeFolder(ctx context.Context, spec *droverv1.TaskSpec) error {
	if spec == nil {
		return fault.New(fault.Invalid, "the coordinator sent no spec")
	}
	uid, err := a.d.cfg.taskUID(spec)
	if err != nil {
		return err
	}
	if !a.rec.exists {
		epoch := a.d.attempts.epoch()
		if err := a.rec.change(func(r *store.Record) { *r = store.Record{Epoch: epoch} }); err != nil {
			return err
		}
	}
	if a.dir.isComplete() {
		return nil
	}
	return a.dir.create(ctx, spec.GetKind() != kindGroup, func(dir string) error {
		if a.d.quota != quota.Kernel || spec.GetDisk() <= 0 {
			return nil
		}
		return quota.SetLimit(ctx, dir, quota.Limit{Bytes: spec.GetDisk(), Files: a.d.cfg.filesLimit(spec)})
	}, func(dir string) error { return chown(dir, uid) })
}

// shareOfInodes returns the limit for an attempt with disk bytes on a disk of this
// size. File systems that make inodes as needed report none.
func shareOfInodes(disk, size, inodes int64) int64 {
	if disk <= 0 || size <= 0 || inodes <= 0 {
		return maxFiles
	}
	return min(maxFiles, max(minFiles, int64(float64(inodes)*float64(disk)/float64(size))))
}

// startContainer starts the task's program. Steps: prepare the start in the
// engine with the CPU limit lifted; write the limits and read them back; record
// the start; start the program. Each try is recorded: the time until the one that
// succeeds is no running time of the task.
func (a *attempt) startContainer(ctx context.Context) error {
	wanted, spec := a.mail.wantedAndSpec()
	if err := a.cgroup.prepareStart(ctx, spec); err != nil {
		return err
	}
	err := a.rec.change(func(r *store.Record) {
		r.Started, r.BootID = true, a.d.bootID
		r.Waiting, r.WaitedNS = spec.GetKind() == kindReduce && !wanted.GetMapOutputsComplete(), 0
		r.StartedMS, r.StartMono = a.d.clock.Now().UnixMilli(), int64(a.d.clock.Monotonic())
		r.HarnessPath = cmp.Or(r.HarnessPath, a.d.programs.harness) // the harness that an earlier daemon has used for the container
	})
	if err != nil {
		return err
	}
	if err := a.d.exclusive.add(ctx, a.id, spec); err != nil {
		return err
	}
	return a.d.cfg.explainNoImage(spec, a.container.start(ctx))
}

// deleteContainer removes the container and what exists only with it.
func (a *attempt) deleteContainer(ctx context.Context) error {
	if err := a.container.remove(ctx); err != nil {
		return err
	}
	_, spec := a.mail.wantedAndSpec()
	a.d.exclusive.remove(a.id, spec)
	return a.secrets.drop()
}

// removeFolder removes everything of the attempt on the disk except its logs, and its cgroup.
func (a *attempt) removeFolder(ctx context.Context) error {
	if err := a.suspension.removeDumps(); err != nil {
		return err
	}
	if a.outcome != nil || a.rec.Started {
		if err := a.d.pastLogs.Keep(a.id.String(), string(a.dir), a.d.clock.Now()); err != nil { // a full disk must not keep the folder
			a.d.log.Warn("the logs of an attempt are not kept", "attempt", a.id, "err", err)
		}
	}
	if a.d.quota == quota.Kernel && a.dir.exists() {
		if err := quota.ClearLimit(string(a.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := errors.Join(a.secrets.drop(), tree.RemoveAll(ctx, string(a.dir))); err != nil {
		return err
	}
	_, spec := a.mail.wantedAndSpec()
	a.d.exclusive.remove(a.id, spec)
	if err := a.cgroup.remove(ctx); err != nil {
		return err
	}
	a.files.hasFiles = false
	return nil
}

// classifyExit determines how the stopped container ended.
func (a *attempt) classifyExit(ctx context.Context, spec *droverv1.TaskSpec) error {
	a.sampleUsage(ctx)
	var v *failure
	if spec.GetKind() == kindGroup {
		v = a.exit(spec).ofCommand()
	} else {
		v = a.classifyHarnessExit(spec)
	}
	a.dir.awaitLogs(ctx)
	if v == nil {
		a.exitOK = true
		a.d.recentTasks.add(stageOf(a.id), a.container.status.Exited.Sub(a.container.status.Started))
		return nil
	}
	return a.recordEnd(cmp.Or(a.disk.failureOfWrite(spec), v))
}

// awaitLogs waits for a moment until the process that writes the logs has written the last lines:
// the client reads them when it learns of the end, and a failure's message quotes them.
func (f folder) awaitLogs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, logsLimit)
	defer cancel()
	rotate.Await(ctx, f.logs())
}

// sampleUsage reads usage and progress of a running task. Where the kernel does
// not enforce the disk quota, it fails a task that exceeds it.
func (a *attempt) sampleUsage(ctx context.Context) {
	_, spec := a.mail.wantedAndSpec()
	a.cgroup.readUsage()
	if a.disk.measure(ctx) {
		if exceeded := a.disk.failure(spec, 0); exceeded != nil && a.failure == nil && a.outcome == nil {
			a.failure = exceeded
		}
	}
	if spec.GetKind() != kindGroup && a.outcome == nil && !a.exitOK {
		a.progress.read(a.dir, spec, a.helpers.fetch.progress)
	}
}
