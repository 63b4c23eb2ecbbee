package coordinator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/idtoken"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
)

// A token's text is tokenPrefix, its id, "_" and its secret, in hexadecimal. The prefix lets
// scanners find leaked tokens. The secret has 256 random bits: it cannot be guessed, so its plain
// SHA-256 can be stored.
const (
	tokenPrefix      = "drover_"
	tokenIDBytes     = 8
	tokenSecretBytes = 32
)

const (
	wrongTokenRate = 1                // of one address, in a second; 11 at once
	tokenCheck     = 5 * time.Second  // between two looks at the tokens of open calls
	tokenSilence   = 30 * time.Second // without a leader, after which a follower accepts no tokens
)

// tokens checks the tokens of callers, and ends the calls of tokens that have expired or were
// revoked.
type tokens struct {
	c     *core
	wrong *rates // by address

	mu   sync.Mutex
	open map[*openCall]struct{}
}

// openCall is a request in progress that was authenticated by a token.
type openCall struct {
	scope *tokenScope
	end   context.CancelCauseFunc
}

func newTokens(c *core) *tokens {
	return &tokens{c: c, wrong: newRates(wrongTokenRate), open: map[*openCall]struct{}{}}
}

// tokenScope is the part of a user's rights that a token grants.
type tokenScope struct {
	id      string   // signedIn for an ID token
	tenants []string // empty: all
	right   droverv1.TokenRight
	until   time.Time // of an ID token
}

// signedIn takes the place of a token's id for callers with an ID token.
const signedIn = "of the OpenID provider"

// covers reports whether a scope includes a right in a tenant; a nil scope includes all.
func (s *tokenScope) covers(r right, tenant string) bool {
	if s == nil {
		return true
	}
	if len(s.tenants) > 0 && !slices.Contains(s.tenants, tenant) {
		return false
	}
	switch r {
	case mayRead:
		return s.right >= droverv1.TokenRight_TOKEN_RIGHT_READ
	case maySubmit:
		return s.right >= droverv1.TokenRight_TOKEN_RIGHT_SUBMIT
	case mayOperate:
		return s.right >= droverv1.TokenRight_TOKEN_RIGHT_OPERATE
	default:
		return false
	}
}

// coversOwn reports whether a scope includes a right on a job of the token's user: a token that may
// submit may also stop the user's jobs.
func (s *tokenScope) coversOwn(r right, tenant string) bool {
	return s.covers(min(r, maySubmit), tenant)
}

// coversCluster reports whether a scope includes an operator's rights.
func (s *tokenScope) coversCluster() bool {
	return s == nil || s.right == droverv1.TokenRight_TOKEN_RIGHT_ALL && len(s.tenants) == 0
}

// unauthenticated returns the error for callers who are not authenticated.
func unauthenticated(format string, args ...any) error {
	return connect.NewError(connect.CodeUnauthenticated, fault.New(fault.Denied, format, args...))
}

// identify returns the identity that a token proves. After too many wrong tokens from one address,
// further wrong ones get an overload error. Right tokens never do: other people may share the
// address, and no token can be guessed.
func (t *tokens) identify(text, address string) (identity, error) {
	id, err := t.check(text)
	if err == nil || connect.CodeOf(err) != connect.CodeUnauthenticated {
		return id, err
	}
	if !t.wrong.allow(network(address)) {
		err = fault.Overload("too many wrong tokens come from your address: wait for a few seconds")
	}
	return identity{kind: kindOther}, err
}

// network returns the key by which wrong tokens are counted: the address, or the first 64 bits of
// an IPv6 address, which one site has to itself.
func network(address string) string {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return ""
	}
	ip := a.Addr().Unmap().WithZone("")
	if p, err := ip.Prefix(64); err == nil && ip.Is6() {
		return p.String()
	}
	return ip.String()
}

func (t *tokens) check(text string) (identity, error) {
	if t.c.cfg.IDTokens != nil && idtoken.Looks(text) {
		return t.checkIDToken(text)
	}
	id, hash, ok := parseToken(text)
	if !ok {
		return identity{}, unauthenticated("this is no token of Drover: it begins with %s and comes from `drover token create`", tokenPrefix)
	}
	if err := t.mayJudge(); err != nil {
		return identity{}, err
	}
	var x *facts.Token
	t.c.view(func(f *facts.Facts) { x = f.Tokens().Get(id) })
	if x == nil && !t.c.leadership.leads() { // a follower may not have it yet
		return identity{}, wire.NotLeader("", "this coordinator does not lead, and does not know this token: try again in a second")
	}
	if x == nil || subtle.ConstantTimeCompare(x.Hash, hash) != 1 {
		return identity{}, unauthenticated("this token is unknown: it has expired, or it is another cluster's; an operator makes one with `drover token create`")
	}
	if why := x.EndedAt(t.c.now().UnixMilli()); why != "" {
		return identity{}, unauthenticated("this token of %s is %s: make another one with `drover token create`", x.Spec.GetUser(), why)
	}
	return identity{kindUser, x.Spec.GetUser(), &tokenScope{id: id, tenants: x.Spec.GetTenants(), right: x.Spec.GetRight()}}, nil
}

// checkIDToken returns the user that an ID token names. The user has the rights that tenants grant
// it, and never those of an operator.
func (t *tokens) checkIDToken(text string) (identity, error) {
	user, until, err := t.c.cfg.IDTokens.Verify(context.Background(), text) // the provider's limits bound it
	if errors.Is(err, fault.Denied) {
		return identity{}, unauthenticated("%w", err)
	}
	if err != nil {
		return identity{}, err
	}
	return identity{kindUser, "user/" + user, &tokenScope{id: signedIn, right: droverv1.TokenRight_TOKEN_RIGHT_OPERATE, until: until}}, nil
}

// mayJudge returns an error if this server may have missed a revocation, because it has not heard
// from a leader for a while.
func (t *tokens) mayJudge() error {
	if t.c.peers == nil || t.c.leadership.leads() || time.Since(t.c.replica.LastContact()) < tokenSilence {
		return nil
	}
	return wire.NotLeader("", "this coordinator hears of no leader, so it does not know which tokens are good: ask another one")
}

// parseToken returns the id of a token and the hash of its secret.
func parseToken(text string) (id string, hash []byte, ok bool) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	id, secret, two := strings.Cut(rest, "_")
	if !ok || !two || len(id) != 2*tokenIDBytes || len(secret) != 2*tokenSecretBytes {
		return "", nil, false
	}
	sum := sha256.Sum256([]byte(secret))
	return id, sum[:], true
}

// newToken returns a token's text, its id and the hash of its secret.
func newToken() (text, id string, hash []byte) {
	b := make([]byte, tokenIDBytes+tokenSecretBytes)
	_, _ = rand.Read(b) // never fails: see its documentation
	id, secret := hex.EncodeToString(b[:tokenIDBytes]), hex.EncodeToString(b[tokenIDBytes:])
	sum := sha256.Sum256([]byte(secret))
	return tokenPrefix + id + "_" + secret, id, sum[:]
}

// bearer returns the token in a request's header; ok reports whether there is such
// a header.
func bearer(r *http.Request) (token string, ok bool) {
	h := r.Header["Authorization"]
	if len(h) == 0 {
		return "", false
	}
	kind, token, _ := strings.Cut(h[0], " ")
	if len(h) > 1 || !strings.EqualFold(kind, "Bearer") {
		return "", true // no token is empty
	}
	return strings.TrimSpace(token), true
}

// errTokenEnded is why the calls of an expired or revoked token end.
var errTokenEnded = errors.New("token ended")

// follow returns a context for a request that ends with the caller's token. done must be called
// when the request ends.
func (t *tokens) follow(ctx context.Context, id identity) (_ context.Context, done func()) {
	if id.scope == nil {
		return ctx, func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	o := &openCall{id.scope, end}
	t.mu.Lock()
	t.open[o] = struct{}{}
	t.mu.Unlock()
	return ctx, func() {
		t.mu.Lock()
		delete(t.open, o)
		t.mu.Unlock()
		end(nil)
	}
}

// endCalls ends the open calls of tokens that have expired or were revoked.
func (t *tokens) endCalls() {
	at, lost := t.c.now(), t.mayJudge() != nil
	now := at.UnixMilli()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.c.view(func(f *facts.Facts) {
		for o := range t.open {
			if !o.scope.until.IsZero() {
				if !at.Before(o.scope.until) {
					o.end(errTokenEnded)
				}
				continue
			}
			if x := f.Tokens().Get(o.scope.id); lost || x == nil || x.EndedAt(now) != "" {
				o.end(errTokenEnded)
			}
		}
	})
}

// keep ends the calls of tokens as they end, until ctx ends.
func (t *tokens) keep(ctx context.Context) error {
	for sleep.For(ctx, min(tokenCheck, t.c.cfg.CertificatesEvery)) {
		t.endCalls()
	}
	return nil
}

// markTokenEnd replaces the error of a call whose token ended.
func markTokenEnd(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errTokenEnded) {
		return unauthenticated("your token expired or was revoked during the call; jobs run on without it: have another one made with `drover token create`, or `drover login` again, and go on with `drover job wait`")
	}
	return err
}
