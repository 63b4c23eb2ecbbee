package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
)

// Guard lets one person in: who opens the address that Address returned, once.
// That gives a cookie; nobody else on the machine has it. It serves loopback
// only, and only under a loopback name, so that no other site's name can be
// pointed at it.
type Guard struct {
	next   http.Handler
	listen string // host:port
	cookie string // name of the cookie; ports of one machine share cookies

	mu       sync.Mutex
	tokens   map[string]bool // of addresses that nobody has opened yet
	sessions map[string]bool // values of cookies
}

// maxSessions bounds the cookies that are valid at once.
const maxSessions = 64

// NewGuard returns a guard for a listener at a loopback address.
func NewGuard(next http.Handler, listen string) *Guard {
	_, port, _ := net.SplitHostPort(listen)
	return &Guard{next: next, listen: listen, cookie: "drover-" + port, tokens: map[string]bool{}, sessions: map[string]bool{}}
}

// Address returns an address that opens the page once.
func (g *Guard) Address() string {
	token := newSecret()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tokens[token] = true
	return "http://" + g.listen + "/?token=" + token
}

func newSecret() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails: see its documentation
	return hex.EncodeToString(b)
}

// ServeHTTP implements http.Handler.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isLoopbackName(r.Host) {
		http.Error(w, "this page is for this machine: open it as "+g.listen, http.StatusMisdirectedRequest)
		return
	}
	if token := r.URL.Query().Get("token"); token != "" && r.Method == http.MethodGet {
		g.exchange(w, r, token)
		return
	}
	if c, err := r.Cookie(g.cookie); err == nil && g.knows(c.Value) {
		g.next.ServeHTTP(w, r)
		return
	}
	secure(http.HandlerFunc(refuseStranger)).ServeHTTP(w, r)
}

func refuseStranger(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, "You are not signed in. The address that `drover ui` prints opens this page once; run it again for another one.", http.StatusUnauthorized)
}

// exchange gives a cookie for an unused token. The token leaves the address, so
// that it is in no history and no referrer.
func (g *Guard) exchange(w http.ResponseWriter, r *http.Request, token string) {
	g.mu.Lock()
	ok := g.tokens[token] && len(g.sessions) < maxSessions
	delete(g.tokens, token)
	value := newSecret()
	if ok {
		g.sessions[value] = true
	}
	g.mu.Unlock()
	c, err := r.Cookie(g.cookie)
	switch {
	case ok:
		http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	case err != nil || !g.knows(c.Value):
		secure(http.HandlerFunc(refuseStranger)).ServeHTTP(w, r)
		return
	}
	u := url.URL{Path: "/" + strings.TrimLeft(r.URL.Path, "/")} // never another site's address
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, u.String(), http.StatusSeeOther)
}

func (g *Guard) knows(value string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.sessions {
		if subtle.ConstantTimeCompare([]byte(s), []byte(value)) == 1 {
			return true
		}
	}
	return false
}

// isLoopbackName reports whether a Host header names this machine.
func isLoopbackName(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	a, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return name == "localhost" || err == nil && a.IsLoopback()
}
