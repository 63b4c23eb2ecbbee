package coordinator

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
)

// TestQuarantinedNodesResumeAfterRecovery lets the only node fail until it is
// quarantined, checks the job's waiting reason, advances the clock, and expects
// the job to end without intervention.
func TestQuarantinedNodesResumeAfterRecovery(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	b := newTestCluster(t, func(c *Config) {
		c.Lease = time.Hour // the clock jumps
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Fail(droverv1.Cause_CAUSE_INFRA, "the shim does not start"))
	b.waitForNodes()
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
	b.waitUntil("the waiting reason names node, cause and cure", waits("no schedulable node: n1 is quarantined (3 failures of the infrastructure in 10 min)",
		" until ", "drover node drain -off n1"))

	// On probation it fails once more; then it works.
	jump := func(d time.Duration) { ahead.Add(int64(d)); b.wakeLoop() }
	jump(facts.QuarantineMin)
	b.waitUntil("it failed again on probation", waits("it failed again on probation"))
	n.SetBehaviour(coordtest.Succeed)
	jump(2 * facts.QuarantineMin)
	b.waitForEnd("j", succeeded)
	b.waitUntil("the node works", func() bool { return b.nodeState("n1") == "up" })
	for _, want := range []string{"node.quarantined", "node.probation", "node.recovered"} {
		if !strings.Contains(b.eventLog(), want) {
			t.Errorf("no event %s in\n%s", want, b.eventLog())
		}
	}
}

// The message of the attempt for which a node was quarantined may name files of a tenant: nobody reads it but operators
// and those who may read the job.
func TestTheReasonOfAQuarantineIsNotAnothersMessage(t *testing.T) {
	const secret = "/user/ann/secret"
	b, as, base := secure(t)
	b.addNode(coordtest.Info("n1"), coordtest.Fail(droverv1.Cause_CAUSE_INFRA, "hdfs://nn"+secret+" cannot be written"))
	b.waitForNodes()
	b.submit(groupJob("j", 1))
	b.waitUntil("it is quarantined", func() bool { return b.nodeState("n1") == "quarantined" })
	read := func(name string) string {
		c := droverv1connect.NewClientServiceClient(as(name), base)
		nodes, err := c.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		schedule, err := c.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		events, err := c.Events(b.ctx, connect.NewRequest(&droverv1.EventsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		said := nodes.Msg.GetNodes()[0].GetReason() + "\n" + schedule.Msg.GetNodes()[0].GetReason()
		for events.Receive() {
			if events.Msg().GetKind() == "node.quarantined" {
				said += "\n" + events.Msg().GetText()
			}
		}
		if err := errors.Join(events.Err(), events.Close()); err != nil {
			t.Fatal(err)
		}
		return said
	}
	if said := read("user/root"); strings.Count(said, secret) != 3 {
		t.Errorf("an operator reads\n%s", said)
	}
	if said := read("user/bob"); strings.Contains(said, secret) || strings.Count(said, "3 failures of the infrastructure in 10 min") != 3 {
		t.Errorf("another user reads\n%s", said)
	}
	why := ""
	b.waitUntil("the job waits for the node", func() bool {
		why = b.job("j").Stages[0].Waiting
		return strings.Contains(why, "n1 is quarantined")
	})
	if strings.Contains(why, secret) { // a job of somebody else waits for the same
		t.Errorf("the waiting reason is %q", why)
	}
}

// TestNodeWithProblemIsOnProbationAfterwards lets a node's quarantine end while
// it still reports its problem.
func TestNodeWithProblemIsOnProbationAfterwards(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	b := newTestCluster(t, func(c *Config) {
		c.Lease = time.Hour
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	n.SetProblems("container engine containerd: connection refused")
	b.waitUntil("it is quarantined", func() bool { return b.nodeState("n1") == "quarantined" })
	b.submit(groupJob("j", 1))
	ahead.Add(int64(facts.QuarantineMin))
	b.wakeLoop()
	b.waitUntil("the waiting reason names the problem", func() bool {
		j := b.job("j")
		return j != nil && strings.Contains(j.Stages[0].Waiting, "n1 is quarantined (container engine containerd: connection refused): its probation starts when the problem is gone")
	})
	n.SetProblems()
	b.waitUntil("its health is known", func() bool {
		l, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
		return err == nil && len(l.Msg.Nodes[0].GetLoad().GetProblems()) == 0
	})
	ahead.Add(int64(2 * quarantinePause))
	b.wakeLoop()
	b.waitForEnd("j", succeeded)
}

func TestWaitingReasonNamesCureForNodes(t *testing.T) {
	t.Parallel()
	b := newTestCluster(t, nil)
	b.submit(groupJob("j", 1))
	b.waitUntil("without nodes the reason says to start one", func() bool {
		j := b.job("j")
		return j != nil && strings.Contains(j.Stages[0].Waiting, "none has registered yet; start `drover node`")
	})
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	if _, err := b.client.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1"})); err != nil {
		t.Fatal(err)
	}
	b.submit(groupJob("k", 1))
	b.waitUntil("a drained node is named with the command that ends it", func() bool {
		j := b.job("k")
		return j != nil && strings.Contains(j.Stages[0].Waiting, "n1 takes no new work (drained by local): drover node drain -off n1")
	})
}

// wakeLoop makes an entry, so that the loop checks its clock.
func (b *testCluster) wakeLoop() {
	b.t.Helper()
	if err := b.tryWakeLoop(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *testCluster) tryWakeLoop() error {
	t := &droverv1.Tenant{Name: "wake" + time.Now().Format("150405.000000000"), Weight: 1}
	_, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{t}}))
	return err
}

func (b *testCluster) nodeState(name string) string {
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
