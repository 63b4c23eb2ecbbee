package coordinator

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
)

// TestSubmissionsStopBeforeTheDiskIsFull lowers the free space below the reserve:
// new work is refused with the cause, accepted work ends, and it goes on by
// itself when there is room.
func TestSubmissionsStopBeforeTheDiskIsFull(t *testing.T) {
	var free atomic.Int64
	free.Store(10 << 30)
	b := newTestCluster(t, func(c *Config) {
		c.diskSpace = func() (int64, int64, error) { return free.Load(), 100 << 30, nil }
	})
	n1, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.submit(groupJob("accepted", 3))
	b.waitUntil("it runs", func() bool { return b.job("accepted").Job.TasksRunning == 3 })
	free.Store(defaultReserve - 1)
	if _, err := b.trySubmit(groupJob("refused", 1), ""); !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "nearly full") {
		t.Fatalf("a submission on a full disk: %v", err)
	}
	res, err := b.client.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if m := res.Msg; m.DataFree != free.Load() || m.DataReserve != defaultReserve || len(m.Warnings) != 1 {
		t.Errorf("status: free %d, reserve %d, warnings %q", m.DataFree, m.DataReserve, m.Warnings)
	}
	n1.SetBehaviour(coordtest.Succeed)
	b.waitForEnd("accepted", succeeded)
	free.Store(defaultReserve)
	b.submit(groupJob("refused", 1))
}

// TestACoordinatorWhoseTermCannotBeWrittenSaysSo starts it on a full disk: it ends with one line that
// names the place, the cause and the cure, and has everything once there is room.
func TestACoordinatorWhoseTermCannotBeWrittenSaysSo(t *testing.T) {
	var full atomic.Bool
	b := newTestCluster(t, func(c *Config) {
		c.LogFault = func(bool) error {
			if full.Load() {
				return syscall.ENOSPC
			}
			return nil
		}
	})
	b.submit(groupJob("accepted", 1))
	b.kill()
	full.Store(true)
	b.start()
	select {
	case err := <-b.done:
		if !errors.Is(err, fault.Unavailable) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), b.cfg.Dir) ||
			!strings.Contains(err.Error(), "make room") || strings.Contains(err.Error(), "\n") {
			t.Errorf("on a full disk it ended with: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("on a full disk it goes on")
	}
	b.cancel()
	full.Store(false)
	b.start()
	b.waitUntil("the job is there", func() bool { return b.job("accepted").Job.Name == "accepted" })
}
