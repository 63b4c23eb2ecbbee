package pki

import (
	"bytes"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/seed"
)

// Whatever happens to the files of a member: either loading fails with the file's name, or the
// member has the same authority, certificate and revocations as before.
func TestDamageOfCertificatesIsNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	dir := cluster(t)
	alice, err := ReadCertificate(filepath.Join(dir, "alice.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Revoke(dir, []*big.Int{alice.SerialNumber}, time.Now()); err != nil {
		t.Fatal(err)
	}
	want := open(t, dir, "n1", KindNode)
	names := []string{caCert, caCRL, "n1.pem", "n1.key"}
	found, rounds := 0, bitrot.Rounds(t, 1)
	for range rounds {
		path := filepath.Join(dir, names[random.IntN(len(names))])
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad, what := bitrot.Damage(random, whole)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := files(dir, "n1").Open(KindNode)
		switch {
		case err != nil:
			if found++; !strings.Contains(err.Error(), path) {
				t.Fatalf("%s of %s: the file is not named: %v", what, filepath.Base(path), err)
			}
		case !bytes.Equal(m.Leaf().Raw, want.Leaf().Raw) || !bytes.Equal(m.cas[0].Raw, want.cas[0].Raw) || len(m.cas) > 1 || !m.Revoked(alice):
			t.Fatalf("%s of %s: it has something else, and nobody said so", what, filepath.Base(path))
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d found", found, rounds)
	if found < rounds/2 {
		t.Errorf("%d of %d damages were found: the test shows little", found, rounds)
	}
}
