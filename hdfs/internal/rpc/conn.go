package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
)

// conn is one connection to one server, shared by the calls of several goroutines;
// one goroutine reads. It ends with its first error and is not used again.
type conn struct {
	address string
	netConn net.Conn
	done    chan struct{} // closed when the reader has ended

	writeMu sync.Mutex // one frame at a time; taken before mu

	mu      sync.Mutex
	pending map[int32]chan response // capacity 1 each
	err     error                   // why the connection ended
}

// dialOptions configures dial.
type dialOptions struct {
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	auth     Auth
	protocol string
	clientID []byte
	maxFrame int
}

// dial connects, authenticates and starts the reader.
func dial(ctx context.Context, address string, o dialOptions) (*conn, error) {
	nc, err := o.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	established, err := handshake(ctx, nc, o)
	if err != nil {
		nc.Close()
		return nil, err
	}
	if !stop() {
		nc.Close()
		return nil, context.Cause(ctx)
	}
	c := &conn{address: address, netConn: established, done: make(chan struct{}), pending: map[int32]chan response{}}
	go c.readResponses(o.maxFrame)
	return c, nil
}

func handshake(ctx context.Context, nc net.Conn, o dialOptions) (net.Conn, error) {
	hello := []byte{'h', 'r', 'p', 'c', rpcVersion, 0, o.auth.Protocol()}
	if _, err := nc.Write(hello); err != nil {
		return nil, err
	}
	nc, err := o.auth.Negotiate(ctx, nc)
	if err != nil {
		return nil, fmt.Errorf("authenticate as %q: %w", o.auth.User(), err)
	}
	_, err = nc.Write(frame(requestHeader(o.clientID, contextCallID, 0), connectionContext(o.auth.User(), o.protocol)))
	return nc, err
}

// readResponses passes responses to their callers until the connection ends.
func (c *conn) readResponses(maxFrame int) {
	defer close(c.done)
	r := bufio.NewReaderSize(c.netConn, 64<<10)
	for {
		b, err := readFrame(r, maxFrame)
		if err != nil {
			c.fail(err)
			return
		}
		answer, err := decodeResponse(b)
		if err != nil {
			c.fail(err)
			return
		}
		c.mu.Lock()
		waiter := c.pending[answer.callID]
		delete(c.pending, answer.callID)
		c.mu.Unlock()
		if waiter != nil {
			waiter <- answer
		}
		if answer.fatal {
			c.fail(answer.err)
			return
		}
	}
}

// fail ends the connection and stores the first error.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	for _, waiter := range c.pending {
		close(waiter)
	}
	clear(c.pending)
	c.mu.Unlock()
	c.netConn.Close()
}

// close ends the connection and waits for its goroutine.
func (c *conn) close() {
	c.fail(net.ErrClosed)
	<-c.done
}

// alive reports whether the connection is still usable.
func (c *conn) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil
}

// errConnection marks a failure of the connection rather than of the call; the
// server may have executed the call.
var errConnection = errors.New("connection to the NameNode failed")

// call sends one request and waits for its response until ctx ends. The caller owns
// the response.
func (c *conn) call(ctx context.Context, callID int32, request []byte) ([]byte, error) {
	waiter := make(chan response, 1)
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", errConnection, err)
	}
	c.pending[callID] = waiter
	c.mu.Unlock()

	if err := c.write(ctx, request); err != nil {
		c.fail(err)
		return nil, fmt.Errorf("%w: %w", errConnection, err)
	}
	select {
	case answer, ok := <-waiter:
		if !ok {
			c.mu.Lock()
			defer c.mu.Unlock()
			return nil, fmt.Errorf("%w: %w", errConnection, c.err)
		}
		if answer.err != nil {
			return nil, answer.err
		}
		return answer.body, nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.pending, callID)
		c.mu.Unlock()
		return nil, context.Cause(ctx)
	}
}

func (c *conn) write(ctx context.Context, request []byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	deadline, _ := ctx.Deadline() // the zero time is no deadline
	c.netConn.SetWriteDeadline(deadline)
	_, err := c.netConn.Write(request)
	return err
}

// isServerFailure reports whether the same call may succeed later or over another
// connection.
func isServerFailure(err error) bool {
	switch {
	case errors.Is(err, hdfs.ErrPermission), errors.Is(err, hdfs.ErrProtocol), errors.Is(err, ErrTooFewNodes):
		return false
	default:
		return errors.Is(err, errConnection) || errors.Is(err, hdfs.ErrUnavailable)
	}
}
