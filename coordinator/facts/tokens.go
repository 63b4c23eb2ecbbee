package facts

import (
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of tokens that have not expired.
const (
	maxTokens     = 10_000
	maxUserTokens = 100 // of one user
)

// Token is an access token. It is never changed once made: a revoked one is
// another value.
type Token struct {
	Spec *droverv1.Token
	Hash []byte // SHA-256 of its secret
}

// EndedAt returns why a token is no longer good at a time (Unix ms): "expired",
// "revoked", or "" if it is good.
func (t *Token) EndedAt(ms int64) string {
	switch {
	case t.Spec.GetRevokedMs() != 0:
		return "revoked"
	case ms >= t.Spec.GetExpiresMs():
		return "expired"
	default:
		return ""
	}
}

// Get returns the token of that id, or nil.
func (tk Tokens) Get(id string) *Token { return tk.f.tokens[id] }

// All returns all tokens by id. It allocates. Expired ones are among them
// until another one is created.
func (tk Tokens) All() []*Token {
	out := make([]*Token, 0, len(tk.f.tokens))
	for _, id := range slices.Sorted(maps.Keys(tk.f.tokens)) {
		out = append(out, tk.f.tokens[id])
	}
	return out
}

// Any reports whether a token is good at a time (Unix ms).
func (tk Tokens) Any(ms int64) bool {
	for _, t := range tk.f.tokens {
		if t.EndedAt(ms) == "" {
			return true
		}
	}
	return false
}

// add adds a token, and drops those that have expired.
func (tk Tokens) add(e *droverv1.Entry, tf *droverv1.TokenFact, r *Result) {
	tk.dropExpired()
	t := tf.GetToken()
	of := 0
	for _, x := range tk.f.tokens {
		if x.Spec.GetUser() == t.GetUser() {
			of++
		}
	}
	switch {
	case t.GetId() == "" || t.GetUser() == "" || len(tf.GetHash()) != sha256.Size:
		r.Err = fault.New(fault.Invalid, "a token has an id, a user and the hash of its secret")
	case tk.f.tokens[t.GetId()] != nil:
		r.Err = fault.New(fault.Exists, "there is a token %s", clip(t.GetId(), 64))
	case len(tk.f.tokens) >= maxTokens:
		r.Err = fault.New(fault.Exhausted, "a cluster has at most %d tokens that have not expired: give them shorter lives", maxTokens)
	case of >= maxUserTokens:
		r.Err = fault.New(fault.Exhausted, "%s has %d tokens that have not expired, the limit: give them shorter lives", t.GetUser(), of)
	default:
		tk.f.tokens[t.GetId()] = &Token{Spec: proto.CloneOf(t), Hash: slices.Clone(tf.GetHash())}
		tk.f.EventLog().add(e, "token.created", &Event{Text: tokenText(t)})
		r.Changed = 1
	}
}

// dropExpired forgets the tokens that had expired when the entry was made.
func (tk Tokens) dropExpired() {
	maps.DeleteFunc(tk.f.tokens, func(_ string, t *Token) bool { return t.Spec.GetExpiresMs() <= tk.f.now/int64(time.Millisecond) })
}

// stepBack moves the life of each token that was made after `to`, which is now: by a
// clock that was ahead by `by`.
func (tk Tokens) stepBack(to, by int64) {
	now, ms := to/int64(time.Millisecond), by/int64(time.Millisecond)
	for id, t := range tk.f.tokens {
		next := &Token{Spec: proto.CloneOf(t.Spec), Hash: t.Hash}
		if made := next.Spec.GetCreatedMs(); made > now {
			next.Spec.CreatedMs, next.Spec.ExpiresMs = min(made-ms, now), max(1, next.Spec.GetExpiresMs()-made+min(made-ms, now))
		}
		next.Spec.RevokedMs = min(next.Spec.GetRevokedMs(), now)
		tk.f.tokens[id] = next
	}
}

func (tk Tokens) applyRevoked(e *droverv1.Entry, tf *droverv1.TokenRevokedFact, r *Result) {
	t := tk.f.tokens[tf.GetId()]
	if t == nil {
		r.Err = fault.New(fault.NotFound, "there is no token %q: `drover token list` shows yours", clip(tf.GetId(), 64))
		return
	}
	if t.Spec.GetRevokedMs() == 0 {
		tk.revoke(t)
		tk.f.EventLog().add(e, "token.revoked", &Event{Text: tokenText(t.Spec)})
		r.Changed = 1
	}
}

// revoke keeps the token until it expires, so that its holder is told why it
// is refused.
func (tk Tokens) revoke(t *Token) {
	next := &Token{Spec: proto.CloneOf(t.Spec), Hash: t.Hash}
	next.Spec.RevokedMs = max(tk.f.now/int64(time.Millisecond), 1)
	tk.f.tokens[t.Spec.GetId()] = next
}

// revokeAll is for facts from an archive: a token that was revoked after
// it was saved would be good again.
func (tk Tokens) revokeAll() {
	for _, t := range tk.All() {
		if t.Spec.GetRevokedMs() == 0 {
			tk.revoke(t)
		}
	}
}

func tokenText(t *droverv1.Token) string {
	return clip(t.GetId(), 64) + " of " + clip(t.GetUser(), 160) + ", until " + time.UnixMilli(t.GetExpiresMs()).UTC().Format(time.DateOnly)
}
