package rpc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-run/drover/hdfs"
)

// Options of a Client. Addresses and Auth must be set.
type Options struct {
	// Addresses of the servers of one name service, host:port. Any of them may
	// be the active one.
	Addresses []string
	Auth      Auth
	// Protocol is the Java name of the interface that is called.
	Protocol string
	// Dial opens connections; nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTimeout bounds opening a connection; 0 means 5 s.
	DialTimeout time.Duration
	// CallTimeout bounds one try of one call; 0 means 20 s.
	CallTimeout time.Duration
	// WaitLimit bounds how long a call is repeated while no server can answer;
	// 0 means 60 s, negative means not at all.
	WaitLimit time.Duration
	// MinBackoff and MaxBackoff bound the pause between rounds over all
	// servers; 0 means 100 ms and 2 s. It doubles from round to round.
	MinBackoff, MaxBackoff time.Duration
	// Jitter gives numbers in [0, 1) that spread the pauses of many clients
	// over half of their length; nil means none.
	Jitter func() float64
	// MaxFrame bounds an answer in bytes; 0 means 64 MiB.
	MaxFrame int
	// Notify is told before each pause; it must return soon.
	Notify func(hdfs.Waiting)
}

func (o *Options) setDefaults() error {
	if len(o.Addresses) == 0 {
		return fmt.Errorf("%w: no NameNode is named", hdfs.ErrInvalid)
	}
	for _, address := range o.Addresses {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return fmt.Errorf("%w: NameNode %q is not host:port", hdfs.ErrInvalid, address)
		}
	}
	if o.Auth == nil || o.Auth.User() == "" {
		return fmt.Errorf("%w: no HDFS user is named", hdfs.ErrInvalid)
	}
	setDefault(&o.DialTimeout, 5*time.Second)
	setDefault(&o.CallTimeout, 20*time.Second)
	setDefault(&o.WaitLimit, time.Minute)
	setDefault(&o.MinBackoff, 100*time.Millisecond)
	setDefault(&o.MaxBackoff, 2*time.Second)
	setDefault(&o.MaxFrame, 64<<20)
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Jitter == nil {
		o.Jitter = func() float64 { return 0 }
	}
	if o.Notify == nil {
		o.Notify = func(hdfs.Waiting) {}
	}
	return nil
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// Client calls methods of a name service. It dials at its first call and again
// whenever the connection was lost.
type Client struct {
	options Options
	id      []byte // 16 random bytes; with the call id, the key of the server's retry cache
	calls   atomic.Int32
	dialing chan struct{} // capacity 1: held by who dials

	mu      sync.Mutex
	closed  bool
	conn    *conn
	current int // index of the address that answered last
}

// NewClient checks the options. It does no I/O.
func NewClient(options Options) (*Client, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	c := &Client{options: options, id: make([]byte, 16), dialing: make(chan struct{}, 1)}
	rand.Read(c.id) // never fails
	return c, nil
}

// ID is the client id that goes with each request.
func (c *Client) ID() []byte { return c.id }

// User is whom the server takes the caller for.
func (c *Client) User() string { return c.options.Auth.User() }

// Addresses names the servers for messages.
func (c *Client) Addresses() string { return strings.Join(c.options.Addresses, ", ") }

// Close ends the connection; calls under way fail. It waits for the goroutine.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	old := c.conn
	c.conn = nil
	c.mu.Unlock()
	if old != nil {
		old.close()
	}
	return nil
}

// Call sends a request message and returns the response message, which is the
// caller's. While no server can answer (down, standby, safe mode, starting) it
// tries again, under the same call id, until WaitLimit has passed; the error is
// then an ErrUnavailable that says what was seen last.
func (c *Client) Call(ctx context.Context, method string, request []byte) ([]byte, error) {
	callID := c.calls.Add(1) & 0x7fffffff
	start := time.Now()
	backoff := c.options.MinBackoff
	for try := 0; ; try++ {
		// 1. Ask the server that answered last, or the next one.
		body, address, err := c.try(ctx, method, callID, try, request)
		if err == nil {
			return body, nil
		}
		if remote := (*RemoteError)(nil); errors.As(err, &remote) {
			remote.Method = method
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s at NameNode %s: %w", method, address, errors.Join(context.Cause(ctx), err))
		}
		if !connectionFailure(err) {
			return nil, fmt.Errorf("NameNode %s: %w", address, err)
		}
		// 2. In a name service, ask every server once before the first pause.
		if (try+1)%len(c.options.Addresses) != 0 {
			continue
		}
		// 3. Give up, or say so and pause.
		left := c.options.WaitLimit - time.Since(start)
		if left <= 0 {
			return nil, c.gaveUp(method, time.Since(start), try+1, err)
		}
		c.options.Notify(hdfs.Waiting{Address: address, Reason: reason(err), Left: left})
		pause := backoff - time.Duration(c.options.Jitter()*float64(backoff)/2)
		if err := hdfs.Sleep(ctx, min(pause, left)); err != nil {
			return nil, fmt.Errorf("%s at NameNode %s (%s): %w", method, address, reason(err), err)
		}
		backoff = min(2*backoff, c.options.MaxBackoff)
	}
}

// gaveUp says what was seen last, and how long was waited for something else.
func (c *Client) gaveUp(method string, waited time.Duration, tries int, last error) error {
	if remote := (*RemoteError)(nil); !errors.As(last, &remote) {
		last = fmt.Errorf("%s: %w", method, last) // a RemoteError names it itself
	}
	err := fmt.Errorf("NameNode %s: %w", c.Addresses(), last)
	if c.options.WaitLimit > 0 {
		err = fmt.Errorf("NameNode %s did not answer within %s (%d tries): %w",
			c.Addresses(), waited.Round(100*time.Millisecond), tries, last)
	}
	if errors.Is(last, hdfs.ErrUnavailable) {
		return err
	}
	return classed{err, hdfs.ErrUnavailable}
}

// classed gives an error a class without changing its text.
type classed struct {
	error
	class error
}

func (e classed) Unwrap() []error { return []error{e.error, e.class} }

// try makes one attempt. On a failure of the server it moves on to the next
// address.
func (c *Client) try(ctx context.Context, method string, callID int32, retry int, request []byte) ([]byte, string, error) {
	conn, address, err := c.connection(ctx)
	if err != nil {
		return nil, address, err
	}
	callCtx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	body, err := conn.call(callCtx, callID,
		frame(requestHeader(c.id, callID, retry), methodHeader(method, c.options.Protocol), request))
	if err == nil || ctx.Err() != nil {
		return body, address, err
	}
	if callCtx.Err() != nil {
		// The server is silent, not the caller impatient: do not trust the
		// connection any more.
		err = fmt.Errorf("%w: no answer to %s within %s", errConnection, method, c.options.CallTimeout)
	}
	if errors.Is(err, errConnection) || errors.Is(err, hdfs.ErrStandby) {
		c.drop(conn)
	}
	return nil, address, err
}

// drop forgets a connection that failed and moves on to the next address.
func (c *Client) drop(old *conn) {
	c.mu.Lock()
	if c.conn == old {
		c.conn = nil
		c.current = (c.current + 1) % len(c.options.Addresses)
	}
	c.mu.Unlock()
	old.close()
}

// connection gives the live connection, or makes one. One caller dials, the
// others wait for it.
func (c *Client) connection(ctx context.Context) (*conn, string, error) {
	if conn, address, err := c.existing(); conn != nil || err != nil {
		return conn, address, err
	}
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, c.Addresses(), context.Cause(ctx)
	}
	existing, address, err := c.existing()
	if existing != nil || err != nil {
		return existing, address, err
	}
	dialCtx, cancel := context.WithTimeout(ctx, c.options.DialTimeout)
	defer cancel()
	fresh, err := dial(dialCtx, address, dialOptions{
		dial: c.options.Dial, auth: c.options.Auth, protocol: c.options.Protocol,
		clientID: c.id, maxFrame: c.options.MaxFrame,
	})
	c.mu.Lock()
	if err != nil {
		c.current = (c.current + 1) % len(c.options.Addresses)
		c.mu.Unlock()
		return nil, address, fmt.Errorf("%w: %w", errConnection, err)
	}
	if c.closed {
		c.mu.Unlock()
		fresh.close()
		return nil, address, net.ErrClosed
	}
	c.conn = fresh
	c.mu.Unlock()
	return fresh, address, nil
}

// existing gives the live connection if there is one, and the address in turn.
func (c *Client) existing() (*conn, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	address := c.options.Addresses[c.current]
	if c.closed {
		return nil, address, fmt.Errorf("client of NameNode %s: %w", address, net.ErrClosed)
	}
	if c.conn != nil && !c.conn.alive() {
		c.conn = nil
	}
	if c.conn == nil {
		return nil, address, nil
	}
	return c.conn, c.conn.address, nil
}
