package ui

import (
	"bytes"
	"context"
	"errors"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// TokenCookie is the cookie in which a browser keeps the token that its reader
// signed in with. Browsers take it from this host over TLS alone, and send it to
// this host's pages alone.
const TokenCookie = "__Host-drover-token"

// SignInPath is the page with the form.
const SignInPath = "/sign-in"

// signIn serves the form by which a reader without a certificate signs in with a
// token, and every other page to those who have not signed in, as the form.
type signIn struct {
	check func(ctx context.Context, token, address string) error
}

// NewSignIn returns a sign-in. check returns why a token of a caller at an address
// is refused, and slows down who tries many.
func NewSignIn(check func(ctx context.Context, token, address string) error) http.Handler {
	return secure(http.NewCrossOriginProtection().Handler(&signIn{check}))
}

// formLimit bounds how long a stranger's form may take to arrive.
const formLimit = 10 * time.Second

// maxToken bounds the text that a form brings as a token, in bytes.
const maxToken = 4096

// ServeHTTP implements http.Handler.
func (s *signIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case r.URL.Path == SignInPath && r.Method == http.MethodPost:
		s.signIn(w, r)
	case r.URL.Path == "/sign-out" && r.Method == http.MethodPost:
		http.SetCookie(w, tokenCookie("", -1))
		http.Redirect(w, r, SignInPath, http.StatusSeeOther)
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/static/"):
		w.Header().Del("Cache-Control")
		serveStatic(w, r)
	case r.Method != http.MethodGet:
		http.Error(w, "You are not signed in.", http.StatusUnauthorized)
	case r.URL.Path == SignInPath:
		s.show(w, r, http.StatusOK, "/", "")
	case !strings.Contains(r.Header.Get("Accept"), "text/html"): // a script of a page, or no browser
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "You are not signed in: a certificate or a token is needed.", http.StatusUnauthorized)
	default:
		s.show(w, r, http.StatusUnauthorized, r.URL.RequestURI(), "")
	}
}

func (s *signIn) signIn(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(formLimit)) // no connection but a test's lacks deadlines
	r.Body = http.MaxBytesReader(w, r.Body, 2*maxToken)
	token, to := strings.TrimSpace(r.PostFormValue("token")), localPath(r.PostFormValue("to"))
	if len(token) > maxToken {
		token = token[:maxToken]
	}
	if err := s.check(r.Context(), token, r.RemoteAddr); err != nil {
		status := http.StatusUnauthorized
		if errors.Is(err, fault.Overloaded) || errors.Is(err, fault.Unavailable) {
			status = statusOf(err)
		}
		s.show(w, r, status, to, err.Error())
		return
	}
	http.SetCookie(w, tokenCookie(token, 0))
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// tokenCookie lasts as long as the browser is open; with a negative age it goes. A link on
// another site brings it along: Lax leaves it out of all else that other sites ask for, a
// GET changes nothing, and CrossOriginProtection refuses their forms.
func tokenCookie(value string, age int) *http.Cookie {
	return &http.Cookie{Name: TokenCookie, Value: value, Path: "/", MaxAge: age, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
}

// localPath returns a path of this site, never another site's address.
func localPath(to string) string {
	to = "/" + strings.TrimLeft(to, `/\`)
	if strings.ContainsFunc(to, func(r rune) bool { return r < ' ' || r == '\\' }) {
		return "/"
	}
	return to
}

var signInPage = template.Must(template.New("signin").Funcs(helpers).ParseFS(templateFiles, "templates/signin.html"))

// show writes the form. To a reader who has signed in it also offers to sign out.
func (s *signIn) show(w http.ResponseWriter, r *http.Request, status int, to, why string) {
	_, err := r.Cookie(TokenCookie)
	signedIn := err == nil
	var b bytes.Buffer
	if err := signInPage.ExecuteTemplate(&b, "signin", struct {
		To, Why string
		Out     bool
	}{to, why, signedIn}); err != nil {
		http.Error(w, "the form cannot be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // fails only if the reader is gone
}
