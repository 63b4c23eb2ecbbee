package node

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime/fake"
)

// slowDump is a driver whose dumps wait.
type slowDump struct {
	*fake.Driver
	dumping chan struct{} // receives for each dump
	proceed chan struct{} // closed when dumps shall go on
}

func (d *slowDump) Dump(ctx context.Context, id, dir string) error {
	d.dumping <- struct{}{}
	select {
	case <-d.proceed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return d.Driver.Dump(ctx, id, dir)
}

// A dump takes minutes, and a start that waited for it had no time left.
func TestDumpsTakeNoSlotOfStarts(t *testing.T) {
	b, _ := newLevelTestNode(t)
	d := &slowDump{Driver: b.engine.Driver(), dumping: make(chan struct{}, 1), proceed: make(chan struct{})}
	proceed := sync.OnceFunc(func() { close(d.proceed) })
	defer proceed()
	b.config.Driver, b.config.parallel = d, 1
	b.start()
	dumped, next := groupTask(0, "count"), groupTask(1, "count")
	b.put(dumped)
	b.await(t, dumped, running)
	b.requestLevel(dumped, levelCheckpointed)
	<-d.dumping
	b.put(next)
	b.await(t, next, running)
	proceed()
	b.awaitLevel(dumped, levelCheckpointed)
}

// deleteDeadline is a driver that notes until when a Delete may take.
type deleteDeadline struct {
	*fake.Driver
	deadline time.Time
}

func (d *deleteDeadline) Delete(ctx context.Context, _ string) error {
	d.deadline, _ = ctx.Deadline()
	return nil
}

// A step that found no slot has not been tried, and its time begins when it has one.
func TestWaitingForASlotIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _ := newStoreFaultAttempt(t)
		driver := &deleteDeadline{}
		a.d.metrics, a.container.driver = newMetrics(prometheus.NewRegistry(), a.d), driver
		a.d.slots <- struct{}{}
		for _, do := range []task.Do{task.CreateContainer, task.Start} {
			for range 10 {
				a.performStep(t.Context(), do)
			}
			if a.failure != nil || len(a.retries.failures) > 0 || a.container.phase != task.ContainerRunning {
				t.Fatalf("%s: %+v, failures %v, container %s", do, a.failure, a.retries.failures, a.container.phase)
			}
		}
		performed := make(chan struct{})
		go func() {
			defer close(performed)
			a.performStep(t.Context(), task.RemoveDumped)
		}()
		time.Sleep(stepLimit - time.Second) // of the bubble
		released := time.Now()
		<-a.d.slots
		<-performed
		if left := driver.deadline.Sub(released); left != stepLimit {
			t.Errorf("the step had %s", left)
		}
	})
}

// A dump that found no slot has not begun: the task is as it was, and no level is refused.
func TestDumpWithoutASlot(t *testing.T) {
	a, _, _ := newStoreFaultAttempt(t)
	spec := groupTask(0, "count").GetSpec()
	if err := a.suspension.freeze(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	a.d.dumpSlots <- struct{}{}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for range 2 * maxLevelTries {
		err := a.suspension.checkpoint(ctx, spec)
		if !errors.Is(err, errNoSlot) {
			t.Fatal(err)
		}
		a.handleStepFailure(t.Context(), task.Checkpoint, err)
		if a.failure != nil || a.suspension.refused != 0 {
			t.Fatalf("%+v, refused %v", a.failure, a.suspension.refused)
		}
	}
}
