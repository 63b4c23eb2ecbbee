package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Unused functions are searched for once for the same sources, and again after each change of them,
// also where the last search found some.
func TestUnusedFunctionsAreSearchedAfterChanges(t *testing.T) {
	for _, tool := range []string{"bash", "git", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not proved here: that lint searches for unused functions after each change. %v", err)
		}
	}
	dir := t.TempDir()
	script, err := os.ReadFile("deadcode.sh")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) (string, error) {
		c := exec.Command(name, args...)
		c.Dir, c.Env = dir, append(os.Environ(), "PATH="+filepath.Join(dir, "tools")+":"+os.Getenv("PATH"), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
		out, err := c.CombinedOutput()
		return string(out), err
	}
	write("integration/deadcode.sh", string(script))
	write("tools/go", "#!/bin/sh\n[ $1 = tool ] || { echo settings; exit; }\necho x >>searches\ncat dead 2>/dev/null || true\n")
	write("go.mod", "module m\n")
	write("a/a.go", "package a\n")
	write("b/b.go", "package b\n")
	for _, args := range [][]string{{"init", "-q"}, {"add", "a", "go.mod"}} {
		if out, err := run("git", args...); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	searches := 0
	for _, c := range []struct {
		what   string
		change func()
		search bool
		ok     bool
	}{
		{"the first time", func() {}, true, true},
		{"nothing changed", func() {}, false, true},
		{"a text changed", func() { write("a/readme.txt", "new") }, false, true},
		{"a file changed", func() { write("a/a.go", "package a // new\n") }, true, true},
		{"a file that git does not know changed", func() { write("b/b.go", "package b // new\n") }, true, true},
		{"a new file has an unused function", func() { write("c/c.go", "package c\n"); write("dead", "c.go: unused\n") }, true, false},
		{"it is still there", func() {}, true, false},
		{"it is used now", func() { os.Remove(filepath.Join(dir, "dead")) }, true, true},
		{"a file is gone", func() { os.Remove(filepath.Join(dir, "a/a.go")) }, true, true},
		{"no other one", func() {}, false, true},
	} {
		c.change()
		out, err := run(filepath.Join(dir, "integration", "deadcode.sh"))
		if (err == nil) != c.ok || !c.ok && !strings.Contains(out, "nobody calls:\nc.go: unused\n") {
			t.Errorf("%s: %v\n%s", c.what, err, out)
		}
		text, err := os.ReadFile(filepath.Join(dir, "searches"))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "x"); (n > searches) != c.search {
			t.Errorf("%s: searched %v, want %v", c.what, n > searches, c.search)
		} else {
			searches = n
		}
	}
}
