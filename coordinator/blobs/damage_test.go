package blobs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// endReader calls atEnd once, when all was read.
type endReader struct {
	r     io.Reader
	atEnd func()
}

func (e *endReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != nil && e.atEnd != nil {
		e.atEnd()
		e.atEnd = nil
	}
	return n, err
}

// Whatever happens to a stored blob, or to the file of an upload in flight, also while no
// coordinator runs: a reader gets what was uploaded, or is told that the blob, which is
// named, is damaged. Then it is moved aside, counts no more, and can be uploaded again.
func TestDamageOfABlobIsFoundAndMended(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	data := make([]byte, 9000)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	digest := digestOf(data)
	s := openFor(t, t.TempDir())
	put := func(atEnd func()) {
		if err := s.Put(digest, int64(len(data)), &endReader{bytes.NewReader(data), atEnd}); err != nil {
			t.Fatal(err)
		}
	}
	found, rounds := 0, bitrot.Rounds(t, 1)
	for range rounds {
		bad, what := bitrot.Damage(random, data)
		if random.IntN(4) == 0 {
			what += " of an upload in flight"
			if err := s.Remove(digest); err != nil {
				t.Fatal(err)
			}
			put(func() { overwrite(t, only(t, filepath.Join(s.dir, "incoming", "*")), bad) })
		} else {
			put(nil)
			overwrite(t, s.path(digest), bad)
		}
		if random.IntN(4) == 0 {
			s = openFor(t, s.dir)
		}
		offset := random.Int64N(int64(len(data)))
		got, err := sent(s, digest, offset, 1+random.IntN(5000))
		if err == nil && bytes.Equal(got, data[offset:]) {
			continue
		}
		if found++; !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), digest) {
			t.Fatalf("%s: %v, or other bytes", what, err)
		}
		if used, _ := s.Used(); used != 0 {
			t.Fatalf("%s: %d bytes are in use, and nothing is stored", what, used)
		}
		put(nil)
		if got, err := sent(s, digest, 0, 4096); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%s: after a new upload: %v, or other bytes", what, err)
		}
		if used, _ := s.Used(); used != int64(len(data)) {
			t.Fatalf("%s: %d bytes are in use after a new upload", what, used)
		}
	}
	t.Logf("%d of %d found", found, rounds)
	if found < rounds/2 {
		t.Errorf("%d of %d damages were found: the test shows little", found, rounds)
	}
}

func openFor(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, 1<<20, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sent(s *Store, digest string, offset int64, buf int) (got []byte, err error) {
	err = s.Send(digest, offset, make([]byte, buf), func(p []byte) error { got = append(got, p...); return nil })
	return got, err
}

// only returns the one file that a pattern matches.
func only(t *testing.T, pattern string) string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v: want one file", list, err)
	}
	return list[0]
}

// overwrite changes a file in its place: who has it open sees it.
func overwrite(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, b, 0o600)); err != nil {
		t.Fatal(err)
	}
}
