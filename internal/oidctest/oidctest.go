// Package oidctest is an OpenID provider for tests. It signs tokens, and checks the code flow with
// PKCE as a real provider does. Only tests import it.
package oidctest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Provider is a provider on a port of this machine, with TLS.
type Provider struct {
	*httptest.Server
	t testing.TB

	mu     sync.Mutex
	key    *rsa.PrivateKey
	keyID  string
	claims map[string]any        // of the user who signs in, besides those of the flow; under Lock
	Force  map[string]any        // replaces claims of the flow; under Lock
	codes  map[string]url.Values // requests that were granted
	Asked  int                   // how often the keys were requested; under Lock
}

// Lock and Unlock guard the fields of tests.
func (p *Provider) Lock()   { p.mu.Lock() }
func (p *Provider) Unlock() { p.mu.Unlock() }

// New starts a provider.
func New(t testing.TB) *Provider {
	t.Helper()
	p := &Provider{t: t, codes: map[string]url.Values{}, claims: map[string]any{"sub": "1", "email": "ann@example.com", "email_verified": true}}
	p.NewKey("k1")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.Asked++
		answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &p.key.PublicKey, KeyID: p.keyID, Algorithm: "RS256", Use: "sig"}}})
	})
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	return p
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails only if the caller is gone
}

// NewKey makes the provider sign with another key and forget the previous key.
func (p *Provider) NewKey(id string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key, p.keyID = key, id
}

// Sign returns an ID token for a client. more adds or replaces claims; a nil value removes one.
func (p *Provider) Sign(client string, more map[string]any) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	claims := map[string]any{"iss": p.URL, "aud": client, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, p.claims)
	maps.Copy(claims, more)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return SignWith(p.t, jose.RS256, p.key, p.keyID, claims)
}

// SignWith signs claims by any key.
func SignWith(t testing.TB, alg jose.SignatureAlgorithm, key any, id string, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", id).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := o.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// authorize grants every request of a public client that uses PKCE, as if the user had
// signed in, and sends the browser back.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || back.Hostname() != "127.0.0.1" || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") == "" || q.Get("state") == "" || q.Get("nonce") == "" {
		http.Error(w, "a code flow with PKCE, state and nonce is wanted", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	p.mu.Lock()
	p.codes[code] = q
	p.mu.Unlock()
	back.RawQuery = url.Values{"code": {code}, "state": {q.Get("state")}}.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	q := p.codes[r.PostFormValue("code")]
	delete(p.codes, r.PostFormValue("code")) // a code is valid once
	p.mu.Unlock()
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if q == nil || base64.RawURLEncoding.EncodeToString(sum[:]) != q.Get("code_challenge") || r.PostFormValue("redirect_uri") != q.Get("redirect_uri") {
		w.WriteHeader(http.StatusBadRequest)
		answer(w, map[string]any{"error": "invalid_grant"})
		return
	}
	p.mu.Lock()
	claims := map[string]any{"nonce": q.Get("nonce")}
	maps.Copy(claims, p.Force)
	p.mu.Unlock()
	answer(w, map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "id_token": p.Sign(q.Get("client_id"), claims)})
}
