package main

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/oidctest"
	"github.com/drover-run/drover/internal/pki"
)

var loginAddress = regexp.MustCompile(`(?m)^https://\S+$`)

// loginBed is a provider, its authority in a file, and a file for the token.
func loginBed(t *testing.T) (p *oidctest.Provider, ca, file string) {
	t.Helper()
	p = oidctest.New(t)
	dir := t.TempDir()
	ca, file = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, ca, file
}

// login runs the command beside a browser, which gets the address that it shows.
func login(t *testing.T, p *oidctest.Provider, ca, file string, browser func(address string)) (string, error) {
	t.Helper()
	log := &lockedBuffer{}
	app := newApp(strings.NewReader(""), log, log)
	done := make(chan error, 1)
	go func() {
		done <- app.RunContext(context.Background(), []string{"drover", "-token-file", file, "login", "-oidc-issuer", p.URL, "-oidc-client-id", "drover", "-oidc-ca", ca})
	}()
	waitFor(t, "the address is shown", func() bool { return loginAddress.MatchString(log.String()) || len(done) > 0 }, log.String)
	if address := loginAddress.FindString(log.String()); address != "" {
		browser(address)
	}
	err := <-done
	return log.String(), err
}

// browse opens an address as a browser does, and returns where it ended and what it shows.
func browse(t *testing.T, p *oidctest.Provider, address string) (int, string) {
	t.Helper()
	res, err := p.Client().Get(address)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(b)
}

func TestLogin(t *testing.T) {
	p, ca, file := loginBed(t)
	out, err := login(t, p, ca, file, func(address string) {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		// What another site, or another program of this machine, sends meanwhile is no answer.
		for _, q := range []string{"", "?code=x", "?code=x&state=y", "?error=no&state="} {
			if status, _ := browse(t, p, u.Query().Get("redirect_uri")+q); status != http.StatusBadRequest {
				t.Errorf("%q is answered with %d", q, status)
			}
		}
		if status, text := browse(t, p, address); status != http.StatusOK || !strings.Contains(text, "close this window") {
			t.Errorf("%d %q", status, text)
		}
	})
	if err != nil || !strings.Contains(out, "signed in until") {
		t.Fatalf("%v\n%s", err, out)
	}
	st, err := os.Stat(file)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", st, err)
	}
	b, err := os.ReadFile(file)
	if err != nil || strings.Count(string(b), ".") != 2 {
		t.Errorf("%q %v", b, err)
	}
}

// Whatever the provider answers that is not for this sign-in leaves no token.
func TestLoginBelievesOnlyItsOwnAnswer(t *testing.T) {
	for name, claims := range map[string]map[string]any{
		"another nonce":     {"nonce": "other"},
		"another client":    {"aud": "other"},
		"another issuer":    {"iss": "https://example.org"},
		"an expired one":    {"exp": 1},
		"a refused sign-in": nil,
	} {
		t.Run(name, func(t *testing.T) {
			p, ca, file := loginBed(t)
			p.Lock()
			p.Force = claims
			p.Unlock()
			out, err := login(t, p, ca, file, func(address string) {
				if claims == nil {
					u, _ := url.Parse(address)
					address = u.Query().Get("redirect_uri") + "?error=access_denied&state=" + u.Query().Get("state")
				}
				browse(t, p, address)
			})
			if err == nil {
				t.Errorf("it signed in:\n%s", out)
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("there is a token: %v", err)
			}
		})
	}
}

func TestLoginNeedsTLS(t *testing.T) {
	if _, err := droverOutput(t, "-token-file", filepath.Join(t.TempDir(), "t"), "login", "-oidc-issuer", "http://127.0.0.1:1", "-oidc-client-id", "x"); exitCode(err) != exitUsage {
		t.Errorf("got %v", err)
	}
}

// TestAuthoritiesOfTheProviderAreReadAgain: a changed file counts from the next request on, without a
// restart, and a damaged one does not.
func TestAuthoritiesOfTheProviderAreReadAgain(t *testing.T) {
	p, ca, _ := loginBed(t)
	good, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := pki.CreateCA(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := oidcHTTP(ca)
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		text    []byte
		trusted bool
	}{{good, true}, {other, false}, {good, true}, {[]byte("damaged"), true}, {other, false}} {
		if err := os.WriteFile(ca, step.text, 0o600); err != nil {
			t.Fatal(err)
		}
		res, err := h.Get(p.URL + "/keys")
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if (err == nil) != step.trusted {
			t.Errorf("step %d: %v", i, err)
		}
	}
}
