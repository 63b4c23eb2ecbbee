package coordinator

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of new tokens.
const (
	tokenLife       = 30 * 24 * time.Hour
	minTokenLife    = time.Minute
	maxTokenLife    = 366 * 24 * time.Hour
	maxTokenTenants = 64
	maxUserName     = 128
	maxTokenNote    = 128
)

// tokenService serves `drover token`.
type tokenService struct{ c *core }

var _ droverv1connect.TokenServiceHandler = (*tokenService)(nil)

// needNoToken returns an error if the caller has used a token: a stolen token must not be able to
// outlast itself.
func (s *tokenService) needNoToken(ctx context.Context) error {
	if err := s.c.rights.needUser(ctx); err != nil {
		return err
	}
	if id := caller(ctx); id.scope != nil {
		return fault.New(fault.Denied, "%s may not manage tokens: that needs a certificate, or the coordinator's socket", id.displayName())
	}
	return nil
}

// CreateToken makes a token for the caller or, if an operator calls, for any user.
func (s *tokenService) CreateToken(ctx context.Context, req *connect.Request[droverv1.CreateTokenRequest]) (*connect.Response[droverv1.CreateTokenResponse], error) {
	if err := s.needNoToken(ctx); err != nil {
		return nil, err
	}
	t, err := s.tokenOf(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	text, id, hash := newToken()
	t.Id = id
	e := &droverv1.Entry{Body: &droverv1.Entry_Token{Token: &droverv1.TokenFact{Token: t, Hash: hash}}}
	res, err := s.c.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.CreateTokenResponse{Token: t, Text: text}), nil
}

// tokenOf checks a request and returns the token that it describes, without its id.
func (s *tokenService) tokenOf(ctx context.Context, m *droverv1.CreateTokenRequest) (*droverv1.Token, error) {
	id, user := caller(ctx), userName(m.GetUser())
	if user == "" && id.kind == kindUser {
		user = id.name
	}
	if user == "" {
		return nil, fault.New(fault.Invalid, "the caller has no user's name, so the token needs one: drover token create -user NAME")
	}
	name, isUser := strings.CutPrefix(user, "user/")
	if !isUser || name == "" || len(name) > maxUserName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == '*' }) {
		return nil, fault.New(fault.Invalid, "%q is no user's name: give one of letters, digits and signs, such as alice", name)
	}
	if user != id.name && !s.c.rights.operator(id) {
		return nil, fault.New(fault.Denied, "%s may make tokens for itself only: an operator makes those of %s", id.displayName(), user)
	}
	now, life := s.c.now(), time.Duration(m.GetLifeMs())*time.Millisecond
	if m.GetLifeMs() == 0 {
		life = tokenLife
	}
	if m.GetLifeMs() < 0 || m.GetLifeMs() > maxTokenLife.Milliseconds() || life < minTokenLife {
		return nil, fault.New(fault.Invalid, "a token lives for %s to %s, not %d s", minTokenLife, maxTokenLife, m.GetLifeMs()/1000)
	}
	t := &droverv1.Token{User: user, Tenants: m.GetTenants(), Right: m.GetRight(), Note: m.GetNote(), CreatedBy: id.name,
		CreatedMs: now.UnixMilli(), ExpiresMs: now.Add(life).UnixMilli()}
	if t.Right == droverv1.TokenRight_TOKEN_RIGHT_UNSPECIFIED {
		t.Right = droverv1.TokenRight_TOKEN_RIGHT_OPERATE
	}
	return t, s.checkToken(id, t)
}

func (s *tokenService) checkToken(id identity, t *droverv1.Token) (err error) {
	switch {
	case droverv1.TokenRight_name[int32(t.GetRight())] == "":
		return fault.New(fault.Invalid, "right %d is unknown: use read, submit, operate or all", t.GetRight())
	case t.GetRight() == droverv1.TokenRight_TOKEN_RIGHT_ALL && !s.c.rights.operator(id):
		return fault.New(fault.Denied, "%s may not make a token with all rights: that is for operators of the coordinator", id.displayName())
	case t.GetRight() == droverv1.TokenRight_TOKEN_RIGHT_ALL && len(t.GetTenants()) > 0:
		return fault.New(fault.Invalid, "a token with all rights is good for the whole cluster: leave out its tenants, or its right")
	case len(t.GetNote()) > maxTokenNote:
		return fault.New(fault.Invalid, "a note has at most %d bytes, not %d", maxTokenNote, len(t.GetNote()))
	case len(t.GetTenants()) > maxTokenTenants:
		return fault.New(fault.Invalid, "a token names at most %d tenants, not %d; without any it is good for all", maxTokenTenants, len(t.GetTenants()))
	}
	s.c.view(func(f *facts.Facts) {
		for _, name := range t.GetTenants() {
			if f.Tenant(name) == nil && err == nil {
				err = facts.UnknownTenant(name)
			}
		}
	})
	return err
}

// ListTokens lists tokens without their texts and hashes.
func (s *tokenService) ListTokens(ctx context.Context, _ *connect.Request[droverv1.ListTokensRequest]) (*connect.Response[droverv1.ListTokensResponse], error) {
	if err := s.needNoToken(ctx); err != nil {
		return nil, err
	}
	id, res := caller(ctx), &droverv1.ListTokensResponse{}
	s.c.view(func(f *facts.Facts) {
		for _, t := range f.Tokens().All() {
			if s.c.rights.operator(id) || t.Spec.GetUser() == id.name {
				res.Tokens = append(res.Tokens, t.Spec)
			}
		}
	})
	return connect.NewResponse(res), nil
}

// RevokeToken revokes a token. Open calls that use it end within seconds.
func (s *tokenService) RevokeToken(ctx context.Context, req *connect.Request[droverv1.RevokeTokenRequest]) (*connect.Response[droverv1.RevokeTokenResponse], error) {
	if err := s.needNoToken(ctx); err != nil {
		return nil, err
	}
	id, may := caller(ctx), false
	s.c.view(func(f *facts.Facts) {
		t := f.Tokens().Get(req.Msg.GetId())
		may = s.c.rights.operator(id) || t != nil && t.Spec.GetUser() == id.name
	})
	if !may {
		return nil, fault.New(fault.NotFound, "you have no token %q: `drover token list` shows yours", req.Msg.GetId())
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_TokenRevoked{TokenRevoked: &droverv1.TokenRevokedFact{Id: req.Msg.GetId()}}}
	res, err := s.c.propose(ctx, id.name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	out := &droverv1.RevokeTokenResponse{}
	s.c.view(func(f *facts.Facts) {
		if t := f.Tokens().Get(req.Msg.GetId()); t != nil {
			out.Token = t.Spec
		}
	})
	return connect.NewResponse(out), nil
}
