package simcluster

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// raftPort is where plainRaft listens.
const raftPort = "3"

// plainRaft connects one run of a server with the rafts of the others without TLS, on a port beside that of package
// peer. As a process does, it takes its connections with it when it ends.
type plainRaft struct {
	*listener
	address address // by which raft knows this server

	mu     sync.Mutex
	closed bool
	open   []net.Conn // in the order in which they were opened
}

func newPlainRaft(h *host, at string) *plainRaft {
	return &plainRaft{listener: h.listen(raftPort), address: address(at)}
}

// Addr implements net.Listener.
func (r *plainRaft) Addr() net.Addr { return r.address }

// Accept implements net.Listener.
func (r *plainRaft) Accept() (net.Conn, error) {
	c, err := r.listener.Accept()
	if err != nil {
		return nil, err
	}
	return r.track(c)
}

// Dial implements raft.StreamLayer, and waits no longer than package peer does.
func (r *plainRaft) Dial(to raft.ServerAddress, limit time.Duration) (net.Conn, error) {
	party, _, err := net.SplitHostPort(string(to))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(limit, raftDialLimit))
	defer cancel()
	c, err := r.h.dial(ctx, party+":"+raftPort)
	if err != nil {
		return nil, err
	}
	return r.track(c)
}

// raftDialLimit is that of package peer.
const raftDialLimit = 3 * time.Second

func (r *plainRaft) track(c net.Conn) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close() // nothing was said
		return nil, net.ErrClosed
	}
	r.open = append(r.open, c)
	return &raftConn{c, r}, nil
}

// Close implements net.Listener.
func (r *plainRaft) Close() error {
	r.mu.Lock()
	r.closed = true
	open := r.open
	r.open = nil
	r.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // it may be closed
	}
	return r.listener.Close()
}

// raftConn is a connection of a plainRaft.
type raftConn struct {
	net.Conn
	r *plainRaft
}

// Close implements net.Conn.
func (c *raftConn) Close() error {
	c.r.mu.Lock()
	c.r.open = slices.DeleteFunc(c.r.open, func(o net.Conn) bool { return o == c.Conn })
	c.r.mu.Unlock()
	return c.Conn.Close()
}
