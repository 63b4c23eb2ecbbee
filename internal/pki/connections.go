package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"sync"
)

// maxStrangers bounds the open connections without a certificate, on ports where
// one is optional.
const maxStrangers = 2048

// strangers is the name under which all of them are counted.
const strangers = "strangers"

// Connections follows the open TLS connections of an HTTP server: at most a
// number for each certificate name, or for each address of callers without one,
// and none of a revoked certificate. The server's configuration comes from Config,
// and its ConnState is Observe.
type Connections struct {
	limit int

	mu   sync.Mutex
	open map[net.Conn]connection // by what is below TLS
	by   map[string]int          // connections by name
}

type connection struct {
	name string            // common name, or the address of a stranger
	leaf *x509.Certificate // nil for a stranger
}

// NewConnections returns a table that allows limit connections for each name.
func NewConnections(limit int) *Connections {
	return &Connections{limit: limit, open: map[net.Conn]connection{}, by: map[string]int{}}
}

var errTooManyConnections = errors.New("the caller has too many connections")

// Config returns the configuration of a server whose connections are counted. One counts from
// the end of its handshake on, also if no request ever comes by it; one over the limit is closed.
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
				_ = hello.Conn.Close() // before an alert, which would blame the certificate
				return errTooManyConnections
			}
			return nil
		}
		return of, nil
	}
	return counted
}

// Observe implements http.Server.ConnState.
func (t *Connections) Observe(c net.Conn, s http.ConnState) {
	if tc, ok := c.(*tls.Conn); ok && (s == http.StateClosed || s == http.StateHijacked) {
		t.remove(tc.NetConn())
	}
}

// add counts a connection, below TLS, unless its caller has too many.
func (t *Connections) add(c net.Conn, peers []*x509.Certificate) bool {
	var x connection
	if len(peers) > 0 {
		x = connection{peers[0].Subject.CommonName, peers[0]}
	} else {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String()) // "" if it has none
		x.name = "address " + host                               // no common name begins so
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by[x.name] >= t.limit || x.leaf == nil && t.by[strangers] >= maxStrangers {
		return false
	}
	t.open[c] = x
	t.countLocked(x, 1)
	return true
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
		t.countLocked(x, -1)
	}
}

// CloseRevoked closes the connections of revoked certificates, with the calls on
// them, and returns the names of those certificates.
func (t *Connections) CloseRevoked(m *Member) (names []string) {
	t.mu.Lock()
	var gone []net.Conn
	for c, x := range t.open {
		if x.leaf != nil && m.Revoked(x.leaf) {
			gone = append(gone, c)
			names = append(names, x.name)
		}
	}
	t.mu.Unlock()
	for _, c := range gone {
		_ = c.Close() // Observe removes it
	}
	return names
}
