package idtoken

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/time/rate"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/internal/oidctest"
)

func verifierOf(t *testing.T, p *oidctest.Provider, change func(*Config)) *Verifier {
	t.Helper()
	c := Config{Issuer: p.URL, ClientID: "drover", HTTP: p.Client()}
	if change != nil {
		change(&c)
	}
	v, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Who is not named by a claim of a good token is nobody.
func TestTokensAreBelievedForTheirClaims(t *testing.T) {
	p := oidctest.New(t)
	v := verifierOf(t, p, func(c *Config) { c.Require = map[string]string{"hd": "example.com"} })
	now := time.Now()
	type claims = map[string]any
	for name, tc := range map[string]struct {
		more claims
		want error
	}{
		"a good one":                         {claims{}, nil},
		"of the only audience among several": {claims{"aud": []string{"drover", "x"}, "azp": "drover"}, nil},
		"for another client":                 {claims{"aud": "other"}, fault.Denied},
		"for nobody":                         {claims{"aud": nil}, fault.Denied},
		"for several, of no party":           {claims{"aud": []string{"drover", "x"}}, fault.Denied},
		"issued to another client":           {claims{"azp": "other"}, fault.Denied},
		"of another issuer":                  {claims{"iss": "https://example.org"}, fault.Denied},
		"of no issuer":                       {claims{"iss": nil}, fault.Denied},
		"expired":                            {claims{"exp": now.Add(-time.Second).Unix()}, fault.Denied},
		"without an end":                     {claims{"exp": nil}, fault.Denied},
		"not good yet":                       {claims{"nbf": now.Add(time.Hour).Unix()}, fault.Denied},
		"issued in the future":               {claims{"iat": now.Add(time.Hour).Unix()}, fault.Denied},
		"issued long ago":                    {claims{"iat": now.Add(-25 * time.Hour).Unix()}, fault.Denied},
		"issued at no time":                  {claims{"iat": nil}, fault.Denied},
		"without an address":                 {claims{"email": nil}, fault.Denied},
		"with an address of nobody":          {claims{"email_verified": false}, fault.Denied},
		"with a word for verified":           {claims{"email_verified": "true"}, fault.Denied},
		"with a list of addresses":           {claims{"email": []string{"ann@example.com"}}, fault.Denied},
		"of everybody":                       {claims{"email": "*"}, fault.Denied},
		"of another kind":                    {claims{"email": "node/n1"}, fault.Denied},
		"of two lines":                       {claims{"email": "a\nb"}, fault.Denied},
		"of a long name":                     {claims{"email": strings.Repeat("a", 200)}, fault.Denied},
		"without what is required":           {claims{"hd": nil}, fault.Denied},
		"with another domain":                {claims{"hd": "example.com.evil.org"}, fault.Denied},
		"with a list for the domain":         {claims{"hd": []string{"example.com"}}, fault.Denied},
	} {
		more := claims{"hd": "example.com"}
		for k, x := range tc.more {
			more[k] = x
		}
		user, until, err := v.Verify(t.Context(), p.Sign("drover", more))
		if !errors.Is(err, tc.want) || err == nil && (user != "ann@example.com" || until.Before(now) || until.After(now.Add(maxAge))) {
			t.Errorf("%s: %q until %v, %v", name, user, until, err)
		}
		if err != nil && user != "" {
			t.Errorf("%s: %q and %v", name, user, err)
		}
	}
}

// A signature counts only by a key of the provider, and by a method with a public key.
func TestSignaturesAreTheProvidersOwn(t *testing.T) {
	p := oidctest.New(t)
	v := verifierOf(t, p, nil)
	good := p.Sign("drover", nil)
	if _, _, err := v.Verify(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{"iss": p.URL, "aud": "drover", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(), "email": "ann@example.com", "email_verified": true}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	head := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	parts := strings.Split(good, ".")
	public := x509.MarshalPKCS1PublicKey(&other.PublicKey) // any known bytes
	for name, text := range map[string]string{
		"another key of the same name": oidctest.SignWith(t, jose.RS256, other, "k1", claims),
		"another key":                  oidctest.SignWith(t, jose.RS256, other, "k9", claims),
		"another method":               oidctest.SignWith(t, jose.ES256, curve, "k1", claims),
		"a shared secret":              oidctest.SignWith(t, jose.HS256, public, "k1", claims),
		"no signature":                 head(`{"alg":"none"}`) + "." + parts[1] + ".",
		"other claims":                 parts[0] + "." + head(`{"iss":"`+p.URL+`","aud":"drover"}`) + "." + parts[2],
		"half of it":                   good[:len(good)/2],
		"too much":                     good + strings.Repeat("A", maxToken),
		"nothing":                      "",
	} {
		if user, _, err := v.Verify(t.Context(), text); !errors.Is(err, fault.Denied) || user != "" {
			t.Errorf("%s: %q, %v", name, user, err)
		}
	}
}

// A new key of the provider is found; tokens with keys that never were do not make the
// coordinator ask again and again; and what is known is good while the provider is away.
func TestTheProviderIsAskedSeldom(t *testing.T) {
	p := oidctest.New(t)
	v := verifierOf(t, p, nil)
	old := p.Sign("drover", nil)
	if _, _, err := v.Verify(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	p.NewKey("k2")
	if _, _, err := v.Verify(t.Context(), p.Sign("drover", nil)); err != nil {
		t.Fatalf("a new key: %v", err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the library stores new keys a moment after it has used them
		_, _, err := v.Verify(t.Context(), old)
		if errors.Is(err, fault.Denied) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a token of a key that the provider gave up: %v", err)
		}
	}
	now := p.Sign("drover", nil)
	p.NewKey("k3")
	wrong := p.Sign("drover", nil)
	p.NewKey("k4")
	for range 200 {
		_, _, _ = v.Verify(t.Context(), wrong) // unknown as long as nobody asks
	}
	p.Lock()
	asked := p.Asked
	p.Unlock()
	if asked > askAtOnce {
		t.Errorf("the keys were asked for %d times", asked)
	}
	p.Close()
	if _, _, err := v.Verify(t.Context(), wrong); err == nil {
		t.Error("a wrong token is good while the provider is away")
	}
	_ = now // its key may have been replaced by the last answer
}

func TestAProviderThatIsAwayIsSaid(t *testing.T) {
	p := oidctest.New(t)
	v := verifierOf(t, p, nil)
	text := p.Sign("drover", nil)
	p.Close()
	if _, _, err := v.Verify(t.Context(), text); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

// What cannot be safe is refused at the start.
func TestConfigurationIsRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"no TLS":          {Issuer: "http://example.com", ClientID: "x"},
		"no address":      {Issuer: "example.com", ClientID: "x"},
		"a query":         {Issuer: "https://example.com/?a=b", ClientID: "x"},
		"a user":          {Issuer: "https://a:b@example.com", ClientID: "x"},
		"no client":       {Issuer: "https://example.com"},
		"nothing but ://": {Issuer: "https://", ClientID: "x"},
	} {
		if _, err := New(c); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := &bounded{nil, rate.NewLimiter(1, 1)}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.RoundTrip(r); err == nil {
		t.Error("the provider is asked without TLS")
	}
}

func FuzzLooks(f *testing.F) {
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add("e" + "y..")
	v, err := New(Config{Issuer: "https://127.0.0.1:1", ClientID: "x"})
	if err != nil {
		f.Fatal(err)
	}
	fuzztest.Run(f, func(t *testing.T, s string) {
		if Looks(s) && len(s) > maxToken {
			t.Error("too long")
		}
		if user, _, err := v.Verify(t.Context(), s); err == nil || user != "" {
			t.Errorf("%q is %q", s, user)
		}
	})
}
