// Package pki makes and reads the certificates of a cluster: one CA, and a
// certificate for every user, node and coordinator. Who somebody is, is the
// certificate's common name:
//
//	user/<name>      may do what the tenant table says
//	node/<name>      may speak for the node of that name
//	coordinator      the servers
//
// Keys are ECDSA P-256. Everything is PEM. Only crypto/x509 is used.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"regexp"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// CoordinatorName is the common name of coordinators. Clients check it as a
// host name beside the addresses in the certificate.
const CoordinatorName = "coordinator"

// Lifetimes of what is made here.
const (
	CALifetime   = 10 * 365 * 24 * time.Hour
	CertLifetime = 2 * 365 * 24 * time.Hour
	backdate     = 5 * time.Minute // for clocks that are behind
)

// Pair is a certificate with its key, both PEM.
type Pair struct {
	Cert []byte
	Key  []byte // PKCS #8; keep it 0600
}

var nameRE = regexp.MustCompile(`^((user|node)/[A-Za-z0-9][A-Za-z0-9._@-]{0,127}|coordinator)$`)

// CheckName tells whether name is user/NAME, node/NAME or coordinator.
func CheckName(name string) error {
	if !nameRE.MatchString(name) {
		return fault.New(fault.Invalid, "%.80q is no name for a certificate: want user/NAME, node/NAME or coordinator", name)
	}
	return nil
}

// NewCA makes a certificate authority for a cluster, valid from now.
func NewCA(cluster string, now time.Time) (Pair, error) {
	t, err := template("drover CA "+cluster, now, CALifetime)
	if err != nil {
		return Pair{}, err
	}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key: %w", err)
	}
	return seal(t, t, key, key)
}

// Issue makes a certificate of the CA. hosts are the DNS names and addresses
// under which a coordinator or node is reached; users need none.
func Issue(ca Pair, name string, hosts []string, now time.Time) (Pair, error) {
	if err := CheckName(name); err != nil {
		return Pair{}, err
	}
	parent, signer, err := parse(ca)
	if err != nil {
		return Pair{}, err
	}
	t, err := template(name, now, CertLifetime)
	if err != nil {
		return Pair{}, err
	}
	if t.NotAfter.After(parent.NotAfter) {
		t.NotAfter = parent.NotAfter
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if name == CoordinatorName {
		hosts = append([]string{CoordinatorName}, hosts...)
	}
	if len(hosts) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key: %w", err)
	}
	return seal(t, parent, key, signer)
}

func template(name string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: now.Add(life)}, nil
}

func seal(t, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), signer)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate %q: %w", t.Subject.CommonName, err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("key of %q: %w", t.Subject.CommonName, err)
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})}, nil
}

func parse(ca Pair) (*x509.Certificate, crypto.Signer, error) {
	pair, err := tls.X509KeyPair(ca.Cert, ca.Key)
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "the CA's certificate and key: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !pair.Leaf.IsCA || !ok {
		return nil, nil, fault.New(fault.Invalid, "the certificate of %q is no CA", pair.Leaf.Subject.CommonName)
	}
	return pair.Leaf, signer, nil
}

// ServerConfig is for a listener that demands a certificate of the CA from
// whoever connects.
func ServerConfig(caCert []byte, own Pair) (*tls.Config, error) {
	pool, pair, err := load(caCert, own)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Certificates: []tls.Certificate{pair}}, nil
}

// ClientConfig is for connecting to a server of the CA.
func ClientConfig(caCert []byte, own Pair) (*tls.Config, error) {
	pool, pair, err := load(caCert, own)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}}, nil
}

func load(caCert []byte, own Pair) (*x509.CertPool, tls.Certificate, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(caCert) {
		return nil, tls.Certificate{}, fault.New(fault.Invalid, "the CA's file holds no certificate")
	}
	pair, err := tls.X509KeyPair(own.Cert, own.Key)
	if err != nil {
		return nil, tls.Certificate{}, fault.New(fault.Invalid, "certificate and key: %w", err)
	}
	return pool, pair, nil
}
