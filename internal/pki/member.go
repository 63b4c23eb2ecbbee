package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// ErrWrongPeer is a cause of errors about a verified certificate that is of another kind than
// wanted, or was revoked.
var ErrWrongPeer = errors.New("not the wanted kind of certificate")

// Member is one member of a cluster: its certificate, and the authority and revocation list with
// which it checks others. After Reload, a renewed certificate and a new revocation list are used
// from the next handshake on.
//
// Revoking a certificate does not close its open connections: servers check each request with
// Check, and close the connections with Connections.
type Member struct {
	files Files
	own   Kind // required kind of the own certificate, "" for any
	pool  *x509.CertPool
	cas   []*x509.Certificate
	pem   []byte

	mu      sync.RWMutex
	pair    *tls.Certificate
	stamps  map[string]stamp
	revoked *revocations
}

// stamp identifies the state of a file, to detect changes.
type stamp struct {
	mod  time.Time
	size int64
}

// Open loads the files of a member whose certificate must be of the given kind,
// "" for any. The revocation list beside the authority's certificate (ca.crl
// for ca.pem) is used if it exists.
func (f Files) Open(own Kind) (*Member, error) {
	pool, _, ca, err := f.Load()
	if err != nil {
		return nil, err
	}
	m := &Member{files: f, own: own, pool: pool, pem: ca, revoked: &revocations{}, stamps: map[string]stamp{}}
	if m.cas, err = parseCertificates(f.CA, ca); err != nil {
		return nil, err
	}
	return m, m.Reload()
}

// crlPath returns the file of the revocation list.
func (f Files) crlPath() string {
	return strings.TrimSuffix(f.CA, filepath.Ext(f.CA)) + ".crl"
}

// Reload reads the files that have changed. After an error the previously loaded files stay in use.
func (m *Member) Reload() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.reloadPairLocked(), m.reloadCRLLocked())
}

// ReloadFrom is Reload with the certificate and key in other files. Later reloads read these files
// too, unless they cannot be used.
func (m *Member) ReloadFrom(cert, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	former := m.files
	if cert != former.Cert || key != former.Key {
		m.files.Cert, m.files.Key = cert, key
		delete(m.stamps, cert) // the files may have been in use before
		delete(m.stamps, key)
	}
	if err := m.reloadPairLocked(); err != nil {
		m.files = former
		return err
	}
	return m.reloadCRLLocked()
}

func (m *Member) reloadPairLocked() error {
	now, err := m.changedLocked(m.files.Cert, m.files.Key)
	if err != nil || now == nil {
		return err
	}
	_, pair, ca, err := m.files.Load()
	if err == nil {
		err = m.checkOwn(pair.Leaf)
	}
	if err == nil {
		err = m.files.checkSigned(pair.Leaf, ca)
	}
	if err != nil {
		return err
	}
	m.pair = &pair
	maps.Copy(m.stamps, now)
	return nil
}

func (m *Member) checkOwn(c *x509.Certificate) error {
	kind, name, err := subject(c)
	if err != nil {
		return fmt.Errorf("%s: %w", m.files.Cert, err)
	}
	if m.own != "" && kind != m.own {
		return fault.New(fault.Invalid, "%s is the certificate of %s/%s, not of a %s: make one with `drover tls cert -kind %s`", m.files.Cert, kind, name, m.own, m.own)
	}
	return nil
}

func (m *Member) reloadCRLLocked() error {
	path := m.files.crlPath()
	now, err := m.changedLocked(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no list was made yet, or it is being replaced
	}
	if err != nil || now == nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	r, err := parseRevocations(b, m.cas)
	if err != nil {
		return fmt.Errorf("revocation list %s: %w: copy it again from the authority's folder", path, err)
	}
	if r.newerThan(m.revoked) {
		m.revoked = r
	}
	maps.Copy(m.stamps, now)
	return nil
}

// changedLocked returns the stamps of the files if one of them differs from the loaded state,
// otherwise nil. The caller stores the stamps once it has loaded the files: a file that is replaced
// after this check has another stamp.
func (m *Member) changedLocked(paths ...string) (now map[string]stamp, err error) {
	changed := false
	now = map[string]stamp{}
	for _, p := range paths {
		st, err := os.Stat(p)
		if err != nil {
			return nil, err
		}
		now[p] = stamp{st.ModTime(), st.Size()}
		changed = changed || m.stamps[p] != now[p]
	}
	if !changed {
		return nil, nil
	}
	return now, nil
}

// Leaf returns the member's certificate.
func (m *Member) Leaf() *x509.Certificate { return m.current().Leaf }

// CA returns the authority's certificate in PEM.
func (m *Member) CA() []byte { return m.pem }

// CRL returns the revocation list in use in DER, nil for none.
func (m *Member) CRL() []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.revoked.der
}

// SetCRL uses a revocation list (DER) if the authority signed it and it is newer
// than the one in use, and reports whether it is.
func (m *Member) SetCRL(der []byte) (newer bool, err error) {
	r, err := parseRevocations(der, m.cas)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if newer = r.newerThan(m.revoked); newer {
		m.revoked = r
	}
	return newer, nil
}

func (m *Member) current() *tls.Certificate {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.pair
}

// Revoked reports whether a certificate was revoked.
func (m *Member) Revoked(c *x509.Certificate) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.revoked.has(c.SerialNumber)
}

// Ended says why a certificate that was valid when its connection was opened is refused now: "was
// revoked", or "has expired" for a user's certificate; "" if it is still accepted. The expiry of a
// node's or a coordinator's certificate closes no open connection, so that running tasks are not
// lost; the next connection is refused.
func (m *Member) Ended(c *x509.Certificate, now time.Time) (why string) {
	if m.Revoked(c) {
		return "was revoked"
	}
	if kind, _, err := subject(c); err == nil && kind == KindUser && now.After(c.NotAfter) {
		return "has expired"
	}
	return ""
}

// Check returns an error unless the other side of a connection has a verified certificate that was
// not revoked and is of one of the kinds; no kinds means any kind.
func (m *Member) Check(s *tls.ConnectionState, kinds ...Kind) error {
	if s == nil || len(s.VerifiedChains) == 0 {
		return errNoPeer
	}
	if m.Revoked(s.VerifiedChains[0][0]) {
		return fault.New(fault.Denied, "the certificate of %s was revoked%w", s.VerifiedChains[0][0].Subject.CommonName, silent{ErrWrongPeer})
	}
	return checkKind(s, kinds)
}

// checkKind returns an error unless the verified peer is of one of the kinds.
func checkKind(s *tls.ConnectionState, kinds []Kind) error {
	if len(kinds) == 0 {
		return nil
	}
	kind, name, err := PeerIdentity(s)
	if err != nil {
		return err
	}
	if !slices.Contains(kinds, kind) {
		return fault.New(fault.Denied, "the other side has the certificate of %s/%s, not of a %s%w", kind, name, joinKinds(kinds), silent{ErrWrongPeer})
	}
	return nil
}

func joinKinds(kinds []Kind) string {
	var s []string
	for _, k := range kinds {
		s = append(s, string(k))
	}
	return strings.Join(s, " or ")
}

// silent is a cause that adds nothing to an error's text.
type silent struct{ error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.error }

// ServerConfig returns the configuration of a listener that requires certificates of the cluster,
// of one of the kinds if any are given.
func (m *Member) ServerConfig(kinds ...Kind) *tls.Config {
	return &tls.Config{
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return m.current(), nil },
		ClientCAs:        m.pool,
		ClientAuth:       tls.RequireAndVerifyClientCert,
		MinVersion:       tls.VersionTLS13,
		NextProtos:       []string{"h2", "http/1.1"},
		VerifyConnection: m.verifier(kinds, true),
	}
}

// ClientConfig returns the configuration of connections to members of one of the kinds.
func (m *Member) ClientConfig(kinds ...Kind) *tls.Config {
	return &tls.Config{
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return m.current(), nil },
		RootCAs:              m.pool,
		MinVersion:           tls.VersionTLS13,
		VerifyConnection:     m.verifier(kinds, false),
	}
}

// TokenConfig returns the configuration of connections to coordinators by callers
// without a certificate of their own. ca is the file of the authority; the
// revocation list beside it is used if it exists.
func TokenConfig(ca string) (*tls.Config, error) {
	if ca == "" {
		return nil, fault.New(fault.Invalid, "TLS needs the authority's certificate: set -tls-ca to the cluster's ca.pem")
	}
	pool, text, err := loadPool(ca)
	if err != nil {
		return nil, err
	}
	m := &Member{files: Files{CA: ca}, pool: pool, pem: text, revoked: &revocations{}, stamps: map[string]stamp{}}
	if m.cas, err = parseCertificates(ca, text); err != nil {
		return nil, err
	}
	if err := m.reloadCRLLocked(); err != nil { // no other goroutine has m yet
		return nil, err
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13, VerifyConnection: m.verifier([]Kind{KindCoordinator}, false)}, nil
}

// verifier checks a peer after its chain was verified. A server may make certificates optional
// (ClientAuth); handlers that need a certificate then check the request.
func (m *Member) verifier(kinds []Kind, server bool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if server && len(s.PeerCertificates) == 0 {
			return nil
		}
		return m.Check(&s, kinds...)
	}
}

// PeerConfig returns the configuration of members of one kind that both listen and connect to each
// other.
func (m *Member) PeerConfig(kind Kind) *tls.Config {
	c := m.ServerConfig(kind)
	c.RootCAs = m.pool
	c.GetClientCertificate = m.ClientConfig().GetClientCertificate
	c.NextProtos = nil
	return c
}
