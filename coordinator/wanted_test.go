package coordinator

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

func TestRetryPauseGrowsAndIsBounded(t *testing.T) {
	for failures, want := range map[int32]time.Duration{-1: 0, 0: 0, 1: time.Second, 2: 3 * time.Second, 3: 9 * time.Second, 4: 27 * time.Second, 5: time.Minute, 1 << 30: time.Minute} {
		if got := retryPause(failures); got != want {
			t.Errorf("after %d failures %v, want %v", failures, got, want)
		}
	}
}

// A node is told how much memory the scheduler counted for a task, also where the harness's share that the node itself
// measured is another.
func TestNodesAreToldTheMemoryThatIsCounted(t *testing.T) {
	const share, larger = 16 << 20, 40 << 20
	b := newTestCluster(t, nil)
	told := func(n *coordtest.Node) (most int64) {
		for _, w := range n.Wanted() {
			most = max(most, w.GetSpec().GetDemand().GetMemory()+w.GetSpec().GetHarnessMemory())
		}
		return most
	}
	add := func(name string, share int64) *coordtest.Node {
		info := coordtest.Info(name)
		info.TaskOverheadMemory = share
		n, _ := b.addNode(info, coordtest.Hang)
		b.waitUntil(name+" is up", func() bool { return b.nodeIsUp(name) })
		return n
	}
	nodes := map[string]*coordtest.Node{"n1": add("n1", share)}
	b.drain("n1", 0)
	b.submit(groupJob("before", 1)) // counted with the share of n1, and runs on n2
	nodes["n2"] = add("n2", larger)
	check := func(job, node string, want int64) {
		t.Helper()
		b.waitUntil(job+" is on "+node, func() bool { return len(nodes[node].Wanted()) > 0 })
		if used, got := b.nodeStatus(node).Used.GetMemory(), told(nodes[node]); got != want || used != want {
			t.Errorf("%s: %d bytes are in use, and the node was told %d, want %d", job, used, got, want)
		}
	}
	check("before", "n2", 64<<20+share)
	b.drain("n2", 0)
	if _, err := b.client.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1", Off: true})); err != nil {
		t.Fatal(err)
	}
	b.submit(groupJob("after", 1)) // counted with the share of n2, and runs on n1
	check("after", "n1", 64<<20+larger)
}
