package audit

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/seed"
)

// A log that an earlier version began goes on, and is whole.
func TestAnEarlierAuditLogGoesOn(t *testing.T) {
	old, err := os.ReadFile("testdata/audit.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Write(Record{Actor: "user/bob", Call: "StopJob"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	damaged, err := Check(path)
	if all := read(t, path); err != nil || len(damaged) > 0 || len(all) != 3 || all[0].Target != "job 17" || all[2].Actor != "user/bob" {
		t.Errorf("%+v %v %v", all, damaged, err)
	}
}

// Whatever happens to one of the files on disk, Check names it, or no record that is
// left differs; the log goes on.
func TestDamageOfTheAuditLogIsNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := Open(path, 20_000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := l.Write(Record{Time: time.Unix(int64(i), 0), Actor: "user/a", Call: "StopJob", Target: fmt.Sprint("job ", i), Error: strings.Repeat("e\n", random.IntN(100))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	whole := map[string][]byte{}
	for _, file := range []string{path, path + ".1"} {
		if whole[file], err = os.ReadFile(file); err != nil || len(whole[file]) == 0 {
			t.Fatal(err)
		}
	}
	found := 0
	for range bitrot.Rounds(t, 2) {
		file := path + []string{"", ".1"}[random.IntN(2)]
		bad, what := bitrot.Damage(random, whole[file])
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		damaged, err := Check(path)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case len(damaged) > 0:
			found++
			if damaged[0].File != filepath.Base(file) {
				t.Fatalf("%s: %v", what, damaged)
			}
		case bytes.HasPrefix(whole[file], bad): // whole records are gone from the end
		case string(bad[bytes.IndexByte(bad, ','):]) == string(whole[file][bytes.IndexByte(whole[file], ','):]): // the key of the first checksum, and nothing else
		default:
			t.Fatalf("%s: nothing is named", what)
		}
		if err := os.WriteFile(file, whole[file], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d named", found)
}
