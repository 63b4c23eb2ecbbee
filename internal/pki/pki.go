// Package pki makes and reads the certificates of a cluster: one authority,
// and under it certificates whose common name is "<kind>/<name>", where the
// kind says what its holder may be. Keys are ECDSA P-256; TLS is 1.3 only.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// Kind is what the holder of a certificate is.
type Kind string

// The kinds.
const (
	KindCoordinator Kind = "coordinator"
	KindNode        Kind = "node"
	KindUser        Kind = "user"
)

// Kinds lists all kinds.
func Kinds() []Kind { return []Kind{KindCoordinator, KindNode, KindUser} }

// How long certificates hold, and how far back they start, for clocks that
// differ.
const (
	CALife   = 10 * 365 * 24 * time.Hour
	CertLife = 365 * 24 * time.Hour
	backdate = time.Hour
)

// File names of the authority in its folder; other certificates are
// <name>.pem and <name>.key.
const (
	caCert = "ca.pem"
	caKey  = "ca.key"
)

var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$`)

// CreateCA makes an authority in dir. fault.Exists where there is one already:
// a second one would make every certificate worthless.
func CreateCA(dir string, now time.Time) error {
	if _, err := os.Stat(filepath.Join(dir, caKey)); err == nil {
		return fault.New(fault.Exists, "%s holds an authority already; remove %s first to start anew", dir, caKey)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t, err := template("drover authority", now, CALife)
	if err != nil {
		return err
	}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	return write(dir, "ca", der, key)
}

// Request says what a certificate is for.
type Request struct {
	Kind  Kind
	Name  string
	Hosts []string // names and addresses under which its holder is reached
	Life  time.Duration
}

// Issue makes a certificate and key <name>.pem, <name>.key in dir, signed by
// the authority there; what had that name is replaced.
func Issue(dir string, r Request, now time.Time) error {
	if !slices.Contains(Kinds(), r.Kind) {
		return fault.New(fault.Invalid, "certificate kind %q: want coordinator, node or user", r.Kind)
	}
	if !nameRE.MatchString(r.Name) || r.Name == "ca" {
		return fault.New(fault.Invalid, "certificate name %q: use letters, digits, '.', '_', '@' or '-', and not \"ca\"", r.Name)
	}
	if r.Kind != KindUser && len(r.Hosts) == 0 {
		return fault.New(fault.Invalid, "a %s needs the names or addresses under which it is reached", r.Kind)
	}
	ca, signer, err := loadCA(dir)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if r.Life == 0 {
		r.Life = CertLife
	}
	t, err := template(string(r.Kind)+"/"+r.Name, now, min(r.Life, ca.NotAfter.Sub(now)))
	if err != nil {
		return err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if r.Kind != KindUser {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range r.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, &key.PublicKey, signer)
	if err != nil {
		return err
	}
	return write(dir, r.Name, der, key)
}

func template(name string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: now.Add(life)}, nil
}

func loadCA(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, caCert), filepath.Join(dir, caKey))
	if err != nil {
		return nil, nil, fault.New(fault.NotFound, "no authority in %s (%w); make one with `drover tls ca -dir %s`", dir, err, dir)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fault.New(fault.Invalid, "the authority in %s was not made by drover: its key is no ECDSA key", dir)
	}
	return pair.Leaf, key, nil
}

// write stores the key first and both under another name until whole.
func write(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, kind string
		body       []byte
		mode       os.FileMode
	}{{name + ".key", "PRIVATE KEY", k, 0o600}, {name + ".pem", "CERTIFICATE", der, 0o644}} {
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.body}), f.mode); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

// Files names the three files of a member of the cluster.
type Files struct{ CA, Cert, Key string }

// Load reads them: a pool with the authority alone, the pair, and the
// authority's PEM.
func (f Files) Load() (*x509.CertPool, tls.Certificate, []byte, error) {
	if f.CA == "" || f.Cert == "" || f.Key == "" {
		return nil, tls.Certificate{}, nil, fault.New(fault.Invalid, "mutual TLS needs the authority's certificate, your certificate and your key; `drover tls` makes them")
	}
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, tls.Certificate{}, nil, fault.New(fault.Invalid, "certificate of the authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, tls.Certificate{}, nil, fault.New(fault.Invalid, "%s holds no certificate", f.CA)
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, tls.Certificate{}, nil, fault.New(fault.Invalid, "certificate and key: %w", err)
	}
	return pool, pair, ca, nil
}

// ServerConfig is for a listener that demands certificates of the cluster.
func (f Files) ServerConfig() (*tls.Config, error) {
	pool, pair, _, err := f.Load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}}, nil
}

// ClientConfig is for connections to members of the cluster.
func (f Files) ClientConfig() (*tls.Config, error) {
	pool, pair, _, err := f.Load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS13}, nil
}

// ErrNoPeer says that a connection has no verified certificate.
var ErrNoPeer = errors.New("no verified certificate")

// Peer gives the kind and name of the other side of a connection.
func Peer(s *tls.ConnectionState) (Kind, string, error) {
	if s == nil || len(s.VerifiedChains) == 0 {
		return "", "", ErrNoPeer
	}
	kind, name, ok := strings.Cut(s.VerifiedChains[0][0].Subject.CommonName, "/")
	if !ok || !slices.Contains(Kinds(), Kind(kind)) {
		return "", "", fault.New(fault.Denied, "certificate %q is of no known kind", s.VerifiedChains[0][0].Subject.CommonName)
	}
	return Kind(kind), name, nil
}
