package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd/logger"
)

// stopLimit bounds how long a killed container may take to disappear.
const stopLimit = time.Minute

// cleanLimit bounds the clean-up after a failed start.
const cleanLimit = time.Minute

// politeLimit bounds the removal of a task through the engine before it is
// removed by force.
const politeLimit = 20 * time.Second

// Start implements runtime.Driver. Steps: make the task unless there is one;
// record the time; start the task. A task that cannot be started is removed, so
// that the container is as Create made it.
func (d *Driver) Start(ctx context.Context, id string) error {
	unlock, err := d.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	made, err := d.prepare(ctx, id)
	if err != nil || !made {
		return err
	}
	if err := recordStarted(ctx, d.c.ContainerService(), id); err != nil {
		return d.undoStart(ctx, id, engineError(ctx, "start", id, err))
	}
	if _, err := d.c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id}); err != nil {
		return d.undoStart(ctx, id, commandError(ctx, id, toNative(err)))
	}
	return nil
}

// recordStarted records the time of the start on the container.
func recordStarted(ctx context.Context, all containers.Store, id string) error {
	now := map[string]string{labelStarted: time.Now().UTC().Format(time.RFC3339Nano)}
	_, err := all.Update(ctx, containers.Container{ID: id, Labels: now}, "labels."+labelStarted)
	return err
}

// Prepare implements runtime.Preparer: the container's init then waits for Start.
func (d *Driver) Prepare(ctx context.Context, id string) error {
	unlock, err := d.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = d.prepare(ctx, id)
	return err
}

// prepare makes the task of a container unless there is one. It returns false for
// a container that was started before.
func (d *Driver) prepare(ctx context.Context, id string) (made bool, err error) {
	box, err := d.c.ContainerService().Get(ctx, id)
	if err != nil {
		return false, engineError(ctx, "start", id, err)
	}
	p, err := d.firstProcess(ctx, id)
	switch {
	case err == nil:
		return p.GetStatus() == tasktypes.Status_CREATED, nil
	case !errdefs.IsNotFound(err):
		return false, engineError(ctx, "start", id, err)
	case box.Labels[labelStarted] != "":
		return false, nil // it ran; its task is lost
	}
	gaveUp, err := d.runtimes.use(ctx, box, func(program string) error {
		return d.newTask(ctx, box, func(o *options.Options) { o.BinaryName = program })
	})
	if err == nil && gaveUp {
		err = engineError(ctx, "start", id, removeLabel(ctx, d.c.ContainerService(), id, labelRuntime))
	}
	return err == nil, err
}

// newTask makes the shim, the logger and the container's init, which waits for
// Start. change may modify the options of the program that makes it.
func (d *Driver) newTask(ctx context.Context, box containers.Container, change func(*options.Options)) error {
	id := box.ID
	logs, err := d.logs(box.Labels)
	if err != nil {
		return engineError(ctx, "start", id, err)
	}
	root, err := d.rootMounts(ctx, box)
	if err != nil {
		return engineError(ctx, "start", id, err)
	}
	opts := &options.Options{ShimCgroup: d.cfg.ShimCgroup}
	if change != nil {
		change(opts)
	}
	packed, err := typeurl.MarshalAnyToProto(opts)
	if err != nil {
		return err
	}
	// The client's NewTask would add the snapshot's own mounts.
	create := func() error {
		_, err := d.c.TaskService().Create(ctx, &tasks.CreateTaskRequest{ContainerID: id, Stdout: logs, Stderr: logs, Rootfs: mount.ToProto(root), Options: packed})
		return toNative(err)
	}
	err = create()
	if inTheWay(err) && ctx.Err() == nil { // an earlier start was interrupted, perhaps by the end of the daemon
		if err := d.forceClean(ctx, id); err != nil {
			return engineError(ctx, "clean up before the start", id, err)
		}
		err = create()
	}
	if err == nil {
		return nil
	}
	err = commandError(ctx, id, err)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	if cerr := d.forceClean(clean, id); cerr != nil {
		err = errors.Join(err, engineError(clean, "clean up after the start", id, cerr))
	}
	return err
}

// inTheWay reports whether a task could not be made because of leftovers of an
// earlier try: containerd 1.7 keeps the bundle, and sometimes the shim, when the
// context of Create ends.
func inTheWay(err error) bool {
	return err != nil && (errdefs.IsAlreadyExists(err) || strings.Contains(err.Error(), "file exists") || strings.Contains(err.Error(), "already exists"))
}

// undoStart removes a task that did not start and returns cause. If the task runs
// after all it returns nil.
func (d *Driver) undoStart(ctx context.Context, id string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	p, err := d.firstProcess(ctx, id)
	switch {
	case err != nil && !errdefs.IsNotFound(err):
		return cause // the engine is unreachable and the task may have started: the next Start checks
	case err == nil && p.GetStatus() == tasktypes.Status_STOPPED && answerLost(cause):
		return nil // it ran and has exited already
	case err == nil && p.GetStatus() != tasktypes.Status_CREATED && p.GetStatus() != tasktypes.Status_STOPPED:
		return nil
	}
	if err = d.forceClean(ctx, id); err == nil {
		err = removeLabel(ctx, d.c.ContainerService(), id, labelStarted)
	}
	if err != nil {
		return errors.Join(cause, engineError(ctx, "undo of start", id, err))
	}
	return cause
}

// removeLabel removes a label of a container.
func removeLabel(ctx context.Context, all containers.Store, id, label string) error {
	box, err := all.Get(ctx, id)
	if err != nil {
		return err
	}
	delete(box.Labels, label)
	_, err = all.Update(ctx, box, "labels")
	return err
}

// answerLost reports whether an error leaves open what was done.
func answerLost(err error) bool {
	return errors.Is(err, fault.Unavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// commandError separates the user's mistakes in a command from the engine's faults, which runc and
// crun report only as text. If a text of crun is unknown here, runc is run to get its own.
func commandError(ctx context.Context, id string, err error) error {
	if err == nil || ctx.Err() != nil {
		return engineError(ctx, "start", id, err)
	}
	if strings.Contains(err.Error(), "executable file `") { // crun's words
		return fault.New(fault.Invalid, "container %s: its command cannot run: %w", id, err)
	}
	for _, words := range []string{"executable file not found", "no such file or directory", "permission denied", "exec format error", "is a directory"} {
		if text := err.Error(); strings.Contains(text, "exec: ") && strings.Contains(text, words) || strings.Contains(text, "chdir to cwd") {
			return fault.New(fault.Invalid, "container %s: its command cannot run: %w", id, err)
		}
	}
	if source := vanishedSource(err); source != "" {
		return fmt.Errorf("container %s: %s, which is mounted into it, has vanished from this node: %w", id, source, err)
	}
	if isRootFault(err) {
		return fault.New(fault.Invalid, "container %s: its image has a file or a link where a folder is to be mounted: %w", id, err)
	}
	return engineError(ctx, "start", id, err)
}

// rootFaults are the last words of runc's errors for a root in which a mount point cannot be
// made. The mounts are the driver's, so that nothing but the image can be the cause, unless a
// source has vanished.
var rootFaults = []string{
	"not a directory", "is a directory", "file exists", "too many levels of symbolic links", "file name too long",
	"no such file or directory", "read-only file system", "must be mounted on ordinary directory",
}

// errorMounting begins runc's errors of mounts; the source follows in quotes.
const errorMounting = "error during container init: error mounting "

// isRootFault reports whether a start failed because of what the image has at a mount point.
func isRootFault(err error) bool {
	return strings.Contains(err.Error(), errorMounting) && endsIn(err, rootFaults)
}

// vanishedSource returns the file or folder of this node that runc did not find to mount it, and that is
// not there; "" if that is not why a start failed.
func vanishedSource(err error) string {
	_, after, ok := strings.Cut(err.Error(), errorMounting)
	if !ok || !endsIn(err, []string{"no such file or directory"}) {
		return ""
	}
	quoted, e := strconv.QuotedPrefix(after)
	if e != nil {
		return ""
	}
	source, e := strconv.Unquote(quoted)
	if e != nil || !filepath.IsAbs(source) {
		return "" // a file system of the kernel, such as proc
	}
	if _, e := os.Stat(source); errors.Is(e, fs.ErrNotExist) {
		return source
	}
	return ""
}

// logs returns the logging URI of the container's streams: Drover's logger with
// the configuration given to Create, or "" for none.
func (d *Driver) logs(labels map[string]string) (string, error) {
	var conf logger.Config
	if err := json.Unmarshal([]byte(labels[labelLog]), &conf); err != nil {
		return "", fault.New(fault.Corrupt, "label %s: %w", labelLog, err)
	}
	if conf.Dir == "" {
		return "", nil
	}
	uri, err := logger.URI(d.cfg.Logger, conf)
	if err != nil {
		return "", err
	}
	return uri.String(), nil
}

// Wait implements runtime.Driver.
func (d *Driver) Wait(ctx context.Context, id string) (runtime.Status, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		box, err := d.c.ContainerService().Get(ctx, id)
		if err != nil {
			return runtime.Status{}, engineError(ctx, "wait", id, err)
		}
		p, err := d.firstProcess(ctx, id)
		if err != nil && !errdefs.IsNotFound(err) {
			return runtime.Status{}, engineError(ctx, "wait", id, err)
		}
		s := statusOf(id, box.Labels, p)
		if s.Phase == runtime.PhaseStopped {
			return s, nil
		}
		if p != nil {
			// The answer is only a reason to query again: a stopping containerd
			// answers too.
			_, err = d.c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
			if err = toNative(err); err != nil && !errdefs.IsNotFound(err) {
				return runtime.Status{}, engineError(ctx, "wait", id, err)
			}
		}
		if !sleep.For(ctx, pause) {
			return runtime.Status{}, ctx.Err()
		}
	}
}

// Kill implements runtime.Driver.
func (d *Driver) Kill(ctx context.Context, id string, sig syscall.Signal) error {
	_, err := d.c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(sig), All: true})
	if err = toNative(err); isGone(err) {
		return nil
	}
	return engineError(ctx, "kill", id, err)
}

// isGone reports whether an error means that there is no process to signal.
func isGone(err error) bool {
	return errdefs.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "process already finished")
}

// Delete implements runtime.Driver. Steps, each safe to repeat: kill; wait for
// the exit; remove the task with its shim; remove leftovers of interrupted
// starts; remove the container; remove its root.
func (d *Driver) Delete(ctx context.Context, id string) error {
	unlock, err := d.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.forceClean(ctx, id); err != nil {
		return engineError(ctx, "delete", id, err)
	}
	if err := d.c.ContainerService().Delete(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return engineError(ctx, "delete", id, err)
	}
	return engineError(ctx, "delete", id, d.removeRoot(ctx, id))
}

// removeTask kills the task and removes it through the engine, within politeLimit. It
// reports whether the engine had the task.
func (d *Driver) removeTask(ctx context.Context, id string) (had bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, politeLimit)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		p, err := d.firstProcess(ctx, id)
		if errdefs.IsNotFound(err) {
			return had, nil
		}
		if err != nil {
			return had, err
		}
		had = true
		if s := p.GetStatus(); s == tasktypes.Status_STOPPED || s == tasktypes.Status_CREATED && p.GetPid() == 0 {
			_, err := d.c.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
			if err = toNative(err); err == nil || errdefs.IsNotFound(err) {
				return had, nil
			}
			if thawed, terr := d.cfg.thaw(d.cfg.cgroupOf(id)); terr != nil {
				return had, errors.Join(err, terr)
			} else if !thawed && !errdefs.IsFailedPrecondition(err) {
				return had, err
			} // runc calls a container with a frozen cgroup paused, even if no process is left in it
		} else if err := d.Kill(ctx, id, syscall.SIGKILL); err != nil {
			return had, err
		}
		if !sleep.For(ctx, pause) {
			return had, fault.New(fault.Unavailable, "container %s: still present %s after SIGKILL: %w", id, politeLimit, ctx.Err())
		}
	}
}
