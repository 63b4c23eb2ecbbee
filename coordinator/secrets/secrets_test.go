package secrets

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

func newRing(t *testing.T) (*Keyring, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if _, err := AddKey(path); err != nil {
		t.Fatal(err)
	}
	r, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return r, path
}

func TestASealedValueIsBoundToItsSecret(t *testing.T) {
	r, _ := newRing(t)
	id, value := ID{"a", "token", 3}, []byte("the value")
	s := r.Seal(id, value)
	if bytes.Contains(s.Ciphertext, value) {
		t.Fatal("the ciphertext has the value")
	}
	if got, err := r.Open(id, s); err != nil || !bytes.Equal(got, value) {
		t.Fatalf("open: %q, %v", got, err)
	}
	for name, other := range map[string]ID{"tenant": {"b", "token", 3}, "name": {"a", "tokem", 3}, "version": {"a", "token", 2}, "boundary": {"at", "oken", 3}} {
		if got, err := r.Open(other, s); !errors.Is(err, fault.Corrupt) || got != nil {
			t.Errorf("as of another %s: %q, %v", name, got, err)
		}
	}
	for i := range s.Ciphertext {
		c := s
		c.Ciphertext = bytes.Clone(s.Ciphertext)
		c.Ciphertext[i] ^= 1
		if _, err := r.Open(id, c); !errors.Is(err, fault.Corrupt) {
			t.Errorf("with byte %d changed: %v", i, err)
		}
	}
	c := s
	c.Nonce = s.Nonce[1:]
	if _, err := r.Open(id, c); !errors.Is(err, fault.Corrupt) {
		t.Errorf("with a short nonce: %v", err)
	}
	if again := r.Seal(id, value); bytes.Equal(again.Nonce, s.Nonce) || bytes.Equal(again.Ciphertext, s.Ciphertext) {
		t.Error("the same value was sealed twice in the same way")
	}
}

func TestAnAddedKeySealsAndOldOnesStillOpen(t *testing.T) {
	old, path := newRing(t)
	id := ID{"a", "x", 1}
	s := old.Seal(id, []byte("v"))
	keys := Follow(path)
	if r, err := keys.Ring(); err != nil || r.Current() != old.Current() {
		t.Fatal(err)
	}
	added, err := AddKey(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := keys.Ring() // read again
	if err != nil || r.Current() != added || added == old.Current() {
		t.Fatalf("the key in force is not the added one: %v", err)
	}
	if v, err := r.Open(id, s); err != nil || string(v) != "v" {
		t.Errorf("open with the older key: %v", err)
	}
	if _, err := old.Open(id, r.Seal(id, []byte("w"))); !errors.Is(err, fault.Unavailable) {
		t.Errorf("open without the key: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Ring(); !errors.Is(err, fault.NotFound) {
		t.Errorf("the keys of a file that is gone: %v", err)
	}
}

// TestRootLeavesAKeyFileToItsOwner: the coordinator, which is another user, must read the file that root replaces, or makes in
// its folder.
func TestRootLeavesAKeyFileToItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not proved here: whose a key file is that root replaces (only root can give a file to another user)")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 4711, 4712); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "key")
	add := func(what string, uid, gid uint32) {
		t.Helper()
		_, err := AddKey(path)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if own := st.Sys().(*syscall.Stat_t); own.Uid != uid || own.Gid != gid || st.Mode().Perm() != keyFileMode {
			t.Errorf("%s: the file is of %d:%d, mode %o", what, own.Uid, own.Gid, st.Mode())
		}
	}
	add("a new file in the folder", 4711, 4712)
	if err := os.Chown(path, 4713, 4714); err != nil {
		t.Fatal(err)
	}
	add("a file that is replaced", 4713, 4714)
}

// TestARestOfAnEarlierKeyFile: a command that was killed while it wrote must not stop all later ones.
func TestARestOfAnEarlierKeyFile(t *testing.T) {
	_, path := newRing(t)
	if err := os.WriteFile(path+".new", []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := AddKey(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err != nil {
		t.Error(err)
	}
}

func TestKeyFilesThatAreRefused(t *testing.T) {
	_, good := newRing(t)
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	hidden := strings.Fields(string(text))[1]
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want error
	}{
		"readable by others": {string(text), 0o644, fault.Denied},
		"empty":              {"", 0o600, fault.Invalid},
		"only a comment":     {"# nothing\n", 0o600, fault.Invalid},
		"a short key":        {"drover-secrets-key " + hidden[:20] + "\n", 0o600, fault.Invalid},
		"another word":       {"key " + hidden + "\n", 0o600, fault.Invalid},
		"no base64":          {"drover-secrets-key !" + hidden[1:] + "\n", 0o600, fault.Invalid},
		"too many":           {strings.Repeat(string(text), maxKeys+1), 0o600, fault.Invalid},
		"a long line":        {strings.Repeat("x", maxKeyFile), 0o600, fault.Invalid},
	} {
		path := filepath.Join(t.TempDir(), "key")
		if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		if !errors.Is(err, c.want) || strings.Contains(err.Error(), hidden[:16]) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := AddKey(path); err == nil {
			t.Errorf("%s: a key was added", name)
		}
	}
	if st, err := os.Stat(good); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key file has mode %v, %v", st.Mode(), err)
	}
}

func FuzzKeyFile(f *testing.F) {
	f.Add([]byte("# keys\ndrover-secrets-key AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		if r, err := parse(b); err == nil && r.Current() == "" {
			t.Error("a key without an id")
		}
	})
}
