package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/internal/rotate"
	"github.com/drover-run/drover/internal/tree"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce/harness"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// Limits of the steps: how long a step may take, and how often a preparing step
// is tried before the attempt fails with cause INFRA. For the steps that create
// or start the container this holds for every kind of error, since they are
// tried only while the engine answers. Steps that end or remove something are
// retried forever, with pauses up to maxPause.
const (
	stepLimit            = time.Minute
	imageLimit           = 15 * time.Minute
	maxTries             = 5
	maxStartTries        = 3    // of a step that creates or starts the container
	maxSameErrorTries    = 2    // of such a step if it fails with the same error again
	startCPU             = 1000 // millicores that a container has at least until the task's program starts
	firstPause           = 100 * time.Millisecond
	maxPause             = 10 * time.Second
	restoreLimitsTimeout = 5 * time.Second // for restoring the limits after an interrupted start
	maxPids              = 4096
	maxFiles             = 1_000_000              // files and folders of one attempt, if its share of the disk has so many
	minFiles             = 1000                   // files and folders that every attempt may have
	logsLimit            = 300 * time.Millisecond // for the last lines of a task's log: a stray process may hold it open
	quotaSlack           = 256 << 10              // bytes below the quota within which a failed write counts as over it
)

// performStep performs one step; after a failure it handles the error and pauses.
func (a *attempt) performStep(ctx context.Context, do task.Do) {
	start := a.d.clock.Monotonic()
	ctx2, cancel := context.WithTimeout(ctx, stepTimeout(do))
	err := a.runStep(ctx2, do)
	cancel()
	a.d.metrics.observeStep(do, err, a.d.clock.Monotonic()-start)
	if err == nil {
		delete(a.failures, do)
		return
	}
	if ctx.Err() != nil {
		return // the daemon is stopping; the next one continues
	}
	a.handleStepFailure(ctx, do, err)
}

// handleStepFailure decides between a retry and the end of the attempt.
func (a *attempt) handleStepFailure(ctx context.Context, do task.Do, err error) {
	a.failures[do]++
	n := a.failures[do]
	prepares := do >= task.MakeFolder && do <= task.Start || do == task.StartUpload
	unavailable := errors.Is(err, fault.Unavailable)
	a.d.log.Warn("step failed", "attempt", a.id, "step", do, "try", n, "err", err)
	vanished := do == task.Start && errors.Is(err, fault.NotFound)
	cut := errors.Is(err, context.DeadlineExceeded)
	if (unavailable || vanished || cut) && isEngineStep(do) {
		a.container = task.ContainerUnknown // the effect of the step is unknown
	}
	if isLevelStep(do) && a.handleLevelFailure(do, n, err) {
		return
	}
	if prepares && (isPermanent(err) && !vanished || n >= maxTries && !unavailable) {
		a.failure = &failure{cause: causeOf(err), message: fmt.Sprintf("%s: %v", do, err)}
		return
	}
	if a.recordStartFailure(do, n, err) {
		a.failure = &failure{cause: droverv1.Cause_CAUSE_INFRA, message: fmt.Sprintf("the container did not start on node %s in %d tries: %s: %v", a.d.cfg.Info.GetName(), n, do, err)}
		return
	}
	pause := min(maxPause, firstPause<<min(n-1, 10))
	timer, stop := context.WithTimeout(ctx, pause)
	defer stop()
	a.processUntil(timer)
}

// recordStartFailure records the failure of a step that creates or starts the
// container. It reports whether the step has failed so often that another node
// should run the task.
func (a *attempt) recordStartFailure(do task.Do, n int, err error) bool {
	if do != task.CreateContainer && do != task.Start {
		return false
	}
	same := a.startError == err.Error()
	a.startError = err.Error()
	return n >= maxStartTries || same && n >= maxSameErrorTries
}

// isEngineStep reports whether the step changes a container.
func isEngineStep(do task.Do) bool {
	switch do {
	case task.CreateContainer, task.Start, task.Terminate, task.Kill, task.DeleteContainer:
		return true
	default:
		return false
	}
}

// processUntil runs posted calls until ctx ends or the wanted state changes.
func (a *attempt) processUntil(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
			return
		case f := <-a.inbox:
			f(a)
		}
	}
}

// runStep performs one step; every case is safe to repeat.
func (a *attempt) runStep(ctx context.Context, do task.Do) error {
	wanted, spec := a.wantedAndSpec()
	id := a.id.String()
	driver := a.d.cfg.Driver
	switch do {
	case task.MakeFolder:
		return a.makeFolder(ctx, spec)
	case task.GetImage:
		return a.getImage(ctx, spec.GetImage())
	case task.GetFiles:
		return a.getFiles(ctx, spec)
	case task.MakeCgroup:
		return a.makeCgroup(ctx, spec)
	case task.StartFetch:
		return a.startFetch(ctx, spec)
	case task.CreateContainer:
		return a.d.inSlot(ctx, func() error { return a.createContainer(ctx, spec) })
	case task.Start:
		return a.d.inSlot(ctx, func() error { return a.startContainer(ctx) })
	case task.Terminate:
		a.termSent, a.termSentAt = true, a.d.clock.Monotonic()
		return driver.Kill(ctx, id, syscall.SIGTERM)
	case task.Kill:
		return a.killContainer(ctx)
	case task.ClassifyExit:
		return a.classifyExit(ctx, spec)
	case task.StartUpload:
		return a.startUpload(ctx, spec)
	case task.RecordEnd:
		return a.recordEnd(a.finalFailure(wanted, spec))
	case task.StopHelpers:
		return a.stopHelpers(ctx)
	case task.DeleteContainer:
		return a.d.inSlot(ctx, func() error { return a.deleteContainer(ctx) })
	case task.Trim:
		if goalOf(wanted) == task.GoalStop {
			return a.dir.trimToLogs(ctx)
		}
		return a.dir.trim(ctx)
	case task.RemoveFolder:
		return a.removeFolder(ctx)
	case task.DeleteRecord:
		if err := a.d.store.DeleteRecord(a.id); err != nil {
			return err
		}
		a.recorded, a.rec, a.outcome = false, store.Record{}, nil
		return nil
	case task.RemoveDumps:
		return a.removeDumps()
	case task.RemoveCgroup:
		return a.removeCgroup(ctx)
	case task.Freeze, task.Thaw, task.SwapOut, task.Checkpoint, task.Restore, task.FetchDump:
		return a.runLevelStep(ctx, do, spec)
	default:
		panic("node: cannot do " + do.String())
	}
}

func (a *attempt) makeFolder(ctx context.Context, spec *droverv1.TaskSpec) error {
	if spec == nil {
		return fault.New(fault.Invalid, "the coordinator sent no spec")
	}
	uid, err := a.d.taskUID(spec)
	if err != nil {
		return err
	}
	if !a.recorded {
		rec := store.Record{Epoch: a.d.epoch()}
		if err := a.d.store.PutRecord(a.id, rec); err != nil {
			return err
		}
		a.rec, a.recorded = rec, true
	}
	if a.dir.isComplete() {
		return nil
	}
	return a.dir.create(ctx, uid, spec.GetKind() != kindGroup, func(dir string) error {
		if a.d.quota != quota.Kernel || spec.GetDisk() <= 0 {
			return nil
		}
		return quota.SetLimit(ctx, dir, quota.Limit{Bytes: spec.GetDisk(), Files: a.d.filesLimit(spec)})
	})
}

// filesLimit returns how many files and folders an attempt may have: the part of
// the disk's inodes that its disk space is of the disk.
func (d *daemon) filesLimit(spec *droverv1.TaskSpec) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(d.cfg.Data, &st); err != nil {
		return maxFiles
	}
	return shareOfInodes(spec.GetDisk(), int64(st.Blocks)*st.Bsize, int64(st.Files))
}

// shareOfInodes returns the limit for an attempt with disk bytes on a disk of this
// size. File systems that make inodes as needed report none.
func shareOfInodes(disk, size, inodes int64) int64 {
	if disk <= 0 || size <= 0 || inodes <= 0 {
		return maxFiles
	}
	return min(maxFiles, max(minFiles, int64(float64(inodes)*float64(disk)/float64(size))))
}

// taskUID returns the uid that the task runs as.
func (d *daemon) taskUID(spec *droverv1.TaskSpec) (uint32, error) {
	if os.Geteuid() != 0 || d.cfg.usesHostPaths() && !d.cfg.SwitchUser {
		return uint32(os.Geteuid()), nil
	}
	if spec.GetUid() == 0 && !d.cfg.AllowRoot {
		return 0, fault.New(fault.Denied, "tenant %q has no uid, and this node runs nothing as root: give the tenant a uid, or allow root tasks on this node", spec.GetTenant())
	}
	return spec.GetUid(), nil
}

func (a *attempt) getImage(ctx context.Context, ref *droverv1.ImageRef) error {
	if ref.GetKind() == string(jobspec.ImageOCIArchive) {
		if err := a.d.images.ensure(ctx, ref.GetDigest()); err != nil {
			return err
		}
	}
	a.hasImage = true
	return nil
}

func (a *attempt) getFiles(ctx context.Context, spec *droverv1.TaskSpec) error {
	uid, err := a.d.taskUID(spec)
	if err != nil {
		return err
	}
	if err := checkFilesFit(spec); err != nil {
		return err
	}
	if err := a.loadSecrets(ctx, spec, uid); err != nil {
		return err
	}
	for _, f := range spec.GetFiles() {
		if err := a.getFile(ctx, f, uid); err != nil {
			return err
		}
	}
	if spec.GetKind() != kindGroup {
		if err := a.writeSpec(spec, uid); err != nil {
			return err
		}
	}
	a.hasFiles = true
	return nil
}

// checkFilesFit refuses files whose total size exceeds the disk quota.
func checkFilesFit(spec *droverv1.TaskSpec) error {
	sum := int64(0)
	for _, f := range spec.GetFiles() {
		sum += f.GetSize()
	}
	if d := spec.GetDisk(); d > 0 && sum > d {
		return fault.New(fault.Invalid, "the files of stage %q have %s together, more than its disk quota: raise disk, which is %q",
			spec.GetStageName(), jobspec.FormatSize(sum), jobspec.FormatSize(d))
	}
	return nil
}

func (a *attempt) getFile(ctx context.Context, ref *droverv1.FileRef, uid uint32) error {
	blob, err := a.d.blobs.Get(ctx, ref.GetDigest())
	if err != nil {
		return fmt.Errorf("file %q: %w", ref.GetName(), err)
	}
	defer blob.Close()
	return a.dir.putFile(ref.GetName(), ref.GetMode(), uid, func(to *os.File) error {
		if ref.GetSize() < minChargedBytes || a.d.cfg.Enforcer == nil || a.d.helperPath == "" {
			return blob.CopyTo(to)
		}
		return a.d.copyCharged(ctx, a.id.String(), uid, to, blob, ref.GetDigest())
	})
}

// minChargedBytes is the size from which a task's file is copied by a process in
// the attempt's cgroup, so that pages and writes are charged to the task. For
// smaller files the process would cost more than the copy.
const minChargedBytes = 1 << 20

func (a *attempt) makeCgroup(ctx context.Context, spec *droverv1.TaskSpec) error {
	if e := a.d.cfg.Enforcer; e != nil {
		if err := checkDemand(spec); err != nil {
			return err
		}
		a.d.unallocatedIO.refresh()
		limits, err := e.Ensure(ctx, a.id.String(), a.d.limitsOf(spec))
		if err != nil {
			return err
		}
		limits.DiskQuota = spec.GetDisk()
		a.appliedLimits = limits
	}
	a.hasCgroup = true
	return nil
}

// checkDemand refuses a demand of nothing: as a limit, zero would be none.
func checkDemand(spec *droverv1.TaskSpec) error {
	r := spec.GetDemand()
	if r.GetCpu() <= 0 || r.GetMemory() <= 0 || r.GetIo() <= 0 {
		return fault.New(fault.Invalid, "stage %q demands cpu %d, memory %d, io %d: each must be above zero, since it is the task's limit", spec.GetStageName(), r.GetCpu(), r.GetMemory(), r.GetIo())
	}
	return nil
}

func (d *daemon) limitsOf(spec *droverv1.TaskSpec) Limits {
	r := spec.GetDemand()
	return Limits{CPU: r.GetCpu(), Memory: r.GetMemory() + d.cfg.Info.GetTaskOverheadMemory(), IO: r.GetIo(), Pids: maxPids}
}

func (a *attempt) createContainer(ctx context.Context, spec *droverv1.TaskSpec) error {
	cs, err := a.containerSpec(spec)
	if err != nil {
		return err
	}
	err = a.d.cfg.Driver.Create(ctx, cs)
	if errors.Is(err, fault.Exists) { // same name, other spec: left by a start whose record was lost
		err = errors.Join(a.d.cfg.Driver.Delete(ctx, cs.ID), fault.New(fault.Unavailable, "removed an old container of the same name: %w", err))
	}
	if err == nil {
		a.container = task.ContainerCreated
	}
	return err
}

// startContainer starts the task's program. Steps: prepare the start in the
// engine with the CPU limit lifted; write the limits and read them back; record
// the start; start the program.
func (a *attempt) startContainer(ctx context.Context) error {
	_, spec := a.wantedAndSpec()
	if err := a.prepareStart(ctx, spec); err != nil {
		return err
	}
	if !a.rec.Started {
		rec := a.rec
		rec.Started, rec.BootID = true, a.d.bootID
		rec.StartedMS, rec.StartMono, rec.HarnessPath = a.d.clock.Now().UnixMilli(), int64(a.d.clock.Monotonic()), a.d.harnessPath
		if err := a.d.store.PutRecord(a.id, rec); err != nil {
			return err
		}
		a.rec = rec
	}
	if err := a.addToWatchdog(ctx, spec); err != nil {
		return err
	}
	if err := a.d.cfg.Driver.Start(ctx, a.id.String()); err != nil {
		return err
	}
	a.container = task.ContainerRunning
	return nil
}

// prepareStart lets the engine do its part of a start. That part runs inside the
// task's cgroup (runc's init is several processes) and would exceed stepLimit
// under the CPU quota of a small task on a busy node. Memory, processes and I/O
// stay limited. The task's limits are restored in any case before its program
// runs.
func (a *attempt) prepareStart(ctx context.Context, spec *droverv1.TaskSpec) (err error) {
	p, ok := a.d.cfg.Driver.(runtime.Preparer)
	l := a.d.limitsOf(spec)
	if !ok || a.d.cfg.Enforcer == nil || spec == nil || l.CPU <= 0 || l.CPU >= startCPU {
		return nil
	}
	l.CPU = startCPU
	defer func() {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimitsTimeout)
		defer cancel()
		err = errors.Join(err, a.makeCgroup(back, spec))
	}()
	if _, err := a.d.cfg.Enforcer.Ensure(ctx, a.id.String(), l); err != nil {
		return err
	}
	return p.Prepare(ctx, a.id.String())
}

func (a *attempt) killContainer(ctx context.Context) error {
	if err := a.d.cfg.Driver.Kill(ctx, a.id.String(), syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := a.d.cfg.Driver.Wait(ctx, a.id.String())
	if err != nil {
		return fmt.Errorf("container was killed but does not exit: %w", err)
	}
	a.setStatus(st)
	return nil
}

func (a *attempt) deleteContainer(ctx context.Context) error {
	if err := a.d.cfg.Driver.Delete(ctx, a.id.String()); err != nil {
		return err
	}
	a.container = task.ContainerNone
	a.removeFromWatchdog()
	return a.dropSecrets()
}

func (a *attempt) removeFolder(ctx context.Context) error {
	if err := a.removeDumps(); err != nil {
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
	if err := errors.Join(a.dropSecrets(), tree.RemoveAll(ctx, string(a.dir))); err != nil {
		return err
	}
	a.removeFromWatchdog()
	if err := a.removeCgroup(ctx); err != nil {
		return err
	}
	a.hasFiles = false
	return nil
}

// removeCgroup removes the attempt's cgroup with every process that is left in it.
func (a *attempt) removeCgroup(ctx context.Context) error {
	if e := a.d.cfg.Enforcer; e != nil {
		if err := e.Remove(ctx, a.id.String()); err != nil {
			return err
		}
	}
	a.hasCgroup = false
	return nil
}

// containerSpec returns what to run. The driver compares it on a repeated
// Create, so it must be equal each time.
func (a *attempt) containerSpec(spec *droverv1.TaskSpec) (runtime.Spec, error) {
	uid, err := a.d.taskUID(spec)
	if err != nil {
		return runtime.Spec{}, err
	}
	p := a.taskPaths()
	s := runtime.Spec{
		ID: a.id.String(), Args: spec.GetCommand(), Env: a.environment(spec, p), Dir: p.task, UID: uid, GID: uid,
		Hostname: "task-" + strconv.Itoa(int(a.id.Key().GetTask())),
		Labels:   map[string]string{"drover.job": spec.GetJobName(), "drover.stage": spec.GetStageName(), "drover.tenant": spec.GetTenant()},
		Log:      runtime.Log{Dir: a.dir.logs(), MaxBytes: a.d.cfg.MaxLogBytes, MaxFiles: a.d.cfg.MaxLogFiles, BytesPerS: a.d.limitsOf(spec).IO},
	}
	switch img := spec.GetImage(); jobspec.ImageKind(img.GetKind()) {
	case "":
		if !a.d.cfg.usesHostPaths() {
			s.Rootfs = a.d.emptyRoot // the harness's built-ins need no root file system
		}
	case jobspec.ImageOCIArchive:
		s.Image = img.GetDigest()
	case jobspec.ImageRegistry:
		s.Image = img.GetSource()
	case jobspec.ImageRootfs:
		s.Rootfs = img.GetSource()
	default:
		return runtime.Spec{}, fault.New(fault.Unsupported, "image kind %q is not supported by this node", img.GetKind())
	}
	if e := a.d.cfg.Enforcer; e != nil {
		s.Cgroup = e.ContainerCgroup(a.id.String())
	}
	if spec.GetKind() != kindGroup {
		s.Args = append(append([]string{p.harness}, a.d.cfg.HarnessArgs...), p.metaPath(nameSpec))
	}
	if len(s.Args) == 0 {
		return runtime.Spec{}, fault.New(fault.Invalid, "stage %q has no command", spec.GetStageName())
	}
	if !a.d.cfg.usesHostPaths() {
		s.Mounts = []runtime.Mount{{Source: a.dir.task(), Target: p.task}, {Source: a.dir.join(nameTmp), Target: p.tmp}}
		if len(spec.GetSecrets()) > 0 {
			s.Args = append(append([]string{p.harness}, a.d.cfg.HarnessArgs...), append([]string{harness.WithSecrets, secretMount + "/" + secretEnvName}, s.Args...)...)
			s.Mounts = append(s.Mounts, runtime.Mount{Source: a.secretDir(), Target: secretMount, ReadOnly: true})
		}
		if spec.GetKind() != kindGroup || len(spec.GetSecrets()) > 0 {
			s.Mounts = append(s.Mounts, runtime.Mount{Source: filepath.Dir(a.harnessPath()), Target: filepath.Dir(p.harness), ReadOnly: true})
		}
	}
	s.Reuse = a.reuseKey(spec)
	return s, nil
}

// taskPaths are paths inside the task's folder as the task sees them.
type taskPaths struct{ task, tmp, harness string }

func (p taskPaths) metaPath(part ...string) string {
	return filepath.Join(append([]string{p.task, nameMeta}, part...)...)
}

// harnessMount is the folder of the harness in the container.
const harnessMount = "/.drover"

func (a *attempt) taskPaths() taskPaths {
	if a.d.cfg.usesHostPaths() {
		return taskPaths{task: a.dir.task(), tmp: a.dir.join(nameTmp), harness: a.harnessPath()}
	}
	return taskPaths{task: "/task", tmp: "/tmp", harness: filepath.Join(harnessMount, filepath.Base(a.harnessPath()))}
}

// harnessPath returns the program that the attempt's container was made with: a
// dump needs that version even after an upgrade of the daemon.
func (a *attempt) harnessPath() string {
	if a.rec.HarnessPath != "" {
		return a.rec.HarnessPath
	}
	return a.d.harnessPath
}

// environment returns the task's environment, sorted. The job's variables
// override Drover's, and secrets override both where they are in it at all: see loadSecrets.
func (a *attempt) environment(spec *droverv1.TaskSpec, p taskPaths) []string {
	k := a.id.Key()
	all := map[string]string{
		"HOME": p.task, "TMPDIR": p.tmp,
		"DROVER_JOB": spec.GetJobName(), "DROVER_JOB_ID": strconv.FormatUint(k.GetJob(), 10),
		"DROVER_STAGE": spec.GetStageName(), "DROVER_TASK": strconv.Itoa(int(k.GetTask())),
		"DROVER_TASKS": strconv.Itoa(int(spec.GetStageTasks())), "DROVER_ATTEMPT": strconv.Itoa(int(k.GetAttempt())),
		"DROVER_RUN": strconv.Itoa(int(k.GetRun())), "DROVER_TENANT": spec.GetTenant(),
	}
	if a.d.cfg.usesHostPaths() {
		all["PATH"] = os.Getenv("PATH")
	}
	maps.Copy(all, spec.GetEnv())
	maps.Copy(all, a.secrets)
	env := make([]string, 0, len(all))
	for name, v := range all {
		env = append(env, name+"="+v)
	}
	slices.Sort(env)
	return env
}

// classifyExit determines how the stopped container ended.
func (a *attempt) classifyExit(ctx context.Context, spec *droverv1.TaskSpec) error {
	a.sampleUsage(ctx)
	var v *failure
	var err error
	if spec.GetKind() == kindGroup {
		v = a.classifyCommandExit(spec)
	} else if v, err = a.classifyHarnessExit(spec); err != nil {
		return err
	}
	a.awaitLogs(ctx)
	if v == nil {
		a.exitOK = true
		a.d.recentTasks.add(stageOf(a.id), a.status.Exited.Sub(a.status.Started))
		return nil
	}
	slack := int64(0)
	if a.d.quota == quota.Kernel {
		slack = quotaSlack
	}
	if exceeded := a.diskFailure(spec, slack); exceeded != nil {
		v = exceeded
	}
	return a.recordEnd(v)
}

// awaitLogs waits, for a moment, until the process that writes the logs has written the last lines: who is
// told of the end reads them next, and a failure's message quotes them.
func (a *attempt) awaitLogs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, logsLimit)
	defer cancel()
	rotate.Await(ctx, a.dir.join(nameLogs))
}

// diskFailure returns the failure of an attempt that filled its quota, or nil.
// slack is the number of bytes that the kernel may have refused to write.
func (a *attempt) diskFailure(spec *droverv1.TaskSpec, slack int64) *failure {
	limit := spec.GetDisk()
	if files := a.d.filesLimit(spec); limit > 0 && (a.diskFiles > files || slack > 0 && a.diskFiles == files) {
		return &failure{cause: droverv1.Cause_CAUSE_DISK, message: fmt.Sprintf(
			"over its disk quota: with disk = %q of stage %q it may have %d files and folders, its share of the disk's; raise disk, or make fewer files",
			jobspec.FormatSize(limit), spec.GetStageName(), files)}
	}
	if limit <= 0 || a.diskBytes+slack <= limit {
		return nil
	}
	return &failure{cause: droverv1.Cause_CAUSE_DISK, message: fmt.Sprintf(
		"over its disk quota: disk = %q of stage %q, %s were used; raise disk, or write less",
		jobspec.FormatSize(limit), spec.GetStageName(), jobspec.FormatSize(a.diskBytes))}
}

// sampleUsage reads usage and progress of a running task. Where the kernel does
// not enforce the disk quota, it fails a task that exceeds it.
func (a *attempt) sampleUsage(ctx context.Context) {
	_, spec := a.wantedAndSpec()
	if e := a.d.cfg.Enforcer; e != nil && a.hasCgroup {
		if u, occupied, kills, err := e.Usage(a.id.String()); err == nil {
			a.usage, a.occupied, a.oomKills = a.addPriorCPU(u), occupied, kills
		}
	}
	if use, err := quota.Measure(ctx, string(a.dir), a.d.quota); err == nil {
		a.diskBytes, a.diskFiles = use.Bytes, use.Files
		if exceeded := a.diskFailure(spec, 0); exceeded != nil && a.failure == nil && a.outcome == nil {
			a.failure = exceeded
		}
	}
	if spec.GetKind() != kindGroup {
		a.readProgress(spec)
	}
}
