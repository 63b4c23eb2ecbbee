package coordinator

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// TestStandstillLosesNoNode sets the coordinator's clock ahead by many leases at
// one instant, as a stopped process sees it: no node is lost and the task keeps
// its attempt. A node that is silent while the coordinator runs is lost.
func TestStandstillLosesNoNode(t *testing.T) {
	t.Parallel() // it waits for most of its time
	var ahead atomic.Int64
	b := newTestCluster(t, func(c *Config) {
		c.Lease, c.ReportInterval = 8*time.Second, 1500*time.Millisecond
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	b.patience = time.Minute // a lease, and a full one again whenever the machine of the test stands still
	_, stop := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.submit(groupJob("long", 2))
	running := func() bool {
		j := b.job("long")
		return j != nil && j.Job.TasksRunning == 2
	}
	b.waitUntil("both tasks run", running)
	for range 5 {
		ahead.Add(int64(80 * time.Second))
		before := b.lastReport("n1")
		b.waitUntil("the node reports again", func() bool { return b.lastReport("n1") > before })
	}
	if n := b.countEvents("node.lost"); n != 0 {
		t.Fatalf("%d nodes were lost though only the coordinator stood still\n%s", n, b.eventLog())
	}
	if !running() {
		t.Fatalf("the tasks do not run on\n%s", b.eventLog())
	}
	stop()
	b.waitUntil("the silent node is lost", func() bool { return b.countEvents("node.lost") == 1 })
}

// TestStandstillLook tells a late look from a standstill.
func TestStandstillLook(t *testing.T) {
	const lease = 16 * time.Second
	var s standstill
	now := time.Unix(1000, 0)
	for _, step := range []struct {
		after, want time.Duration
	}{{0, 0}, {4 * time.Second, 0}, {8 * time.Second, 0}, {9 * time.Second, 9 * time.Second}, {time.Hour, time.Hour}, {-time.Hour, 0}, {time.Second, 0}} {
		now = now.Add(step.after)
		if got := s.observe(now, lease); got != step.want {
			t.Errorf("a look after %s: stood still for %s, want %s", step.after, got, step.want)
		}
	}
}

// lastReport returns the time of a node's last report, Unix ms, 0 for none.
func (b *testCluster) lastReport(name string) int64 {
	res, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		return 0
	}
	for _, n := range res.Msg.Nodes {
		if n.Info.GetName() == name {
			return n.LastReportMs
		}
	}
	return 0
}

// countEvents counts the events of a kind.
func (b *testCluster) countEvents(kind string) int {
	return strings.Count(b.eventLog(), " "+kind+" ")
}
