// Package idtoken verifies ID tokens of one OpenID provider, with which people prove who
// they are to a coordinator that has no certificate of theirs.
//
// A token is believed if the provider signed it for this cluster's client, if it has not
// expired and is not older than a day, and if it names a user by the claim that was
// configured. It says who somebody is, never what he may do: that is in the tenants' lists.
//
// The provider is asked for its keys when the first token comes, and again when a token is
// signed by a key that is not known, at most a few times a minute: any caller can
// show tokens with keys that never were. While it does not answer, the keys that are known
// are good.
package idtoken

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"

	"github.com/drover-run/drover/internal/fault"
)

const (
	maxToken     = 16 << 10 // bytes
	maxAge       = 24 * time.Hour
	clockSkew    = 5 * time.Minute
	maxUser      = 128 // bytes
	askLimit     = 10 * time.Second
	maxAnswer    = 1 << 20
	askEvery     = 15 * time.Second // in the long run
	askAtOnce    = 4
	defaultClaim = "email"
)

// algorithms are the signatures that are believed: never one with a shared secret, whose
// key would be public.
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}

// Config describes the provider.
type Config struct {
	Issuer   string            // https URL, exactly as the provider names itself
	ClientID string            // of the cluster at the provider: the audience of its tokens
	Claim    string            // that names the user; "" for email, which must be verified
	Require  map[string]string // claims that a token must have with this value
	HTTP     *http.Client      // nil: the system's authorities
	now      func() time.Time  // nil: time.Now
}

// Verifier verifies ID tokens. It is safe for concurrent use.
type Verifier struct {
	cfg Config
	ctx context.Context // has the client that asks the provider

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil until the provider has answered
}

// New checks the configuration. It does not ask the provider.
func New(c Config) (*Verifier, error) {
	if err := checkHTTPS(c.Issuer); err != nil {
		return nil, fault.New(fault.Invalid, "OpenID issuer: %w", err)
	}
	if c.ClientID == "" {
		return nil, fault.New(fault.Invalid, "the OpenID issuer %s needs a client ID: without it, tokens made for others would be good here", c.Issuer)
	}
	if c.Claim == "" {
		c.Claim = defaultClaim
	}
	if c.now == nil {
		c.now = time.Now
	}
	return &Verifier{cfg: c, ctx: oidc.ClientContext(context.Background(), boundedClient(c.HTTP))}, nil
}

func checkHTTPS(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return fmt.Errorf("%q is no https:// address", text)
	}
	return nil
}

// boundedClient returns a client that asks seldom, over TLS alone, follows no redirects, and
// reads short answers.
func boundedClient(base *http.Client) *http.Client {
	c := &http.Client{Timeout: askLimit, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("a provider that redirects is not followed")
	}}
	next := http.DefaultTransport
	if base != nil && base.Transport != nil {
		next = base.Transport
	}
	c.Transport = &bounded{next, rate.NewLimiter(rate.Every(askEvery), askAtOnce)}
	return c
}

type bounded struct {
	next  http.RoundTripper
	asked *rate.Limiter
}

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("%s is not asked: it is no https:// address", r.URL.Redacted())
	}
	if !b.asked.Allow() {
		return nil, errors.New("it was asked a moment ago")
	}
	res, err := b.next.RoundTrip(r)
	if err == nil {
		res.Body = http.MaxBytesReader(nil, res.Body, maxAnswer)
	}
	return res, err
}

// Looks reports whether a text has the form of an ID token.
func Looks(text string) bool {
	return len(text) <= maxToken && strings.HasPrefix(text, "ey") && strings.Count(text, ".") == 2 &&
		!strings.ContainsFunc(text, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
		})
}

// Verify returns the user that a token names, and until when it is good. Denied: it is not
// believed. Unavailable: the provider did not say by which keys it signs.
func (v *Verifier) Verify(ctx context.Context, text string) (user string, until time.Time, err error) {
	if !Looks(text) {
		return "", until, fault.New(fault.Denied, "this is no ID token: get one with `drover login`")
	}
	verifier, err := v.provider()
	if err != nil {
		return "", until, err
	}
	t, err := verifier.Verify(ctx, text)
	if err != nil {
		return "", until, fault.New(fault.Denied, "this ID token is not believed: %w", err)
	}
	claims := map[string]any{}
	if err := t.Claims(&claims); err != nil {
		return "", until, fault.New(fault.Denied, "this ID token is not believed: %w", err)
	}
	if err := v.checkClaims(t, claims); err != nil {
		return "", until, err
	}
	user, err = v.userOf(claims)
	until = t.Expiry
	if end := t.IssuedAt.Add(maxAge); end.Before(until) {
		until = end
	}
	return user, until, err
}

// provider asks the provider once where its keys are.
func (v *Verifier) provider() (*oidc.IDTokenVerifier, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.verifier != nil {
		return v.verifier, nil
	}
	p, err := oidc.NewProvider(v.ctx, v.cfg.Issuer)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "the OpenID provider %s: %w", v.cfg.Issuer, err)
	}
	v.verifier = p.VerifierContext(v.ctx, &oidc.Config{ClientID: v.cfg.ClientID, SupportedSigningAlgs: algorithms, Now: v.cfg.now})
	return v.verifier, nil
}

// checkClaims checks what the library leaves to its caller.
func (v *Verifier) checkClaims(t *oidc.IDToken, claims map[string]any) error {
	now := v.cfg.now()
	switch azp, _ := claims["azp"].(string); {
	case t.IssuedAt.IsZero() || t.IssuedAt.After(now.Add(clockSkew)) || !now.Before(t.IssuedAt.Add(maxAge)):
		return fault.New(fault.Denied, "this ID token was not issued within the last %s: sign in again", maxAge)
	case !now.Before(t.Expiry):
		return fault.New(fault.Denied, "this ID token has expired: sign in again")
	case azp != "" && azp != v.cfg.ClientID, azp == "" && len(t.Audience) > 1:
		return fault.New(fault.Denied, "this ID token was issued to another client: sign in with the client ID %q", v.cfg.ClientID)
	}
	for name, want := range v.cfg.Require {
		if got, ok := claims[name].(string); !ok || got != want {
			return fault.New(fault.Denied, "this ID token lacks the claim %s with the value that this cluster requires (-oidc-require): sign in with another account", name)
		}
	}
	return nil
}

// userOf returns the user that the claims name.
func (v *Verifier) userOf(claims map[string]any) (string, error) {
	user, _ := claims[v.cfg.Claim].(string)
	if user == "" || len(user) > maxUser || strings.ContainsFunc(user, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == '*' }) {
		return "", fault.New(fault.Denied, "this ID token names no user: its claim %q (-oidc-claim) is missing, or no name", v.cfg.Claim)
	}
	if verified, _ := claims["email_verified"].(bool); v.cfg.Claim == defaultClaim && !verified {
		return "", fault.New(fault.Denied, "this ID token has an e-mail address that its provider did not verify: verify it there, and sign in again")
	}
	return user, nil
}
