package coordinator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/peer"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/version"
)

// Nodes of neighbouring versions register; one of a later version is refused and
// changes nothing.
func TestRegistrationIsAHandshakeOfVersions(t *testing.T) {
	b, as, base := secure(t)
	for name, c := range map[string]struct {
		protocol uint32
		want     error
	}{
		"n1": {version.Protocol - 1, nil},
		"n2": {version.Protocol, nil},
		"n3": {version.Protocol + 1, nil},
		"n4": {version.Protocol + 2, fault.Unsupported},
	} {
		n := droverv1connect.NewNodeServiceClient(as("node/"+name), base)
		res, err := n.Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: coordtest.Info(name), Protocol: c.protocol}))
		if err = wire.FromError(err); !errors.Is(err, c.want) {
			t.Errorf("protocol %d: %v, want %v", c.protocol, err, c.want)
		}
		if err == nil && res.Msg.GetProtocol() != version.Protocol {
			t.Errorf("the coordinator says protocol %d", res.Msg.GetProtocol())
		}
		if err != nil && !strings.HasSuffix(err.Error(), "only neighbours work together: upgrade the coordinator") {
			t.Errorf("protocol %d: %v", c.protocol, err)
		}
	}
	list, err := droverv1connect.NewClientServiceClient(as("user/root"), base).ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil || len(list.Msg.GetNodes()) != 3 {
		t.Errorf("%d nodes, want the 3 neighbours: %v", len(list.Msg.GetNodes()), err)
	}
}

// A leader adds a coordinator of a neighbouring version, and refuses one of a later
// version by its name.
func TestLeaderRefusesADistantCoordinator(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 1, nil)
	n := newDistantCoordinator(t, s, "c2", nil)
	join := func(protocol uint32) error {
		_, err := n.Client("c1:1").Join(s.ctx, connect.NewRequest(&droverv1.JoinRequest{Id: "c2", Address: "c2:1", Empty: true, Protocol: protocol}))
		return wire.FromError(err)
	}
	err := join(version.Protocol + 2)
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "coordinator c2 has protocol") || !strings.HasSuffix(err.Error(), "only neighbours work together: upgrade the leader") {
		t.Errorf("a distant coordinator: %v", err)
	}
	if list := s.servers().GetServers(); len(list) != 1 {
		t.Errorf("%d servers after the refusal, want 1", len(list))
	}
	if err := join(version.Protocol + 1); err != nil {
		t.Errorf("a neighbour: %v", err)
	}
}

// A coordinator that is told to enter a cluster of a later version ends with one
// line instead of waiting, and enters one that it supports from the same folder.
func TestNewCoordinatorEndsBesideADistantOne(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]func(*testServers, *Config){
		"joins": func(_ *testServers, c *Config) { c.Join = []string{"c1:1"} },
		"is listed": func(s *testServers, c *Config) {
			c.Bootstrap, c.Servers = true, s.peers("c1", "c2")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := prepareServers(t, 2, nil)
			distant := newDistantCoordinator(t, s, "c1", &distantPeer{})
			s.start("c2", func(c *Config) { with(s, c) })
			var err error
			select {
			case err = <-s.running["c2"].done:
				delete(s.running, "c2")
			case <-time.After(serversLimit):
				t.Fatal("it does not end")
			}
			if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "the one at c1:1 has protocol") || !strings.HasSuffix(err.Error(), "upgrade coordinator c2") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("it ended with %v", err)
			}
			if err := distant.Close(); err != nil {
				t.Fatal(err)
			}
			s.start("c1", nil)
			s.awaitLeader()
			s.start("c2", func(c *Config) { with(s, c) })
			s.awaitVoters("c1", "c2")
		})
	}
}

// newDistantCoordinator has the peer port and certificate of a server, and answers
// with h.
func newDistantCoordinator(t *testing.T, s *testServers, id string, h droverv1connect.PeerServiceHandler) *peer.Network {
	t.Helper()
	m, err := s.files(pki.CertRequest{Kind: pki.KindCoordinator, Name: id, Hosts: []string{id}}).Open(pki.KindCoordinator)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.net.Listen(id + ":1")
	if err != nil {
		t.Fatal(err)
	}
	n := peer.Listen(peer.Config{Listener: l, Member: m, Address: id + ":1", Dial: s.net.Dialer(id)})
	n.Start()
	t.Cleanup(func() { _ = n.Close() })
	if h == nil {
		return n
	}
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewPeerServiceHandler(h))
	p := new(http.Protocols)
	p.SetHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: p, ConnState: n.Forget}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(n.API()) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return n
}

// distantPeer is a leader of a protocol that nothing here supports.
type distantPeer struct {
	droverv1connect.UnimplementedPeerServiceHandler
}

func (*distantPeer) Describe(context.Context, *connect.Request[droverv1.DescribeRequest]) (*connect.Response[droverv1.DescribeResponse], error) {
	return connect.NewResponse(&droverv1.DescribeResponse{Id: "c1", Protocol: version.Protocol + 2, HasLog: true, Leader: "c1", LeaderAddress: "c1:1"}), nil
}

// TestTwoDaemonsOfOneNameAreNamed: each makes the other one's tasks lost, and the coordinator's log says where
// the two are. A daemon that is restarted, and knows its epoch, is nothing to speak of.
func TestTwoDaemonsOfOneNameAreNamed(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	b := newTestCluster(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(lockedWriter{&mu, &out}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	const said = "two daemons have its name"
	log := func() string { mu.Lock(); defer mu.Unlock(); return out.String() }
	nodes := droverv1connect.NewNodeServiceClient(b.http, "http://c")
	register := func(address string, epoch uint64) (got uint64) {
		b.waitUntil("the node registers", func() bool {
			res, err := nodes.Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Epoch: epoch, Node: &droverv1.NodeInfo{Name: "n1", Address: address, Driver: "simulated",
				Allocatable: &droverv1.Resources{Cpu: 1000, Memory: 1 << 30}, Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}, Disks: []*droverv1.Disk{{Name: "d0", Io: 1 << 20, Space: 1 << 30}}}}))
			if err == nil {
				got = res.Msg.Epoch
			}
			return err == nil
		})
		return got
	}
	epoch := register("10.0.0.1:1", 0)
	register("10.0.0.1:2", epoch)
	if got := log(); strings.Contains(got, said) {
		t.Errorf("one daemon: %s", got)
	}
	register("10.0.0.2:1", 0)
	if got := log(); !strings.Contains(got, said) || !strings.Contains(got, "10.0.0.2:1") || !strings.Contains(got, "10.0.0.1:2") {
		t.Errorf("two daemons: %s", got)
	}
}

// lockedWriter writes with mu held.
type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
