package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
)

// registration is a call of a daemon of node n1.
type registration struct {
	daemon string
	token  string
	epoch  uint64 // that the daemon knows
	rack   string
}

// register calls once, and returns the epoch that the node is given.
func (b *testCluster) register(ctx context.Context, r registration) (uint64, error) {
	info := coordtest.Info("n1")
	info.DaemonId, info.Rack = r.daemon, "/racks/"+cmp.Or(r.rack, "r1")
	res, err := droverv1connect.NewNodeServiceClient(b.http, "http://c").Register(ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: info, Epoch: r.epoch, Protocol: version.Protocol, Registration: r.token}))
	if err != nil {
		return 0, wire.FromError(err)
	}
	return res.Msg.GetEpoch(), nil
}

// registers waits until a call is answered.
func (b *testCluster) registers(r registration) (epoch uint64) {
	b.t.Helper()
	b.waitUntil("the node registers", func() (ok bool) {
		var err error
		if epoch, err = b.register(b.ctx, r); err != nil && !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.Exhausted) {
			b.t.Fatal(err)
		}
		return err == nil
	})
	return epoch
}

// TestARegistrationThatIsSentAgainKeepsItsEpoch: a node whose answer was lost registers again with the epoch that it knew
// before, and has run nothing in the one that it was given.
func TestARegistrationThatIsSentAgainKeepsItsEpoch(t *testing.T) {
	type call struct {
		registration
		want uint64
	}
	for name, calls := range map[string][]call{
		"answered":                           {{registration{token: "a"}, 1}, {registration{token: "b", epoch: 1}, 1}},
		"its answers are lost":               {{registration{token: "a"}, 1}, {registration{token: "a"}, 1}, {registration{token: "a"}, 1}},
		"its properties change meanwhile":    {{registration{token: "a"}, 1}, {registration{token: "a", rack: "r2"}, 1}, {registration{token: "b", epoch: 1, rack: "r2"}, 1}},
		"the daemon is started anew":         {{registration{token: "a"}, 1}, {registration{token: "b"}, 2}, {registration{token: "b"}, 2}},
		"on an old copy of its data folder":  {{registration{token: "a"}, 1}, {registration{token: "b"}, 2}, {registration{token: "c", epoch: 2}, 2}, {registration{token: "d", epoch: 1}, 3}},
		"an earlier call comes late":         {{registration{token: "a"}, 1}, {registration{token: "b", epoch: 1}, 1}, {registration{token: "a"}, 1}},
		"an earlier daemon's call":           {{registration{token: "a"}, 1}, {registration{token: "b"}, 2}, {registration{token: "a"}, 3}},
		"by a daemon without tokens":         {{registration{}, 1}, {registration{}, 2}, {registration{epoch: 2}, 2}},
		"by one without, after one that had": {{registration{token: "a"}, 1}, {registration{}, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestCluster(t, func(c *Config) { c.Lease = time.Hour })
			losses := 0
			for i, c := range calls {
				if got := b.registers(c.registration); got != c.want {
					t.Fatalf("call %d: epoch %d, want %d", i+1, got, c.want)
				}
				losses = int(c.want) - 1
			}
			if got := b.countEvents("node.lost"); got != losses {
				t.Errorf("the node was lost %d times, want %d:\n%s", got, losses, b.eventLog())
			}
		})
	}
}

// TestALostNodeIsNotLostAgainByALostAnswer: the same for a node that comes back, and whose answer was lost with its
// coordinator.
func TestALostNodeIsNotLostAgainByALostAnswer(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Lease = 300 * time.Millisecond })
	b.registers(registration{daemon: "x", token: "a"})
	b.waitUntil("its lease ends", func() bool { return b.countEvents("node.lost") == 1 })
	epochs := []uint64{b.registers(registration{daemon: "x", token: "b", epoch: 1})}
	b.kill()
	b.cfg.Lease = time.Hour
	b.start()
	epochs = append(epochs, b.registers(registration{daemon: "x", token: "b", epoch: 1}))
	if log := b.eventLog(); strings.Contains(log, "without knowing its epoch") {
		t.Errorf("the epochs are %v, and it was lost by its second call:\n%s", epochs, log)
	}
}

// TestACallThatBrokeOffIsNotRegisteredTwice: the first call's entry is on its way into the log when its caller has gone and
// calls again.
func TestACallThatBrokeOffIsNotRegisteredTwice(t *testing.T) {
	var armed atomic.Bool
	reached, goOn := make(chan struct{}), make(chan struct{})
	b := newTestCluster(t, func(c *Config) {
		c.Lease = time.Hour
		c.Crash = func(p replica.Point, _ uint64) bool {
			if p == replica.Before && armed.CompareAndSwap(true, false) {
				close(reached)
				<-goOn
			}
			return false
		}
	})
	b.waitUntil("the coordinator leads", func() bool {
		_, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
		return err == nil
	})
	first := registration{daemon: "x", token: "a"}
	ctx, cancel := context.WithCancel(b.ctx)
	answered := make(chan error, 1)
	armed.Store(true)
	go func() { _, err := b.register(ctx, first); answered <- err }()
	<-reached
	cancel()
	if err := <-answered; err == nil {
		t.Error("the call that broke off was answered")
	}
	if _, err := b.register(b.ctx, first); !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "still being registered") {
		t.Errorf("a call beside it: %v", err)
	}
	close(goOn)
	if epoch := b.registers(first); epoch != 1 {
		t.Errorf("the next call gets epoch %d", epoch)
	}
	if n := b.countEvents("node.lost"); n != 0 {
		t.Errorf("the node was lost %d times", n)
	}
}

// TestTheNameOfANodeThatIsUpIsRefused: a daemon with another data folder, perhaps on another machine, does not make the
// node's tasks lost, also at the next coordinator.
func TestTheNameOfANodeThatIsUpIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		up, comes registration
		want      uint64 // the epoch; 0: it is refused
	}{
		"another data folder":                        {registration{daemon: "x"}, registration{daemon: "y"}, 0},
		"another data folder that was the node's":    {registration{daemon: "x"}, registration{daemon: "y", epoch: 1}, 0},
		"the daemon, restarted":                      {registration{daemon: "x"}, registration{daemon: "x", epoch: 1}, 1},
		"the daemon, with other properties":          {registration{daemon: "x"}, registration{daemon: "x", epoch: 1, rack: "r2"}, 1},
		"the daemon, on an old copy":                 {registration{daemon: "x"}, registration{daemon: "x"}, 2},
		"a daemon of a release without ids":          {registration{daemon: "x"}, registration{}, 2},
		"the daemon, upgraded from one":              {registration{}, registration{daemon: "x", epoch: 1}, 1},
		"a daemon with an id beside one without any": {registration{}, registration{daemon: "y"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestCluster(t, func(c *Config) { c.Lease = time.Hour })
			b.registers(c.up)
			for _, when := range []string{"at once", "after the coordinator was restarted"} {
				got, err := b.register(b.ctx, c.comes)
				switch {
				case c.want == 0 && (!errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "node n1 is up with another data folder, at n1:7777:")):
					t.Errorf("%s: epoch %d, %v, want a refusal", when, got, err)
				case c.want != 0 && (got != c.want || err != nil):
					t.Errorf("%s: epoch %d, %v, want %d", when, got, err, c.want)
				}
				if c.want != 0 {
					break
				}
				b.kill()
				b.start()
				b.waitUntil("it answers", func() bool {
					_, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
					return err == nil
				})
			}
			if n := b.countEvents("node.lost"); n != int(max(c.want, 1)-1) {
				t.Errorf("the node was lost %d times", n)
			}
			if _, err := b.register(b.ctx, registration{daemon: c.up.daemon, epoch: 1}); c.want == 0 && err != nil {
				t.Errorf("the node that is up: %v", err)
			}
		})
	}
}

// TestARefusedDaemonIsToldTheEpoch: it knows by it that what it has of an earlier one was lost.
func TestARefusedDaemonIsToldTheEpoch(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Lease = time.Hour })
	b.registers(registration{daemon: "x"})
	if epoch := b.registers(registration{daemon: "x"}); epoch != 2 {
		t.Fatalf("epoch %d", epoch)
	}
	info := coordtest.Info("n1")
	info.DaemonId = "y"
	nodes := droverv1connect.NewNodeServiceClient(b.http, "http://c")
	_, err := nodes.Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: info, Epoch: 1, Protocol: version.Protocol}))
	by, taken := wire.OwnerOf(err)
	want := wire.NodeOwner{Cluster: by.Cluster, Node: 1, Epoch: 2}
	if !taken || by != want || by.Cluster == "" || !errors.Is(wire.FromError(err), fault.Unavailable) {
		t.Errorf("refused by %+v (%t): %v", by, taken, err)
	}
	_, err = nodes.Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Protocol: version.Protocol}))
	if _, taken := wire.OwnerOf(err); err == nil || taken {
		t.Errorf("another refusal: %v", err)
	}
}

// TestAnotherMachineWaitsForTheLease: it gets the name once the node's lease has ended. An exclusive task of the node does not
// begin elsewhere before.
func TestAnotherMachineWaitsForTheLease(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Lease = time.Second })
	machine := func(id string, how coordtest.Behaviour) (*coordtest.Node, func()) {
		info := coordtest.Info("n1")
		info.DaemonId, info.Address = id, id+":7777"
		return b.addNode(info, how)
	}
	old, stopOld := machine("old", coordtest.Hang)
	b.waitForNodes()
	alone := groupJob("alone", 1)
	alone.Stages[0].Exclusive = true
	b.submit(alone)
	b.waitUntil("it runs on the old machine", func() bool { return len(old.Wanted()) == 1 })
	if _, err := b.register(b.ctx, registration{daemon: "new"}); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "at old:7777:") {
		t.Errorf("beside the old machine: %v", err)
	}
	b.addNode(coordtest.Info("n2"), coordtest.Succeed)
	b.waitForNodes()
	if n := b.countEvents("node.lost"); n != 0 {
		t.Errorf("the old machine was lost:\n%s", b.eventLog())
	}
	next, _ := machine("new", coordtest.Succeed)
	stopOld()
	b.waitUntil("the new machine registers", func() bool { id, _ := next.Registered(); return id != 0 })
	b.waitForEnd("alone", succeeded)
	log := strings.Split(b.eventLog(), "\n")
	lost := slices.IndexFunc(log, func(l string) bool { return strings.Contains(l, "node.lost") })
	for what, text := range map[string]string{"the new machine returned": "node.returned", "the task was placed again": "main/0.2"} {
		if at := slices.IndexFunc(log, func(l string) bool { return strings.Contains(l, text) }); lost < 0 || at < lost {
			t.Errorf("the old machine was lost at line %d, %s at line %d:\n%s", lost, what, at, strings.Join(log, "\n"))
		}
	}
	if !strings.Contains(log[max(lost, 0)], leaseExpiredReason) || b.countEvents("node.lost") != 1 {
		t.Errorf("the old machine was lost by something else than the end of its lease:\n%s", strings.Join(log, "\n"))
	}
}
