package coordinator

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/pki"
)

// identity is the caller of a request: the name of its certificate, the user of
// its token, or "local" on the local socket.
type identity struct {
	kind  identityKind
	name  string      // "user/alice", "node/n1", "local"
	scope *tokenScope // the part of the user's rights that a token grants; nil without a token
}

type identityKind int

const (
	kindLocal identityKind = iota + 1 // local socket: every right
	kindUser                          // user/<name>
	kindNode                          // node/<name>
	kindPeer                          // coordinator/<name>, on the port for coordinators
	kindOther                         // a certificate of another kind: no rights
)

type identityKey struct{}

// identify returns who makes a request to a listener, or an error if the caller is not
// authenticated.
type identify func(*http.Request) (identity, error)

// authenticator identifies the callers of requests.
type authenticator struct {
	tokens  *tokens
	signIn  http.Handler // nil: there is no form
	cookie  string       // that holds the token of a page
	metrics *metrics
	auditor *auditor
}

func newAuthenticator(c *core) *authenticator {
	a := &authenticator{tokens: c.tokens, cookie: c.cfg.TokenCookie, metrics: c.metrics, auditor: c.auditor}
	if c.cfg.SignIn != nil {
		a.signIn = c.cfg.SignIn(func(_ context.Context, token, address string) error {
			_, err := c.tokens.identify(token, address)
			return wire.FromError(toWireError(err))
		})
	}
	return a
}

// withIdentity adds the caller to the context of each request. Unauthenticated callers are refused
// before any part of the body is read.
func (a *authenticator) withIdentity(of identify, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := of(r)
		if a.signIn != nil && (isStranger(err) || isSignIn(r)) && r.TLS != nil && isPagePath(r.URL.Path) {
			a.signIn.ServeHTTP(w, r)
			return
		}
		if err != nil {
			a.refuseStranger(w, r, err)
			return
		}
		ctx, done := a.tokens.follow(context.WithValue(r.Context(), identityKey{}, id), id)
		defer done()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (a *authenticator) refuseStranger(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Connection", "close") // do not wait for a body
	if _, ok := procedures[r.URL.Path]; ok {
		a.metrics.observeRefusal(r.URL.Path, err)
		a.auditor.recordRefusal(r, err)
		_ = connect.NewErrorWriter().Write(w, r, toWireError(err)) // fails only if the caller is gone
		return
	}
	status := http.StatusUnauthorized
	if isStranger(err) {
		w.Header().Set("WWW-Authenticate", "Bearer")
	} else {
		status = http.StatusServiceUnavailable
		if wire.IsOverload(toWireError(err)) {
			status = http.StatusTooManyRequests
		}
		w.Header().Set(wire.RetryAfter, retryAfter)
	}
	http.Error(w, wire.FromError(toWireError(err)).Error(), status)
}

// isStranger reports whether err means that the caller is not authenticated. Other errors leave
// that open: this server may lack the token, or the provider does not answer.
func isStranger(err error) bool {
	return err != nil && connect.CodeOf(toWireError(err)) == connect.CodeUnauthenticated
}

// reader returns a name for what a caller may read, since a token may grant only a part of its
// user's rights.
func (id identity) reader() string {
	if id.scope == nil {
		return id.name
	}
	return id.name + " by token " + id.scope.id
}

// isSignIn reports whether a request is for signing in or out, or for a file that the sign-in form
// is made of.
func isSignIn(r *http.Request) bool {
	return r.URL.Path == "/sign-in" || r.URL.Path == "/sign-out" || r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/static/")
}

// isPagePath reports whether a path belongs to the web page: it is neither a call of the API nor a
// path that programs read.
func isPagePath(path string) bool {
	_, call := procedures[path]
	return !call && !strings.HasPrefix(path, "/drover.") && path != "/metrics" && path != "/healthz" && path != pki.CRLPath
}

// localIdentity accepts no tokens: a proxy that forwards a caller's token to the socket would give
// that caller every right.
func localIdentity(r *http.Request) (identity, error) {
	if _, ok := bearer(r); ok {
		return identity{}, unauthenticated("tokens are for the coordinator's TLS port: use an https:// address")
	}
	return identity{kind: kindLocal, name: "local"}, nil
}

// remoteIdentity returns the identity of a caller on the port for users and nodes,
// who has a verified certificate or a token.
func (a *authenticator) remoteIdentity(r *http.Request) (identity, error) {
	token, shown := bearer(r)
	certified := r.TLS != nil && len(r.TLS.VerifiedChains) > 0
	switch {
	case shown && certified:
		return identity{}, unauthenticated("you show a certificate and a token: leave out one of them")
	case shown:
		return a.tokens.identify(token, r.RemoteAddr)
	case certified:
		return tlsIdentity(r), nil
	case a.signIn != nil && isPagePath(r.URL.Path):
		// Only pages take the cookie: another site's form must not make a call of the
		// API with it.
		cookie, err := r.Cookie(a.cookie)
		if err != nil {
			return identity{}, unauthenticated("you are not signed in")
		}
		return a.tokens.identify(cookie.Value, r.RemoteAddr)
	default:
		return identity{}, unauthenticated("a certificate or a token is needed: set -tls-cert and -tls-key, or -token-file")
	}
}

// tlsIdentity returns the identity in the verified client certificate.
func tlsIdentity(r *http.Request) identity {
	kind, name, err := pki.PeerIdentity(r.TLS)
	if err != nil {
		return identity{kind: kindOther}
	}
	full := string(kind) + "/" + name
	switch kind {
	case pki.KindUser:
		return identity{kind: kindUser, name: full}
	case pki.KindNode:
		return identity{kind: kindNode, name: full}
	default:
		return identity{kind: kindOther, name: full}
	}
}

// peerIdentity returns the identity of a caller on the port for coordinators.
func peerIdentity(r *http.Request) (identity, error) {
	kind, name, err := pki.PeerIdentity(r.TLS)
	if err != nil || kind != pki.KindCoordinator {
		return identity{kind: kindOther}, nil
	}
	return identity{kind: kindPeer, name: string(kind) + "/" + name}, nil
}

func caller(ctx context.Context) identity {
	id, ok := ctx.Value(identityKey{}).(identity)
	if !ok {
		return identity{kind: kindOther}
	}
	return id
}

func (id identity) displayName() string {
	if id.name == "" {
		return "a caller without a certificate"
	}
	if id.scope != nil {
		return id.name + " with token " + id.scope.id
	}
	return id.name
}
