package coordinator

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
)

// TestAJobWhoseNodesAllFailGoesOnWhenTheyAreMended has the only node fail until
// it is held off, says what the job waits for, moves the clock, and wants the
// job done without anybody's doing.
func TestAJobWhoseNodesAllFailGoesOnWhenTheyAreMended(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	b := newBed(t, func(c *Config) {
		c.Lease = time.Hour // the clock jumps
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	n, _ := b.node(coordtest.Info("n1"), coordtest.Fail(droverv1.Cause_CAUSE_INFRA, "the shim does not start"))
	b.registered()
	b.submit(groupJob("j", 1))
	waits := func(parts ...string) func() bool {
		return func() bool {
			j := b.job("j")
			if j == nil {
				return false
			}
			for _, p := range parts {
				if !strings.Contains(j.Stages[0].Waiting, p) {
					return false
				}
			}
			return true
		}
	}
	b.until("the job says which node does not take it, why, and what helps", waits("no node takes work: n1 is held off (3 failures of the infrastructure in 10 min, the last: the shim does not start)",
		"tried again at ", "drover node drain -off n1"))

	// Tried again, it fails once more; then it works.
	jump := func(d time.Duration) { ahead.Add(int64(d)); b.wake() }
	jump(facts.HoldFirst)
	b.until("it failed again when it was tried", waits("it failed again when it was tried"))
	n.Behave(coordtest.Succeed)
	jump(2 * facts.HoldFirst)
	b.ends("j", succeeded)
	b.until("the node works", func() bool { return b.nodeState("n1") == "up" })
	for _, want := range []string{"node.hold", "node.trial", "node.works"} {
		if !strings.Contains(b.story(), want) {
			t.Errorf("no event %s in\n%s", want, b.story())
		}
	}
}

// TestANodeWithAProblemIsTriedWhenItIsGone lets the time of a node pass while
// it still reports its problem.
func TestANodeWithAProblemIsTriedWhenItIsGone(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	b := newBed(t, func(c *Config) {
		c.Lease = time.Hour
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	n, _ := b.node(coordtest.Info("n1"), coordtest.Succeed)
	b.registered()
	n.Trouble("container engine containerd: connection refused")
	b.until("it is held off", func() bool { return b.nodeState("n1") == "held off" })
	b.submit(groupJob("j", 1))
	ahead.Add(int64(facts.HoldFirst))
	b.wake()
	b.until("the job knows that only the problem is in the way", func() bool {
		j := b.job("j")
		return j != nil && strings.Contains(j.Stages[0].Waiting, "n1 is held off (container engine containerd: connection refused): it is tried again when its problem is gone")
	})
	n.Trouble()
	b.until("its health is known", func() bool {
		l, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
		return err == nil && len(l.Msg.Nodes[0].GetLoad().GetProblems()) == 0
	})
	ahead.Add(int64(2 * problemPause))
	b.wake()
	b.ends("j", succeeded)
}

func TestWaitingSaysWhatToDoAboutNodes(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.submit(groupJob("j", 1))
	b.until("without nodes it says to start one", func() bool {
		j := b.job("j")
		return j != nil && strings.Contains(j.Stages[0].Waiting, "none has registered yet; start `drover node`")
	})
	b.node(coordtest.Info("n1"), coordtest.Hang)
	b.registered()
	if _, err := b.client.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1"})); err != nil {
		t.Fatal(err)
	}
	b.submit(groupJob("k", 1))
	b.until("a drained node is named with the command that ends it", func() bool {
		j := b.job("k")
		return j != nil && strings.Contains(j.Stages[0].Waiting, "n1 takes no new work (drained by local): drover node drain -off n1")
	})
}

// wake makes an entry, so that the loop looks at its clock.
func (b *bed) wake() {
	b.t.Helper()
	if err := b.tryWake(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) tryWake() error {
	t := &droverv1.Tenant{Name: "wake" + time.Now().Format("150405.000000000"), Weight: 1}
	_, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{t}}))
	return err
}

func (b *bed) nodeState(name string) string {
	l, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		return err.Error()
	}
	for _, n := range l.Msg.Nodes {
		if n.Info.GetName() == name {
			return n.State
		}
	}
	return "unknown"
}
