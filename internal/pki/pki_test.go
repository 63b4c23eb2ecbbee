package pki

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

func files(dir, name string) Files {
	return Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key")}
}

func cluster(t *testing.T) string {
	t.Helper()
	dir, now := t.TempDir(), time.Now()
	if err := CreateCA(dir, now); err != nil {
		t.Fatal(err)
	}
	for _, r := range []CertRequest{{Kind: KindCoordinator, Name: "c1", Hosts: []string{"127.0.0.1"}}, {Kind: KindNode, Name: "n1", Hosts: []string{"127.0.0.1", "n1.local"}}, {Kind: KindUser, Name: "alice"}} {
		if err := IssueCert(dir, r, now); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// startTLS starts s with exactly conf: httptest would add a certificate.
func startTLS(s *httptest.Server, conf *tls.Config) {
	s.Listener = tls.NewListener(s.Listener, conf)
	s.Start()
	s.URL = "https" + strings.TrimPrefix(s.URL, "http")
}

// fetch sends a request to a server with the coordinator's certificate and returns the identity
// that the server sees.
func fetch(t *testing.T, server string, client *tls.Config) (string, error) {
	t.Helper()
	conf, err := files(server, "c1").serverConfig()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, name, err := PeerIdentity(r.TLS)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		io.WriteString(w, string(kind)+" "+name)
	}))
	startTLS(s, conf)
	defer s.Close()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: client}}
	r, err := c.Get(s.URL)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

func TestMembersAuthenticate(t *testing.T) {
	dir := cluster(t)
	for name, want := range map[string]string{"n1": "node n1", "alice": "user alice"} {
		conf, err := files(dir, name).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := fetch(t, dir, conf); err != nil || got != want {
			t.Errorf("%s is identified as %q, %v", name, got, err)
		}
	}
}

func TestStrangersAreRefused(t *testing.T) {
	dir, other := cluster(t), cluster(t)
	foreign, err := files(other, "alice").ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := files(dir, "alice").ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	foreign.RootCAs = ours.RootCAs
	if got, err := fetch(t, dir, foreign); err == nil {
		t.Errorf("a certificate of another cluster was accepted as %q", got)
	}
	if got, err := fetch(t, dir, &tls.Config{RootCAs: ours.RootCAs}); err == nil {
		t.Errorf("a missing certificate was accepted as %q", got)
	}
}

func TestKeysAreReadableByOwnerOnly(t *testing.T) {
	dir := cluster(t)
	for _, f := range []string{"ca.key", "n1.key"} {
		st, err := os.Stat(filepath.Join(dir, f))
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", f, st.Mode())
		}
	}
}

func TestRefusals(t *testing.T) {
	dir := cluster(t)
	if err := CreateCA(dir, time.Now()); !errors.Is(err, fault.Exists) {
		t.Errorf("a second authority: %v", err)
	}
	for name, r := range map[string]CertRequest{
		"an unknown kind":        {Kind: "king", Name: "x"},
		"a name with a slash":    {Kind: KindUser, Name: "a/b"},
		"the authority's name":   {Kind: KindUser, Name: "ca"},
		"a node without address": {Kind: KindNode, Name: "n9"},
	} {
		if err := IssueCert(dir, r, time.Now()); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := IssueCert(t.TempDir(), CertRequest{Kind: KindUser, Name: "x"}, time.Now()); !errors.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "drover tls ca -dir") {
		t.Errorf("without an authority: %v", err)
	}
	for _, lacks := range []string{caKey, caCert} { // the key or certificate is kept elsewhere
		dir := cluster(t)
		if err := os.Remove(filepath.Join(dir, lacks)); err != nil {
			t.Fatal(err)
		}
		if err := CreateCA(dir, time.Now()); !errors.Is(err, fault.Exists) || !strings.Contains(err.Error(), lacks+", is missing") {
			t.Errorf("a second authority where %s is missing: %v", lacks, err)
		}
		if err := IssueCert(dir, CertRequest{Kind: KindUser, Name: "x"}, time.Now()); !errors.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "no "+lacks) || strings.Contains(err.Error(), "drover tls ca") {
			t.Errorf("without %s: %v", lacks, err)
		}
	}
}
