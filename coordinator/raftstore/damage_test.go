package raftstore

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// filled makes a store with many pages in both files and returns its entries and
// the bytes of its files.
func filled(t testing.TB, r *rand.Rand, dir string) ([]raft.Log, map[string][]byte) {
	t.Helper()
	s, err := Open(dir, Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(1)
	for range 40 {
		var batch []*raft.Log
		for range 1 + r.IntN(20) {
			batch = append(batch, &raft.Log{Index: next, Term: 3, Data: bytes.Repeat([]byte{byte(next)}, r.IntN(600))})
			next++
		}
		batch[0].Data = make([]byte, r.IntN(20_000))
		if err := s.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DeleteRange(1, 50); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(5) {
		if err := s.SetUint64([]byte("CurrentTerm"), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Set([]byte("LastVoteCand"), []byte("a")); err != nil {
		t.Fatal(err)
	}
	all := contents(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, name := range []string{LogFile, StableFile} {
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return all, files
}

func contents(t testing.TB, s *Store) (all []raft.Log) {
	t.Helper()
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	term, err := s.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		t.Fatal(err)
	}
	vote, err := s.Get([]byte("LastVoteCand"))
	if err != nil {
		t.Fatal(err)
	}
	return append(all, raft.Log{Term: term, Data: vote})
}

// Whatever happens to one of the files on disk, the store either says so, with the
// file's name, or holds exactly what was stored. It never panics and never changes
// a file that it refuses.
func TestDamageIsFoundOrWithoutEffect(t *testing.T) {
	rounds := 1000
	switch {
	case os.Getenv("DROVER_SOAK") != "":
		rounds = 100_000
	case testing.Short():
		rounds = 300
	}
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	want, files := filled(t, r, dir)
	found := 0
	for round := range rounds {
		name := []string{LogFile, StableFile}[min(r.IntN(4), 1)^1]
		for n, b := range files {
			if err := os.WriteFile(filepath.Join(dir, n), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		bad, what := bitrot.Damage(r, files[name])
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir, Options{NoSync: true})
		if err != nil {
			found++
			if now, _ := os.ReadFile(path); !strings.Contains(err.Error(), path) || !bytes.Equal(now, bad) {
				t.Fatalf("seed %d, round %d, %s: %s: the file is not named in %q, or it was changed", seed, round, name, what, err)
			}
			if c := fault.Class(err); c != fault.Corrupt && c != fault.Unsupported {
				t.Fatalf("seed %d, round %d, %s: %s: %v is of class %v", seed, round, name, what, err, c)
			}
			continue
		}
		if got := contents(t, s); !equalLogs(got, want) {
			t.Fatalf("seed %d, round %d, %s: %s: %d entries are not the %d that were stored, and nobody said so", seed, round, name, what, len(got), len(want))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d found", found, rounds)
	if found < rounds/10 {
		t.Errorf("%d of %d damages were found: the test shows little", found, rounds)
	}
}

// The version has no checksum. One that no program will ever have is damage; of another that this program does not know the
// message has both causes and their cures. A repair believes neither: it takes the records by their own checksums.
func TestAFlippedBitInTheVersion(t *testing.T) {
	for _, name := range []string{LogFile, StableFile} {
		for bit := range 32 {
			dir := t.TempDir()
			if err := open(t, dir).Close(); err != nil {
				t.Fatal(err)
			}
			version := uint32(schemaVersion) ^ 1<<bit
			setVersion(t, filepath.Join(dir, name), version)
			want := fault.Unsupported
			if version == 0 || version >= 1000 {
				want = fault.Corrupt
			}
			_, err := Open(dir, Options{NoSync: true})
			refused := map[string]error{"Open": err, "Verify": Verify(dir)}
			if version > 0 { // CheckVersion takes 0 for a file that was not begun
				refused["CheckVersion"] = CheckVersion(dir)
			}
			for what, err := range refused {
				if !errors.Is(err, want) || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), cure) ||
					want == fault.Unsupported && !strings.Contains(err.Error(), "use the drover that wrote it") && !strings.Contains(err.Error(), "start the newer drover") {
					t.Errorf("%s says version %d: %s: %v, want %v", name, version, what, err, want)
				}
			}
		}
	}
}

func equalLogs(a, b []raft.Log) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Index != b[i].Index || a[i].Term != b[i].Term || a[i].Type != b[i].Type || !bytes.Equal(a[i].Data, b[i].Data) || !bytes.Equal(a[i].Extensions, b[i].Extensions) {
			return false
		}
	}
	return true
}

// A file that is gone or empty is never taken for a new store.
func TestMissingAndEmptyFilesAreRefused(t *testing.T) {
	for _, name := range []string{LogFile, StableFile} {
		for _, empty := range []bool{false, true} {
			dir := t.TempDir()
			filled(t, rand.New(rand.NewPCG(1, 1)), dir)
			path := filepath.Join(dir, name)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if empty {
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Open(dir, Options{NoSync: true})
			if !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "backup") {
				t.Errorf("%s, empty %v: %v", name, empty, err)
			}
		}
	}
}

// A first start that ends at any step is taken up again.
func TestAFirstStartThatWasCutShort(t *testing.T) {
	for step, files := range [][]string{{LogFile + ".part"}, {LogFile + ".part", StableFile + ".part"}, {LogFile + ".part", StableFile}} {
		dir := t.TempDir()
		for _, name := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(dir, Options{NoSync: true})
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
