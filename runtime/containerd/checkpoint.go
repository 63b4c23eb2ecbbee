package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

var _ runtime.Checkpointer = (*Driver)(nil)

// A dump is a folder:
//
//	image/         criu's files
//	work/          criu's log
//	manifest.json  names, sizes and sums of image/; written last, so that it proves a whole dump
const (
	imageDir    = "image"
	workDir     = "work"
	dumpLog     = "dump.log"
	restoreLog  = "restore.log"
	dumpedLine  = "Dumping finished successfully"
	logTailSize = 3 // Error lines of criu's log that an error quotes
)

// Checkpoint implements runtime.Checkpointer. It ends with the container
// deleted and a proven dump in dir; until criu has ended the processes any
// error leaves them unharmed and removes dir. The caller should have frozen the
// container's leaf, and thaws it after an error. Steps:
//
//  1. a dir with a manifest of this container is a finished dump: go to 5;
//  2. ask the shim, not the client, which would pause first, to dump and end;
//     meanwhile sum up what criu writes, and have the disk begin with it;
//  3. the last line of criu's log is the proof;
//  4. write the manifest; meanwhile remove the task with its shim, which has no
//     process any more;
//  5. delete the container.
func (d *Driver) Checkpoint(ctx context.Context, id, dir string) error {
	if m, err := readManifest(dir); err == nil && m.ID == id {
		return d.Delete(ctx, id)
	}
	behind := newFollower(dir)
	if err := d.dump(ctx, id, dir, behind); err != nil {
		return err
	}
	removed := beside(func() error { return d.removeEnded(ctx, id) })
	proven := runtime.Part(ctx, "manifest")
	err := writeManifest(ctx, dir, id, behind)
	if err == nil {
		proven()
	}
	defer runtime.Part(ctx, "delete")()
	_, rerr := removed()
	if err != nil {
		return errors.Join(fmt.Errorf("checkpoint of container %s: it was ended, but its dump is not proven: %w", id, err), rerr)
	}
	return errors.Join(rerr, d.Delete(ctx, id))
}

// beside runs f in a goroutine; what it gives waits for it, and says how long it
// took. It is to be called, and may be again.
func beside(f func() error) (wait func() (time.Duration, error)) {
	began := time.Now()
	var took time.Duration
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
		took = time.Since(began)
	}()
	return func() (time.Duration, error) {
		<-done
		return took, err
	}
}

// removeEnded removes the task of a container that was dumped.
func (d *Driver) removeEnded(ctx context.Context, id string) error {
	unlock, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return engineError(ctx, "checkpoint", id, d.removeTask(ctx, id))
}

// dump is steps 2 and 3.
func (d *Driver) dump(ctx context.Context, id, dir string, behind *follower) error {
	unlock, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := d.process(ctx, id)
	ended := errdefs.IsNotFound(err) || err == nil && p.GetStatus() == tasktypes.Status_STOPPED
	if ended && dumped(dir) {
		return nil // our last try was cut short after criu had ended
	}
	if err != nil {
		return engineError(ctx, "checkpoint", id, err)
	}
	if s := p.GetStatus(); s != tasktypes.Status_RUNNING && s != tasktypes.Status_PAUSED {
		return fault.New(fault.Conflict, "checkpoint of container %s: it is %s", id, s)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("checkpoint of container %s: %w", id, err)
	}
	image, work := filepath.Join(dir, imageDir), filepath.Join(dir, workDir)
	for _, f := range []string{image, work} {
		if err := os.MkdirAll(f, 0o700); err != nil {
			return fmt.Errorf("checkpoint of container %s: %w", id, err)
		}
	}
	if err := d.tellCriu(id, ""); err != nil {
		return fmt.Errorf("checkpoint of container %s: %w", id, err)
	}
	opts, err := typeurl.MarshalAnyToProto(&options.CheckpointOptions{Exit: true, ImagePath: image, WorkPath: work})
	if err != nil {
		return err
	}
	criu := runtime.Part(ctx, "criu dump")
	followed := behind.follow(ctx)
	_, err = d.c.TaskService().Checkpoint(ctx, &tasks.CheckpointTaskRequest{ContainerID: id, Options: opts})
	followed()
	criu()
	return d.dumpEnded(ctx, id, dir, err)
}

// dumpEnded judges what criu left; err is what the shim said of it.
func (d *Driver) dumpEnded(ctx context.Context, id, dir string, err error) error {
	if err == nil && dumped(dir) {
		return d.awaitStopped(ctx, id)
	}
	if err == nil {
		err = errors.New("criu did not finish the dump")
	}
	if dumped(dir) && ctx.Err() != nil { // criu ended the container; only the answer is lost
		return ctx.Err()
	}
	said := criuErrors(filepath.Join(dir, workDir, dumpLog))
	err = fault.New(dumpFault(said), "checkpoint of container %s: %w%s", id, err, said)
	if ctx.Err() != nil {
		return ctx.Err() // criu may be at work still: dir stays for the next try to judge
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// dumpFault is the class of criu's errors: a full disk may have room later, all
// else is in the nature of the task.
func dumpFault(said string) error {
	for _, errno := range []error{unix.ENOSPC, unix.EDQUOT} {
		if strings.Contains(said, errno.Error()) || strings.Contains(strings.ToLower(said), errno.Error()) {
			return fault.Exhausted
		}
	}
	return fault.Unsupported
}

func (d *Driver) awaitStopped(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		p, err := d.process(ctx, id)
		if errdefs.IsNotFound(err) || err == nil && p.GetStatus() == tasktypes.Status_STOPPED {
			return nil
		}
		if err != nil {
			return engineError(ctx, "checkpoint", id, err)
		}
		if !sleep(ctx, pause) {
			return fault.New(fault.Unavailable, "checkpoint of container %s: dumped, but it does not end: %w", id, ctx.Err())
		}
	}
}

// dumped tells whether criu's log in dir ends as that of a whole dump.
func dumped(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, workDir, dumpLog))
	return err == nil && strings.HasSuffix(strings.TrimSpace(string(b)), dumpedLine)
}

// criuErrors gives the last Error lines of a log of criu, in which the reason
// is: the engine's error never says it.
func criuErrors(path string) string {
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
	lines = lines[max(0, len(lines)-logTailSize):]
	if len(lines) == 0 {
		return ""
	}
	return ": criu: " + strings.Join(lines, "; ")
}

// Restore implements runtime.Checkpointer. criu begins only once every file of
// the dump was read and has the sum it should: it loops for ever over a truncated
// image. The container and its shim are made meanwhile. The same image, mounts
// and files must be there, with the sizes they had. The dump may be of another
// ID, as after a move to another node: runc maps root and mounts anew, and criu
// is told the cgroup. An error leaves no container, so that Restore can be tried
// again. The caller checks limits afterwards.
func (d *Driver) Restore(ctx context.Context, s runtime.Spec, dir string) error {
	if all, err := d.List(ctx); err != nil {
		return err
	} else if running(all, s.ID) {
		return nil
	}
	m, err := readManifest(dir)
	if err == nil {
		err = m.sizes(dir)
	}
	if err != nil {
		return fmt.Errorf("restore of container %s: %w", s.ID, err)
	}
	reading, stop := context.WithCancel(ctx)
	verified := beside(func() error { return m.verify(reading, dir) })
	defer func() {
		stop()
		_, _ = verified() // its error was asked for where it mattered
	}()
	created := runtime.Part(ctx, "create")
	if err := d.Create(ctx, s); err != nil {
		return err
	}
	created()
	if err := d.restore(ctx, s, dir, verified); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopLimit)
		defer cancel()
		return errors.Join(err, d.forceClean(clean, s.ID))
	}
	return nil
}

func running(all []runtime.Status, id string) bool {
	for _, s := range all {
		if s.ID == id && s.Phase == runtime.PhaseRunning {
			return true
		}
	}
	return false
}

// restore has criu make the processes, once verified says that it may.
func (d *Driver) restore(ctx context.Context, s runtime.Spec, dir string, verified func() (time.Duration, error)) error {
	id := s.ID
	unlock, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := d.c.LoadContainer(ctx, id)
	if err != nil {
		return engineError(ctx, "restore", id, err)
	}
	labels, err := c.Labels(ctx)
	if err != nil {
		return engineError(ctx, "restore", id, err)
	}
	work := filepath.Join(dir, workDir)
	if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	if err := d.tellCriu(id, s.Cgroup); err != nil {
		return fmt.Errorf("restore of container %s: %w", id, err)
	}
	shim := runtime.Part(ctx, "shim")
	if err := d.newTask(ctx, c, labels, func(o *options.Options) { o.CriuImagePath, o.CriuWorkPath = filepath.Join(dir, imageDir), work }); err != nil {
		return fmt.Errorf("restore: %w%s", err, criuErrors(filepath.Join(work, restoreLog)))
	}
	shim()
	waited := runtime.Part(ctx, "verify, waited for")
	took, err := verified()
	waited()
	runtime.Took(ctx, "verify", took)
	if err != nil {
		return fmt.Errorf("restore of container %s: %w", id, err)
	}
	if _, err := c.SetLabels(ctx, map[string]string{labelStarted: time.Now().UTC().Format(time.RFC3339Nano)}); err != nil {
		return engineError(ctx, "restore", id, err)
	}
	criu := runtime.Part(ctx, "criu restore")
	r, err := d.c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id})
	criu()
	if err != nil {
		return fmt.Errorf("%w%s", engineError(ctx, "restore", id, native(err)), criuErrors(filepath.Join(work, restoreLog)))
	}
	if err := inCgroup(fmt.Sprintf("/proc/%d/cgroup", r.GetPid()), s.Cgroup); err != nil {
		return fmt.Errorf("restore of container %s: %w", id, err)
	}
	if err := loopbackUp(int(r.GetPid())); err != nil { // criu brings it back down
		return fmt.Errorf("restore of container %s: loopback: %w", id, err)
	}
	return nil
}

// inCgroup makes sure that a process is where its limits are; file is its cgroup
// file in /proc.
func inCgroup(file, cgroup string) error {
	if cgroup == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, l := range strings.Split(string(b), "\n") {
		if path, ok := strings.CutPrefix(l, "0::"); ok && path == cgroup {
			return nil
		}
	}
	return fault.New(fault.Unsupported, "criu restored it into %q, and its limits are in %s: the node's criu does not heed cgroup-root", strings.TrimSpace(string(b)), cgroup)
}

// forceClean removes what a failed restore leaves, which Delete alone does not.
func (d *Driver) forceClean(ctx context.Context, id string) error {
	err := d.Delete(ctx, id)
	root := filepath.Join("/run/containerd/runc", d.cfg.Namespace, id, "criu-root")
	if _, serr := os.Lstat(root); serr == nil {
		if uerr := unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); uerr != nil && !errors.Is(uerr, unix.EINVAL) {
			err = errors.Join(err, uerr)
		}
		err = errors.Join(err, os.Remove(root))
	}
	return err
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
