package peer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// The protocols on the port, as ALPN names them.
const (
	protocolRaft = "drover-raft"
	protocolAPI  = "h2"
)

// Limits of connections.
const (
	handshakeLimit = 10 * time.Second
	dialLimit      = 5 * time.Second
	raftDialLimit  = 3 * time.Second
	maxHandshakes  = 64 // of incoming connections, at once
)

// Dialer opens a TCP connection to host:port.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// Config configures a Network. Listener and Member are required.
type Config struct {
	Listener net.Listener
	Member   *pki.Member // of kind coordinator
	// Address is the host:port under which the other coordinators reach Listener;
	// the listener's own by default.
	Address string
	Dial    Dialer // net.Dialer by default; tests cut connections here
	Logger  *slog.Logger
}

// Network is this coordinator's end of the connections with the others. It is
// raft's StreamLayer.
type Network struct {
	cfg    Config
	server *tls.Config
	raft   *queue
	api    *queue
	http   *http.Transport
	wg     sync.WaitGroup
	slots  chan struct{} // handshakes in progress

	mu     sync.Mutex // guards the fields below
	closed bool
	open   map[net.Conn]openConn
	opened uint64 // so far
}

// openConn is what is known of an open connection.
type openConn struct {
	number uint64    // in the order in which they were opened
	from   string    // the address, without a port, of who opened it; "" for this coordinator
	tls    *tls.Conn // nil during the handshake
}

var _ raft.StreamLayer = (*Network)(nil)

// Listen returns a network on a listener. It accepts nothing before Start.
func Listen(c Config) *Network {
	if c.Address == "" {
		c.Address = c.Listener.Addr().String()
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Network{cfg: c, slots: make(chan struct{}, maxHandshakes), open: map[net.Conn]openConn{}}
	n.server = c.Member.PeerConfig(pki.KindCoordinator)
	n.server.NextProtos = []string{protocolRaft, protocolAPI}
	n.raft, n.api = newQueue(address(c.Address)), newQueue(address(c.Address))
	p := new(http.Protocols)
	p.SetHTTP2(true)
	n.http = &http.Transport{Protocols: p, TLSClientConfig: c.Member.ClientConfig(pki.KindCoordinator), IdleConnTimeout: time.Minute, TLSHandshakeTimeout: handshakeLimit,
		ResponseHeaderTimeout: 0, HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialLimit)
			defer cancel()
			return n.cfg.Dial(ctx, address)
		}}
	return n
}

// Start accepts connections until Close.
func (n *Network) Start() { n.wg.Go(n.acceptAll) }

func (n *Network) acceptAll() {
	for {
		c, err := n.cfg.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files: it passes
			n.cfg.Logger.Warn("the port for other coordinators cannot accept", "err", err)
			time.Sleep(acceptPause)
			continue
		}
		select {
		case n.slots <- struct{}{}:
		default:
			if !n.dropHandshake() { // all have ended, but raft or the API does not take their connections
				_ = c.Close()
				continue
			}
			n.slots <- struct{}{} // soon: the handshake on a closed connection fails at once
		}
		from := c.RemoteAddr().String()
		if host, _, err := net.SplitHostPort(from); err == nil {
			from = host
		}
		if !n.track(c, from) { // before the next one is accepted, which may drop this one
			<-n.slots
			continue
		}
		n.wg.Go(func() {
			defer func() { <-n.slots }()
			n.handshake(c)
		})
	}
}

// dropHandshake makes room for an incoming connection, so that a stranger who opens many
// connections and sends nothing cannot block others. It closes the oldest connection in its
// handshake of the address that has most of these, and returns false if there is none. A
// coordinator needs some milliseconds for its handshake, and is among the last to be closed.
func (n *Network) dropHandshake() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []net.Conn
	of := map[string]int{} // by address
	for c, o := range n.open {
		if o.from != "" && o.tls == nil {
			all = append(all, c)
			of[o.from]++
		}
	}
	if len(all) == 0 {
		return false
	}
	c := slices.MinFunc(all, func(a, b net.Conn) int {
		return cmp.Or(cmp.Compare(of[n.open[b].from], of[n.open[a].from]), cmp.Compare(n.open[a].number, n.open[b].number))
	})
	delete(n.open, c)
	_ = c.Close() // nobody is told
	return true
}

// acceptPause is the pause after an error of the listener.
const acceptPause = 100 * time.Millisecond

// handshake gives an incoming connection, which is registered, to the protocol that it asks for.
func (n *Network) handshake(c net.Conn) {
	t := tls.Server(c, n.server)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeLimit)
	defer cancel()
	err := t.HandshakeContext(ctx)
	if err == nil && !n.authenticated(c, t) {
		err = net.ErrClosed
	}
	if err == nil {
		switch p := t.ConnectionState().NegotiatedProtocol; p {
		case protocolRaft:
			err = n.raft.put(&conn{t, n, c})
		case protocolAPI:
			// net/http wants the *tls.Conn itself, closes it, and is told by Close.
			err = n.api.put(t)
		default:
			err = fmt.Errorf("the other side speaks neither %s nor %s", protocolRaft, protocolAPI)
		}
	}
	if err != nil {
		n.cfg.Logger.Debug("refused a connection of another coordinator", "from", c.RemoteAddr(), "err", err)
		n.forget(c)
		_ = t.Close() // refused: what it says last does not matter
	}
}

// Accept implements net.Listener for raft.
func (n *Network) Accept() (net.Conn, error) { return n.raft.Accept() }

// Addr implements net.Listener: the address that the others use.
func (n *Network) Addr() net.Addr { return address(n.cfg.Address) }

// Dial implements raft.StreamLayer.
func (n *Network) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	host, _, err := net.SplitHostPort(string(to))
	if err != nil {
		return nil, fault.New(fault.Invalid, "address %q of a coordinator: want host:port: %w", to, err)
	}
	// Raft keeps a server waiting for as long as a connection is opened: a link that
	// is mended meanwhile is tried again soon.
	ctx, cancel := context.WithTimeout(context.Background(), min(timeout, raftDialLimit))
	defer cancel()
	c, err := n.cfg.Dial(ctx, string(to))
	if err != nil {
		return nil, err
	}
	conf := n.cfg.Member.ClientConfig(pki.KindCoordinator)
	conf.NextProtos, conf.ServerName = []string{protocolRaft}, host
	t := tls.Client(c, conf)
	if !n.track(c, "") {
		return nil, net.ErrClosed
	}
	if err := t.HandshakeContext(ctx); err != nil {
		n.forget(c)
		return nil, errors.Join(err, c.Close())
	}
	n.authenticated(c, t)
	return &conn{t, n, c}, nil
}

// API returns the listener of PeerService; serve it with net/http.
func (n *Network) API() net.Listener { return n.api }

// Client returns a client of the coordinator at a peer address.
func (n *Network) Client(address string) droverv1connect.PeerServiceClient {
	return droverv1connect.NewPeerServiceClient(&http.Client{Transport: n.http}, "https://"+address, connect.WithReadMaxBytes(maxMessage))
}

// FetchCRL returns the revocation list of the coordinator at a peer address, nil for none. One of
// an earlier version has none to give.
func (n *Network) FetchCRL(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+pki.CRLPath, nil)
	if err != nil {
		return nil, err
	}
	res, err := n.http.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("revocation list of %s: %w", address, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, nil
	}
	return io.ReadAll(io.LimitReader(res.Body, pki.MaxCRL+1))
}

// maxMessage bounds a message of another coordinator, in bytes.
const maxMessage = 4 << 20

// CloseRevoked closes the connections of certificates that were revoked since
// they were opened. It leaves those in a handshake for its next call: their state
// is known only at the end, for which it would wait.
func (n *Network) CloseRevoked() {
	n.mu.Lock()
	all := maps.Clone(n.open)
	n.mu.Unlock()
	for c, o := range all {
		if o.tls == nil {
			continue
		}
		if s := o.tls.ConnectionState(); len(s.PeerCertificates) > 0 && n.cfg.Member.Revoked(s.PeerCertificates[0]) {
			_ = c.Close() // its reader finds out
		}
	}
}

// Close closes the listener and every connection, and waits for handshakes. It
// may be called twice: raft closes its stream layer too.
func (n *Network) Close() error {
	n.mu.Lock()
	again := n.closed
	n.closed = true
	for _, c := range slices.SortedFunc(maps.Keys(n.open), func(a, b net.Conn) int { return cmp.Compare(n.open[a].number, n.open[b].number) }) {
		_ = c.Close() // what was in progress on it fails either way
	}
	clear(n.open)
	n.mu.Unlock()
	if again {
		return nil
	}
	err := n.cfg.Listener.Close()
	n.http.CloseIdleConnections()
	n.wg.Wait()
	return errors.Join(err, n.raft.Close(), n.api.Close())
}

// track registers an open connection, of an address or of this coordinator (""), until it is
// closed; false if the network is closed, and so is the connection then.
func (n *Network) track(c net.Conn, from string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		_ = c.Close()
		return false
	}
	n.opened++
	n.open[c] = openConn{number: n.opened, from: from}
	return true
}

// authenticated records the end of the handshake on a registered connection. It returns false if
// the connection was closed meanwhile, by dropHandshake or Close.
func (n *Network) authenticated(c net.Conn, t *tls.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	o, ok := n.open[c]
	if ok {
		o.tls = t
		n.open[c] = o
	}
	return ok
}

func (n *Network) forget(c net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.open, c)
}

// Forget drops a connection of the API that net/http has closed. It is the
// server's ConnState hook.
func (n *Network) Forget(c net.Conn, s http.ConnState) {
	if t, ok := c.(*tls.Conn); ok && s == http.StateClosed {
		n.forget(t.NetConn())
	}
}

// conn is a connection of raft, registered with its network.
type conn struct {
	*tls.Conn
	n   *Network
	tcp net.Conn
}

// Close closes the connection at once: raft waits for no goodbye.
func (c *conn) Close() error {
	c.n.forget(c.tcp)
	return c.tcp.Close()
}

// address is a host:port as net.Addr.
type address string

// Network implements net.Addr.
func (address) Network() string { return "tcp" }

// String implements net.Addr.
func (a address) String() string { return string(a) }

// queue is a listener whose connections were accepted elsewhere.
type queue struct {
	addr  net.Addr
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newQueue(a net.Addr) *queue {
	return &queue{addr: a, conns: make(chan net.Conn, maxHandshakes), done: make(chan struct{})}
}

// put hands a connection over; an error if nobody takes it.
func (q *queue) put(c net.Conn) error {
	t := time.NewTimer(handshakeLimit)
	defer t.Stop()
	select {
	case q.conns <- c:
		return nil
	case <-q.done:
		return net.ErrClosed
	case <-t.C:
		return errors.New("nobody accepted the connection in time")
	}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return q.addr }
