package innerbin

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/seed"
)

// A program that the disk has damaged is written again when a daemon starts.
func TestDamageOfAProgramIsMended(t *testing.T) {
	random, dir := rand.New(rand.NewPCG(seed.New(t), 0)), t.TempDir()
	path, err := Install(dir, Logger)
	if err != nil {
		t.Fatal(err)
	}
	if path == "" {
		t.Skip("not proved here: that a damaged program is written again; this build embeds none, `make build` does")
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for range bitrot.Rounds(t, 20) {
		bad, what := bitrot.Damage(random, whole)
		if err := os.WriteFile(path, bad, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := Install(dir, Logger); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whole) {
			t.Fatalf("%s: another program is installed (%v)", what, err)
		}
	}
}
