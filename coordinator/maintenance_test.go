package coordinator

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// maintain orders a window of a node that begins after a time from now, or cancels all for length 0.
func (b *testCluster) maintain(node string, from, length time.Duration) {
	b.t.Helper()
	req := &droverv1.MaintainNodeRequest{Node: node, DurationMs: length.Milliseconds(), Cancel: length == 0}
	if from > 0 {
		req.FromMs = time.Now().Add(from).UnixMilli()
	}
	if _, err := b.client.MaintainNode(b.ctx, connect.NewRequest(req)); err != nil {
		b.t.Fatal(err)
	}
}

// nodeIsUp reports whether the node of a name has registered and is up.
func (b *testCluster) nodeIsUp(name string) bool {
	res, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
	return err == nil && slices.ContainsFunc(res.Msg.Nodes, func(n *droverv1.NodeStatus) bool { return n.Info.GetName() == name && n.State == "up" })
}

// When its window begins a node is drained and what runs there moves; when it ends the node takes work
// again: over a restart of the coordinator, and however often the window is late.
func TestMaintenanceBeginsAndEnds(t *testing.T) {
	b := newTestCluster(t, nil)
	b.startHangingTask(levelNode("n1"), levelNode("n2"))
	from := b.lastAttempt("hang").Node
	b.maintain(from, 0, time.Hour)
	b.waitUntil("the task runs on the other node", func() bool {
		a := b.lastAttempt("hang")
		return a.Node != from && a.Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING && a.Level.GetTarget() == 0
	})
	b.kill()
	b.start()
	b.waitUntil("the status shows the window", func() bool {
		n := b.nodeStatus(from)
		return n.State == "drained" && len(n.Maintenance) == 1 && n.Maintenance[0].Begun && strings.HasPrefix(n.Reason, "maintenance until ")
	})
	b.maintain(from, 0, 0)
	b.waitUntil("it is up", func() bool {
		n := b.nodeStatus(from)
		return n.State == "up" && !n.Draining && n.Reason == "" && len(n.Maintenance) == 0
	})
	b.maintain(from, 0, 5*time.Second) // it must not be over when it is ordered
	b.waitUntil("a window ends by itself", func() bool {
		return strings.Contains(b.eventLog(), "node.maintenance_ended") && !b.nodeStatus(from).Draining
	})
	for _, kind := range []string{"node.maintenance_ordered", "node.maintenance_begun", "node.maintenance_cancelled"} {
		if !strings.Contains(b.eventLog(), kind) {
			t.Errorf("there is no event %s", kind)
		}
	}
}

// A task that would not end before its only node leaves waits, and says why.
func TestTasksWaitForMaintenance(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitUntil("n1 is up", func() bool { return b.nodeIsUp("n1") })
	b.maintain("n1", 30*time.Minute, time.Hour)
	j := groupJob("long", 1)
	j.RuntimeBound = jobspec.Duration(time.Hour)
	b.submit(j)
	b.waitUntil("it says why it waits", func() bool {
		s := b.job("long")
		return s != nil && len(s.Stages) > 0 && strings.Contains(s.Stages[0].Waiting, scheduler.ReasonMaintenance.String())
	})
	b.maintain("n1", 0, 0)
	b.waitUntil("it runs", func() bool { return b.lastAttempt("long").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
}

func TestBadMaintenanceIsRefused(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitUntil("n1 is up", func() bool { return b.nodeIsUp("n1") })
	cancelAll := &droverv1.MaintainNodeRequest{Node: "n1", Cancel: true}
	if _, err := b.client.MaintainNode(b.ctx, connect.NewRequest(cancelAll)); !errors.Is(wire.FromError(err), fault.NotFound) {
		t.Errorf("cancel where there is none: %v", err)
	}
	b.maintain("n1", time.Hour, time.Hour)
	at := func(d time.Duration) int64 { return time.Now().Add(d).UnixMilli() }
	for name, c := range map[string]struct {
		req  *droverv1.MaintainNodeRequest
		want error
	}{
		"an unknown node":      {&droverv1.MaintainNodeRequest{Node: "nowhere", DurationMs: 1000}, fault.NotFound},
		"no length":            {&droverv1.MaintainNodeRequest{Node: "n1"}, fault.Invalid},
		"a length of years":    {&droverv1.MaintainNodeRequest{Node: "n1", DurationMs: 1 << 62}, fault.Invalid},
		"in years":             {&droverv1.MaintainNodeRequest{Node: "n1", FromMs: 1 << 60, DurationMs: 1000}, fault.Invalid},
		"a negative begin":     {&droverv1.MaintainNodeRequest{Node: "n1", FromMs: -5, DurationMs: 1000}, fault.Invalid},
		"over already":         {&droverv1.MaintainNodeRequest{Node: "n1", FromMs: at(-time.Hour), DurationMs: 1000}, fault.Invalid},
		"an overlap":           {&droverv1.MaintainNodeRequest{Node: "n1", FromMs: at(90 * time.Minute), DurationMs: 1000}, fault.Invalid},
		"cancel with a length": {&droverv1.MaintainNodeRequest{Node: "n1", Cancel: true, DurationMs: 1000}, fault.Invalid},
		"cancel none":          {&droverv1.MaintainNodeRequest{Node: "n1", Cancel: true, FromMs: 1000}, fault.NotFound},
	} {
		if _, err := b.client.MaintainNode(b.ctx, connect.NewRequest(c.req)); !errors.Is(wire.FromError(err), c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for i := range facts.MaxMaintenance - 1 {
		b.maintain("n1", time.Duration(i+3)*time.Hour, time.Minute)
	}
	_, err := b.client.MaintainNode(b.ctx, connect.NewRequest(&droverv1.MaintainNodeRequest{Node: "n1", FromMs: at(100 * time.Hour), DurationMs: 1000}))
	if !errors.Is(wire.FromError(err), fault.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
}

// What the schedulers know of a node: its windows, and that it does not come back after a drain with a
// deadline.
func TestWindowsOfANode(t *testing.T) {
	windows := []facts.MaintenanceWindow{{From: 100, To: 200}, {From: 300, To: 400}}
	begun := func(stays bool) []facts.MaintenanceWindow {
		return []facts.MaintenanceWindow{{From: 100, To: 200, Begun: true, StaysDrained: stays}, {From: 300, To: 400}}
	}
	all := []scheduler.Window{{From: 100, To: 200}, {From: 300, To: 400}}
	for name, c := range map[string]struct {
		node facts.Node
		want []scheduler.Window
	}{
		"none":                       {facts.Node{}, nil},
		"ordered":                    {facts.Node{Maintenance: windows}, all},
		"begun":                      {facts.Node{Draining: true, DrainDeadline: 100, Maintenance: begun(false)}, all},
		"begun, and drained by hand": {facts.Node{Draining: true, DrainDeadline: 100, Maintenance: begun(true)}, []scheduler.Window{{From: 100, To: scheduler.Never}}},
		"a drain":                    {facts.Node{Draining: true}, nil},
		"a drain with a deadline":    {facts.Node{Draining: true, DrainDeadline: 150, Maintenance: windows}, []scheduler.Window{{From: 150, To: scheduler.Never}}},
		"quarantined":                {facts.Node{Draining: true, RetryAt: 170, Maintenance: windows}, all},
	} {
		if got := nodeWindows(&c.node); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
