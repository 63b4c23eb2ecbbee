package coordinator

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// The price of a refused call: for this long nothing is read from the connection it came by, nor
// from the identity's other connections on which calls are refused meanwhile. A caller that waits
// for each response is so slowed down to a hundred refused calls a second. One that does not wait
// fills the buffers of its own connections.
const (
	pausePerRefusal = 10 * time.Millisecond
	longestPause    = time.Second // so that a caller who stops sending refused calls is served again soon
)

// backpressure stops reading from callers whose calls are refused: to decrypt, parse and refuse
// thousands of calls a second would take a processor from everybody else's tasks.
type backpressure struct {
	now func() time.Time

	mu    sync.Mutex
	until map[string]time.Time // by identity
}

func newBackpressure() *backpressure {
	return &backpressure{now: time.Now, until: map[string]time.Time{}}
}

// refused records a refused call, and pauses its connection. Other coordinators and the local
// operator are never paused.
func (b *backpressure) refused(ctx context.Context, id identity, err error) {
	conn, ok := ctx.Value(connKey{}).(*pausableConn)
	if !ok || id.kind == kindLocal || id.kind == kindPeer {
		return
	}
	if class := fault.Class(err); class != fault.Exhausted && class != fault.Denied {
		return
	}
	conn.pause(b.extend(id.name))
}

// extend returns for how long the identity's connections are paused from now on.
func (b *backpressure) extend(name string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if len(b.until) >= maxRates {
		clear(b.until) // they are a second long at most
	}
	from := b.until[name]
	if from.Before(now) {
		from = now
	}
	to := from.Add(pausePerRefusal)
	if last := now.Add(longestPause); to.After(last) {
		to = last
	}
	b.until[name] = to
	return to.Sub(now)
}

type connKey struct{}

// withConn is the ConnContext of a server whose listener is a pausingListener, below TLS.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		if p, ok := t.NetConn().(*pausableConn); ok {
			return context.WithValue(ctx, connKey{}, p)
		}
	}
	return ctx
}

// Limits of new connections from one address: a rate, with bursts of ten times that. A TLS
// handshake is expensive, and the caller is known only after it.
const (
	acceptRate   = 50
	longestQueue = 5 * time.Second // a connection that would wait longer is closed at once
)

// pausingListener accepts connections that can be paused. Those of an address that opens too many
// wait for their turn, without a handshake.
type pausingListener struct {
	net.Listener
	rates *rates // by address
}

func newPausingListener(l net.Listener) *pausingListener {
	return &pausingListener{l, newRates(acceptRate)}
}

// Accept implements net.Listener.
func (l *pausingListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String()) // "" if it has none
		wait, ok := l.rates.reserve(host, longestQueue)
		if !ok {
			_ = c.Close() // it has no use for an answer
			continue
		}
		p := &pausableConn{Conn: c, opened: time.Now(), closed: make(chan struct{})}
		if wait > 0 {
			p.pause(wait)
		}
		return p, nil
	}
}

// pausableConn is a connection whose reads can be paused. Meanwhile the data stays in the buffers
// of the sender and of the kernel.
type pausableConn struct {
	net.Conn
	opened time.Time
	until  atomic.Int64 // since opened, in nanoseconds
	once   sync.Once
	closed chan struct{}
}

func (c *pausableConn) pause(d time.Duration) {
	to := int64(time.Since(c.opened) + d)
	for {
		old := c.until.Load()
		if old >= to || c.until.CompareAndSwap(old, to) {
			return
		}
	}
}

// Read waits for the end of a pause, and reads.
func (c *pausableConn) Read(b []byte) (int, error) {
	for {
		left := time.Duration(c.until.Load()) - time.Since(c.opened)
		if left <= 0 {
			return c.Conn.Read(b)
		}
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-c.closed:
			t.Stop()
			return 0, net.ErrClosed
		}
	}
}

// Close ends a pause too.
func (c *pausableConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
