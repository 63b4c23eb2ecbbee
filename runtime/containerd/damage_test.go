package containerd

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// Whatever happens to a file of a suspended task's image, or to the manifest, the dump is
// refused before criu reads it, or all of its files are what criu wrote.
func TestDamageOfAnImageIsFound(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	dir := t.TempDir()
	whole := map[string][]byte{}
	if err := os.Mkdir(filepath.Join(dir, imageDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"pages-1.img": 50_000, "core-1.img": 1700, "inventory.img": 40} {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if err := os.WriteFile(filepath.Join(dir, imageDir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		whole[filepath.Join(imageDir, name)] = b
	}
	if err := writeManifest(t.Context(), dir, "c-1", newFollower(dir)); err != nil {
		t.Fatal(err)
	}
	want, err := readManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	if whole[manifestName], err = os.ReadFile(filepath.Join(dir, manifestName)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range whole {
		names = append(names, name)
	}
	slices.Sort(names)
	found := 0
	for range bitrot.Rounds(t, 1) {
		name := names[random.IntN(len(names))]
		bad, what := bitrot.Damage(random, whole[name])
		if err := os.WriteFile(filepath.Join(dir, name), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := readManifest(dir)
		if err == nil {
			err = errors.Join(m.checkSizes(dir), m.verify(t.Context(), dir))
		}
		switch {
		case err != nil:
			if found++; !errors.Is(err, fault.Corrupt) && !errors.Is(err, fault.Unsupported) {
				t.Fatalf("%s: %s: %v", name, what, err)
			}
		case !slices.Equal(m.Files, want.Files) || name != manifestName && string(bad) != string(whole[name]):
			t.Fatalf("%s: %s: nobody said so", name, what)
		}
		if err := os.WriteFile(filepath.Join(dir, name), whole[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d found", found)
}
