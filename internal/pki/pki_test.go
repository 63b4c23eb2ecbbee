package pki

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	for _, r := range []Request{{Kind: KindCoordinator, Name: "c1", Hosts: []string{"127.0.0.1"}}, {Kind: KindNode, Name: "n1", Hosts: []string{"127.0.0.1", "n1.local"}}, {Kind: KindUser, Name: "alice"}} {
		if err := Issue(dir, r, now); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// get asks a server with the coordinator's certificate who it takes us for.
func get(t *testing.T, server string, client *tls.Config) (string, error) {
	t.Helper()
	conf, err := files(server, "c1").ServerConfig()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, name, err := Peer(r.TLS)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		io.WriteString(w, string(kind)+" "+name)
	}))
	s.TLS = conf
	s.StartTLS()
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

func TestMembersKnowEachOther(t *testing.T) {
	dir := cluster(t)
	for name, want := range map[string]string{"n1": "node n1", "alice": "user alice"} {
		conf, err := files(dir, name).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := get(t, dir, conf); err != nil || got != want {
			t.Errorf("%s is taken for %q, %v", name, got, err)
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
	if got, err := get(t, dir, foreign); err == nil {
		t.Errorf("a certificate of another cluster was taken for %q", got)
	}
	if got, err := get(t, dir, &tls.Config{RootCAs: ours.RootCAs}); err == nil {
		t.Errorf("no certificate was taken for %q", got)
	}
}

func TestKeysAreTheirOwners(t *testing.T) {
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
	for name, r := range map[string]Request{
		"a kind nobody knows":    {Kind: "king", Name: "x"},
		"a name with a slash":    {Kind: KindUser, Name: "a/b"},
		"the authority's name":   {Kind: KindUser, Name: "ca"},
		"a node without address": {Kind: KindNode, Name: "n9"},
	} {
		if err := Issue(dir, r, time.Now()); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Issue(t.TempDir(), Request{Kind: KindUser, Name: "x"}, time.Now()); !errors.Is(err, fault.NotFound) {
		t.Errorf("without an authority: %v", err)
	}
}
