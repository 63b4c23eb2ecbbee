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

// streamLayer is raft's network: TCP, with mutual TLS if configured. Closing it
// closes its connections: raft leaves incoming ones to the other side, which
// may be gone.
type streamLayer struct {
	net.Listener
	tls *tls.Config

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// newStreamLayer returns a stream layer that accepts only coordinators: user
// and node certificates of the same CA are refused.
func newStreamLayer(c Config) *streamLayer {
	s := &streamLayer{Listener: c.Listener, open: map[net.Conn]bool{}}
	if c.TLS == nil {
		return s
	}
	conf := c.TLS.Clone()
	conf.ClientAuth = tls.RequireAndVerifyClientCert
	revoked := conf.VerifyConnection
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		if revoked != nil {
			if err := revoked(s); err != nil {
				return err
			}
		}
		kind, name, err := pki.PeerIdentity(&s)
		if err == nil && kind != pki.KindCoordinator {
			err = fault.New(fault.Denied, "%s/%s is not a coordinator", kind, name)
		}
		return err
	}
	s.Listener, s.tls = tls.NewListener(c.Listener, conf), conf
	return s
}

// Accept accepts a connection of another server.
func (s *streamLayer) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(c)
}

// Dial connects to another server.
func (s *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
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
	return s.track(c)
}

// Close closes the listener and every connection.
func (s *streamLayer) Close() error {
	err := s.Listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.open {
		_ = c.Close() // what was in progress on it fails either way
	}
	clear(s.open)
	return err
}

// track registers an open connection until it is closed.
func (s *streamLayer) track(c net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	s.open[c] = true
	return &trackedConn{c, s}, nil
}

// trackedConn is a connection registered with its stream layer.
type trackedConn struct {
	net.Conn
	s *streamLayer
}

func (k *trackedConn) Close() error {
	k.s.mu.Lock()
	delete(k.s.open, k.Conn)
	k.s.mu.Unlock()
	return k.Conn.Close()
}
