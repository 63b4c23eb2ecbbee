package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/idtoken"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/oidctest"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/ui"
)

// secureWithProvider is secure with an OpenID provider.
func secureWithProvider(t *testing.T) (b *testCluster, p *oidctest.Provider, base string) {
	t.Helper()
	p = oidctest.New(t)
	v, err := idtoken.New(idtoken.Config{Issuer: p.URL, ClientID: "drover", HTTP: p.Client()})
	if err != nil {
		t.Fatal(err)
	}
	b, _, base = secureWith(t, func(c *Config) {
		c.IDTokens, c.SignIn, c.TokenCookie = v, ui.NewSignIn, ui.TokenCookie
		c.Operators = []string{"user/root", "user/boss@example.com"}
	})
	return b, p, base
}

func submitAs(h *http.Client, base, tenant, name string) error {
	j := &jobspec.Job{Version: 1, Name: name, Tenant: tenant, Stages: []jobspec.Stage{{Name: "s", Kind: jobspec.KindGroup, Command: []string{"true"}, Tasks: 1}}}
	jobspec.SetDefaults(j)
	spec, err := jobspec.Encode(j)
	if err != nil {
		return err
	}
	_, err = droverv1connect.NewClientServiceClient(h, base).SubmitJob(context.Background(), connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(spec)}))
	return wire.FromError(err)
}

// Who signs in at the provider has what the tenants' lists give to that name: nothing where
// he is not listed, no token of Drover's, and never an operator's rights, whatever his name.
func TestSignedInUsersHaveWhatTheListsSay(t *testing.T) {
	b, p, base := secureWithProvider(t)
	tenants := []*droverv1.Tenant{{Name: "hers", Weight: 1, Uid: 2001, Submit: []string{"ann@example.com"}}, {Name: "other", Weight: 1, Uid: 2002, Submit: []string{"bob"}}}
	if _, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: tenants})); err != nil {
		t.Fatal(err)
	}
	ann := b.withToken(t, p.Sign("drover", nil))
	boss := b.withToken(t, p.Sign("drover", map[string]any{"email": "boss@example.com"}))
	if err := statusAs(ann, base); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ err, want error }{
		"her tenant":         {submitAs(ann, base, "hers", "a"), nil},
		"another tenant":     {submitAs(ann, base, "other", "b"), fault.Denied},
		"an operator's":      {submitAs(boss, base, "hers", "c"), fault.Denied},
		"no token at all":    {statusAs(b.withToken(t, ""), base), fault.Denied},
		"for others":         {wire.FromError(statusAs(b.withToken(t, p.Sign("other", nil)), base)), fault.Denied},
		"unverified":         {wire.FromError(statusAs(b.withToken(t, p.Sign("drover", map[string]any{"email_verified": nil})), base)), fault.Denied},
		"expired":            {wire.FromError(statusAs(b.withToken(t, p.Sign("drover", map[string]any{"exp": 1})), base)), fault.Denied},
		"no token of Drover": {wire.FromError(statusAs(b.withToken(t, "drover_x"), base)), fault.Denied},
	} {
		if err := wire.FromError(tc.err); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	for who, h := range map[string]*http.Client{"ann": ann, "boss": boss} {
		if _, err := droverv1connect.NewTokenServiceClient(h, base).CreateToken(b.ctx, connect.NewRequest(&droverv1.CreateTokenRequest{})); !errors.Is(wire.FromError(err), fault.Denied) {
			t.Errorf("%s makes a token: %v", who, err)
		}
		if _, err := droverv1connect.NewClientServiceClient(h, base).ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: tenants})); !errors.Is(wire.FromError(err), fault.Denied) {
			t.Errorf("%s changes tenants: %v", who, err)
		}
	}
	if err := statusAs(b.withToken(t, p.Sign("drover", nil)), "http://c"); err == nil {
		t.Error("answered without TLS")
	}
}

// Open calls end with the ID token.
func TestIDTokensEndOpenCalls(t *testing.T) {
	b, p, base := secureWithProvider(t)
	h := b.withToken(t, p.Sign("drover", map[string]any{"exp": time.Now().Add(3 * time.Second).Unix()}))
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	s, err := droverv1connect.NewClientServiceClient(h, base).Events(ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
	}
	if err := s.Err(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("it ended with %v", err)
	}
}

// The page takes an ID token as it takes a token of Drover; without one it shows the form.
func TestSignInOnThePageWithAnIDToken(t *testing.T) {
	b, p, base := secureWithProvider(t)
	h := b.withToken(t, "")
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for name, tc := range map[string]struct {
		token string
		want  int
	}{"a good one": {p.Sign("drover", nil), http.StatusSeeOther}, "another client's": {p.Sign("other", nil), http.StatusUnauthorized}} {
		res, err := h.PostForm(base+ui.SignInPath, map[string][]string{"token": {tc.token}, "to": {"//evil.example/x"}})
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if at := res.Header.Get("Location"); res.StatusCode != tc.want || len(at) > 1 && (at[0] != '/' || at[1] == '/') {
			t.Errorf("%s: %s, to %q", name, res.Status, at)
		}
		if cookies := fmt.Sprint(res.Cookies()); (tc.want == http.StatusSeeOther) != (len(res.Cookies()) == 1) {
			t.Errorf("%s: cookies %s", name, cookies)
		}
	}
}
