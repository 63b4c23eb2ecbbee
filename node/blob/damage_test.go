package blob

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// Whatever happens to a cached file on disk, also while no daemon runs, a task gets what
// was uploaded: damage is named, the file leaves the cache, and the next try fetches it.
// A partial fetch is no different.
func TestDamageOfACachedFileIsFoundAndMended(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	s := &blobServer{}
	want := content(3, 9000)
	d := s.add(want)
	c := serve(t, s, 1<<20)
	read(t, c, d)
	path := filepath.Join(c.dir, d[len("sha256:"):])
	found := 0
	for range bitrot.Rounds(t, 2) {
		bad, what := bitrot.Damage(random, want)
		part := random.IntN(8) == 0
		if part {
			if err := errors.Join(os.Remove(path), os.WriteFile(path+".part", bad, 0o600)); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if random.IntN(2) == 0 { // the daemon starts again
			again, err := Open(c.dir, c.limit, c.source)
			if err != nil {
				t.Fatal(err)
			}
			c = again
		}
		for try := 0; ; try++ {
			got, err := use(t, c, d, random.IntN(2) == 0)
			if err == nil && bytes.Equal(got, want) {
				break
			}
			if found++; !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.Corrupt) || try > 0 {
				t.Fatalf("%s, partial %v, try %d: %v, or another file", what, part, try, err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: the cache has another file (%v)", what, err)
		}
		if c.Bytes() != int64(len(want)) {
			t.Fatalf("%s: the cache counts %d bytes", what, c.Bytes())
		}
	}
	t.Logf("%d found", found)
	if found == 0 {
		t.Error("no damage was found: the test shows nothing")
	}
}

// use reads the blob as tasks do (CopyTo), or as images do (Verify, then read).
func use(t *testing.T, c *Cache, digest string, image bool) ([]byte, error) {
	f, err := c.Get(t.Context(), digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if !image {
		err := f.CopyTo(&b)
		return b.Bytes(), err
	}
	if err := f.Verify(); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// A file that several tasks have open when it is found damaged leaves the cache once;
// the next one is not taken for it.
func TestDamagedFileIsRemovedOnce(t *testing.T) {
	s := &blobServer{}
	d := s.add(content(4, 2000))
	c := serve(t, s, 1<<20)
	read(t, c, d)
	if err := os.WriteFile(filepath.Join(c.dir, d[len("sha256:"):]), content(5, 2000), 0o600); err != nil {
		t.Fatal(err)
	}
	var open []*File
	for range 3 {
		f, err := c.Get(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, f)
	}
	for _, f := range open {
		if err := f.Verify(); !errors.Is(err, fault.Unavailable) {
			t.Errorf("got %v", err)
		}
		read(t, c, d) // fetched by the first
	}
	for _, f := range open {
		f.Close()
	}
	if n := s.calls.Load(); n != 2 || c.Bytes() != 2000 {
		t.Errorf("fetched %d times, the cache has %d bytes", n, c.Bytes())
	}
}
