// Package pki makes and reads the certificates of a cluster: one authority, and certificates signed
// by it whose common name is "<kind>/<name>", where the kind determines the holder's rights. Keys
// are ECDSA P-256; TLS is 1.3 only.
package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/names"
)

// Kind is the role of a certificate's holder.
type Kind string

// The kinds.
const (
	KindCoordinator Kind = "coordinator"
	KindNode        Kind = "node"
	KindUser        Kind = "user"
)

// Kinds lists all kinds.
func Kinds() []Kind { return []Kind{KindCoordinator, KindNode, KindUser} }

// The validity of certificates. It begins backdate in the past, because clocks differ.
const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	CertLifetime = 365 * 24 * time.Hour
	backdate     = time.Hour
)

// File names of the authority in its folder; other certificates are
// <name>.pem and <name>.key.
const (
	caCert = "ca.pem"
	caKey  = "ca.key"
)

// CreateCA makes an authority in dir. It returns fault.Exists if there is one or a part of one,
// since a second one would invalidate every certificate.
func CreateCA(dir string, now time.Time) error {
	switch cert, key := fileExists(filepath.Join(dir, caCert)), fileExists(filepath.Join(dir, caKey)); {
	case cert && key:
		return fault.New(fault.Exists, "%s has an authority already; remove %s and %s first to create a new one", dir, caCert, caKey)
	case cert:
		return fault.New(fault.Exists, "%s has %s, and its key, %s, is missing: put it back; a new authority's certificates would not be accepted", dir, caCert, caKey)
	case key:
		return fault.New(fault.Exists, "%s has %s, and its certificate, %s, is missing: put it back, each coordinator and node has it; remove %s only if no certificate was ever made with it", dir, caKey, caCert, caKey)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t, err := template("drover authority", now, caLifetime)
	if err != nil {
		return err
	}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	return writeFile(dir, "ca", der, key)
}

// CertRequest describes a certificate to issue.
type CertRequest struct {
	Kind     Kind
	Name     string
	Hosts    []string // names and addresses of the holder
	Lifetime time.Duration
}

// IssueCert is Issue without the certificate that was replaced.
func IssueCert(dir string, r CertRequest, now time.Time) error {
	_, err := Issue(dir, r, now)
	return err
}

// Issue makes a certificate and key <name>.pem, <name>.key in dir, signed by the authority there.
// It returns the certificate that was in that file before, nil for none; the replaced certificate
// stays valid until it expires or is revoked. It returns fault.Exists if that certificate is of
// another kind. Issue also keeps the certificate, not its key, in issued/<serial>.pem, so that it
// can be revoked by name.
func Issue(dir string, r CertRequest, now time.Time) (replaced *x509.Certificate, err error) {
	if prior, err := ReadCertificate(filepath.Join(dir, r.Name+".pem")); err == nil {
		if kind, _, err := subject(prior); err == nil && kind != r.Kind {
			return nil, fault.New(fault.Exists, "%s.pem in %s is the certificate of %s: give the %s another name", r.Name, dir, prior.Subject.CommonName, r.Kind)
		}
		replaced = prior
	}
	return replaced, issue(dir, r, now)
}

func issue(dir string, r CertRequest, now time.Time) error {
	if !slices.Contains(Kinds(), r.Kind) {
		return fault.New(fault.Invalid, "certificate kind %q: want coordinator, node or user", r.Kind)
	}
	if !names.Valid(strings.ReplaceAll(r.Name, "@", "-")) || r.Name == "ca" {
		return fault.New(fault.Invalid, "certificate name %q: use letters, digits, '.', '_', '@' or '-', and not \"ca\"", r.Name)
	}
	if r.Kind != KindUser && len(r.Hosts) == 0 {
		return fault.New(fault.Invalid, "a certificate of kind %s needs the holder's names or addresses: give each with -host", r.Kind)
	}
	if r.Lifetime < 0 {
		return fault.New(fault.Invalid, "a certificate that is valid for %s: give it a time above 0", r.Lifetime)
	}
	ca, signer, err := loadCA(dir)
	if err != nil {
		return err
	}
	if !ca.NotAfter.After(now) {
		return fault.New(fault.Invalid, "the authority in %s ended on %s: what it signs is refused; make another one with `drover tls ca`", dir, ca.NotAfter.UTC().Format(time.DateOnly))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if r.Lifetime == 0 {
		r.Lifetime = CertLifetime
	}
	t, err := template(string(r.Kind)+"/"+r.Name, now, min(r.Lifetime, ca.NotAfter.Sub(now)))
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
	if err := keepIssued(dir, t.SerialNumber, der); err != nil {
		return err
	}
	return writeFile(dir, r.Name, der, key)
}

func keepIssued(dir string, serial *big.Int, der []byte) error {
	dir = filepath.Join(dir, issuedDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, serial.Text(16)+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func template(name string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: now.Add(life)}, nil
}

// fileExists reports whether the file exists, or its absence cannot be established.
func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// noAuthority returns the error for a folder without an authority, or without a part of it.
func noAuthority(dir string, err error) error {
	for has, lacks := range map[string]string{caCert: caKey, caKey: caCert} {
		if fileExists(filepath.Join(dir, has)) && !fileExists(filepath.Join(dir, lacks)) {
			return fault.New(fault.NotFound, "the authority in %s has %s, but no %s: put that back, or name the folder that has both with -dir", dir, has, lacks)
		}
	}
	return fault.New(fault.NotFound, "no authority in %s (%w); name its folder with -dir, or make one with `drover tls ca -dir %s`", dir, err, dir)
}

func loadCA(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, caCert), filepath.Join(dir, caKey))
	if err != nil {
		return nil, nil, noAuthority(dir, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fault.New(fault.Invalid, "the authority in %s was not made by drover: its key is not an ECDSA key", dir)
	}
	return pair.Leaf, key, nil
}

// writeFile writes the key, then the certificate, each atomically.
func writeFile(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
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

// Files are the paths of the three files of a member of the cluster.
type Files struct{ CA, Cert, Key string }

// Load returns a pool with the authority only, the certificate with its key, and the authority's
// PEM.
func (f Files) Load() (*x509.CertPool, tls.Certificate, []byte, error) {
	if f.CA == "" || f.Cert == "" || f.Key == "" {
		return nil, tls.Certificate{}, nil, fault.New(fault.Invalid, "mutual TLS needs the authority's certificate (-tls-ca), your certificate (-tls-cert) and your key (-tls-key); `drover tls` makes them")
	}
	pool, ca, err := loadPool(f.CA)
	if err != nil {
		return nil, tls.Certificate{}, nil, err
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, tls.Certificate{}, nil, fault.New(fault.Invalid, "certificate %s and key %s: %w: make new ones with `drover tls cert`", f.Cert, f.Key, err)
	}
	return pool, pair, ca, nil
}

// signedByAnother reports whether an authority's certificate says that another authority signed it.
// In a self-signed certificate a flipped bit may change one of the names, but not the key ids as
// well.
func signedByAnother(c *x509.Certificate) bool {
	return len(c.AuthorityKeyId) > 0 && !bytes.Equal(c.AuthorityKeyId, c.SubjectKeyId) && !bytes.Equal(c.RawIssuer, c.RawSubject)
}

// checkSigned returns an error unless the certificate is signed by an authority in the CA file, or
// by a certificate after it in its own file. A damaged certificate is thus reported here, and not
// by each peer that refuses it.
func (f Files) checkSigned(leaf *x509.Certificate, ca []byte) error {
	own, err := os.ReadFile(f.Cert)
	if err != nil {
		return fault.New(fault.Invalid, "certificate: %w", err)
	}
	signers, err := parseCertificates(f.Cert, slices.Concat(ca, []byte("\n"), own))
	if err != nil {
		return err
	}
	for _, s := range signers {
		if leaf.CheckSignatureFrom(s) == nil {
			return nil
		}
	}
	return fault.New(fault.Invalid, "the authority in %s did not sign the certificate in %s, or one of the files is damaged: copy them again, or make another with `drover tls cert`", f.CA, f.Cert)
}

// loadPool returns a pool with the authority in a file, and its PEM.
func loadPool(file string) (*x509.CertPool, []byte, error) {
	ca, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "certificate of the authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, nil, fault.New(fault.Invalid, "%s contains no certificate", file)
	}
	list, err := parseCertificates(file, ca)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range list {
		if !signedByAnother(c) && c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) != nil {
			return nil, nil, fault.New(fault.Invalid, "the authority's certificate in %s is damaged: copy the file again", file)
		}
	}
	return pool, ca, nil
}

// serverConfig returns the configuration of a listener that requires certificates
// of the cluster, of one of the kinds if any are given. It does not follow its
// files; see Open.
func (f Files) serverConfig(kinds ...Kind) (*tls.Config, error) {
	m, err := f.Open("")
	if err != nil {
		return nil, err
	}
	return m.ServerConfig(kinds...), nil
}

// ClientConfig returns the configuration of connections to members of one of the
// kinds. It does not follow its files; see Open.
func (f Files) ClientConfig(kinds ...Kind) (*tls.Config, error) {
	m, err := f.Open("")
	if err != nil {
		return nil, err
	}
	return m.ClientConfig(kinds...), nil
}

// errNoPeer means that a connection has no verified certificate.
var errNoPeer = errors.New("no verified certificate")

// PeerIdentity returns the kind and name of the other side of a connection.
func PeerIdentity(s *tls.ConnectionState) (Kind, string, error) {
	if s == nil || len(s.VerifiedChains) == 0 {
		return "", "", errNoPeer
	}
	return subject(s.VerifiedChains[0][0])
}

// subject returns the kind and name in a certificate's common name.
func subject(c *x509.Certificate) (Kind, string, error) {
	kind, name, ok := strings.Cut(c.Subject.CommonName, "/")
	if !ok || !slices.Contains(Kinds(), Kind(kind)) {
		return "", "", fault.New(fault.Denied, "certificate %q is of an unknown kind", c.Subject.CommonName)
	}
	return Kind(kind), name, nil
}
