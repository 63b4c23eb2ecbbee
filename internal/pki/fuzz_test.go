package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzPEM reads certificates and revocation lists. A list that the authority did not sign is never
// accepted, so no changed list is.
func FuzzPEM(f *testing.F) {
	dir := f.TempDir()
	if err := CreateCA(dir, time.Now()); err != nil {
		f.Fatal(err)
	}
	cert, err := os.ReadFile(filepath.Join(dir, caCert))
	if err != nil {
		f.Fatal(err)
	}
	cas, err := parseCertificates("ca", cert)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(cert)
	f.Add([]byte("-----BEGIN X509 CRL-----\nMA==\n-----END X509 CRL-----\n"))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		if r, err := parseRevocations(b, cas); err == nil {
			t.Errorf("a revocation list of %d serials without a signature", len(r.serial))
		} else if fault.Class(err) == nil {
			t.Errorf("no class: %v", err)
		}
		list, err := parseCertificates("f", b)
		if (err == nil) != (len(list) > 0) {
			t.Errorf("%d certificates and %v", len(list), err)
		}
		for _, c := range list {
			_, _, _ = PeerIdentity(&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c}}}) // most certificates have no identity
		}
	})
}
