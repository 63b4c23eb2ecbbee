package dump

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// A file of a dump that is damaged while it moves, at the source after it was listed or
// in what the target has of it, is refused, and a whole one is fetched by the next try.
// What was damaged before it was listed is found by the sums of the image itself.
func TestDamageOfAMovedDumpIsFound(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	c, o := serve(t, nil)
	m, err := c.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	places, dir := destinations(t)
	source := filepath.Join(o.dirs[Image], "pages")
	whole, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for range bitrot.Rounds(t, 10) { // each moves 700 kB
		target := filepath.Join(dir, "image", "pages")
		bad, what := bitrot.Damage(random, whole)
		damaged := source
		if random.IntN(2) == 0 {
			damaged = target
			if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
				t.Fatal(err)
			}
		} else if err := os.RemoveAll(target); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(damaged, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		err := c.Fetch(t.Context(), m, map[Root]Destination{Image: places[Image]}, func(int64) {})
		if err != nil {
			found++
			if fault.Class(err) != fault.Unavailable {
				t.Fatalf("%s: %v", what, err)
			}
			if err := os.WriteFile(source, whole, 0o640); err != nil {
				t.Fatal(err)
			}
			if err := c.Fetch(t.Context(), m, map[Root]Destination{Image: places[Image]}, func(int64) {}); err != nil {
				t.Fatalf("%s, once more: %v", what, err)
			}
		}
		if got, err := os.ReadFile(target); err != nil || string(got) != string(whole) {
			t.Fatalf("%s: another image arrived (%v)", what, err)
		}
		if err := os.WriteFile(source, whole, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d found", found)
	if found == 0 {
		t.Error("no damage was found: the test shows nothing")
	}
}

// A manifest that lost a bit on its way names nothing outside of its roots. What it leaves
// out is missed by the image's own manifest, which is one of the files (package containerd).
func TestDamagedManifestOfADumpIsHarmless(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	c, _ := serve(t, nil)
	want, err := c.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whole, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	for range bitrot.Rounds(t, 1) {
		bad, what := bitrot.Damage(random, whole)
		var m Manifest
		if json.Unmarshal(bad, &m) != nil || m.validate() != nil || reflect.DeepEqual(&m, want) {
			continue
		}
		for _, f := range m.Files {
			if !filepath.IsLocal(f.Path) || f.Bytes < 0 {
				t.Fatalf("%s: %+v", what, f)
			}
		}
	}
}
