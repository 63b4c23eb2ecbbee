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

// Options configures a Client. Addresses and Auth are required.
type Options struct {
	// Addresses are the servers of one name service, host:port. Any may be active.
	Addresses []string
	Auth      Auth
	// Protocol is the Java name of the called interface.
	Protocol string
	// Dial opens connections; nil: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTimeout bounds opening a connection; 0 means 5 s.
	DialTimeout time.Duration
	// CallTimeout bounds one attempt of a call; 0: 20 s.
	CallTimeout time.Duration
	// WaitLimit bounds the retries of a call while no server can answer; 0: 60 s,
	// negative: no retries.
	WaitLimit time.Duration
	// minBackoff and maxBackoff bound the pause between rounds over all servers; 0:
	// 100 ms and 2 s. It doubles from round to round.
	minBackoff, maxBackoff time.Duration
	// Jitter returns numbers in [0, 1) that spread the pauses of many clients over
	// half of their length; nil: no jitter.
	Jitter func() float64
	// MaxFrame bounds a response in bytes; 0: 64 MiB.
	MaxFrame int
	// OnWait is called before each pause; it must return soon.
	OnWait func(hdfs.WaitNotice)
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
	setDefault(&o.minBackoff, 100*time.Millisecond)
	setDefault(&o.maxBackoff, 2*time.Second)
	setDefault(&o.MaxFrame, 64<<20)
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Jitter == nil {
		o.Jitter = func() float64 { return 0 }
	}
	if o.OnWait == nil {
		o.OnWait = func(hdfs.WaitNotice) {}
	}
	return nil
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// Client calls methods of a name service. It dials at its first call and after each
// loss of the connection.
type Client struct {
	options    Options
	id         []byte // 16 random bytes; together with the call id the key of the server's retry cache
	lastCallID atomic.Int32
	dialing    chan struct{} // capacity 1: held by the goroutine that dials

	mu             sync.Mutex
	closed         bool
	conn           *conn
	currentAddress int // index of the address that answered last
}

// NewClient validates the options. It does no I/O.
func NewClient(options Options) (*Client, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	c := &Client{options: options, id: make([]byte, 16), dialing: make(chan struct{}, 1)}
	rand.Read(c.id) // never fails
	return c, nil
}

// ID returns the client id that is sent with each request.
func (c *Client) ID() []byte { return c.id }

// Addresses returns the addresses of the servers, for messages.
func (c *Client) Addresses() string { return strings.Join(c.options.Addresses, ", ") }

// Close closes the connection and waits for its goroutine; calls in progress fail.
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

// Call sends a request message and returns the response message, which the caller owns. While no
// server can answer (down, standby, safe mode, starting) it retries with the same call id until
// WaitLimit has passed, and then returns an ErrUnavailable with the last error. A call whose
// context has ended is not sent: it could change something.
func (c *Client) Call(ctx context.Context, method string, request []byte) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s at NameNode: %w", method, context.Cause(ctx))
	}
	callID := c.lastCallID.Add(1) & 0x7fffffff
	start := time.Now()
	backoff := c.options.minBackoff
	for try := 0; ; try++ {
		// 1. Call the server that answered last, or the next one.
		body, address, err := c.attempt(ctx, method, callID, try, request)
		if err == nil {
			return body, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s at NameNode %s: %w", method, address, errors.Join(context.Cause(ctx), err))
		}
		if !isServerFailure(err) {
			return nil, fmt.Errorf("NameNode %s: %s: %w", address, method, err)
		}
		// 2. Try every server of the name service once before the first pause.
		if (try+1)%len(c.options.Addresses) != 0 {
			continue
		}
		// 3. Give up, or notify and pause.
		left := c.options.WaitLimit - time.Since(start)
		if left <= 0 {
			return nil, c.giveUpError(method, time.Since(start), try+1, err)
		}
		c.options.OnWait(hdfs.WaitNotice{Address: address, Reason: shortReason(err), Remaining: left})
		pause := backoff - time.Duration(c.options.Jitter()*float64(backoff)/2)
		if err := hdfs.Sleep(ctx, min(pause, left)); err != nil {
			return nil, fmt.Errorf("%s at NameNode %s (%s): %w", method, address, shortReason(err), err)
		}
		backoff = min(2*backoff, c.options.maxBackoff)
	}
}

// giveUpError describes the last error and how long the call was retried.
func (c *Client) giveUpError(method string, waited time.Duration, tries int, last error) error {
	last = fmt.Errorf("%s: %w", method, last)
	err := fmt.Errorf("NameNode %s: %w", c.Addresses(), last)
	if c.options.WaitLimit > 0 {
		err = fmt.Errorf("NameNode %s did not answer within %s (%d tries): %w",
			c.Addresses(), waited.Round(100*time.Millisecond), tries, last)
	}
	if errors.Is(last, hdfs.ErrUnavailable) {
		return err
	}
	return classifiedError{err, hdfs.ErrUnavailable}
}

// classifiedError adds a class to an error without changing its text.
type classifiedError struct {
	error
	class error
}

func (e classifiedError) Unwrap() []error { return []error{e.error, e.class} }

// attempt makes one attempt. After a failure of the server it switches to the next
// address.
func (c *Client) attempt(ctx context.Context, method string, callID int32, retry int, request []byte) ([]byte, string, error) {
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
		// The server did not answer in time; the caller's context has not ended. Do
		// not reuse the connection.
		err = fmt.Errorf("%w: no answer to %s within %s", errConnection, method, c.options.CallTimeout)
	}
	if errors.Is(err, errConnection) || errors.Is(err, hdfs.ErrStandby) {
		c.dropConnection(conn)
	}
	return nil, address, err
}

// dropConnection discards a failed connection and switches to the next address.
func (c *Client) dropConnection(old *conn) {
	c.mu.Lock()
	if c.conn == old {
		c.conn = nil
		c.currentAddress = (c.currentAddress + 1) % len(c.options.Addresses)
	}
	c.mu.Unlock()
	old.close()
}

// connection returns the live connection or dials a new one. One caller dials while
// the others wait.
func (c *Client) connection(ctx context.Context) (*conn, string, error) {
	if conn, address, err := c.liveConnection(); conn != nil || err != nil {
		return conn, address, err
	}
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, c.Addresses(), context.Cause(ctx)
	}
	existing, address, err := c.liveConnection()
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
		c.currentAddress = (c.currentAddress + 1) % len(c.options.Addresses)
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

// liveConnection returns the live connection, if any, and the current address.
func (c *Client) liveConnection() (*conn, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	address := c.options.Addresses[c.currentAddress]
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
