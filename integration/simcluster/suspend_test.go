package simcluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/runtime/fake"
)

// levels are those of every machine of the simulation.
var levels = []droverv1.Level{droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED}

// driver is the driver of a machine. When a container becomes a dump, its cgroup is removed
// with it: the kernel freezes nothing there any more.
type driver struct {
	*fake.Driver
	kernel *kernel
}

// Dump implements runtime.Dumper.
func (d *driver) Dump(ctx context.Context, id, dir string) error {
	err := d.Driver.Dump(ctx, id, dir)
	if _, missing := os.Stat(filepath.Join(dir, "dump.json")); missing == nil { // also if the answer was lost
		d.kernel.removeContainer(id)
	}
	return err
}

// dialNode connects to another node.
func (h *host) dialNode(ctx context.Context, _, to string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return h.dial(ctx, to)
}

func (k *kernel) removeContainer(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.thawLocked(id)
}

var _ node.Swapper = (*kernel)(nil)

// nodeCPU is the CPU of a node, as coordtest.Info has it.
const nodeCPU = 4000

// taskMemory is what a task holds of memory, in bytes.
const taskMemory = 4096

// SwapOut implements node.Swapper.
func (k *kernel) SwapOut(_ context.Context, id string) (int64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.frozen[id] == nil {
		return 0, fault.New(fault.Conflict, "%s is not frozen", id)
	}
	k.swapped[id] = true
	return taskMemory, nil
}

// SwapBytes implements node.Swapper.
func (k *kernel) SwapBytes(id string) (int64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.swapped[id] {
		return taskMemory, nil
	}
	return 0, nil
}

// setLevels asks for a level of all tasks of a job, with a level of running perhaps on a node.
func (c *cluster) setLevels(job string, level droverv1.Level, on string) {
	list, err := call(c.client.ListTasks, &droverv1.ListTasksRequest{Job: job})
	if err != nil {
		c.log("user: tasks of %s: %v", job, err)
		return
	}
	for _, t := range list.Tasks {
		_ = c.setLevel(job, t, level, on) // it may have ended
	}
}

func (c *cluster) setLevel(job string, t *droverv1.TaskStatus, level droverv1.Level, on string) error {
	_, err := call(c.client.SetLevel, &droverv1.SetLevelRequest{Job: job, Stage: t.Stage, Task: t.Task, Level: level, Node: on, Reason: "the plan"})
	c.log("user: %s %s/%d %s %s: %v", job, t.Stage, t.Task, level, on, err) // there may be nothing to suspend
	return err
}

// release resumes what the user suspended of the jobs that have not ended, which nobody else does,
// and ends drains whose requests came late.
func (c *cluster) release(jobs []*droverv1.JobSummary) {
	for _, m := range c.machines {
		if c.drained[m.name] {
			_ = c.drain(m.name, true, 0) // if it fails, it is tried again
		}
	}
	for _, j := range jobs {
		if hasEnded(j.State) || !c.wasSuspended(j.Name) {
			continue
		}
		job := fmt.Sprint(j.Job)
		tasks, err := call(c.client.ListTasks, &droverv1.ListTasksRequest{Job: job})
		if err != nil {
			continue
		}
		for _, t := range tasks.Tasks {
			if !isSuspended(t) {
				continue
			}
			// Its node may be taken for good by a task that waits for this one and that a user has moved there.
			for _, on := range append([]string{""}, c.machineNames()...) {
				if c.setLevel(job, t, droverv1.Level_LEVEL_RUNNING, on) == nil {
					break
				}
			}
		}
	}
}

// wasSuspended reports whether the plan has suspended tasks of a job: nobody else resumes them, also
// after a drain took them to another level.
func (c *cluster) wasSuspended(job string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.suspended[job]
}

// suspend suspends the tasks of a job.
func (c *cluster) suspend(job string, level droverv1.Level) {
	c.mu.Lock()
	c.suspended[job] = true
	c.mu.Unlock()
	c.setLevels(job, level, "")
}

func isSuspended(t *droverv1.TaskStatus) bool {
	for _, a := range t.Attempts {
		if l := a.Level; l != nil && max(l.Level, l.Target) > droverv1.Level_LEVEL_RUNNING && l.Target != droverv1.Level_LEVEL_RUNNING {
			return true
		}
	}
	return false
}

// drain drains a node, or ends that.
func (c *cluster) drain(name string, off bool, deadline time.Duration) error {
	_, err := call(c.client.DrainNode, &droverv1.DrainNodeRequest{Node: name, Off: off, DeadlineMs: deadline.Milliseconds()})
	c.log("user: drain %s, off %v: %v", name, off, err)
	return err
}
