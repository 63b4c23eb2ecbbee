package simcluster

import (
	"context"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// network connects the parties of a simulation by name, "party:port". Its
// connections are in memory, so that a goroutine that reads from one is durably
// blocked in the sense of testing/synctest. A write never blocks.
//
// What is sent arrives after a latency, in order. A cut link stalls what is sent
// over it, as a network with retransmission does: when it is mended the bytes
// arrive late, or the connection is reset.
type network struct {
	mu        sync.Mutex
	seed      uint64
	rng       *rand.Rand             // whose order is that of the plan
	latencies map[link]*rand.Rand    // of each link its own, so that who sends first at an instant decides nothing
	listeners map[string]*listener   // by address
	cut       map[link]time.Time     // since when
	slow      map[link]time.Duration // added latency
	conns     map[*conn]bool         // both ends of each connection
	dialled   int
}

// link is a direction between two parties.
type link struct{ from, to string }

func newNetwork(seed uint64) *network {
	return &network{seed: seed, latencies: map[link]*rand.Rand{}, rng: rand.New(rand.NewPCG(seed, 1)), listeners: map[string]*listener{}, cut: map[link]time.Time{}, slow: map[link]time.Duration{}, conns: map[*conn]bool{}}
}

// host is one run of a party: after kill nothing of it is sent any more.
type host struct {
	n    *network
	name string
	dead bool // guarded by n.mu
}

func (n *network) host(name string) *host { return &host{n: n, name: name} }

type address string

func (address) Network() string  { return "sim" }
func (a address) String() string { return string(a) }

func opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "sim", Err: err}
}

// listen listens at "name:port".
func (h *host) listen(port string) *listener {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	l := &listener{h: h, at: address(h.name + ":" + port), conns: make(chan net.Conn, 256), done: make(chan struct{})}
	h.n.listeners[string(l.at)] = l
	return l
}

type listener struct {
	h     *host
	at    address
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, opError("accept", net.ErrClosed)
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	l.h.n.mu.Lock()
	defer l.h.n.mu.Unlock()
	if l.h.n.listeners[string(l.at)] == l {
		delete(l.h.n.listeners, string(l.at))
	}
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.at }

// dial connects to "party:port". Over a cut link it gets no answer.
func (h *host) dial(ctx context.Context, to string) (net.Conn, error) {
	party, _, err := net.SplitHostPort(to)
	if err != nil {
		return nil, err
	}
	h.n.mu.Lock()
	wait := h.n.latencyLocked(link{h.name, party}) + h.n.latencyLocked(link{party, h.name})
	h.n.mu.Unlock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return nil, opError("dial", ctx.Err())
	}
	h.n.mu.Lock()
	l := h.n.listeners[to]
	lost := h.dead || l != nil && l.h.dead || h.n.isCutLocked(link{h.name, party}) || h.n.isCutLocked(link{party, h.name})
	if lost {
		h.n.mu.Unlock()
		<-ctx.Done()
		return nil, opError("dial", ctx.Err())
	}
	defer h.n.mu.Unlock()
	if l == nil {
		return nil, opError("dial", syscall.ECONNREFUSED)
	}
	here, there := newStream(link{h.name, party}), newStream(link{party, h.name})
	a := &conn{h: h, in: there, out: here, local: address(h.name + ":0"), remote: l.at}
	b := &conn{h: l.h, in: here, out: there, local: l.at, remote: address(h.name + ":0")}
	a.other, b.other = b, a
	a.number, b.number = h.n.dialled, h.n.dialled+1
	h.n.dialled += 2
	select {
	case l.conns <- b:
	default:
		return nil, opError("dial", syscall.ECONNREFUSED)
	}
	h.n.conns[a], h.n.conns[b] = true, true
	return a, nil
}

func (n *network) latencyLocked(l link) time.Duration {
	r := n.latencies[l]
	if r == nil {
		h := fnv.New64a()
		_, _ = io.WriteString(h, l.from+" "+l.to) // never fails
		r = rand.New(rand.NewPCG(n.seed, h.Sum64()))
		n.latencies[l] = r
	}
	return 100*time.Microsecond + time.Duration(r.Int64N(int64(2*time.Millisecond))) + n.slow[l]
}

// stream is one direction of a connection, guarded by network.mu. It has one reader at a time.
type stream struct {
	link   link
	chunks []chunk // in the order of arrival
	held   []chunk // stalled by a cut link
	last   time.Time
	err    error // of the reader, at once: a reset

	waits   bool          // the reader, for one of the next two
	changed chan struct{} // with room for a token
	arrival *time.Timer   // of what is to be read next; nil before the first wait
	due     time.Time     // when arrival fires; zero for never
}

func newStream(l link) *stream { return &stream{link: l, changed: make(chan struct{}, 1)} }

type chunk struct {
	at   time.Time
	data []byte
	eof  bool
}

// notifyLocked wakes the reader.
func (s *stream) notifyLocked() {
	if !s.waits {
		return // it looks before it waits
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// wakeAtLocked wakes the reader at an instant, or before it; never for the zero instant.
func (s *stream) wakeAtLocked(at time.Time) {
	switch s.due = at; {
	case at.IsZero() && s.arrival != nil:
		s.arrival.Stop()
	case at.IsZero():
	case s.arrival == nil:
		s.arrival = time.NewTimer(time.Until(at))
	default:
		s.arrival.Reset(time.Until(at))
	}
}

func (n *network) sendLocked(s *stream, c chunk) {
	if n.isCutLocked(s.link) || len(s.held) > 0 {
		s.held = append(s.held, c)
		return
	}
	c.at = time.Now().Add(n.latencyLocked(s.link))
	if c.at.Before(s.last) {
		c.at = s.last
	}
	s.last = c.at
	s.chunks = append(s.chunks, c)
	switch {
	case !s.waits || len(s.chunks) > 1:
	case s.arrival == nil:
		s.notifyLocked() // it does not wait for a timer yet
	case s.due.IsZero() || c.at.Before(s.due):
		s.wakeAtLocked(c.at)
	}
}

// conn is one end of a connection.
type conn struct {
	h             *host
	other         *conn
	in, out       *stream
	local, remote address
	number        int
	closed        bool // guarded by network.mu
	keepsAlive    bool // guarded by network.mu
	deadline      time.Time
}

// Errors of readers.
var (
	errReset        = opError("read", syscall.ECONNRESET)
	errReadClosed   = opError("read", net.ErrClosed)
	errReadDeadline = opError("read", os.ErrDeadlineExceeded)
)

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	c.h.n.mu.Lock()
	defer c.h.n.mu.Unlock()
	for {
		n, err := c.readLocked(p)
		if n > 0 || err != nil {
			return n, err
		}
		c.awaitLocked()
	}
}

// readLocked reads what has arrived, or says why nothing ever will; 0 and nil if there is nothing yet.
func (c *conn) readLocked(p []byte) (int, error) {
	now := time.Now()
	switch {
	case c.closed:
		return 0, errReadClosed
	case c.h.dead:
		return 0, errReset
	case !c.deadline.IsZero() && !c.deadline.After(now):
		return 0, errReadDeadline
	case c.in.err != nil:
		return 0, c.in.err
	case len(c.in.chunks) == 0 || c.in.chunks[0].at.After(now):
		return 0, nil
	}
	k := &c.in.chunks[0]
	if k.eof {
		return 0, io.EOF
	}
	m := copy(p, k.data)
	if k.data = k.data[m:]; len(k.data) == 0 {
		c.in.chunks = c.in.chunks[1:]
	}
	return m, nil
}

// awaitLocked waits, without the lock, until there may be something to read.
func (c *conn) awaitLocked() {
	s := c.in
	at := c.deadline
	if len(s.chunks) > 0 && (at.IsZero() || s.chunks[0].at.Before(at)) {
		at = s.chunks[0].at
	}
	s.wakeAtLocked(at)
	var arrival <-chan time.Time
	if s.arrival != nil {
		arrival = s.arrival.C
	}
	s.waits = true
	c.h.n.mu.Unlock()
	select {
	case <-s.changed:
	case <-arrival:
	}
	c.h.n.mu.Lock()
	s.waits = false
	select {
	case <-s.changed: // both
	default:
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n := c.h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case c.closed:
		return 0, opError("write", net.ErrClosed)
	case c.h.dead:
		return len(p), nil
	case c.in.err != nil:
		return 0, opError("write", syscall.EPIPE)
	}
	n.sendLocked(c.out, chunk{data: append([]byte(nil), p...)})
	return len(p), nil
}

// Close implements net.Conn. Over a cut link the other end does not learn of it.
func (c *conn) Close() error {
	n := c.h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.closed {
		return opError("close", net.ErrClosed)
	}
	c.closed = true
	if !c.h.dead {
		n.sendLocked(c.out, chunk{eof: true})
	}
	c.in.notifyLocked()
	if c.other.closed {
		delete(n.conns, c)
		delete(n.conns, c.other)
	}
	return nil
}

// SetDeadline implements net.Conn. A write never waits.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.h.n.mu.Lock()
	defer c.h.n.mu.Unlock()
	c.deadline = t
	c.in.notifyLocked()
	return nil
}

// SetWriteDeadline implements net.Conn.
func (*conn) SetWriteDeadline(time.Time) error { return nil }

// keepAliveLimit is after how long of silence an end of a connection with keepAlive is reset: as long as HTTP/2
// takes, whose pings HTTP/1 does not have.
const keepAliveLimit = 2 * patience

// keepAlive has this end probe the other, as TCP does: it is reset when there was no answer for keepAliveLimit.
func (c *conn) keepAlive() {
	c.h.n.mu.Lock()
	defer c.h.n.mu.Unlock()
	c.keepsAlive = true
}

// endSilent resets the ends of the connections that have had no answer for keepAliveLimit.
func (n *network) endSilent() {
	n.mu.Lock()
	defer n.mu.Unlock()
	over := func(l link) bool { return n.isCutLocked(l) && time.Since(n.cut[l]) >= keepAliveLimit }
	for _, c := range n.connsLocked() {
		if c.keepsAlive && c.in.err == nil && (over(c.in.link) || over(c.out.link) || c.other.h.dead) {
			c.in.err = errReset
			c.in.notifyLocked()
		}
	}
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// connsLocked returns the ends of all connections in the order in which they were opened.
func (n *network) connsLocked() []*conn {
	return slices.SortedFunc(maps.Keys(n.conns), func(a, b *conn) int { return a.number - b.number })
}

func (n *network) resetLocked(c *conn) {
	for _, s := range []*stream{c.in, c.out} {
		if s.err == nil {
			s.err = errReset
			s.notifyLocked()
		}
	}
	delete(n.conns, c)
	delete(n.conns, c.other)
}

// isolate cuts a party from others, in both directions.
func (n *network) isolate(party string, others ...string) {
	for _, o := range others {
		if o != party {
			n.cutLink(party, o)
			n.cutLink(o, party)
		}
	}
}

// cutLink stalls what is sent from one party to another.
func (n *network) cutLink(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.isCutLocked(link{from, to}) {
		n.cut[link{from, to}] = time.Now()
		time.AfterFunc(keepAliveLimit, n.endSilent)
	}
}

func (n *network) isCutLocked(l link) bool { return !n.cut[l].IsZero() }

// slowLink delays what is sent from one party to another.
func (n *network) slowLink(from, to string, by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.slow[link{from, to}] = by
}

// mend mends links of a party, all for "". Of the connections with stalled bytes
// some are reset, and on the others the bytes arrive now.
func (n *network) mend(party string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := func(l link) bool { return party == "" || l.from == party || l.to == party }
	for l := range n.cut {
		if of(l) {
			delete(n.cut, l)
		}
	}
	for l := range n.slow {
		if of(l) {
			delete(n.slow, l)
		}
	}
	for _, c := range n.connsLocked() {
		held := c.out.held
		if len(held) == 0 || n.isCutLocked(c.out.link) {
			continue
		}
		if n.rng.IntN(2) == 0 {
			n.resetLocked(c)
			continue
		}
		c.out.held = nil
		for _, k := range held {
			n.sendLocked(c.out, k)
		}
	}
}

// reset resets the connections between two parties: what is on its way is lost,
// also the answers to requests that had their effect.
func (n *network) reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.connsLocked() {
		if c.out.link == (link{a, b}) {
			n.resetLocked(c)
		}
	}
}

// kill ends a run of a party: its process dies, and its connections are reset, or,
// if silent, its machine dies and nobody is told.
func (n *network) kill(h *host, silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h.dead = true
	time.AfterFunc(keepAliveLimit, n.endSilent)
	for _, c := range n.connsLocked() {
		if c.h != h {
			continue
		}
		if !silent && !n.isCutLocked(c.out.link) {
			n.resetLocked(c)
			continue
		}
		c.in.notifyLocked() // its own readers end
	}
	for at, l := range n.listeners {
		if l.h == h {
			delete(n.listeners, at)
		}
	}
}

// end ends every connection.
func (n *network) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.connsLocked() {
		n.resetLocked(c)
	}
}
