package coordtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// Network connects the parties of a test over loopback TCP by name, and cuts
// links between them, in one direction or both. A party listens under a new port
// each time, so that a restart needs no port that somebody else may have taken.
//
// A cut link loses what is sent, as a network does: nobody is told. A connection
// that lost bytes ends when its link is mended, as TCP would after a time.
type Network struct {
	mu    sync.Mutex
	at    map[string]string // host:port of each "name:port" that listens
	cut   map[link]bool
	conns map[*lossyConn]bool
}

// link is a direction between two parties.
type link struct{ from, to string }

// NewNetwork returns a network without cuts.
func NewNetwork() *Network {
	return &Network{at: map[string]string{}, cut: map[link]bool{}, conns: map[*lossyConn]bool{}}
}

// Listen listens as "name:port", where port is any word.
func (n *Network) Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[address] = l.Addr().String()
	return l, nil
}

// Dialer returns the function by which a party connects to "name:port".
func (n *Network) Dialer(from string) func(ctx context.Context, address string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		to, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		real, ok := n.at[address]
		lost := n.cut[link{from, to}] || n.cut[link{to, from}]
		n.mu.Unlock()
		switch {
		case !ok:
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("nobody listens at %s", address)}
		case lost: // no answer, ever
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", real)
		if err != nil {
			return nil, err
		}
		x := &lossyConn{Conn: c, n: n, out: link{from, to}, in: link{to, from}}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.conns[x] = true
		return x, nil
	}
}

// Cut loses what is sent from one party to another.
func (n *Network) Cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[link{from, to}] = true
}

// Isolate cuts a party from all of others, in both directions.
func (n *Network) Isolate(party string, others ...string) {
	for _, o := range others {
		if o != party {
			n.Cut(party, o)
			n.Cut(o, party)
		}
	}
}

// Mend mends all links, and ends the connections that lost something.
func (n *Network) Mend() {
	n.mu.Lock()
	clear(n.cut)
	var broken []*lossyConn
	for c := range n.conns {
		if c.lost {
			broken = append(broken, c)
			delete(n.conns, c)
		}
	}
	n.mu.Unlock()
	for _, c := range broken {
		_ = c.Conn.Close() // what it lost cannot be had again
	}
}

// lossyConn loses bytes while its link is cut.
type lossyConn struct {
	net.Conn
	n       *Network
	out, in link
	lost    bool // guarded by n.mu
}

// errLost ends a connection that lost bytes.
var errLost = errors.New("the connection lost bytes")

// loses reports whether bytes in a direction are lost now.
func (c *lossyConn) loses(l link) (now, before bool) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	now, before = c.n.cut[l], c.lost
	c.lost = c.lost || now
	return now, before
}

// Write implements net.Conn.
func (c *lossyConn) Write(p []byte) (int, error) {
	switch now, before := c.loses(c.out); {
	case now:
		return len(p), nil
	case before:
		return 0, errLost
	}
	return c.Conn.Write(p)
}

// Read implements net.Conn.
func (c *lossyConn) Read(p []byte) (int, error) {
	for {
		k, err := c.Conn.Read(p)
		if err != nil {
			return 0, err
		}
		switch now, before := c.loses(c.in); {
		case now: // read and thrown away
		case before:
			return 0, errLost
		default:
			return k, nil
		}
	}
}

// Close implements net.Conn. Over a cut link the other end does not learn of it.
func (c *lossyConn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	return c.Conn.Close()
}
