package ui

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// guarded returns a guard before a page that says what it was asked for.
func guarded(t *testing.T) (*Guard, *httptest.Server) {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	g := NewGuard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page "+r.URL.Path) }), s.Listener.Addr().String())
	s.Config.Handler = g
	s.Start()
	t.Cleanup(s.Close)
	return g, s
}

func browserOf(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
}

func fetch(t *testing.T, c *http.Client, address string, change func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// An address opens the page for one browser, once; a stolen address, a guessed
// cookie and a page without either get nothing.
func TestGuardLetsOneBrowserIn(t *testing.T) {
	g, s := guarded(t)
	address := g.Address()
	first, thief := browserOf(t), browserOf(t)
	if code, text := fetch(t, first, address, nil); code != http.StatusOK || text != "page /" {
		t.Fatalf("the address opens %d %q", code, text)
	}
	if code, text := fetch(t, first, s.URL+"/jobs", nil); code != http.StatusOK || text != "page /jobs" {
		t.Errorf("with the cookie: %d %q", code, text)
	}
	if code, _ := fetch(t, first, address, nil); code != http.StatusOK {
		t.Errorf("the address again, with the cookie: %d", code)
	}
	for name, address := range map[string]string{"stolen address": address, "no address": s.URL + "/jobs", "wrong token": s.URL + "/?token=00", "empty token": s.URL + "/?token="} {
		if code, text := fetch(t, thief, address, nil); code != http.StatusUnauthorized || strings.Contains(text, "page /") {
			t.Errorf("%s: %d %q, want 401", name, code, text)
		}
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	thief.Jar.SetCookies(u, []*http.Cookie{{Name: g.cookie, Value: newSecret()}})
	if code, _ := fetch(t, thief, s.URL+"/", nil); code != http.StatusUnauthorized {
		t.Errorf("a guessed cookie: %d, want 401", code)
	}
}

// Another site's name that points at this machine gets nothing, even with the
// cookie, and the cookie is for this site and no script.
func TestGuardRefusesOtherNames(t *testing.T) {
	g, s := guarded(t)
	c := browserOf(t)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := c.Get(g.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if k := res.Cookies(); len(k) != 1 || !k[0].HttpOnly || k[0].SameSite != http.SameSiteStrictMode {
		t.Errorf("cookies %v", k)
	}
	for host, want := range map[string]bool{"evil.example": false, "evil.example:80": false, "10.0.0.1": false, "": true, "localhost:80": true, "127.0.0.1": true, "[::1]:80": true, "localhost.evil.example": false} {
		if code, _ := fetch(t, c, s.URL+"/", func(r *http.Request) { r.Host = host }); (code != http.StatusMisdirectedRequest) != want {
			t.Errorf("host %q: %d, served here: %v", host, code, want)
		}
	}
	for _, path := range []string{"//evil.example", "/%2f/evil.example"} {
		res, err := c.Get(strings.Replace(g.Address(), "/?", path+"?", 1))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if u, err := res.Location(); err != nil || u.Host != strings.TrimPrefix(s.URL, "http://") {
			t.Errorf("%s leads to %v (%v)", path, u, err)
		}
	}
}
