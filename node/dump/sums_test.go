package dump

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// TestDamageOfASuspendedFolderIsFound: of its files, and of the file with the checksums.
func TestDamageOfASuspendedFolderIsFound(t *testing.T) {
	dir := t.TempDir()
	s := seed.New(t)
	random := rand.New(rand.NewPCG(s, 0))
	content := map[string][]byte{"task/a": []byte("a"), "task/sub/b": make([]byte, 10_000), "tmp/c": []byte(strings.Repeat("text\n", 3000)), "logs/l": []byte("log")}
	for i := range content["task/sub/b"] {
		content["task/sub/b"][i] = byte(random.Uint32())
	}
	put := func(name string, b []byte) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range content {
		put(name, b)
	}
	if err := os.Symlink("a", filepath.Join(dir, "task", "link")); err != nil {
		t.Fatal(err)
	}
	if err := CheckSums(t.Context(), filepath.Join(dir, "sums"), filepath.Join(dir, "none"), "task", "tmp"); err != nil {
		t.Fatalf("without checksums the folder is looked at: %v", err)
	}
	if err := WriteSums(t.Context(), filepath.Join(dir, "sums"), dir, "task", "tmp"); err != nil {
		t.Fatal(err)
	}
	check := func() error { return CheckSums(t.Context(), filepath.Join(dir, "sums"), dir, "task", "tmp") }
	if err := check(); err != nil {
		t.Fatal(err)
	}
	var err error
	if content["sums"], err = os.ReadFile(filepath.Join(dir, "sums")); err != nil {
		t.Fatal(err)
	}
	names := []string{"task/a", "task/sub/b", "tmp/c", "sums"}
	for range bitrot.Rounds(t, 1) {
		name := names[random.IntN(len(names))]
		bad, what := bitrot.Damage(random, content[name])
		put(name, bad)
		err := check()
		if same := string(bad) == string(content[name]); same != (err == nil) || err != nil && !errors.Is(err, fault.Corrupt) {
			t.Errorf("%s, %s: %v", name, what, err)
		} else if err != nil && name != "sums" && !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
		put(name, content[name])
	}
	put("logs/l", []byte("another log"))
	put("task/new", []byte("what a restore put there"))
	if err := check(); err != nil {
		t.Errorf("what has no checksum: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "task", "link")); err != nil {
		t.Fatal(err)
	}
	if err := check(); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), `"task/link" is gone`) {
		t.Errorf("a link that is gone: %v", err)
	}
}
