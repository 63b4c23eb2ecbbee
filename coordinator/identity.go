package coordinator

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// identity is the caller of a request: the name of its certificate, the user of
// its token, or "local" on the local socket.
type identity struct {
	kind  identityKind
	name  string      // "user/alice", "node/n1", "local"
	scope *tokenScope // what a token leaves of the user's rights; nil without one
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

// identify returns who makes a request to a listener, or why that is not known.
type identify func(*http.Request) (identity, error)

// withIdentity adds the caller to the context of each request, and answers those
// who did not prove who they are, before anything of a body is read.
func (c *core) withIdentity(of identify, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := of(r)
		if c.signIn != nil && (err != nil || isSignIn(r)) && r.TLS != nil && isPagePath(r.URL.Path) {
			c.signIn.ServeHTTP(w, r)
			return
		}
		if err != nil {
			c.refuseStranger(w, r, err)
			return
		}
		ctx, done := c.tokens.follow(context.WithValue(r.Context(), identityKey{}, id), id)
		defer done()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (c *core) refuseStranger(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Connection", "close") // do not wait for a body
	if _, ok := procedures[r.URL.Path]; ok {
		c.metrics.observeRefusal(r.URL.Path, err)
		_ = connect.NewErrorWriter().Write(w, r, toWireError(err)) // fails only if the caller is gone
		return
	}
	status := http.StatusUnauthorized
	if wire.IsOverload(toWireError(err)) {
		status = http.StatusTooManyRequests
		w.Header().Set(wire.RetryAfter, retryAfter)
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, wire.FromError(toWireError(err)).Error(), status)
}

// reader names what a caller may read: a token may leave a part of its user's
// rights.
func (id identity) reader() string {
	if id.scope == nil {
		return id.name
	}
	return id.name + " by token " + id.scope.id
}

// readerRights returns a name that callers share only if they may read the same:
// operators may read everything, unless a token leaves them less.
func (c *core) readerRights(id identity) string {
	if id.scope == nil && c.operator(id) {
		return "operators"
	}
	return "of " + id.reader()
}

// isSignIn reports whether a request is about signing in or out.
func isSignIn(r *http.Request) bool { return r.URL.Path == "/sign-in" || r.URL.Path == "/sign-out" }

// isPagePath reports whether a path is one of the web page: no call of the API, and
// none of what programs read.
func isPagePath(path string) bool {
	_, call := procedures[path]
	return !call && !strings.HasPrefix(path, "/drover.") && path != "/metrics" && path != "/healthz" && path != pki.CRLPath
}

// localIdentity takes no tokens: what forwards a caller's token to the socket
// would give him every right.
func localIdentity(r *http.Request) (identity, error) {
	if _, ok := bearer(r); ok {
		return identity{}, unauthenticated("tokens are for the coordinator's TLS port: use an https:// address")
	}
	return identity{kind: kindLocal, name: "local"}, nil
}

// remoteIdentity returns the identity of a caller on the port for users and nodes,
// who has a verified certificate or a token.
func (c *core) remoteIdentity(r *http.Request) (identity, error) {
	token, shown := bearer(r)
	certified := r.TLS != nil && len(r.TLS.VerifiedChains) > 0
	switch {
	case shown && certified:
		return identity{}, unauthenticated("you show a certificate and a token: leave out one of them")
	case shown:
		return c.tokens.identify(token, r.RemoteAddr)
	case certified:
		return tlsIdentity(r), nil
	case c.signIn != nil && isPagePath(r.URL.Path):
		// Only pages take the cookie: another site's form must not make a call of the
		// API with it.
		cookie, err := r.Cookie(c.cfg.TokenCookie)
		if err != nil {
			return identity{}, unauthenticated("you are not signed in")
		}
		return c.tokens.identify(cookie.Value, r.RemoteAddr)
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

// right is a permission that a call requires.
type right int

const (
	mayRead right = iota + 1
	maySubmit
	mayOperate
)

func (r right) String() string {
	switch r {
	case mayRead:
		return "read"
	case maySubmit:
		return "submit"
	case mayOperate:
		return "operate"
	default:
		return "unknown right"
	}
}

// operator reports whether id may do everything.
func (c *core) operator(id identity) bool {
	return id.kind == kindLocal || (id.kind == kindUser && id.scope.coversCluster() && slices.Contains(c.cfg.Operators, id.name))
}

// allowed reports whether id has a right in a tenant. Submitters may also read,
// operators may also submit and read.
func (c *core) allowed(id identity, r right, t *droverv1.Tenant) bool {
	if c.operator(id) {
		return true
	}
	if id.kind != kindUser || !id.scope.covers(r, t.GetName()) {
		return false
	}
	if listed(t.GetOperate(), id.name) {
		return true
	}
	switch r {
	case mayOperate:
		return false
	case maySubmit:
		return listed(t.GetSubmit(), id.name)
	case mayRead:
		return listed(t.GetSubmit(), id.name) || listed(t.GetRead(), id.name)
	default:
		return false
	}
}

// listed reports whether names contains name, with or without "user/", or "*".
func listed(names []string, name string) bool {
	short := strings.TrimPrefix(name, "user/")
	return slices.ContainsFunc(names, func(n string) bool { return n == "*" || n == name || n == short })
}

// need returns an error if the caller lacks a right in a tenant.
func (c *core) need(ctx context.Context, r right, t *droverv1.Tenant) error {
	if id := caller(ctx); !c.allowed(id, r, t) {
		return fault.New(fault.Denied, "%s may not %s in tenant %q: an operator can add it to the tenant's list (drover tenant apply)", id.displayName(), r, t.GetName())
	}
	return nil
}

// needTenant returns an error if there is no tenant of that name, or the caller
// lacks a right in it.
func (c *core) needTenant(ctx context.Context, r right, name string) (err error) {
	c.view(func(f *facts.Facts) {
		t := f.Tenant(name)
		if t == nil {
			err = facts.UnknownTenant(name)
			return
		}
		err = c.need(ctx, r, t.Spec)
	})
	return err
}

// needOperator returns an error if the caller is not an operator of the
// cluster.
func (c *core) needOperator(ctx context.Context, what string) error {
	if id := caller(ctx); !c.operator(id) {
		return fault.New(fault.Denied, "%s may not %s: that is for operators of the coordinator", id.displayName(), what)
	}
	return nil
}

// needUser returns an error if the caller is a node or has an unknown
// certificate.
func (c *core) needUser(ctx context.Context) error {
	if id := caller(ctx); id.kind != kindLocal && id.kind != kindUser {
		return fault.New(fault.Denied, "%s is no user's certificate: an operator makes one with `drover tls cert`", id.displayName())
	}
	return nil
}

// needJob returns an error if the caller lacks a right on a job. Its submitter
// may read and operate it.
func (c *core) needJob(ctx context.Context, r right, f *facts.Facts, j *facts.Job) error {
	id := caller(ctx)
	if id.kind == kindUser && id.name == j.Actor && id.scope.coversOwn(r, j.Spec.Tenant) {
		return nil
	}
	t := f.Tenant(j.Spec.Tenant)
	if t == nil || !c.allowed(id, r, t.Spec) {
		return fault.New(fault.Denied, "%s may not %s job %q of tenant %q", id.displayName(), r, j.Name, j.Spec.Tenant)
	}
	return nil
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

// visibleTenants returns the tenants and what they use. Members are listed only
// for callers who have a right in the tenant; others see its name, parent and
// shares.
func (c *core) visibleTenants(ctx context.Context, f *facts.Facts) []*droverv1.TenantStatus {
	out := tenantStatus(f)
	for _, t := range out {
		if !c.allowed(caller(ctx), mayRead, t.Tenant) {
			s := t.Tenant
			t.Tenant = &droverv1.Tenant{Name: s.GetName(), Parent: s.GetParent(), Weight: s.GetWeight()}
		}
	}
	return out
}
