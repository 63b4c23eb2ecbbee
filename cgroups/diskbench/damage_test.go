package diskbench

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/seed"
)

// Damaged rates are not used: the disk is measured again.
func TestDamageOfTheRatesIsNotBelieved(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	now := time.Unix(1_700_000_000, 0).UTC()
	file := filepath.Join(t.TempDir(), "rates.json")
	want := Rates{Disk: "8:0", ReadBPS: 200_000_000, WriteBPS: 100_000_000, MixedBPS: 150_000_000, Streams: 4, Direct: true, Measured: now}
	if err := saveCache(file, want); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found, rounds := 0, bitrot.Rounds(t, 1)
	for range rounds {
		bad, what := bitrot.Damage(random, whole)
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		got, ok := loadCache(file, "8:0", time.Hour, now)
		if !ok {
			found++
		} else if got != want {
			t.Fatalf("%s: %+v, want %+v", what, got, want)
		}
	}
	t.Logf("%d of %d found", found, rounds)
	if found < rounds/2 {
		t.Errorf("%d of %d damages were found: the test shows little", found, rounds)
	}
}
