package facts

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// tokenLog applies entries about tokens at times in seconds.
type tokenLog struct{ f *Facts }

func (l tokenLog) create(at int64, id, user string, until int64) Result {
	return l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, At: at * 1e9, Actor: "local",
		Body: &droverv1.Entry_Token{Token: &droverv1.TokenFact{Hash: make([]byte, 32), Token: &droverv1.Token{Id: id, User: user, ExpiresMs: until * 1000}}}})
}

func (l tokenLog) revoke(at int64, id string) Result {
	return l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, At: at * 1e9, Actor: "local",
		Body: &droverv1.Entry_TokenRevoked{TokenRevoked: &droverv1.TokenRevokedFact{Id: id}}})
}

func TestTokensEndByExpiryAndRevocation(t *testing.T) {
	l := tokenLog{New()}
	for _, id := range []string{"a", "b"} {
		if r := l.create(100, id, "user/ann", 200); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if r := l.create(101, "a", "user/eve", 300); !errors.Is(r.Err, fault.Exists) {
		t.Errorf("a second token of one id: %v", r.Err)
	}
	if r := l.revoke(110, "a"); r.Err != nil || r.Changed != 1 {
		t.Fatalf("revoke: %+v", r)
	}
	if r := l.revoke(111, "a"); r.Err != nil || r.Changed != 0 {
		t.Errorf("revoke again: %+v", r)
	}
	if r := l.revoke(111, "c"); !errors.Is(r.Err, fault.NotFound) {
		t.Errorf("revoke an unknown one: %v", r.Err)
	}
	for at, want := range map[int64][2]string{150_000: {"revoked", ""}, 199_999: {"revoked", ""}, 200_000: {"revoked", "expired"}} {
		if got := [2]string{l.f.Tokens().Get("a").EndedAt(at), l.f.Tokens().Get("b").EndedAt(at)}; got != want {
			t.Errorf("at %d: %q, want %q", at, got, want)
		}
	}
	if !l.f.Tokens().Any(150_000) || l.f.Tokens().Any(200_000) {
		t.Error("which tokens are good is not known")
	}
	var b bytes.Buffer
	if err := l.f.Snapshot().Encode(&b); err != nil {
		t.Fatal(err)
	}
	back, err := Restore(&b)
	if err != nil {
		t.Fatal(err)
	}
	if got := back.Tokens().Get("a"); got == nil || got.EndedAt(1) != "revoked" || len(got.Hash) != 32 {
		t.Errorf("after a snapshot: %+v", got)
	}
	// One more entry after their expiry, and they are gone.
	if r := l.create(200, "d", "user/ann", 300); r.Err != nil || len(l.f.Tokens().All()) != 1 {
		t.Errorf("%v, %d tokens", r.Err, len(l.f.Tokens().All()))
	}
}

func TestTokensOfAUserAreBounded(t *testing.T) {
	l := tokenLog{New()}
	for i := range maxUserTokens {
		if r := l.create(1, fmt.Sprint(i), "user/ann", 100); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if r := l.create(1, "x", "user/ann", 100); !errors.Is(r.Err, fault.Exhausted) {
		t.Errorf("one more: %v", r.Err)
	}
	if r := l.create(1, "x", "user/bob", 100); r.Err != nil {
		t.Errorf("another user's: %v", r.Err)
	}
}

// TestARestoredLogHasNoGoodToken shows that an archive revives no token that was
// revoked after it was saved.
func TestARestoredLogHasNoGoodToken(t *testing.T) {
	l := tokenLog{New()}
	l.create(1, "a", "user/ann", 100)
	l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, At: int64(2 * time.Second), Body: &droverv1.Entry_Restored{Restored: &droverv1.RestoredFact{What: "restored"}}})
	if l.f.Tokens().Any(3000) {
		t.Error("a token of the archive is good")
	}
}

// TestTokensStepBackWithTheClock makes tokens by the right clock, by one that is ahead, and revokes one; then the clock is right
// again. Under the rules of earlier entries nothing changes.
func TestTokensStepBackWithTheClock(t *testing.T) {
	const day = 24 * 3600
	for rules, want := range map[uint32]string{
		0: "right 100+1000000 ahead 172900+1000000 revoked 172900+1000000-172950",
		1: "right 100+1000000 ahead 150+1000000 revoked 150+1000000-200",
	} {
		l := tokenLog{New()}
		apply := func(at int64, rules uint32, body *droverv1.Entry) {
			t.Helper()
			body.Version, body.At, body.StepRules = EntryVersion, at*1e9, rules
			if r := l.f.Apply(l.f.Index()+1, body); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		token := func(at int64, id string) {
			apply(at, 0, &droverv1.Entry{Body: &droverv1.Entry_Token{Token: &droverv1.TokenFact{Hash: make([]byte, 32),
				Token: &droverv1.Token{Id: id, User: "user/ann", CreatedMs: at * 1000, ExpiresMs: (at + 1_000_000) * 1000}}}})
		}
		token(100, "right")
		token(100+2*day, "ahead")
		token(100+2*day, "revoked")
		apply(150+2*day, 0, &droverv1.Entry{Body: &droverv1.Entry_TokenRevoked{TokenRevoked: &droverv1.TokenRevokedFact{Id: "revoked"}}})
		apply(200, rules, &droverv1.Entry{Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "k"}}})
		got := ""
		for _, id := range []string{"right", "ahead", "revoked"} {
			s := l.f.Tokens().Get(id).Spec
			got += fmt.Sprintf(" %s %d+%d", id, s.GetCreatedMs()/1000, (s.GetExpiresMs()-s.GetCreatedMs())/1000)
			if s.GetRevokedMs() != 0 {
				got += fmt.Sprint("-", s.GetRevokedMs()/1000)
			}
		}
		if got != " "+want {
			t.Errorf("rules %d:%s, want %s", rules, got, want)
		}
	}
}
