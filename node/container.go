package node

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// killLimit bounds the wait for the end of a container after a KILL.
const killLimit = 5 * time.Second

// attemptContainer owns what is known of an attempt's container. The engine has the truth: after a
// call whose effect is unknown, the phase must become ContainerUnknown, and only refresh may end
// that.
type attemptContainer struct {
	phase     task.Container
	status    runtime.Status // valid when phase is stopped
	stoppedAt time.Duration  // monotonic time at which the exit was observed; 0 if it runs or has not run
	// generation is incremented when a new container takes the attempt's name;
	// results for an older generation are ignored.
	generation   int
	awaitingExit bool // a goroutine waits for the end of this container

	id     string
	driver runtime.Driver
	lister *containerLister
	clock  clock
	cgroup *attemptCgroup // is told what an engine measured
}

// refresh queries the engine for the container's status.
func (c *attemptContainer) refresh(ctx context.Context) {
	all, err := c.lister.list(ctx)
	if err != nil {
		return // still unknown; task.Next waits
	}
	c.set(all[c.id])
}

// set takes over the engine's status; the zero Status means no container.
func (c *attemptContainer) set(st runtime.Status) {
	switch st.Phase {
	case 0:
		c.phase = task.ContainerNone
	case runtime.PhaseCreated:
		c.phase = task.ContainerCreated
	case runtime.PhaseRunning:
		c.phase = task.ContainerRunning
	case runtime.PhaseStopped:
		c.phase = task.ContainerStopped
		c.status = st
		c.cgroup.takeStatus(st)
		if c.stoppedAt == 0 {
			c.stoppedAt = c.clock.Monotonic()
			if !st.Exited.IsZero() { // it may have exited while no daemon was running
				c.stoppedAt = max(1, c.stoppedAt-max(0, c.clock.Now().Sub(st.Exited))) // the clock may have been set since
			}
		}
	default:
		c.phase = task.ContainerUnknown
	}
}

// create makes the container.
func (c *attemptContainer) create(ctx context.Context, spec runtime.Spec) error {
	err := c.driver.Create(ctx, spec)
	if errors.Is(err, fault.Exists) { // same name, other spec: left by a start whose record was lost
		err = errors.Join(c.driver.Delete(ctx, spec.ID), fault.New(fault.Unavailable, "removed an old container of the same name: %w", err))
	}
	if err == nil {
		c.phase = task.ContainerCreated
	}
	return err
}

// start starts the container's program.
func (c *attemptContainer) start(ctx context.Context) error {
	if err := c.driver.Start(ctx, c.id); err != nil {
		return err
	}
	c.phase = task.ContainerRunning
	return nil
}

// kill ends the container and waits for its end.
func (c *attemptContainer) kill(ctx context.Context) error {
	if err := c.driver.Kill(ctx, c.id, syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	st, err := c.driver.Wait(ctx, c.id)
	if err != nil {
		return fmt.Errorf("container was killed but does not exit: %w", err)
	}
	c.set(st)
	return nil
}

// remove deletes the container.
func (c *attemptContainer) remove(ctx context.Context) error {
	if err := c.driver.Delete(ctx, c.id); err != nil {
		return err
	}
	c.phase = task.ContainerNone
	return nil
}

// running returns the running time of the attempt that has this record.
func (c *attemptContainer) running(rec *attemptRecord, now time.Duration) time.Duration {
	if c.phase == task.ContainerCreated && !rec.Dumped {
		return 0 // its start was recorded, and failed
	}
	return rec.running(now, c.stoppedAt)
}

// isGone reports whether there is certainly no running container.
func (c *attemptContainer) isGone() bool {
	return c.phase == task.ContainerStopped || c.phase == task.ContainerNone
}
