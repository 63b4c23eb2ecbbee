package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drover-run/drover/coordinator/peer"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// testCluster is three servers over TLS, each of which can be stopped and started again on its folder.
type testCluster struct {
	t     *testing.T
	ca    string // folder of the authority
	own   *pki.Member
	peers []Peer // their addresses stay, wherever they listen
	dirs  []string
	rs    []*Replica // nil for one that is stopped

	mu       sync.Mutex // guards listens
	listens  map[string]string
	logFault func(written bool) error // of servers that start; nil for none
}

func newTestCluster(t *testing.T) *testCluster {
	t.Helper()
	c := &testCluster{t: t, ca: t.TempDir(), rs: make([]*Replica, 3), listens: map[string]string{}}
	if err := pki.CreateCA(c.ca, time.Now()); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.own, err = c.issue(pki.CertRequest{Kind: pki.KindCoordinator, Name: "c", Hosts: []string{"127.0.0.1"}}).Open(pki.KindCoordinator); err != nil {
		t.Fatal(err)
	}
	for i := range c.rs {
		c.peers = append(c.peers, Peer{fmt.Sprint("c", i), fmt.Sprint("127.0.0.1:", i+1)})
		c.dirs = append(c.dirs, t.TempDir())
	}
	t.Cleanup(func() {
		for i, r := range c.rs {
			if r != nil {
				c.stop(i)
			}
		}
	})
	for i := range c.rs {
		if err := c.start(i, c.peers); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *testCluster) issue(r pki.CertRequest) pki.Files {
	c.t.Helper()
	if err := pki.IssueCert(c.ca, r, time.Now()); err != nil {
		c.t.Fatal(err)
	}
	return pki.Files{CA: filepath.Join(c.ca, "ca.pem"), Cert: filepath.Join(c.ca, r.Name+".pem"), Key: filepath.Join(c.ca, r.Name+".key")}
}

// start starts a server on its folder; without a log it begins a cluster of the servers given.
func (c *testCluster) start(i int, begin []Peer) error {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.listens[c.peers[i].Address] = l.Addr().String()
	c.mu.Unlock()
	n := peer.Listen(peer.Config{Listener: l, Member: c.own, Address: c.peers[i].Address, Dial: func(ctx context.Context, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", c.listensAt(address))
	}})
	n.Start()
	r, err := Open(Config{Dir: c.dirs[i], ID: c.peers[i].ID, Network: n, Enter: func() ([]Peer, error) { return begin, nil }, Acknowledged: c.acknowledged, NoSync: true, LogFault: c.logFault})
	if err != nil {
		return errors.Join(err, n.Close())
	}
	c.rs[i] = r
	return nil
}

// acknowledged asks the servers that run what a server has acknowledged, which is not started yet.
func (c *testCluster) acknowledged(servers []Peer) (index uint64, by string) {
	i := slices.IndexFunc(c.rs, func(r *Replica) bool { return r == nil })
	for _, p := range servers {
		if r := c.rs[slices.Index(c.peers, p)]; r != nil && r.Acknowledged(c.peers[i].ID) > index {
			index, by = r.Acknowledged(c.peers[i].ID), p.ID
		}
	}
	return index, by
}

func (c *testCluster) listensAt(address string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listens[address]
}

func (c *testCluster) stop(i int) {
	c.t.Helper()
	if err := c.rs[i].Close(); err != nil {
		c.t.Fatal(err)
	}
	c.rs[i] = nil
}

// accepted repeats a call at the server that leads, which a slow machine may depose at any time, and returns which
// server accepted it.
func (c *testCluster) accepted(what string, call func(*Replica) error) (by int) {
	c.t.Helper()
	until(c.t, what, func() bool {
		by = slices.IndexFunc(c.rs, func(r *Replica) bool { return r != nil && r.Leads() })
		if by < 0 {
			return false
		}
		err := call(c.rs[by])
		if err != nil && !errors.Is(err, fault.Unavailable) {
			c.t.Fatal(err)
		}
		return err == nil
	})
	return by
}

// awaitLeader returns which server leads, as soon as one has all that was committed.
func (c *testCluster) awaitLeader() int {
	c.t.Helper()
	return c.accepted("a server leads", func(r *Replica) error {
		_, err := r.BeginTerm(context.Background())
		return err
	})
}

func (c *testCluster) propose(i int) (by int) {
	c.t.Helper()
	return c.accepted(fmt.Sprint("proposal ", i, " is accepted"), func(r *Replica) error {
		_, err := r.Propose(context.Background(), tenant(i))
		return err
	})
}
