package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// everything returns all that a store holds, as text.
func everything(t *testing.T, s *Store) string {
	t.Helper()
	id, err := s.Identity()
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := s.Wanted()
	if err != nil {
		t.Fatal(err)
	}
	records, err := s.Records()
	if err != nil {
		t.Fatal(err)
	}
	attempts := map[ID]string{}
	for id, w := range wanted {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		attempts[id] = string(b)
	}
	return fmt.Sprintf("%+v %q %+v", id, attempts, records)
}

// Whatever happens to the file on disk, the store says so, with its name, or holds
// exactly what was stored. It never panics and never changes a file that it refuses.
func TestDamageOfTheNodesStoreIsNamed(t *testing.T) {
	rounds := bitrot.Rounds(t, 1)
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	path := filepath.Join(t.TempDir(), "node.db")
	whole, want := fullStore(t, random, path)
	found := 0
	for round := range rounds {
		bad, what := bitrot.Damage(random, whole)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path)
		if err != nil {
			found++
			if now, _ := os.ReadFile(path); !strings.Contains(err.Error(), path) || !bytes.Equal(now, bad) {
				t.Fatalf("round %d, %s: the file is not named in %q, or it was changed", round, what, err)
			}
			if c := fault.Class(err); c != fault.Corrupt && c != fault.Unsupported {
				t.Fatalf("round %d, %s: %v is of class %v", round, what, err, c)
			}
			continue
		}
		if got := everything(t, s); got != want {
			t.Fatalf("round %d, %s: it holds something else, and nobody said so", round, what)
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

// fullStore makes a store of many pages and returns its bytes and what it holds.
func fullStore(t *testing.T, random *rand.Rand, path string) (file []byte, all string) {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	s.SkipSync()
	if _, err := s.Register(&droverv1.RegisterResponse{Node: 3, Epoch: 1, Term: 2, Cluster: "c1"}); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		w := &droverv1.Wanted{Term: 2, Revision: uint64(i) + 1, Put: []*droverv1.WantedAttempt{want(int32(i), strings.Repeat("x", 1+random.IntN(900)))}}
		if i > 10 && i%3 == 0 {
			w.Remove = []*droverv1.AttemptKey{want(int32(i-10), "").Key}
		}
		if _, err := s.Apply(w); err != nil {
			t.Fatal(err)
		}
		if err := s.PutRecord(IDOf(want(int32(i), "").Key), Record{Epoch: 1, Started: true, LevelNote: strings.Repeat("n", random.IntN(300))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DeleteRecord(IDOf(want(7, "").Key)); err != nil {
		t.Fatal(err)
	}
	all = everything(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if file, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return file, all
}

// An empty file, as a crash could leave one, is not taken for a new node's.
func TestAnEmptyFileIsDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); fault.Class(err) != fault.Corrupt || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("open: %v", err)
	}
	if err := Check(path); fault.Class(err) != fault.Corrupt {
		t.Errorf("check: %v", err)
	}
}
