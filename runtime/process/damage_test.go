package process

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/seed"
)

// A damaged record names no other process than its own: nothing else is killed.
func TestDamageOfARecordNamesNoOtherProcess(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	dir := t.TempDir()
	if err := writeRecord(dir, "a", bootID(), os.Getpid()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "a"+recordSuffix))
	if err != nil {
		t.Fatal(err)
	}
	want, ok := parseRecord(whole)
	if !ok || want.PID != os.Getpid() {
		t.Fatalf("%+v of %s", want, whole)
	}
	found, rounds := 0, bitrot.Rounds(t, 1)
	for range rounds {
		bad, what := bitrot.Damage(random, whole)
		got, ok := parseRecord(bad)
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
