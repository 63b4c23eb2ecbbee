package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
)

var (
	_ runtime.Checkpointer    = (*Driver)(nil)
	_ runtime.Dumper          = (*Driver)(nil)
	_ runtime.StoppedRestorer = (*Driver)(nil)
)

// A dump is a folder:
//
//	image/         criu's files
//	work/          criu's log, and the boot of the machine in which criu ran
//	manifest.json  names, sizes and sums of image/; written last, it proves a complete dump
const (
	imageDir     = "image"
	workDir      = "work"
	dumpLog      = "dump.log"
	restoreLog   = "restore.log"
	dumpedLine   = "Dumping finished successfully"
	bootFile     = "boot_id"
	maxLogErrors = 3 // "Error" lines of criu's log quoted in an error
)

// Checkpoint implements runtime.Checkpointer. It ends with the container deleted
// and a proven dump in dir; see Dump.
func (d *Driver) Checkpoint(ctx context.Context, id, dir string) error {
	if err := d.Dump(ctx, id, dir); err != nil {
		return err
	}
	return d.Delete(ctx, id)
}

// Dump implements runtime.Dumper. It ends with a proven dump in dir, and the
// container has no process any more; until criu has ended the processes, any error
// leaves them unharmed and removes dir. The caller should freeze the container's
// leaf before, and thaw it after an error. Steps:
//
//  1. if dir has a manifest of this container, the dump is complete;
//  2. request dump and exit from the shim (the client would pause first);
//     meanwhile sum the files that criu writes and start their writeback;
//  3. where the shim does not report success, check criu's log: its last line proves the dump, and
//     that an interrupted Dump is to be completed;
//  4. spare the restore the unlocking of a network, and write the manifest.
//
// Deleting the container starts runc and the shim again, which takes a fifth of the
// CPU time of a dump of 100 MB on an emulated machine; nobody needs to wait for it but a restore.
func (d *Driver) Dump(ctx context.Context, id, dir string) error {
	if m, err := readManifest(dir); err == nil && m.ID == id {
		return nil
	}
	behind := newFollower(dir)
	if err := (&containerDump{d, id, dir}).run(ctx, behind); err != nil {
		return err
	}
	skipNetworkUnlock(filepath.Join(dir, imageDir))
	proven := runtime.StartPart(ctx, "manifest")
	if err := writeManifest(ctx, dir, id, behind); err != nil {
		return fmt.Errorf("checkpoint of container %s: the container has ended, but its dump is unproven: %w", id, err)
	}
	proven()
	return nil
}

// runConcurrently runs f in a goroutine. The returned function waits for f and
// returns its duration and error; it must be called, and may be called repeatedly.
func runConcurrently(f func() error) (wait func() (time.Duration, error)) {
	start := time.Now()
	var took time.Duration
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
		took = time.Since(start)
	}()
	return func() (time.Duration, error) {
		<-done
		return took, err
	}
}

// containerDump is the dump of a container's processes into a folder.
type containerDump struct {
	d       *Driver
	id, dir string
}

// run performs steps 2 and 3 of Dump.
func (c *containerDump) run(ctx context.Context, behind *follower) error {
	unlock, err := c.d.locks.lock(ctx, c.id)
	if err != nil {
		return err
	}
	defer unlock()
	pid, done, err := c.awaitDumpable(ctx)
	if done || err != nil {
		return err
	}
	request, err := c.prepare(pid)
	if err != nil {
		return fmt.Errorf("checkpoint of container %s: %w", c.id, err)
	}
	criu := runtime.StartPart(ctx, "criu dump")
	followed := behind.follow(ctx)
	_, err = c.d.c.TaskService().Checkpoint(ctx, request)
	followed()
	criu()
	if err := dumpError(ctx, c.id, c.dir, err); err != nil {
		return err
	}
	return c.d.awaitStopped(ctx, c.id)
}

// awaitDumpable returns the first process of a container that criu can dump, once it can be stopped.
// done: the last try was interrupted after criu had finished.
func (c *containerDump) awaitDumpable(ctx context.Context) (pid int, done bool, err error) {
	if box, err := c.d.c.ContainerService().Get(ctx, c.id); err == nil && !isRuncs(box) {
		return 0, false, fault.New(fault.Unsupported, "checkpoint of container %s: it was made by %s when criu was not installed: runc makes the next one", c.id, box.Labels[labelRuntime])
	}
	p, err := c.d.firstProcess(ctx, c.id)
	ended := errdefs.IsNotFound(err) || err == nil && p.GetStatus() == tasktypes.Status_STOPPED
	if ended && isDumpComplete(c.dir) {
		if !c.isOfThisBoot() {
			return 0, false, fault.New(fault.Corrupt, "checkpoint of container %s: the machine was restarted before the dump was on its disk", c.id)
		}
		return 0, true, nil
	}
	if err != nil {
		return 0, false, engineError(ctx, "checkpoint", c.id, err)
	}
	if s := p.GetStatus(); s != tasktypes.Status_RUNNING && s != tasktypes.Status_PAUSED {
		return 0, false, fault.New(fault.Conflict, "checkpoint of container %s: it is %s", c.id, s)
	}
	pid = int(p.GetPid())
	return pid, false, c.d.awaitStoppable(ctx, c.id, pid)
}

// prepare makes the folders and the options of a dump, and returns the request for it.
func (c *containerDump) prepare(pid int) (*tasks.CheckpointTaskRequest, error) {
	if err := os.RemoveAll(c.dir); err != nil {
		return nil, err
	}
	image, work := filepath.Join(c.dir, imageDir), filepath.Join(c.dir, workDir)
	for _, f := range []string{image, work} {
		if err := os.MkdirAll(f, 0o700); err != nil {
			return nil, err
		}
	}
	if boot, err := c.d.cfg.bootID(); err != nil {
		return nil, err
	} else if err := os.WriteFile(filepath.Join(work, bootFile), boot, 0o600); err != nil {
		return nil, err
	}
	if err := c.d.criu.write(c.id, externalOptions(c.d.cfg.fixedMounts(c.id, pid))); err != nil {
		return nil, err
	}
	opts, err := typeurl.MarshalAnyToProto(&options.CheckpointOptions{Exit: true, ImagePath: image, WorkPath: work})
	return &tasks.CheckpointTaskRequest{ContainerID: c.id, Options: opts}, err
}

// isOfThisBoot reports whether criu wrote the dump since the machine was started. Nothing of one that was
// interrupted has been synced: after a loss of power its log may be whole, and its pages not. A dump
// that an earlier version has begun does not say when.
func (c *containerDump) isOfThisBoot() bool {
	was, err := os.ReadFile(filepath.Join(c.dir, workDir, bootFile))
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	boot, bootErr := c.d.cfg.bootID()
	return err == nil && bootErr == nil && bytes.Equal(was, boot)
}

// bootID returns what the kernel has chosen at random for this run of the machine.
func (c Config) bootID() ([]byte, error) {
	return os.ReadFile(filepath.Join(c.proc, "sys/kernel/random/boot_id"))
}

// dumpError returns the error of a dump to which the shim has answered err, nil if criu has finished it: the shim says so, or
// the log, of which a full disk may lack the end. Where the answer is lost criu may still be working, or have
// ended the container: dir stays for the next try, which looks. Otherwise the processes are
// unharmed, and dir is removed.
func dumpError(ctx context.Context, id, dir string, err error) error {
	if err == nil || isDumpComplete(dir) {
		return nil
	}
	if lost := engineError(ctx, "checkpoint", id, err); answerLost(lost) {
		return lost
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	said := criuLogErrors(filepath.Join(dir, workDir, dumpLog))
	class := dumpErrorClass(said)
	if isDiskFull(dir) {
		class = fault.Exhausted // whatever the log says: its own end may be missing
	}
	err = fault.New(class, "checkpoint of container %s: %w%s", id, err, said)
	return errors.Join(err, os.RemoveAll(dir))
}

// transientErrors are what criu says of processes that it could not stop just now:
// those that waited for a disk or for pages from swap.
var transientErrors = []string{"timeout reached", "unseizable", "unable to freeze", "can't freeze", "failed to freeze", "can't seize", "unable to seize", "found, state d"}

// dumpErrorClass returns the class of criu's errors: a full disk may have space
// later (Exhausted), a process that could not be stopped may be stopped later
// (Conflict), and anything else is inherent to the task (Unsupported).
func dumpErrorClass(said string) error {
	lower := strings.ToLower(said)
	for _, errno := range []error{unix.ENOSPC, unix.EDQUOT} {
		if strings.Contains(lower, errno.Error()) {
			return fault.Exhausted
		}
	}
	for _, text := range transientErrors {
		if strings.Contains(lower, text) {
			return fault.Conflict
		}
	}
	return fault.Unsupported
}

// isDiskFull reports whether the disk of a folder has no space left.
func isDiskFull(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Bavail == 0 && st.Blocks > 0
}

func (d *Driver) awaitStopped(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		p, err := d.firstProcess(ctx, id)
		if errdefs.IsNotFound(err) || err == nil && p.GetStatus() == tasktypes.Status_STOPPED {
			return nil
		}
		if err != nil {
			return engineError(ctx, "checkpoint", id, err)
		}
		if !sleep.For(ctx, pause) {
			return fault.New(fault.Unavailable, "checkpoint of container %s: the container was dumped but does not exit: %w", id, ctx.Err())
		}
	}
}

// isDumpComplete reports whether criu's log in dir ends like that of a complete dump.
func isDumpComplete(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, workDir, dumpLog))
	return err == nil && strings.HasSuffix(strings.TrimSpace(string(b)), dumpedLine)
}

// criuLogErrors returns the last "Error" lines of a log of criu. They contain the
// reason, which the engine's error lacks.
func criuLogErrors(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var lines []string
	for _, l := range strings.Split(string(b), "\n") {
		if strings.Contains(l, "Error") {
			lines = append(lines, strings.TrimSpace(l))
		}
	}
	lines = lines[max(0, len(lines)-maxLogErrors):]
	if len(lines) == 0 {
		return ""
	}
	return ": criu: " + strings.Join(lines, "; ")
}

// DumpFormat implements runtime.Checkpointer.
func (d *Driver) DumpFormat() int { return manifestVersion }

// Restore implements runtime.Checkpointer. criu starts only after every file of
// the dump was verified, since criu loops forever over a truncated image;
// container and shim are made meanwhile. The same image, mounts and files must
// exist, with the sizes they had. The dump may be of another ID, as after a
// migration: runc maps root and mounts again, and criu's options name the cgroup.
// An error leaves no container, so Restore can be repeated. The caller must check
// the limits afterwards.
func (d *Driver) Restore(ctx context.Context, s runtime.Spec, dir string) error {
	err := d.RestoreStopped(ctx, s, dir)
	if err == nil {
		err = d.Continue(ctx, s.ID)
	}
	return err
}

// RestoreStopped implements runtime.StoppedRestorer; see Restore.
func (d *Driver) RestoreStopped(ctx context.Context, s runtime.Spec, dir string) error {
	if all, err := d.List(ctx); err != nil {
		return err
	} else if isRunning(all, s.ID) {
		return nil
	}
	m, err := readManifest(dir)
	if err == nil {
		err = m.checkSizes(dir)
	}
	if err != nil {
		return fmt.Errorf("restore of container %s: %w", s.ID, err)
	}
	reading, stop := context.WithCancel(ctx)
	verified := runConcurrently(func() error { return m.verify(reading, dir) })
	defer func() {
		stop()
		_, _ = verified() // its error was handled before
	}()
	created := runtime.StartPart(ctx, "create")
	if err := d.Create(ctx, s); err != nil {
		return err
	}
	created()
	if err := (&containerRestore{d, s, dir}).run(ctx, verified); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopLimit)
		defer cancel()
		return errors.Join(err, d.Delete(clean, s.ID))
	}
	return nil
}

func isRunning(all []runtime.Status, id string) bool {
	for _, s := range all {
		if s.ID == id && s.Phase == runtime.PhaseRunning {
			return true
		}
	}
	return false
}

// containerRestore is the restore of a container's processes from a folder.
type containerRestore struct {
	d    *Driver
	spec runtime.Spec
	dir  string
}

// run restores the processes with criu once verified returns.
func (c *containerRestore) run(ctx context.Context, verified func() (time.Duration, error)) error {
	unlock, err := c.d.locks.lock(ctx, c.spec.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.prepare(ctx); err != nil {
		return err
	}
	waited := runtime.StartPart(ctx, "wait for verify")
	took, err := verified()
	waited()
	runtime.RecordPart(ctx, "verify", took)
	if err != nil {
		return fmt.Errorf("restore of container %s: %w", c.spec.ID, err)
	}
	pid, err := c.start(ctx)
	if err != nil {
		return err
	}
	if err := c.d.cfg.checkCgroup(pid, c.spec.Cgroup); err != nil {
		return fmt.Errorf("restore of container %s: %w", c.spec.ID, err)
	}
	return nil
}

// prepare writes criu's options and makes the shim, which waits for the start.
func (c *containerRestore) prepare(ctx context.Context) error {
	box, err := c.d.c.ContainerService().Get(ctx, c.spec.ID)
	if err != nil {
		return engineError(ctx, "restore", c.spec.ID, err)
	}
	work := filepath.Join(c.dir, workDir)
	if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	err = errors.Join(c.d.criu.makeStandIns(), c.d.criu.write(c.spec.ID, c.d.criu.restoreOptions(c.spec.Cgroup)))
	if err != nil {
		return fmt.Errorf("restore of container %s: %w", c.spec.ID, err)
	}
	shim := runtime.StartPart(ctx, "shim")
	if err := c.d.newTask(ctx, box, func(o *options.Options) { o.CriuImagePath, o.CriuWorkPath = filepath.Join(c.dir, imageDir), work }); err != nil {
		return fmt.Errorf("restore: %w%s", err, criuLogErrors(filepath.Join(work, restoreLog)))
	}
	shim()
	return nil
}

// start has criu restore the processes, and returns the first.
func (c *containerRestore) start(ctx context.Context) (pid int, err error) {
	id := c.spec.ID
	if err := recordStarted(ctx, c.d.c.ContainerService(), id); err != nil {
		return 0, engineError(ctx, "restore", id, err)
	}
	criu := runtime.StartPart(ctx, "criu restore")
	r, err := c.d.c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id})
	criu()
	if err != nil {
		return 0, fmt.Errorf("%w%s", engineError(ctx, "restore", id, toNative(err)), criuLogErrors(filepath.Join(c.dir, workDir, restoreLog)))
	}
	return int(r.GetPid()), nil
}

// checkCgroup checks that a process is in the cgroup that has its limits.
func (c Config) checkCgroup(pid int, cgroup string) error {
	if cgroup == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(c.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return err
	}
	for _, l := range strings.Split(string(b), "\n") {
		if path, ok := strings.CutPrefix(l, "0::"); ok && path == cgroup {
			return nil
		}
	}
	return fault.New(fault.Unsupported, "criu restored the container into cgroup %q, but its limits are in %s: the node's criu ignores cgroup-root", strings.TrimSpace(string(b)), cgroup)
}

// loopbackUp sets lo up in the network namespace of a process.
func loopbackUp(pid int) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error)
	go func() { done <- inNamespace(ns, setLoopback) }()
	return <-done
}

func setLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, req); err != nil {
		return os.NewSyscallError("SIOCGIFFLAGS", err)
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	return os.NewSyscallError("SIOCSIFFLAGS", unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req))
}
