package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/pki"
)

func TestNodeMetricsNeedCertificate(t *testing.T) {
	g := newPeerGuard(&Config{tls: &tls.Config{MinVersion: tls.VersionTLS13}})
	peer := func(name string) *tls.ConnectionState {
		if name == "" {
			return &tls.ConnectionState{}
		}
		return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: name}}}}}
	}
	for name, want := range map[string]bool{"": false, "stranger": false, "user/prometheus": true, "node/n2": true} {
		called := false
		rec := &statusWriter{}
		g.requireMember(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true })).ServeHTTP(rec, &http.Request{TLS: peer(name)})
		if called != want || (!want && rec.status != http.StatusForbidden) {
			t.Errorf("certificate %q: status %d, called %v", name, rec.status, called)
		}
	}
	g.openMetrics = true
	called := false
	g.requireMember(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true })).ServeHTTP(&statusWriter{}, &http.Request{TLS: peer("")})
	if !called {
		t.Error("metrics that the operator opened are closed")
	}
}

func TestRevokedCoordinatorIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := pki.CreateCA(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, r := range []pki.CertRequest{{Kind: pki.KindNode, Name: "n1", Hosts: []string{"127.0.0.1"}}, {Kind: pki.KindCoordinator, Name: "c", Hosts: []string{"127.0.0.1"}}} {
		if err := pki.IssueCert(dir, r, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	// The node has the CA's certificate in a folder of its own, where no list comes.
	own := t.TempDir()
	for _, f := range []string{"ca.pem", "n1.pem", "n1.key"} {
		b, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(own, f), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := pki.Files{CA: filepath.Join(own, "ca.pem"), Cert: filepath.Join(own, "n1.pem"), Key: filepath.Join(own, "n1.key")}.Open(pki.KindNode)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := pki.ReadCertificate(filepath.Join(dir, "c.pem"))
	if err != nil {
		t.Fatal(err)
	}
	peer := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}
	g := newPeerGuard(&Config{Certificate: m, Data: t.TempDir(), FetchCRL: func(context.Context) ([]byte, error) { return os.ReadFile(filepath.Join(dir, "ca.crl")) }})
	if err := g.checkPeer(peer, pki.KindCoordinator); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Revoke(dir, []*big.Int{leaf.SerialNumber}, time.Now()); err != nil {
		t.Fatal(err)
	}
	g.file = filepath.Join(own, "data", nameCRL)
	if err := g.updateCRL(t.Context()); err == nil {
		t.Fatal("the list was stored in a folder that is not there")
	}
	if err := os.Mkdir(filepath.Dir(g.file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := g.updateCRL(t.Context()); err != nil { // it is stored, though it is no news any more
		t.Fatal(err)
	}
	if err := g.checkPeer(peer, pki.KindCoordinator); err == nil {
		t.Error("a revoked coordinator may call")
	}
	// A later daemon knows it before it reaches anybody.
	again, err := pki.Files{CA: filepath.Join(own, "ca.pem"), Cert: filepath.Join(own, "n1.pem"), Key: filepath.Join(own, "n1.key")}.Open(pki.KindNode)
	if err != nil {
		t.Fatal(err)
	}
	g.member = again
	if err := g.loadCRL(); err != nil || !again.Revoked(leaf) {
		t.Errorf("after a restart: %v", err)
	}
}
