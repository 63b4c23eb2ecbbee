package coordinator

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// TestClockThatWasAheadHeals runs a coordinator whose clock is two days ahead,
// then one with the right clock on its folder: times, deadlines and quarantines
// go by the right clock at once, and it says what happened.
func TestClockThatWasAheadHeals(t *testing.T) {
	var ahead atomic.Int64
	ahead.Store(int64(48 * time.Hour))
	b := newTestCluster(t, func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	n1, _ := b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.submit(groupJob("early", 2))
	b.waitForEnd("early", succeeded)
	n1.SetProblems("its disk fails")
	b.waitUntil("n1 is quarantined", func() bool { return b.nodeState("n1") == "quarantined" })
	waiting := groupJob("waiting", 1)
	soon := time.Now().Add(time.Hour)
	b.submit(waiting)

	tokens := droverv1connect.NewTokenServiceClient(b.plainClient(), "http://c")
	if _, err := tokens.CreateToken(b.ctx, connect.NewRequest(&droverv1.CreateTokenRequest{User: "alice", LifeMs: time.Hour.Milliseconds()})); err != nil {
		t.Fatal(err)
	}

	b.kill()
	ahead.Store(0)
	b.start()
	b.waitUntil("it answers", func() bool { return b.job("waiting") != nil })
	b.waitUntil("it says that the clock had been ahead", func() bool { return b.countEvents("clock.stepped_back") == 1 })
	n1.SetProblems()
	res, err := b.client.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if w := strings.Join(res.Msg.Warnings, "\n"); !strings.Contains(w, "clock had been ahead by 48h") {
		t.Errorf("warnings: %q", w)
	}
	if got := b.job("waiting").Job.SubmittedMs; got > time.Now().UnixMilli() {
		t.Errorf("the waiting job was submitted %s from now", time.Until(time.UnixMilli(got)))
	}
	if at := b.retryAt("n1"); at.After(time.Now().Add(2 * time.Minute)) {
		t.Errorf("the node is quarantined until %s from now", time.Until(at))
	}
	made, err := droverv1connect.NewTokenServiceClient(b.plainClient(), "http://c").ListTokens(b.ctx, connect.NewRequest(&droverv1.ListTokensRequest{}))
	if err != nil || len(made.Msg.Tokens) != 1 {
		t.Fatalf("%v: %v", err, made)
	}
	if end := time.Until(time.UnixMilli(made.Msg.Tokens[0].ExpiresMs)); end > time.Hour || end < 50*time.Minute {
		t.Errorf("the token for an hour is good for %s", end)
	}
	late := groupJob("late", 1)
	late.Deadline = &soon
	b.submit(late) // its deadline lies before the wrong time, and is not in the past
	j := b.job("late").Job
	if d := time.Since(time.UnixMilli(j.SubmittedMs)); d < -time.Second || d > time.Minute {
		t.Errorf("the new job was submitted %s ago", d)
	}
	if j.DeadlineState == "missed" {
		t.Error("its deadline in an hour counts as missed")
	}
	ahead.Store(int64(3 * time.Minute)) // past the quarantine
	b.wakeLoop()
	b.waitForEnd("waiting", succeeded)
	got := b.waitForEnd("late", succeeded).Job
	if d := time.Duration(got.EndedMs-got.SubmittedMs) * time.Millisecond; d < 0 || d > 10*time.Minute {
		t.Errorf("it took %s", d)
	}
	if got.DeadlineState != "met" {
		t.Errorf("its deadline is %q", got.DeadlineState)
	}
}

func (b *testCluster) retryAt(name string) time.Time {
	res, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, n := range res.Msg.Nodes {
		if n.Info.GetName() == name {
			return time.UnixMilli(n.RetryAtMs)
		}
	}
	return time.Time{}
}
