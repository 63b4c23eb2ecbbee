package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd/logger"
)

// stopLimit bounds how long a killed container may take to be gone.
const stopLimit = time.Minute

// Start implements runtime.Driver. Steps: make the task, if there is none; note
// the time; start it. A task that cannot be started is taken away again, so
// that the container is as it was created.
func (d *Driver) Start(ctx context.Context, id string) error {
	unlock, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := d.c.LoadContainer(ctx, id)
	if err != nil {
		return engineError(ctx, "start", id, err)
	}
	labels, err := c.Labels(ctx)
	if err != nil {
		return engineError(ctx, "start", id, err)
	}
	p, err := d.process(ctx, id)
	switch {
	case err == nil && p.GetStatus() != tasktypes.Status_CREATED:
		return nil
	case err == nil:
	case !errdefs.IsNotFound(err):
		return engineError(ctx, "start", id, err)
	case labels[labelStarted] != "":
		return nil // it ran; its task is lost
	default:
		if err := d.newTask(ctx, c, labels, nil); err != nil {
			return err
		}
	}
	if _, err := c.SetLabels(ctx, map[string]string{labelStarted: time.Now().UTC().Format(time.RFC3339Nano)}); err != nil {
		return engineError(ctx, "start", id, err)
	}
	if _, err := d.c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id}); err != nil {
		return d.undoStart(ctx, c, commandError(ctx, id, native(err)))
	}
	return nil
}

// newTask makes the shim, the logger and the container's init, which waits.
// change may add to runc's options.
func (d *Driver) newTask(ctx context.Context, c client.Container, labels map[string]string, change func(*options.Options)) error {
	spec, err := c.Spec(ctx)
	if err != nil {
		return engineError(ctx, "start", c.ID(), err)
	}
	logs, err := d.logs(labels)
	if err != nil {
		return engineError(ctx, "start", c.ID(), err)
	}
	root, err := d.rootMounts(ctx, c.ID(), spec)
	if err != nil {
		return engineError(ctx, "start", c.ID(), err)
	}
	opts := &options.Options{ShimCgroup: d.cfg.ShimCgroup}
	if change != nil {
		change(opts)
	}
	packed, err := typeurl.MarshalAnyToProto(opts)
	if err != nil {
		return err
	}
	// Not the client's NewTask: it would add the snapshot's own mounts.
	_, err = d.c.TaskService().Create(ctx, &tasks.CreateTaskRequest{ContainerID: c.ID(), Stdout: logs, Stderr: logs, Rootfs: mount.ToProto(root), Options: packed})
	return commandError(ctx, c.ID(), native(err))
}

// undoStart removes a task that did not start; the error stays.
func (d *Driver) undoStart(ctx context.Context, c client.Container, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if errors.Is(cause, fault.Unavailable) {
		return cause // it may have started: the next Start sees
	}
	p, err := d.process(ctx, c.ID())
	if err == nil && p.GetStatus() == tasktypes.Status_RUNNING {
		return nil
	}
	_, err = d.c.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: c.ID()})
	if err == nil || errdefs.IsNotFound(native(err)) {
		err = c.Update(ctx, func(_ context.Context, _ *client.Client, b *containers.Container) error {
			delete(b.Labels, labelStarted)
			return nil
		})
	}
	return errors.Join(cause, engineError(ctx, "undo of start", c.ID(), err))
}

// commandError tells the user's mistakes in a command from the engine's faults;
// runc has them only as text.
func commandError(ctx context.Context, id string, err error) error {
	if err == nil || ctx.Err() != nil {
		return engineError(ctx, "start", id, err)
	}
	for _, words := range []string{"executable file not found", "no such file or directory", "permission denied", "exec format error", "is a directory"} {
		if text := err.Error(); strings.Contains(text, "exec: ") && strings.Contains(text, words) || strings.Contains(text, "chdir to cwd") {
			return fault.New(fault.Invalid, "container %s: its command cannot run: %w", id, err)
		}
	}
	return engineError(ctx, "start", id, err)
}

// logs says where the streams go: to our logger, as Create was told, or "" for
// nowhere.
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
		p, err := d.process(ctx, id)
		if err != nil && !errdefs.IsNotFound(err) {
			return runtime.Status{}, engineError(ctx, "wait", id, err)
		}
		s := statusOf(id, box.Labels, p)
		if s.Phase == runtime.PhaseStopped {
			return s, nil
		}
		if p != nil {
			// Its answer is only a reason to look again: a containerd that goes
			// down answers too.
			_, err = d.c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
			if err = native(err); err != nil && !errdefs.IsNotFound(err) {
				return runtime.Status{}, engineError(ctx, "wait", id, err)
			}
		}
		if !sleep(ctx, pause) {
			return runtime.Status{}, ctx.Err()
		}
	}
}

// Kill implements runtime.Driver.
func (d *Driver) Kill(ctx context.Context, id string, sig syscall.Signal) error {
	_, err := d.c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(sig), All: true})
	if err = native(err); gone(err) {
		return nil
	}
	return engineError(ctx, "kill", id, err)
}

// gone tells whether an error means that there is no process to signal.
func gone(err error) bool {
	return errdefs.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "process already finished")
}

// Delete implements runtime.Driver. Steps, each safe to repeat: kill; wait for
// the end; remove the task with its shim; the container; its root.
func (d *Driver) Delete(ctx context.Context, id string) error {
	unlock, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.removeTask(ctx, id); err != nil {
		return engineError(ctx, "delete", id, err)
	}
	if err := d.c.ContainerService().Delete(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return engineError(ctx, "delete", id, err)
	}
	return engineError(ctx, "delete", id, d.removeRoot(ctx, id))
}

func (d *Driver) removeTask(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		p, err := d.process(ctx, id)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if s := p.GetStatus(); s == tasktypes.Status_STOPPED || s == tasktypes.Status_CREATED && p.GetPid() == 0 {
			_, err := d.c.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
			if err = native(err); err == nil || errdefs.IsNotFound(err) {
				return nil
			}
			if !errdefs.IsFailedPrecondition(err) {
				return err
			}
		} else if err := d.Kill(ctx, id, syscall.SIGKILL); err != nil {
			return err
		}
		if !sleep(ctx, pause) {
			return fault.New(fault.Unavailable, "container %s: still there %s after SIGKILL: %w", id, stopLimit, ctx.Err())
		}
	}
}

// sleep waits and tells whether the context still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
