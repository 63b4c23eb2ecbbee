package facts

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// secretLog applies entries about secrets.
type secretLog struct{ f *Facts }

func (l secretLog) put(tenant, name string, version uint32, size int) Result {
	return l.apply(&droverv1.SecretFact{Tenant: tenant, Name: name, Version: version, Key: "k1", Nonce: []byte("n"), Ciphertext: make([]byte, size)})
}

func (l secretLog) apply(s *droverv1.SecretFact) Result {
	return l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, At: int64(l.f.Index()+1) * 1e9, Actor: "user/ann", Body: &droverv1.Entry_Secret{Secret: s}})
}

func (l secretLog) delete(tenant, name string, version uint32) Result {
	return l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, Actor: "user/ann",
		Body: &droverv1.Entry_SecretDeleted{SecretDeleted: &droverv1.SecretDeletedFact{Tenant: tenant, Name: name, Version: version}}})
}

func newSecretLog(t *testing.T) secretLog {
	t.Helper()
	l := secretLog{New()}
	for _, name := range []string{"a", "b"} {
		r := l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, Body: &droverv1.Entry_Tenants{Tenants: &droverv1.TenantsFact{Tenants: []*droverv1.Tenant{{Name: name, Weight: 1}}}}})
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return l
}

func TestSecretsHaveVersions(t *testing.T) {
	l := newSecretLog(t)
	for n := uint32(1); n <= 3; n++ {
		if r := l.put("a", "x", n, 10); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if r := l.put("a", "x", 3, 10); !errors.Is(r.Err, fault.Conflict) {
		t.Errorf("a version that exists: %v", r.Err)
	}
	rotated := &droverv1.SecretFact{Tenant: "a", Name: "x", Version: 2, Key: "k2", Nonce: []byte("m"), Ciphertext: bytes.Repeat([]byte("y"), 10), Rotated: true}
	created := SecretsOf(l.f).Get("a", "x").Version(2).Created
	if r := l.apply(rotated); r.Err != nil {
		t.Fatal(r.Err)
	}
	if v := SecretsOf(l.f).Get("a", "x").Version(2); v.Key != "k2" || v.Created != created || v.Actor != "user/ann" {
		t.Errorf("rotated: %+v", v)
	}
	if r := l.delete("a", "x", 2); r.Err != nil || r.Changed != 1 {
		t.Errorf("delete version 2: %+v", r)
	}
	if r := l.apply(rotated); !errors.Is(r.Err, fault.Conflict) {
		t.Errorf("rotate a version that is gone: %v", r.Err)
	}
	x := SecretsOf(l.f).Get("a", "x")
	if x.Version(2) != nil || x.Version(1) == nil || x.Version(0).Version != 3 {
		t.Errorf("after it: %+v", x)
	}
	if r := l.put("a", "x", 4, 10); r.Err != nil {
		t.Errorf("the next version: %v", r.Err)
	}
	var b bytes.Buffer
	if err := l.f.Snapshot().Encode(&b); err != nil {
		t.Fatal(err)
	}
	back, err := Restore(&b)
	if err != nil || len(SecretsOf(back).All()) != 1 || back.secrets.total != l.f.secrets.total || SecretsOf(back).Get("a", "x").Version(4) == nil {
		t.Errorf("from a snapshot: %v", err)
	}
	if r := l.delete("a", "x", 0); r.Err != nil || r.Changed != 3 || SecretsOf(l.f).Get("a", "x") != nil || l.f.secrets.total != 0 {
		t.Errorf("delete all: %+v, %d bytes left", r, l.f.secrets.total)
	}
	if r := l.delete("a", "x", 0); !errors.Is(r.Err, fault.NotFound) {
		t.Errorf("delete again: %v", r.Err)
	}
}

// A number is given once, also after the newest version, or all of them, were deleted, and
// after a restart; forgotten names begin above all that they may have had.
func TestSecretNumbersAreNotGivenTwice(t *testing.T) {
	l := newSecretLog(t)
	reload := func() {
		t.Helper()
		var b bytes.Buffer
		if err := l.f.Snapshot().Encode(&b); err != nil {
			t.Fatal(err)
		}
		var err error
		if l.f, err = Restore(&b); err != nil {
			t.Fatal(err)
		}
	}
	put := func(name string, want uint32) {
		t.Helper()
		if n := SecretsOf(l.f).Next("a", name); n != want {
			t.Fatalf("the next version of %s is %d, want %d", name, n, want)
		}
		if r := l.put("a", name, want, 1); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	for n := range uint32(5) {
		put("x", n+1)
	}
	for _, version := range []uint32{5, 4, 1} { // the newest, the one that is newest then, and an old one
		if r := l.delete("a", "x", version); r.Err != nil {
			t.Fatal(r.Err)
		}
		reload()
	}
	put("x", 6)
	if r := l.delete("a", "x", 0); r.Err != nil {
		t.Fatal(r.Err)
	}
	reload()
	put("x", 7)
	put("y", 1)
	if n := SecretsOf(l.f).Next("b", "x"); n != 1 {
		t.Errorf("another tenant's begins at %d", n)
	}
	if r := l.delete("a", "x", 0); r.Err != nil {
		t.Fatal(r.Err)
	}
	for i := range maxGoneSecrets + 1 { // so many that x is forgotten
		name := fmt.Sprint("gone", i)
		put(name, SecretsOf(l.f).Next("a", name))
		if r := l.delete("a", name, 0); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if len(l.f.secrets.last) > maxGoneSecrets {
		t.Errorf("%d deleted names are remembered", len(l.f.secrets.last))
	}
	reload()
	put("x", 8)
	put("y", 2)
	if n := SecretsOf(l.f).Next("b", "x"); n != 1 {
		t.Errorf("another tenant's begins at %d", n)
	}
	// An entry of an earlier version of Drover, which began again.
	if r := l.put("a", "new", 1, 1); r.Err != nil {
		t.Errorf("an entry of an earlier version: %v", r.Err)
	}
	if r := l.put("a", "new", 3, 1); !errors.Is(r.Err, fault.Conflict) {
		t.Errorf("a number that nobody may expect: %v", r.Err)
	}
}

func TestSecretsAreBounded(t *testing.T) {
	l := newSecretLog(t)
	for _, c := range []struct {
		what, tenant, name string
		size               int
		want               error
	}{
		{"of no tenant", "c", "x", 1, fault.NotFound},
		{"without a name", "a", "", 1, fault.Invalid},
		{"of a path", "a", "../x", 1, fault.Invalid},
		{"without a value", "a", "x", 0, fault.Exhausted},
		{"that is too large", "a", "x", MaxSecretValue + 65, fault.Exhausted},
	} {
		if r := l.put(c.tenant, c.name, 1, c.size); !errors.Is(r.Err, c.want) {
			t.Errorf("a secret %s: %v", c.what, r.Err)
		}
	}
	for n := range uint32(maxSecretVersions + 1) {
		if r := l.put("a", "x", n+1, 1); (r.Err != nil) != (n == maxSecretVersions) {
			t.Errorf("version %d: %v", n+1, r.Err)
		}
	}
	names, bytes := 0, 0
	for ; l.put("a", fmt.Sprint("n", names), 1, 1).Err == nil; names++ {
	}
	for ; l.put("b", fmt.Sprint("n", bytes), 1, MaxSecretValue).Err == nil; bytes++ {
	}
	if names != maxTenantSecrets-1 || bytes == 0 || bytes*MaxSecretValue > maxTenantBytes {
		t.Errorf("a tenant stored %d more names, another %d large values", names, bytes)
	}
}

// TestJobsNameTheirTenantsSecrets: the answer for a secret of another tenant is that for one
// that does not exist.
func TestJobsNameTheirTenantsSecrets(t *testing.T) {
	l := newSecretLog(t)
	if r := errors.Join(l.put("a", "x", 1, 10).Err, l.put("b", "y", 1, 10).Err); r != nil {
		t.Fatal(r)
	}
	ask := func(ref string) string {
		j := &jobspec.Job{Version: 1, Name: "j", Tenant: "a", Stages: []jobspec.Stage{{Name: "s", Kind: jobspec.KindGroup, Command: []string{"x"}, Secrets: []jobspec.Secret{{Env: "T", Ref: ref}}}}}
		jobspec.SetDefaults(j)
		err := l.f.Checks().CheckJob(j, "", 0)
		if err != nil && !errors.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", ref, err)
		}
		if err == nil {
			return ""
		}
		return err.Error()
	}
	for _, ref := range []string{"secret:x", "secret:x@1", "file:y"} {
		if got := ask(ref); got != "" {
			t.Errorf("%s: %s", ref, got)
		}
	}
	if got := ask("secret:x@2"); !strings.Contains(got, "no version 2") {
		t.Errorf("a version that is not there: %s", got)
	}
	if others, none := ask("secret:y"), ask("secret:z"); others == "" || strings.ReplaceAll(others, "y", "z") != strings.ReplaceAll(none, "y", "z") {
		t.Errorf("another tenant's: %q, one that does not exist: %q", others, none)
	}
}
