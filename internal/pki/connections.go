package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxStrangers bounds the open connections without a certificate, on ports where
// one is optional.
const maxStrangers = 2048

// strangers is the name under which all connections without a certificate are counted.
const strangers = "strangers"

// Connections tracks the open TLS connections of an HTTP server. It limits their number for each
// certificate name, or for each address of callers without a certificate, and allows none with a
// revoked certificate. The server uses the configuration of Config, and Observe as ConnState.
type Connections struct {
	limit int

	mu   sync.Mutex
	open map[net.Conn]connection // by the connection below TLS
	by   map[string]int          // connections by name
}

type connection struct {
	tls  *tls.Conn
	name string            // name that it counts for: the common name, or the address of a stranger; "" before it counts
	leaf *x509.Certificate // nil for a stranger
}

// NewConnections returns a table that allows limit connections for each name.
func NewConnections(limit int) *Connections {
	return &Connections{limit: limit, open: map[net.Conn]connection{}, by: map[string]int{}}
}

var errTooManyConnections = errors.New("the caller has too many connections")

// Config returns the configuration of a server whose connections are counted. A connection counts
// for a certificate's name from the end of its handshake on, even if no request ever follows. A
// connection over the limit is closed. It does not count during the handshake: a certificate is no
// secret, and only the client's last handshake message proves that it has the key.
func (t *Connections) Config(c *tls.Config) *tls.Config {
	counted := c.Clone()
	counted.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		of := c
		if c.GetConfigForClient != nil {
			chosen, err := c.GetConfigForClient(hello)
			if err != nil {
				return nil, err
			}
			if chosen != nil {
				of = chosen
			}
		}
		of = of.Clone()
		verify := of.VerifyConnection
		of.VerifyConnection = func(s tls.ConnectionState) error {
			if verify != nil {
				if err := verify(s); err != nil {
					return err
				}
			}
			if !t.add(hello.Conn, s.PeerCertificates) {
				_ = hello.Conn.Close() // closed before TLS sends an alert, which would blame the certificate
				return errTooManyConnections
			}
			if len(s.PeerCertificates) > 0 {
				context.AfterFunc(hello.Context(), func() { t.count(hello.Conn) }) // hello.Context ends with the handshake
			}
			return nil
		}
		return of, nil
	}
	return counted
}

// Observe implements http.Server.ConnState.
func (t *Connections) Observe(c net.Conn, s http.ConnState) {
	tc, ok := c.(*tls.Conn)
	if !ok {
		return
	}
	switch s {
	case http.StateNew: // before its handshake
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open[tc.NetConn()] = connection{tls: tc}
	case http.StateClosed, http.StateHijacked:
		t.remove(tc.NetConn())
	}
}

// add records the certificate that a connection c (below TLS) shows in its handshake, so that
// CloseEnded can close it from now on. It returns false if the caller has too many connections. A
// stranger's connection counts for its address from now on.
func (t *Connections) add(c net.Conn, peers []*x509.Certificate) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.open[c]
	if len(peers) > 0 {
		x.leaf = peers[0]
		t.open[c] = x
		return t.by[x.leaf.Subject.CommonName] < t.limit
	}
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String()) // "" if the remote address has no host
	x.name = "address " + host                               // no common name begins with "address "
	if t.by[x.name] >= t.limit || t.by[strangers] >= maxStrangers {
		return false
	}
	t.open[c] = x
	t.countLocked(x, 1)
	return true
}

// count counts a connection for the name on its certificate if its handshake, which has ended,
// proved the key. It closes the connection if the name has too many connections: other handshakes
// may have ended since add.
func (t *Connections) count(c net.Conn) {
	t.mu.Lock()
	tc := t.open[c].tls
	t.mu.Unlock()
	// Not under mu: ConnectionState waits for the handshake, and the handshake waits for add, which
	// takes mu.
	if tc == nil || !tc.ConnectionState().HandshakeComplete {
		return
	}
	t.mu.Lock()
	x, open := t.open[c] // false: closed meanwhile
	over := open && t.by[x.leaf.Subject.CommonName] >= t.limit
	if open && !over {
		x.name = x.leaf.Subject.CommonName
		t.open[c] = x
		t.countLocked(x, 1)
	}
	t.mu.Unlock()
	if over {
		_ = c.Close() // Observe removes it
	}
}

func (t *Connections) countLocked(x connection, n int) {
	names := []string{x.name}
	if x.leaf == nil {
		names = append(names, strangers)
	}
	for _, name := range names {
		if t.by[name] += n; t.by[name] == 0 {
			delete(t.by, name)
		}
	}
}

func (t *Connections) remove(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x, ok := t.open[c]; ok {
		delete(t.open, c)
		if x.name != "" {
			t.countLocked(x, -1)
		}
	}
}

// CloseEnded closes the connections whose certificates have ended (see Member.Ended), including the
// calls on them. For each it returns a text that names the certificate and gives the reason.
func (t *Connections) CloseEnded(m *Member, now time.Time) (closed []string) {
	t.mu.Lock()
	var gone []net.Conn
	for c, x := range t.open {
		if x.leaf == nil {
			continue
		}
		if why := m.Ended(x.leaf, now); why != "" {
			gone = append(gone, c)
			closed = append(closed, x.leaf.Subject.CommonName+" "+why)
		}
	}
	t.mu.Unlock()
	for _, c := range gone {
		_ = c.Close() // Observe removes it
	}
	return closed
}
