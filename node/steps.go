package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// Limits of the steps: how long one may take, and how often one that prepares
// is tried before the attempt is given back as the infrastructure's failure.
// Steps that end or remove are tried for ever, with pauses up to maxPause.
const (
	stepLimit  = time.Minute
	imageLimit = 15 * time.Minute
	maxTries   = 5
	firstPause = 100 * time.Millisecond
	maxPause   = 10 * time.Second
	maxPids    = 4096
	filesMost  = 1_000_000 // files and folders of one attempt
	quotaSlack = 256 << 10 // a failed write this near below the quota was over it
)

// perform does one step, or explains why not and pauses.
func (a *attempt) perform(ctx context.Context, do task.Do) {
	begun := a.d.clock.Mono()
	ctx2, cancel := context.WithTimeout(ctx, limitOf(do))
	err := a.step(ctx2, do)
	cancel()
	a.d.metrics.step(do, err, a.d.clock.Mono()-begun)
	if err == nil {
		delete(a.retry, do)
		return
	}
	if ctx.Err() != nil {
		return // leaving: the next daemon goes on
	}
	a.failed(ctx, do, err)
}

// failed decides between another try and the end of the attempt.
func (a *attempt) failed(ctx context.Context, do task.Do, err error) {
	a.retry[do]++
	n := a.retry[do]
	prepares := do >= task.MakeFolder && do <= task.Start || do == task.StartUpload
	unavailable := errors.Is(err, fault.Unavailable)
	a.d.log.Warn("step failed", "attempt", a.id, "step", do, "try", n, "err", err)
	vanished := do == task.Start && errors.Is(err, fault.NotFound)
	if (unavailable || vanished) && engineStep(do) {
		a.container = task.ContainerUnknown // what it did is not known
	}
	if levelStep(do) && a.levelFailed(do, n, err) {
		return
	}
	if prepares && (permanent(err) && !vanished || n >= maxTries && !unavailable) {
		a.fault = &verdict{cause: causeOf(err), message: fmt.Sprintf("%s: %v", do, err)}
		return
	}
	pause := min(maxPause, firstPause<<min(n-1, 10))
	timer, stop := context.WithTimeout(ctx, pause)
	defer stop()
	a.pause(timer)
}

// engineStep tells whether the step changes a container.
func engineStep(do task.Do) bool {
	switch do {
	case task.CreateContainer, task.Start, task.Terminate, task.Kill, task.DeleteContainer:
		return true
	default:
		return false
	}
}

// pause waits for the end of ctx; what comes in meanwhile is taken in, and a
// change of what is wanted ends it.
func (a *attempt) pause(ctx context.Context) {
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

// step carries out one step; every case is safe to repeat.
func (a *attempt) step(ctx context.Context, do task.Do) error {
	wanted, spec := a.goal()
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
		return a.d.slot(ctx, func() error { return a.create(ctx, spec) })
	case task.Start:
		return a.d.slot(ctx, func() error { return a.start(ctx) })
	case task.Terminate:
		a.termSent, a.term = true, a.d.clock.Mono()
		return driver.Kill(ctx, id, syscall.SIGTERM)
	case task.Kill:
		return a.kill(ctx)
	case task.Judge:
		return a.judge(ctx, spec)
	case task.StartUpload:
		return a.startUpload(ctx, spec)
	case task.End:
		return a.record(a.finalVerdict(wanted, spec))
	case task.StopHelpers:
		return a.stopHelpers(ctx)
	case task.DeleteContainer:
		return a.d.slot(ctx, func() error { return a.delete(ctx) })
	case task.Trim:
		if goalOf(wanted) == task.GoalStop {
			return a.dir.trimToLogs()
		}
		return a.dir.trim()
	case task.RemoveFolder:
		return a.removeFolder(ctx)
	case task.Forget:
		if err := a.d.store.DeleteRecord(a.id); err != nil {
			return err
		}
		a.recorded, a.rec, a.result = false, store.Record{}, nil
		return nil
	case task.DropDump:
		return a.dropDump()
	case task.Freeze, task.Thaw, task.SwapOut, task.Checkpoint, task.Restore, task.FetchDump:
		return a.level(ctx, do, spec)
	default:
		panic("node: cannot do " + do.String())
	}
}

func (a *attempt) makeFolder(ctx context.Context, spec *droverv1.TaskSpec) error {
	if spec == nil {
		return fault.New(fault.Invalid, "the coordinator sent no spec")
	}
	uid, err := a.d.uid(spec)
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
	if a.dir.whole() {
		return nil
	}
	return a.dir.make(uid, func(dir string) error {
		if a.d.quota != quota.Kernel || spec.GetDisk() <= 0 {
			return nil
		}
		return quota.Set(ctx, dir, quota.Limit{Bytes: spec.GetDisk(), Files: filesMost})
	})
}

// uid is who the task runs as.
func (d *daemon) uid(spec *droverv1.TaskSpec) (uint32, error) {
	if os.Geteuid() != 0 || d.cfg.hostPaths() && !d.cfg.SwitchUser {
		return uint32(os.Geteuid()), nil
	}
	if spec.GetUid() == 0 && !d.cfg.AllowRoot {
		return 0, fault.New(fault.Denied, "tenant %q has no uid, and this node runs nothing as root: give the tenant a uid, or start the node with leave to run tasks as root", spec.GetTenant())
	}
	return spec.GetUid(), nil
}

func (a *attempt) getImage(ctx context.Context, ref *droverv1.ImageRef) error {
	if ref.GetKind() == string(jobspec.ImageOCIArchive) {
		if err := a.d.images.get(ctx, ref.GetDigest()); err != nil {
			return err
		}
	}
	a.image = true
	return nil
}

func (a *attempt) getFiles(ctx context.Context, spec *droverv1.TaskSpec) error {
	uid, err := a.d.uid(spec)
	if err != nil {
		return err
	}
	if err := filesFit(spec); err != nil {
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
	a.files = true
	return nil
}

// filesFit refuses files that are larger together than the disk quota.
func filesFit(spec *droverv1.TaskSpec) error {
	sum := int64(0)
	for _, f := range spec.GetFiles() {
		sum += f.GetSize()
	}
	if d := spec.GetDisk(); d > 0 && sum > d {
		return fault.New(fault.Invalid, "the files of stage %q have %s together, more than its disk quota: set disk above that, it is %q",
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
		if ref.GetSize() < chargedBytes || a.d.cfg.Enforcer == nil || a.d.helper == "" {
			_, err := io.Copy(to, blob)
			return err
		}
		return a.d.copyCharged(ctx, a.id.String(), uid, to, blob.File)
	})
}

// chargedBytes is from which size on a task's file is copied by a process in
// its own cgroup, so that its pages and its writing are the task's. For less
// the process would cost more than the copy.
const chargedBytes = 1 << 20

func (a *attempt) makeCgroup(ctx context.Context, spec *droverv1.TaskSpec) error {
	if e := a.d.cfg.Enforcer; e != nil {
		a.d.spare.resize()
		limits, err := e.Make(ctx, a.id.String(), a.d.limitsOf(spec))
		if err != nil {
			return err
		}
		limits.DiskQuota = spec.GetDisk()
		a.limits = limits
	}
	a.cgroup = true
	return nil
}

func (d *daemon) limitsOf(spec *droverv1.TaskSpec) Limits {
	r := spec.GetDemand()
	return Limits{CPU: r.GetCpu(), Memory: r.GetMemory() + d.cfg.Info.GetTaskOverheadMemory(), IO: r.GetIo(), Pids: maxPids}
}

func (a *attempt) create(ctx context.Context, spec *droverv1.TaskSpec) error {
	cs, err := a.containerSpec(spec)
	if err != nil {
		return err
	}
	err = a.d.cfg.Driver.Create(ctx, cs)
	if errors.Is(err, fault.Exists) { // of the same name and another spec: left by a run whose record is lost
		err = errors.Join(a.d.cfg.Driver.Delete(ctx, cs.ID), fault.New(fault.Unavailable, "a container of that name was in the way: %w", err))
	}
	if err == nil {
		a.container = task.ContainerCreated
	}
	return err
}

func (a *attempt) start(ctx context.Context) error {
	if !a.rec.Started {
		rec := a.rec
		rec.Started, rec.BootID = true, a.d.boot
		rec.StartedMS, rec.StartMono, rec.Harness = a.d.clock.Now().UnixMilli(), int64(a.d.clock.Mono()), a.d.harness
		if err := a.d.store.PutRecord(a.id, rec); err != nil {
			return err
		}
		a.rec = rec
	}
	_, spec := a.goal()
	if err := a.leashed(ctx, spec); err != nil {
		return err
	}
	if err := a.d.cfg.Driver.Start(ctx, a.id.String()); err != nil {
		return err
	}
	a.container = task.ContainerRunning
	return nil
}

func (a *attempt) kill(ctx context.Context) error {
	if err := a.d.cfg.Driver.Kill(ctx, a.id.String(), syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := a.d.cfg.Driver.Wait(ctx, a.id.String())
	if err != nil {
		return fmt.Errorf("killed, but it does not end: %w", err)
	}
	a.setStatus(st)
	return nil
}

func (a *attempt) delete(ctx context.Context) error {
	if err := a.d.cfg.Driver.Delete(ctx, a.id.String()); err != nil {
		return err
	}
	a.container = task.ContainerNone
	a.unleash()
	return nil
}

func (a *attempt) removeFolder(ctx context.Context) error {
	if err := a.dropDump(); err != nil {
		return err
	}
	if a.d.quota == quota.Kernel && a.dir.exists() {
		if err := quota.Clear(string(a.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.RemoveAll(string(a.dir)); err != nil {
		return err
	}
	a.unleash()
	if e := a.d.cfg.Enforcer; e != nil {
		if err := e.Remove(ctx, a.id.String()); err != nil {
			return err
		}
	}
	a.cgroup, a.files = false, false
	return nil
}

// containerSpec says what to run. The driver compares it on a repeated Create,
// so it must come out equal each time.
func (a *attempt) containerSpec(spec *droverv1.TaskSpec) (runtime.Spec, error) {
	uid, err := a.d.uid(spec)
	if err != nil {
		return runtime.Spec{}, err
	}
	p := a.paths()
	env, err := a.env(spec, p)
	if err != nil {
		return runtime.Spec{}, err
	}
	s := runtime.Spec{
		ID: a.id.String(), Args: spec.GetCommand(), Env: env, Dir: p.task, UID: uid, GID: uid,
		Hostname: "task-" + strconv.Itoa(int(a.id.Key().GetTask())),
		Labels:   map[string]string{"drover.job": spec.GetJobName(), "drover.stage": spec.GetStageName(), "drover.tenant": spec.GetTenant()},
		Log:      runtime.Log{Dir: a.dir.logs(), MaxBytes: a.d.cfg.MaxLogBytes, MaxFiles: a.d.cfg.MaxLogFiles},
	}
	switch img := spec.GetImage(); jobspec.ImageKind(img.GetKind()) {
	case "":
		if !a.d.cfg.hostPaths() {
			s.Rootfs = a.d.emptyRoot // the harness's built-ins need no root file system
		}
	case jobspec.ImageOCIArchive:
		s.Image = img.GetDigest()
	case jobspec.ImageRegistry:
		s.Image = img.GetSource()
	case jobspec.ImageRootfs:
		s.Rootfs = img.GetSource()
	default:
		return runtime.Spec{}, fault.New(fault.Unsupported, "image kind %q is not known to this node", img.GetKind())
	}
	if e := a.d.cfg.Enforcer; e != nil {
		s.Cgroup = e.Leaf(a.id.String())
	}
	if spec.GetKind() != kindGroup {
		s.Args = append(append([]string{p.harness}, a.d.cfg.HarnessArgs...), p.inner(nameSpec))
	}
	if len(s.Args) == 0 {
		return runtime.Spec{}, fault.New(fault.Invalid, "stage %q has no command", spec.GetStageName())
	}
	if !a.d.cfg.hostPaths() {
		s.Mounts = []runtime.Mount{{Source: a.dir.task(), Target: p.task}, {Source: a.dir.join(nameTmp), Target: p.tmp}}
		if spec.GetKind() != kindGroup {
			s.Mounts = append(s.Mounts, runtime.Mount{Source: filepath.Dir(a.harness()), Target: filepath.Dir(p.harness), ReadOnly: true})
		}
	}
	return s, nil
}

// paths are the places in the task's folder as the task sees them.
type paths struct{ task, tmp, harness string }

func (p paths) inner(part ...string) string {
	return filepath.Join(append([]string{p.task, nameInner}, part...)...)
}

// harnessMount is the folder of the harness in the container.
const harnessMount = "/.drover"

func (a *attempt) paths() paths {
	if a.d.cfg.hostPaths() {
		return paths{task: a.dir.task(), tmp: a.dir.join(nameTmp), harness: a.harness()}
	}
	return paths{task: "/task", tmp: "/tmp", harness: filepath.Join(harnessMount, filepath.Base(a.harness()))}
}

// harness is the program that the attempt's container was made with: after an
// upgrade of the daemon, a dump still needs the old one.
func (a *attempt) harness() string {
	if a.rec.Harness != "" {
		return a.rec.Harness
	}
	return a.d.harness
}

// env is the environment of the task, sorted: our own names, then the job's,
// then secrets.
func (a *attempt) env(spec *droverv1.TaskSpec, p paths) ([]string, error) {
	k := a.id.Key()
	all := map[string]string{
		"HOME": p.task, "TMPDIR": p.tmp,
		"DROVER_JOB": spec.GetJobName(), "DROVER_JOB_ID": strconv.FormatUint(k.GetJob(), 10),
		"DROVER_STAGE": spec.GetStageName(), "DROVER_TASK": strconv.Itoa(int(k.GetTask())),
		"DROVER_TASKS": strconv.Itoa(int(spec.GetStageTasks())), "DROVER_ATTEMPT": strconv.Itoa(int(k.GetAttempt())),
		"DROVER_RUN": strconv.Itoa(int(k.GetRun())), "DROVER_TENANT": spec.GetTenant(),
	}
	if a.d.cfg.hostPaths() {
		all["PATH"] = os.Getenv("PATH")
	}
	maps.Copy(all, spec.GetEnv())
	for _, s := range spec.GetSecrets() {
		v, err := a.d.secret(s.GetRef())
		if err != nil {
			return nil, err
		}
		all[s.GetEnv()] = v
	}
	env := make([]string, 0, len(all))
	for name, v := range all {
		env = append(env, name+"="+v)
	}
	slices.Sort(env)
	return env, nil
}

// secret resolves "file:NAME" below the node's folder of secrets. The value
// goes into the container's environment and nowhere else.
func (d *daemon) secret(ref string) (string, error) {
	name, ok := strings.CutPrefix(ref, "file:")
	if !ok {
		return "", fault.New(fault.Invalid, "secret %q: want file:NAME", ref)
	}
	root, err := os.OpenRoot(d.cfg.Secrets)
	if err == nil {
		defer root.Close()
		var b []byte
		if b, err = root.ReadFile(name); err == nil {
			return strings.TrimSuffix(string(b), "\n"), nil
		}
	}
	return "", fault.New(fault.NotFound, "secret %q cannot be read on node %s: put it into %s, readable by the daemon", ref, d.cfg.Info.GetName(), d.cfg.Secrets)
}

// judge reads how the stopped container ended.
func (a *attempt) judge(ctx context.Context, spec *droverv1.TaskSpec) error {
	a.sample(ctx)
	var v *verdict
	var err error
	if spec.GetKind() == kindGroup {
		v = a.judgeExit(spec)
	} else if v, err = a.judgeHarness(spec); err != nil {
		return err
	}
	if v == nil {
		a.passed = true
		return nil
	}
	slack := int64(0)
	if a.d.quota == quota.Kernel {
		slack = quotaSlack
	}
	if over := a.overDisk(spec, slack); over != nil {
		v = over
	}
	a.settleLogs(ctx)
	return a.record(v)
}

// settleLogs gives the engine's logger a moment to write the last lines of a
// failed command; it stops when the log has stopped to grow.
func (a *attempt) settleLogs(ctx context.Context) {
	const tick, most = 20 * time.Millisecond, 15
	size, same := int64(-1), 0
	for range most {
		now := int64(0)
		if st, err := os.Stat(a.dir.join(nameLogs, "stderr.log")); err == nil {
			now = st.Size()
		}
		if now == size && now > 0 {
			if same++; same == 2 {
				return
			}
		}
		size = now
		timer, cancel := context.WithTimeout(ctx, tick)
		<-timer.Done()
		cancel()
	}
}

// overDisk is the verdict on an attempt that filled its quota, or nil. slack
// counts what the kernel did not let it fill any more.
func (a *attempt) overDisk(spec *droverv1.TaskSpec, slack int64) *verdict {
	limit := spec.GetDisk()
	if limit <= 0 || a.disk+slack <= limit {
		return nil
	}
	return &verdict{cause: droverv1.Cause_CAUSE_DISK, message: fmt.Sprintf(
		"over its disk quota: disk = %q of stage %q, %s were used; raise disk, or write less",
		jobspec.FormatSize(limit), spec.GetStageName(), jobspec.FormatSize(a.disk))}
}

// sample reads use and progress of a running task, and ends one that is over
// its disk quota where the kernel does not refuse it.
func (a *attempt) sample(ctx context.Context) {
	_, spec := a.goal()
	if e := a.d.cfg.Enforcer; e != nil && a.cgroup {
		if u, held, kills, err := e.Usage(a.id.String()); err == nil {
			a.usage, a.held, a.oomKills = a.withBase(u), held, kills
		}
	}
	if use, err := quota.Count(ctx, string(a.dir), a.d.quota); err == nil {
		a.disk = use.Bytes
		if over := a.overDisk(spec, 0); over != nil && a.fault == nil && a.result == nil {
			a.fault = over
		}
	}
	if spec.GetKind() != kindGroup {
		a.readProgress(spec)
	}
}
