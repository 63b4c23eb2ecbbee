package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestLongTests(t *testing.T) {
	both := []string{"FuzzDirect", "TestBelowMain", "TestDirect", "TestOutside", "TestThroughFunction", "TestThroughInterface", "TestThroughPackage", "TestThroughVariable"}
	for _, soak := range []bool{false, true} {
		tests, err := findLong(filepath.Join("testdata", "m"), soak)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Clone(both)
		if soak {
			want = append(want, "TestSoak")
		}
		slices.Sort(want)
		if got, want := strings.Join(goTestArgs(tests), " "), "-run ^("+strings.Join(want, "|")+")$ example.org/m/a example.org/m/c"; got != want {
			t.Errorf("soak %v:\n%s, want\n%s", soak, got, want)
		}
	}
}

// A look that no test reaches means that the search failed to follow a chain.
func TestUnreachedLooksAreErrors(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "m"))); err != nil {
		t.Fatal(err)
	}
	text := "package d\n\nimport \"testing\"\n\nfunc Unused() bool { return testing.Short() }\n"
	if err := os.WriteFile(filepath.Join(dir, "d", "d.go"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := findLong(dir, false); err == nil || !strings.Contains(err.Error(), "example.org/m/d.Unused looks") {
		t.Errorf("%v", err)
	}
}

// The scripts of testscript do not request -short: see onRequest.
func TestScriptsDoNotLookAtShort(t *testing.T) {
	asks, files := regexp.MustCompile(`(?m)^\[!?short\]`), 0
	err := filepath.WalkDir(filepath.Join("..", "..", "..", "cmd", "drover", "testdata"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".txt" {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		if asks.Match(text) {
			t.Errorf("%s asks for -short: longtests must not pass over testscript", path)
		}
		return err
	})
	if err != nil || files < 10 {
		t.Errorf("%d files, %v", files, err)
	}
}
