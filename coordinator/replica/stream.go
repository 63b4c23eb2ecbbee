package replica

import (
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// stream is raft's network: TCP, with mutual TLS where it is configured. It
// closes its connections with itself: raft leaves those that came in to the
// other side, which may be gone.
type stream struct {
	net.Listener
	tls *tls.Config

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// newStream lets only coordinators in: a user's or node's certificate of the
// same authority opens nothing here.
func newStream(c Config) *stream {
	s := &stream{Listener: c.Listener, open: map[net.Conn]bool{}}
	if c.TLS == nil {
		return s
	}
	conf := c.TLS.Clone()
	conf.ClientAuth = tls.RequireAndVerifyClientCert
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		kind, name, err := pki.Peer(&s)
		if err == nil && kind != pki.KindCoordinator {
			err = fault.New(fault.Denied, "%s/%s is no coordinator", kind, name)
		}
		return err
	}
	s.Listener, s.tls = tls.NewListener(c.Listener, conf), conf
	return s
}

// Accept takes a connection of another server.
func (s *stream) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.keep(c)
}

// Dial connects to another server.
func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout}
	var c net.Conn
	var err error
	if s.tls == nil {
		c, err = d.Dial("tcp", string(address))
	} else {
		c, err = tls.DialWithDialer(d, "tcp", string(address), s.tls)
	}
	if err != nil {
		return nil, err
	}
	return s.keep(c)
}

// Close ends the listener and every connection.
func (s *stream) Close() error {
	err := s.Listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.open {
		_ = c.Close() // what was under way on it fails either way
	}
	clear(s.open)
	return err
}

// keep notes an open connection until it is closed.
func (s *stream) keep(c net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	s.open[c] = true
	return &kept{c, s}, nil
}

// kept is a connection that its stream knows.
type kept struct {
	net.Conn
	s *stream
}

func (k *kept) Close() error {
	k.s.mu.Lock()
	delete(k.s.open, k.Conn)
	k.s.mu.Unlock()
	return k.Conn.Close()
}
