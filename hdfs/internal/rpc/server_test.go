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

// call is a request as the server of the tests sees it.
type call struct {
	id, retry    int64
	clientID     string
	user, method string
	request      []byte
}

// server is a NameNode made of a function: it answers with a whole frame, or
// with nil to hang up.
type server struct {
	net.Listener
	answer func(call) []byte

	running sync.WaitGroup
	mu      sync.Mutex
	calls   []call
	conns   []net.Conn
}

func newServer(t testing.TB, address string, answer func(call) []byte) *server {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Listener: l, answer: answer}
	s.running.Go(s.accept)
	t.Cleanup(s.stop)
	return s
}

func (s *server) stop() {
	s.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

func (s *server) accept() {
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

func (s *server) seen() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

func (s *server) serve(c net.Conn) {
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
		var k call
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
		answer := s.answer(k)
		if answer == nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// ok answers a call with a message.
func ok(k call, body string) []byte {
	return frame(wire.Message(nil).Uint(1, uint64(uint32(k.id))).Uint(2, 0), []byte(body))
}

// exception answers a call with an exception; status 2 is fatal.
func exception(k call, status uint64, class, message string) []byte {
	return frame(wire.Message(nil).Uint(1, uint64(uint32(k.id))).Uint(2, status).String(4, class).String(5, message))
}

func newTestClient(t testing.TB, o Options) *Client {
	t.Helper()
	if o.Auth == nil {
		o.Auth = Simple("alice")
	}
	c, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// loopback dials whatever address by name.
func loopback(names map[string]string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, names[address])
	}
}
