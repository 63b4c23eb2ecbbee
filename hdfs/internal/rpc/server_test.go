package rpc

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"testing"

	pw "google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs/internal/wire"
)

// recordedCall is a request as the test server received it.
type recordedCall struct {
	id, retry    int64
	clientID     string
	user, method string
	request      []byte
}

// testServer is a NameNode whose responses come from a function; nil closes the
// connection.
type testServer struct {
	net.Listener
	respond func(recordedCall) []byte

	running sync.WaitGroup
	mu      sync.Mutex
	calls   []recordedCall
	conns   []net.Conn
}

func newTestServer(t testing.TB, address string, answer func(recordedCall) []byte) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{Listener: l, respond: answer}
	s.running.Go(s.accept)
	t.Cleanup(s.stop)
	return s
}

func (s *testServer) stop() {
	s.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

func (s *testServer) accept() {
	for {
		c, err := s.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.running.Go(func() { s.serve(c) })
	}
}

func (s *testServer) recordedCalls() []recordedCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]recordedCall(nil), s.calls...)
}

func (s *testServer) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	if _, err := io.ReadFull(r, make([]byte, 7)); err != nil {
		return
	}
	user := ""
	for {
		b, err := readFrame(r, 1<<20)
		if err != nil {
			return
		}
		header, rest, _ := wire.CutDelimited(b)
		first, rest, _ := wire.CutDelimited(rest)
		var k recordedCall
		wire.Each(header, func(f wire.Field) error {
			switch f.Number {
			case 3:
				k.id = pw.DecodeZigZag(f.Varint)
			case 4:
				k.clientID = string(f.Bytes)
			case 5:
				k.retry = pw.DecodeZigZag(f.Varint)
			}
			return nil
		})
		if k.id == contextCallID {
			wire.Each(first, func(f wire.Field) error {
				if f.Number == 2 {
					return wire.Each(f.Bytes, func(f wire.Field) error { return f.SetString(&user) })
				}
				return nil
			})
			continue
		}
		wire.Each(first, func(f wire.Field) error {
			if f.Number == 1 {
				return f.SetString(&k.method)
			}
			return nil
		})
		k.request, _, _ = wire.CutDelimited(rest)
		k.user = user
		s.mu.Lock()
		s.calls = append(s.calls, k)
		s.mu.Unlock()
		answer := s.respond(k)
		if answer == nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// successResponse encodes a successful response.
func successResponse(k recordedCall, body string) []byte {
	return frame(wire.Message(nil).Uint(1, uint64(uint32(k.id))).Uint(2, 0), []byte(body))
}

// exceptionResponse encodes an exception; status 2 is fatal.
func exceptionResponse(k recordedCall, status uint64, class, message string) []byte {
	return frame(wire.Message(nil).Uint(1, uint64(uint32(k.id))).Uint(2, status).String(4, class).String(5, message))
}

func newTestClient(t testing.TB, o Options) *Client {
	t.Helper()
	if o.Auth == nil {
		o.Auth = SimpleAuth("alice")
	}
	c, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// loopback returns a dial function that resolves addresses by names.
func loopback(names map[string]string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, names[address])
	}
}
