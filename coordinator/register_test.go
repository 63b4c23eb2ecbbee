package coordinator

import (
	"cmp"
	"context"
	"errors"
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
	token string
	epoch uint64 // that the daemon knows
	rack  string
}

// register calls once, and returns the epoch that the node is given.
func (b *testCluster) register(ctx context.Context, r registration) (uint64, error) {
	info := coordtest.Info("n1")
	info.Rack = "/racks/" + cmp.Or(r.rack, "r1")
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
	b.registers(registration{token: "a"})
	b.waitUntil("its lease ends", func() bool { return b.countEvents("node.lost") == 1 })
	epochs := []uint64{b.registers(registration{token: "b", epoch: 1})}
	b.kill()
	b.cfg.Lease = time.Hour
	b.start()
	epochs = append(epochs, b.registers(registration{token: "b", epoch: 1}))
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
	first := registration{token: "a"}
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
