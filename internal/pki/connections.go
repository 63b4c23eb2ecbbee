package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"sync"
)

// Connections follows the open TLS connections of an HTTP server: at most a
// number for each certificate name, and none of a revoked certificate. Its
// method Observe is the server's ConnState.
type Connections struct {
	limit int

	mu   sync.Mutex
	open map[net.Conn]*x509.Certificate
	by   map[string]int // connections by common name
}

// NewConnections returns a table that allows limit connections for each name.
func NewConnections(limit int) *Connections {
	return &Connections{limit: limit, open: map[net.Conn]*x509.Certificate{}, by: map[string]int{}}
}

// Observe implements http.Server.ConnState. A connection counts once its
// handshake is complete; one over the limit is closed.
func (t *Connections) Observe(c net.Conn, s http.ConnState) {
	switch s {
	case http.StateActive, http.StateIdle:
		if !t.add(c) {
			_ = c.Close() // over the limit: it has no use for an answer
		}
	case http.StateClosed, http.StateHijacked:
		t.remove(c)
	}
}

func (t *Connections) add(c net.Conn) bool {
	tc, ok := c.(*tls.Conn)
	if !ok {
		return true
	}
	state := tc.ConnectionState()
	if len(state.PeerCertificates) == 0 {
		return true
	}
	leaf := state.PeerCertificates[0]
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[c] != nil {
		return true
	}
	if t.by[leaf.Subject.CommonName] >= t.limit {
		return false
	}
	t.open[c] = leaf
	t.by[leaf.Subject.CommonName]++
	return true
}

func (t *Connections) remove(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	leaf := t.open[c]
	if leaf == nil {
		return
	}
	delete(t.open, c)
	if t.by[leaf.Subject.CommonName]--; t.by[leaf.Subject.CommonName] == 0 {
		delete(t.by, leaf.Subject.CommonName)
	}
}

// CloseRevoked closes the connections of revoked certificates, with the calls on
// them, and returns the names of those certificates.
func (t *Connections) CloseRevoked(m *Member) (names []string) {
	t.mu.Lock()
	var gone []net.Conn
	for c, leaf := range t.open {
		if m.Revoked(leaf) {
			gone = append(gone, c)
			names = append(names, leaf.Subject.CommonName)
		}
	}
	t.mu.Unlock()
	for _, c := range gone {
		_ = c.Close() // Observe removes it
	}
	return names
}
