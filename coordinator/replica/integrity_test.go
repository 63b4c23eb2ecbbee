package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// readAll returns the files below a folder by their names.
func readAll(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func writeAll(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for path, b := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever happens to one file of a replica that was stopped, the next start either
// names it or has all that was acknowledged.
func TestADamagedReplicaSaysSoOrHasEverything(t *testing.T) {
	rounds := 150
	switch {
	case os.Getenv("DROVER_SOAK") != "":
		rounds = 10_000
	case testing.Short():
		rounds = 20
	}
	seed := seed.New(t)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := filepath.Join(t.TempDir(), "raft")
	c := Config{Dir: dir, ID: "c1", SnapshotEntries: 30, NoSync: true}
	r := open(t, c)
	until(t, "it leads", r.Leads)
	tenants := 0
	until(t, "there are two snapshots", func() bool {
		if _, err := r.Propose(context.Background(), tenant(tenants)); err != nil {
			t.Fatal(err)
		}
		tenants++
		ids, _ := snapshotIDs(dir)
		return len(ids) == 2
	})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	whole := readAll(t, dir)
	var names []string
	for path := range whole {
		names = append(names, path)
	}
	found := 0
	for round := range rounds {
		path := names[random.IntN(len(names))]
		files := readAllCopy(whole)
		b := files[path]
		i, what := random.IntN(len(b)), ""
		switch random.IntN(6) {
		case 0:
			files[path], what = b[:i], fmt.Sprintf("cut at %d", i)
		case 1:
			delete(files, path)
			what = "removed"
		default:
			b[i] ^= 1 << random.IntN(8)
			what = fmt.Sprintf("bit flipped at %d", i)
		}
		writeAll(t, dir, files)
		r, err := Open(c)
		if err != nil {
			found++
			if !strings.Contains(err.Error(), filepath.Base(path)) && !strings.Contains(err.Error(), filepath.Base(filepath.Dir(path))) && !strings.Contains(err.Error(), dir) || fault.Class(err) == nil {
				t.Fatalf("seed %d, round %d: %s is damaged, and the error is %q", seed, round, path, err)
			}
			continue
		}
		until(t, fmt.Sprintf("it leads (seed %d, round %d, damage to %s: %s)", seed, round, path, what), r.Leads)
		if _, err := r.BeginTerm(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := count(r); n != tenants {
			t.Fatalf("seed %d, round %d: %s was damaged: %d tenants of %d are there, and nobody said so", seed, round, path, n, tenants)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d refused", found, rounds)
	if found == 0 {
		t.Error("nothing was refused: the test shows nothing")
	}
}

func readAllCopy(files map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for k, v := range files {
		out[k] = bytes.Clone(v)
	}
	return out
}

// A snapshot of a newer program, as its checksum says, is not damaged: it is named, and neither a start nor a repair moves it
// aside or leaves it out, also where an older one and the log hold everything.
func TestASnapshotOfANewerProgramStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	snapshotAt(t, dir, 10)
	logOf(t, dir, 11, 20)
	version := func(n int) string { return fmt.Sprintf(`{"drover":"facts","version":%d}`, n) }
	at := SeedState{ID: "c1", Index: 20, SnapshotTerm: 3, Facts: strings.NewReader(version(facts.SnapshotVersion+1) + "\n{}\n")}
	if err := writeSnapshot(dir, at); err != nil {
		t.Fatal(err)
	}
	before := readAll(t, dir)
	_, err := Open(Config{Dir: dir, ID: "c1", NoSync: true})
	_, inspected := Inspect(dir)
	for what, err := range map[string]error{"Open": err, "Inspect": inspected} {
		if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "3-20-") || strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if after := readAll(t, dir); len(after) != len(before) {
		t.Errorf("there were %d files, now there are %d", len(before), len(after))
	}

	// One whose version was damaged is damage like any other.
	found, err := filepath.Glob(filepath.Join(dir, snapshotFolder, "3-20-*", "state.bin"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if err := os.WriteFile(found[0], []byte(version(facts.SnapshotVersion+2)+"\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := Inspect(dir); err != nil || d.Snapshot != 10 || d.Last != 20 {
		t.Errorf("Inspect: %+v, %v", d, err)
	}
	if err := open(t, Config{Dir: dir, ID: "c1", NoSync: true}).Close(); err != nil {
		t.Error(err)
	}
}

// A folder whose log is gone, but not its snapshots, is no new cluster.
func TestSnapshotsWithoutALogAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, snapshotFolder, "2-10-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, ID: "c1"}); fault.Class(err) != fault.Corrupt || !strings.Contains(err.Error(), "backup") {
		t.Fatalf("%v", err)
	}
}

// A server that is started under another name than its own says so at once.
func TestAServerUnderAnotherNameIsRefused(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Dir: dir, ID: "c1", NoSync: true})
	until(t, "it leads", r.Leads)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, ID: "c2", NoSync: true}); fault.Class(err) != fault.Conflict || !strings.Contains(err.Error(), "c1") {
		t.Fatalf("%v", err)
	}
}
