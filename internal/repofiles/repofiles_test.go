package repofiles

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var root = filepath.Join("..", "..")

// The list is complete. This is the one test that lists the root.
func TestEveryEntryOfTheRootIsListed(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); !isResult(name) && !slices.Contains(top, name) && (e.IsDir() || name != "drover") { // drover: what go build ./cmd/drover leaves
			t.Errorf("%s in the root of the repository is not in the list top of internal/repofiles: add it there, or to .gitignore and isResult", name)
		}
	}
	if !slices.IsSorted(top) {
		t.Error("the list top is not in order")
	}
}

func TestWalkFindsFilesAndNoResults(t *testing.T) {
	dir := t.TempDir()
	for _, name := range top {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"ui/node_modules/x/readme.md", "hdfs/.hidden/a.md", "internal/innerbin/bin/helper", "api/b.go", "hdfs/a/b/c.txt", "other/x.go"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	if err := Walk(dir, func(file string) error { got = append(got, file); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"api/b.go", "hdfs/a/b/c.txt"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
