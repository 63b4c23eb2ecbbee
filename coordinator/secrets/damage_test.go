package secrets

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// Whatever happens to the key file, no other key than its own is ever used: the file is
// refused by its name, or has its first keys. What a key that was cut off has sealed is
// refused with the key's id.
func TestDamageOfTheKeyFileIsNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	_, path := newRing(t)
	for range 2 {
		if _, err := AddKey(path); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	id := ID{"t", "db", 1}
	sealed := want.Seal(id, []byte("value"))
	found, rounds := 0, bitrot.Rounds(t, 1)
	for range rounds {
		bad, what := bitrot.Damage(random, whole)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Load(path)
		if err != nil {
			if found++; !strings.Contains(err.Error(), path) {
				t.Fatalf("%s: the file is not named: %v", what, err)
			}
			continue
		}
		if got, all := ids(r), ids(want); !slices.Equal(got, all[:min(len(got), len(all))]) {
			t.Fatalf("%s: keys %v, not %v", what, got, all)
		}
		value, err := r.Open(id, sealed)
		if err == nil && string(value) == "value" {
			continue
		}
		if found++; !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), sealed.Key) {
			t.Fatalf("%s: %q, %v", what, value, err)
		}
	}
	t.Logf("%d of %d found", found, rounds)
	if found < rounds/2 {
		t.Errorf("%d of %d damages were found: the test shows little", found, rounds)
	}
}

func ids(r *Keyring) (out []string) {
	for _, k := range r.keys {
		out = append(out, k.id)
	}
	return out
}

// A key file of an earlier version has no ids.
func TestKeyFileOfAnEarlierVersion(t *testing.T) {
	want, path := newRing(t)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b))
	if err := os.WriteFile(path, []byte(f[0]+" "+f[1]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := AddKey(path); err != nil {
		t.Fatal(err)
	}
	if r, err := Load(path); err != nil || len(r.keys) != 2 || !r.Has(want.Current()) {
		t.Errorf("%v", err)
	}
}
