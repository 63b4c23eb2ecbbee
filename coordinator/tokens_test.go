package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/ui"
)

// bearerTransport shows a token.
type bearerTransport struct {
	next  *http.Transport
	token string
}

func (b *bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// withToken returns a client without a certificate that shows a token, "" for
// nothing.
func (b *testCluster) withToken(t testing.TB, token string) *http.Client {
	t.Helper()
	conf, err := pki.TokenConfig(b.caFile)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	if token == "" {
		return &http.Client{Transport: tr}
	}
	return &http.Client{Transport: &bearerTransport{tr, token}}
}

// newTestToken creates a token and returns its text.
func newTestToken(t testing.TB, c droverv1connect.TokenServiceClient, r *droverv1.CreateTokenRequest) string {
	t.Helper()
	res, err := c.CreateToken(t.Context(), connect.NewRequest(r))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg.Text
}

func tokenID(text string) string { return strings.Split(text, "_")[1] }

func statusAs(h *http.Client, base string) error {
	_, err := droverv1connect.NewClientServiceClient(h, base).Status(context.Background(), connect.NewRequest(&droverv1.StatusRequest{}))
	return err
}

func TestTokensAreMadeByWhoMay(t *testing.T) {
	b, as, base := secure(t)
	ann, root, local := droverv1connect.NewTokenServiceClient(as("user/ann"), base), droverv1connect.NewTokenServiceClient(as("user/root"), base), droverv1connect.NewTokenServiceClient(b.http, "http://c")
	all := droverv1.TokenRight_TOKEN_RIGHT_ALL
	for name, tc := range map[string]struct {
		by   droverv1connect.TokenServiceClient
		req  *droverv1.CreateTokenRequest
		want error
	}{
		"one's own":                     {ann, &droverv1.CreateTokenRequest{}, nil},
		"one's own by name":             {ann, &droverv1.CreateTokenRequest{User: "ann"}, nil},
		"another's":                     {ann, &droverv1.CreateTokenRequest{User: "root"}, fault.Denied},
		"all rights":                    {ann, &droverv1.CreateTokenRequest{Right: all}, fault.Denied},
		"another's, by an operator":     {root, &droverv1.CreateTokenRequest{User: "user/ann"}, nil},
		"all rights, by an operator":    {root, &droverv1.CreateTokenRequest{Right: all}, nil},
		"all rights, but in one tenant": {root, &droverv1.CreateTokenRequest{Right: all, Tenants: []string{"default"}}, fault.Invalid},
		"on the socket":                 {local, &droverv1.CreateTokenRequest{User: "ann"}, nil},
		"of nobody":                     {local, &droverv1.CreateTokenRequest{}, fault.Invalid},
		"of a node":                     {local, &droverv1.CreateTokenRequest{User: "node/n1"}, fault.Invalid},
		"of everybody":                  {local, &droverv1.CreateTokenRequest{User: "*"}, fault.Invalid},
		"of a name with a line break":   {local, &droverv1.CreateTokenRequest{User: "a\nb"}, fault.Invalid},
		"for an unknown tenant":         {local, &droverv1.CreateTokenRequest{User: "ann", Tenants: []string{"nope"}}, fault.NotFound},
		"for ever":                      {local, &droverv1.CreateTokenRequest{User: "ann", LifeMs: 1 << 62}, fault.Invalid},
		"for no time":                   {local, &droverv1.CreateTokenRequest{User: "ann", LifeMs: 1}, fault.Invalid},
		"with an unknown right":         {local, &droverv1.CreateTokenRequest{User: "ann", Right: 9}, fault.Invalid},
		"with a long note":              {local, &droverv1.CreateTokenRequest{User: "ann", Note: strings.Repeat("x", 200)}, fault.Invalid},
	} {
		if _, err := tc.by.CreateToken(b.ctx, connect.NewRequest(tc.req)); !errors.Is(wire.FromError(err), tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	count := func(c droverv1connect.TokenServiceClient) int {
		res, err := c.ListTokens(b.ctx, connect.NewRequest(&droverv1.ListTokensRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Msg.Tokens)
	}
	if n, m := count(ann), count(root); n != 4 || m != 5 {
		t.Errorf("ann sees %d tokens, want her 4; the operator %d, want 5", n, m)
	}
	eve := droverv1connect.NewTokenServiceClient(as("user/eve"), base)
	if _, err := eve.RevokeToken(b.ctx, connect.NewRequest(&droverv1.RevokeTokenRequest{Id: tokenID(newTestToken(t, ann, &droverv1.CreateTokenRequest{}))})); !errors.Is(wire.FromError(err), fault.NotFound) {
		t.Errorf("eve revokes a token of ann: %v", err)
	}
}

// TestTokensEndOpenCalls revokes one token and lets another expire, each in the
// middle of a stream.
func TestTokensEndOpenCalls(t *testing.T) {
	var ahead atomic.Int64
	b, as, base := secureWith(t, func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	tokens := droverv1connect.NewTokenServiceClient(as("user/ann"), base)
	revoked, expiring := newTestToken(t, tokens, &droverv1.CreateTokenRequest{}), newTestToken(t, tokens, &droverv1.CreateTokenRequest{LifeMs: 120_000})
	for _, tc := range []struct {
		name, token string
		end         func() error
	}{
		{"revoked", revoked, func() error {
			_, err := tokens.RevokeToken(b.ctx, connect.NewRequest(&droverv1.RevokeTokenRequest{Id: tokenID(revoked)}))
			return err
		}},
		{"expired", expiring, func() error { ahead.Store(int64(2 * time.Minute)); return nil }},
	} {
		name, h := tc.name, b.withToken(t, tc.token)
		stream := make(chan error, 1)
		go func() {
			st, err := droverv1connect.NewClientServiceClient(h, base).Events(b.ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true}))
			for err == nil && st.Receive() {
				continue
			}
			if err == nil {
				err = errors.Join(st.Err(), st.Close())
			}
			stream <- err
		}()
		if err := statusAs(h, base); err != nil {
			t.Fatalf("%s, before: %v", name, err)
		}
		b.waitUntil("the stream is open", func() bool { return b.metric(inUse("streams")) == 1 })
		if err := tc.end(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-stream:
			if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "jobs run on without it") {
				t.Errorf("%s: the stream ended with: %v", name, err)
			}
		case <-time.After(waitLimit):
			t.Fatalf("%s: the stream goes on", name)
		}
		if err := statusAs(h, base); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), name) {
			t.Errorf("%s, after: %v", name, err)
		}
	}
}

// TestWrongTokensAreSlowedDown shows that an address that tries tokens is told to
// wait, while a right token from there goes on.
func TestWrongTokensAreSlowedDown(t *testing.T) {
	b, as, base := secure(t)
	good := b.withToken(t, newTestToken(t, droverv1connect.NewTokenServiceClient(as("user/ann"), base), &droverv1.CreateTokenRequest{}))
	_, id, _ := newToken()
	codes := map[connect.Code]int{}
	for i := range 100 {
		bad := b.withToken(t, fmt.Sprintf("drover_%s_%064d", id, i))
		err := statusAs(bad, base)
		codes[connect.CodeOf(err)]++
		if connect.CodeOf(err) == connect.CodeResourceExhausted && !wire.IsOverload(err) {
			t.Errorf("nobody says when to come back: %v", err)
		}
		bad.CloseIdleConnections()
	}
	if codes[connect.CodeUnauthenticated] == 0 || codes[connect.CodeResourceExhausted] == 0 || len(codes) != 2 {
		t.Errorf("the answers to 100 wrong tokens: %v", codes)
	}
	if err := statusAs(good, base); err != nil {
		t.Errorf("a right token from the same address: %v", err)
	}
	for address, want := range map[string]string{"192.0.2.7:99": "192.0.2.7", "[2001:db8::1:2]:9": "2001:db8::/64", "[::ffff:192.0.2.7]:1": "192.0.2.7", "": ""} {
		if got := network(address); got != want {
			t.Errorf("wrong tokens of %q count as of %q, want %q", address, got, want)
		}
	}
}

// TestStrangersAreRefusedBeforeTheirBody sends requests without a proof, or with a
// wrong one, whose bodies never come.
func TestStrangersAreRefusedBeforeTheirBody(t *testing.T) {
	b, as, base := secure(t)
	newTestToken(t, droverv1connect.NewTokenServiceClient(as("user/ann"), base), &droverv1.CreateTokenRequest{})
	for _, path := range []string{droverv1connect.ClientServicePutBlobProcedure, droverv1connect.ClientServiceSubmitJobProcedure, "/metrics", "/", pki.CRLPath} {
		res, err := http.ReadResponse(slowRequest(t, b.withToken(t, ""), base, path, make([]byte, 1<<20), 1<<20), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if _ = res.Body.Close(); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
}

// Calls with a token that is wrong, revoked or expired, or with no proof, are in the audit log, with the address, and without the
// token.
func TestRefusedTokensAreAudited(t *testing.T) {
	var ahead atomic.Int64
	b, as, base := secureWith(t, func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	tokens := droverv1connect.NewTokenServiceClient(as("user/ann"), base)
	newTestToken(t, tokens, &droverv1.CreateTokenRequest{}) // without one the port takes certificates alone
	revoked, expired := newTestToken(t, tokens, &droverv1.CreateTokenRequest{}), newTestToken(t, tokens, &droverv1.CreateTokenRequest{LifeMs: 120_000})
	if _, err := tokens.RevokeToken(b.ctx, connect.NewRequest(&droverv1.RevokeTokenRequest{Id: tokenID(revoked)})); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(2 * time.Minute))
	unknown, _, _ := newToken()
	for _, tc := range []struct{ token, want string }{{revoked, "is revoked"}, {expired, "expired"}, {unknown, "is unknown"}, {"", "a token is needed"}} {
		if err := statusAs(b.withToken(t, tc.token), base); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Fatalf("%q: %v", tc.want, err)
		}
		all := auditRecords(t, filepath.Join(b.cfg.Dir, "audit.jsonl"))
		r := all[len(all)-1]
		if r.Actor != "a caller without a certificate" || r.Call != "Status" || r.Outcome != "not allowed" || !strings.HasPrefix(r.From, "127.0.0.1:") || !strings.Contains(r.Error, tc.want) {
			t.Errorf("%q: the last record is %+v", tc.want, r)
		}
		if tc.token != "" && strings.Contains(fmt.Sprint(all), tc.token) {
			t.Errorf("%q: the audit log has the token", tc.want)
		}
	}
}

// TestNoTokenMeansNoStranger shows that the port asks for certificates in the
// handshake while no token is good.
func TestNoTokenMeansNoStranger(t *testing.T) {
	b, as, base := secure(t)
	if err := statusAs(b.withToken(t, ""), base); err == nil || connect.CodeOf(err) == connect.CodeUnauthenticated {
		t.Errorf("before the first token a stranger got past the handshake: %v", err)
	}
	tokens := droverv1connect.NewTokenServiceClient(as("user/ann"), base)
	text := newTestToken(t, tokens, &droverv1.CreateTokenRequest{})
	if err := statusAs(b.withToken(t, ""), base); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a stranger beside a token: %v", err)
	}
	if _, err := tokens.RevokeToken(b.ctx, connect.NewRequest(&droverv1.RevokeTokenRequest{Id: tokenID(text)})); err != nil {
		t.Fatal(err)
	}
	if err := statusAs(b.withToken(t, text), base); err == nil || connect.CodeOf(err) == connect.CodeUnauthenticated {
		t.Errorf("after the last token somebody without a certificate got past the handshake: %v", err)
	}
}

func TestLocalSocketTakesNoToken(t *testing.T) {
	b, as, base := secure(t)
	text := newTestToken(t, droverv1connect.NewTokenServiceClient(as("user/ann"), base), &droverv1.CreateTokenRequest{})
	h := &http.Client{Transport: &bearerTransport{b.http.Transport.(*http.Transport), text}}
	if err := statusAs(h, "http://c"); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a token on the socket: %v", err)
	}
}

// TestTokenTextIsKeptNowhere looks for a token's secret in all that the coordinator
// has on disk and says.
func TestTokenTextIsKeptNowhere(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) { c.SnapshotEntries = 10 })
	tokens := droverv1connect.NewTokenServiceClient(as("user/ann"), base)
	text := newTestToken(t, tokens, &droverv1.CreateTokenRequest{Note: "for the test"})
	id, secret := tokenID(text), []byte(strings.Split(text, "_")[2])
	if err := statusAs(b.withToken(t, text), base); err != nil {
		t.Fatal(err)
	}
	for i := range 30 { // enough for a snapshot
		b.submit(groupJob(fmt.Sprint("j", i), 1))
	}
	res, err := tokens.ListTokens(b.ctx, connect.NewRequest(&droverv1.ListTokensRequest{}))
	if err != nil || len(res.Msg.Tokens) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	said := res.Msg.String() + b.eventLog()
	b.kill()
	found := 0
	err = filepath.WalkDir(b.cfg.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, secret) {
			t.Errorf("the secret is in %s", path)
		}
		if bytes.Contains(raw, []byte(id)) {
			found++
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%v; the token's id is in %d files", err, found)
	}
	if strings.Contains(said, string(secret)) {
		t.Error("the secret is in a list or an event")
	}
	b.cfg.Remote, b.cfg.Certificate = nil, nil // closed
	b.start()
	b.waitUntil("the token is known after a restart", func() bool {
		r, err := droverv1connect.NewTokenServiceClient(b.http, "http://c").ListTokens(b.ctx, connect.NewRequest(&droverv1.ListTokensRequest{}))
		return err == nil && len(r.Msg.Tokens) == 1 && r.Msg.Tokens[0].Note == "for the test"
	})
}

// TestTokensWithThreeCoordinators uses a token at every server, also after the
// loss of the leader, until it is revoked.
func TestTokensWithThreeCoordinators(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	tokens := droverv1connect.NewTokenServiceClient(s.as("user/root"))
	var text string
	s.waitUntil("a token is created", func() bool { // a change of the leader may take the call with it
		res, err := tokens.CreateToken(s.ctx, connect.NewRequest(&droverv1.CreateTokenRequest{User: "ann"}))
		if err != nil {
			return false
		}
		text = res.Msg.Text
		return true
	})
	conf, err := pki.TokenConfig(filepath.Join(s.dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	status := func(id string, stale bool) error {
		tr := s.transport("user", conf, "https://"+id+":2")
		defer tr.CloseIdleConnections()
		tr.ShowToken(text)
		c := droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, coordclient.Base)
		req := connect.NewRequest(&droverv1.StatusRequest{})
		if stale {
			req.Header().Set(wire.Stale, "1")
		}
		ctx, cancel := context.WithTimeout(s.ctx, waitLimit)
		defer cancel()
		_, err := c.Status(ctx, req)
		return err
	}
	everywhere := func(what string, ok func(id string) bool) {
		t.Helper()
		for id := range s.running {
			s.waitUntil(what+" at "+id, func() bool { return ok(id) })
		}
	}
	everywhere("the token is good", func(id string) bool { return status(id, true) == nil })
	everywhere("followers name the leader", func(id string) bool {
		url, not := wire.LeaderOf(status(id, false))
		return !not || strings.HasPrefix(url, "https://")
	})
	s.kill(s.awaitLeader())
	s.awaitLeader()
	everywhere("the token is good after the loss of the leader", func(id string) bool { return status(id, true) == nil })
	s.waitUntil("it is revoked", func() bool {
		_, err := tokens.RevokeToken(s.ctx, connect.NewRequest(&droverv1.RevokeTokenRequest{Id: tokenID(text)}))
		return err == nil
	})
	everywhere("the token is refused", func(id string) bool {
		err := status(id, true)
		return err != nil && !errors.Is(err, io.EOF) && connect.CodeOf(err) != connect.CodeDeadlineExceeded
	})
}

// A reader without a certificate signs in on the page with a token, and gets a
// cookie that the page takes and the API does not. A wrong token, one of another
// site's form and one that was revoked give nothing.
func TestSignInOnThePage(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) {
		c.SignIn, c.TokenCookie = ui.NewSignIn, ui.TokenCookie
		c.Page = func(p PageConfig) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page of ", p.Reader(r.Context())) })
		}
	})
	tokens := droverv1connect.NewTokenServiceClient(as("user/ann"), base)
	token := newTestToken(t, tokens, &droverv1.CreateTokenRequest{})
	client := b.withToken(t, "")
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	ask := func(method, path, body string, headers map[string]string) (int, string, *http.Response) {
		t.Helper()
		r, err := http.NewRequestWithContext(b.ctx, method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range headers {
			r.Header.Set(k, v)
		}
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text), res
	}
	form := map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	html := map[string]string{"Accept": "text/html"}
	if code, text, _ := ask("GET", "/jobs?q=a", "", html); code != http.StatusUnauthorized || !strings.Contains(text, `name="to" value="/jobs?q=a"`) {
		t.Errorf("a page before: %d %s", code, text)
	}
	if code, _, _ := ask("GET", "/static/page.css", "", nil); code != http.StatusOK {
		t.Errorf("the form's style: %d", code)
	}
	if code, text, res := ask("POST", "/sign-in", "token=wrong&to=/jobs", form); code != http.StatusUnauthorized || !strings.Contains(text, "this is no token") || len(res.Cookies()) != 0 {
		t.Errorf("a wrong token: %d %s", code, text)
	}
	if code, _, res := ask("POST", "/sign-in", "token="+token, map[string]string{"Content-Type": form["Content-Type"], "Sec-Fetch-Site": "cross-site"}); code != http.StatusForbidden || len(res.Cookies()) != 0 {
		t.Errorf("another site's form: %d", code)
	}
	code, _, res := ask("POST", "/sign-in", "token="+token+"&to=//evil.example/", form)
	if code != http.StatusSeeOther || res.Header.Get("Location") != "/evil.example/" || len(res.Cookies()) != 1 {
		t.Fatalf("the right token: %d %v", code, res.Header)
	}
	cookie := res.Cookies()[0]
	if !cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteLaxMode || cookie.Path != "/" || cookie.Domain != "" {
		t.Errorf("cookie %v", cookie)
	}
	signed := map[string]string{"Cookie": cookie.Name + "=" + cookie.Value, "Accept": "text/html"}
	if code, text, _ := ask("GET", "/jobs", "", signed); code != http.StatusOK || !strings.HasPrefix(text, "page of user/ann by token ") {
		t.Errorf("a page after: %d %s", code, text)
	}
	for _, path := range []string{droverv1connect.ClientServiceStatusProcedure, "/metrics"} {
		if code, text, _ := ask("POST", path, "{}", map[string]string{"Cookie": signed["Cookie"], "Content-Type": "application/json"}); code != http.StatusUnauthorized {
			t.Errorf("%s takes the cookie: %d %s", path, code, text)
		}
	}
	foreign := map[string]string{"Cookie": signed["Cookie"], "Sec-Fetch-Site": "cross-site"}
	if code, _, res := ask("POST", "/sign-out", "", foreign); code != http.StatusForbidden || len(res.Cookies()) != 0 {
		t.Errorf("another site's form signs out: %d", code)
	}
	foreign["Accept"] = "text/html" // as a browser follows a link
	if code, _, _ := ask("GET", "/jobs", "", foreign); code != http.StatusOK {
		t.Errorf("a link on another site: %d", code)
	}
	if code, _, res := ask("POST", "/sign-out", "", signed); code != http.StatusSeeOther || len(res.Cookies()) != 1 || res.Cookies()[0].MaxAge >= 0 {
		t.Errorf("sign out: %d %v", code, res.Header)
	}
	if _, err := tokens.RevokeToken(b.ctx, connect.NewRequest(&droverv1.RevokeTokenRequest{Id: tokenID(token)})); err != nil {
		t.Fatal(err)
	}
	newTestToken(t, tokens, &droverv1.CreateTokenRequest{}) // the port asks for certificates alone while there is no token
	if code, text, _ := ask("GET", "/jobs", "", signed); code != http.StatusUnauthorized || !strings.Contains(text, "Sign in") {
		t.Errorf("after it was revoked: %d %s", code, text)
	}
	limited := false
	for range 200 {
		code, _, _ := ask("POST", "/sign-in", "token="+token+"x", form)
		if limited = code == http.StatusTooManyRequests; limited {
			break
		}
	}
	if !limited {
		t.Error("wrong tokens are not slowed down")
	}
}

// A reader whose token cannot be checked just now is told so, and not that it is wrong:
// an open page then waits. The form, and what it looks like, are there all the same.
func TestTokenThatCannotBeCheckedYet(t *testing.T) {
	a := &authenticator{signIn: ui.NewSignIn(func(context.Context, string, string) error {
		return fault.New(fault.Unavailable, "nobody leads")
	})}
	for name, try := range map[string]struct {
		err        error
		path, body string
		want       int
		text       string
	}{
		"a page":                     {err: wire.NotLeader("", "ask another one"), path: "/jobs", want: http.StatusServiceUnavailable, text: "ask another one"},
		"its stream":                 {err: wire.NotLeader("", "ask another one"), path: "/live?path=/jobs", want: http.StatusServiceUnavailable, text: "ask another one"},
		"the provider is away":       {err: fault.New(fault.Unavailable, "the OpenID provider is away"), path: "/jobs", want: http.StatusServiceUnavailable, text: "provider is away"},
		"too many wrong tokens":      {err: fault.Overload("wait for a few seconds"), path: "/jobs", want: http.StatusTooManyRequests, text: "wait for a few seconds"},
		"metrics":                    {err: wire.NotLeader("", "ask another one"), path: "/metrics", want: http.StatusServiceUnavailable, text: "ask another one"},
		"a wrong token":              {err: unauthenticated("it is unknown"), path: "/jobs", want: http.StatusUnauthorized, text: "Sign in to Drover"},
		"the form":                   {err: wire.NotLeader("", "ask another one"), path: "/sign-in", want: http.StatusOK, text: "Sign in to Drover"},
		"the form's style":           {err: wire.NotLeader("", "ask another one"), path: "/static/page.css", want: http.StatusOK, text: "font"},
		"the form, filled in, later": {err: unauthenticated("there is none"), path: "/sign-in", body: "token=x", want: http.StatusServiceUnavailable, text: "nobody leads"},
	} {
		r := httptest.NewRequest(http.MethodGet, "https://c1"+try.path, nil)
		if try.body != "" {
			r = httptest.NewRequest(http.MethodPost, "https://c1"+try.path, strings.NewReader(try.body))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		r.Header.Set("Accept", "text/html")
		w := httptest.NewRecorder()
		a.withIdentity(func(*http.Request) (identity, error) { return identity{}, try.err }, http.NotFoundHandler()).ServeHTTP(w, r)
		waits := try.want == http.StatusServiceUnavailable || try.want == http.StatusTooManyRequests
		if w.Code != try.want || !strings.Contains(w.Body.String(), try.text) || try.body == "" && (w.Header().Get(wire.RetryAfter) != "") != waits {
			t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
		}
	}
}

// Only callers who may read the same share what the page computes: operators, unless
// a token leaves them less.
func TestRightsOfReaders(t *testing.T) {
	rights := &authorizer{operators: []string{"user/op", "user/op2"}}
	op, op2, alice := identity{kind: kindUser, name: "user/op"}, identity{kind: kindUser, name: "user/op2"}, identity{kind: kindUser, name: "user/alice"}
	bob, local := identity{kind: kindUser, name: "user/bob"}, identity{kind: kindLocal, name: "local"}
	bounded := op
	bounded.scope = &tokenScope{id: "t1"}
	impostor := identity{kind: kindOther, name: "operators"}
	names := map[string]string{}
	for _, id := range []identity{alice, bob, bounded, impostor, op} {
		r := rights.readerRights(id)
		if other, taken := names[r]; taken {
			t.Errorf("%s and %s share %q", id.displayName(), other, r)
		}
		names[r] = id.displayName()
	}
	if rights.readerRights(op) != rights.readerRights(op2) || rights.readerRights(op) != rights.readerRights(local) {
		t.Error("operators do not share")
	}
}
