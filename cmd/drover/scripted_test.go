package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// notScripted are the commands that no test of this package can run, and why. integration/ runs them.
var notScripted = map[string]string{
	"bench task": "needs root and containerd",
	"node clean": "needs root and containerd",
	"ui":         "serves until Ctrl-C; the page has its own tests",
}

// commandLines returns the command lines of the scripts and the Go tests, each as words in one line.
func commandLines(t *testing.T) []string {
	t.Helper()
	var lines []string
	scripts, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts, %v", len(scripts), err)
	}
	for _, f := range scripts {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(string(b), "\n") {
			if _, line, ok := strings.Cut(l, "drover "); ok {
				lines = append(lines, line)
			}
		}
	}
	tests, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	quotedWords := regexp.MustCompile(`"([^"\n]*)"`)
	for _, f := range tests {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(string(b), "\n") {
			var words []string
			for _, m := range quotedWords.FindAllStringSubmatch(l, -1) {
				words = append(words, m[1])
			}
			lines = append(lines, strings.TrimPrefix(strings.Join(words, " "), "drover "))
		}
	}
	return lines
}

// runs reports whether a line runs the command of a path, which flags may stand before and between.
func runs(line string, path []string) (rest []string, ok bool) {
	words := strings.Fields(line)
	for _, name := range path {
		at := slices.Index(words, name)
		if at < 0 || slices.ContainsFunc(words[:at], func(w string) bool { return !strings.HasPrefix(w, "-") && !strings.ContainsAny(w, ":/.$") }) {
			return nil, false
		}
		words = words[at+1:]
	}
	return words, true
}

// TestEveryCommandIsRun: each command is run by a script or a test, and each that has -json with -json.
func TestEveryCommandIsRun(t *testing.T) {
	lines := commandLines(t)
	excused := maps.Clone(notScripted)
	leafCommands(func(path []string, c *cli.Command) {
		name := strings.Join(path, " ")
		if _, ok := excused[name]; ok {
			delete(excused, name)
			return
		}
		run, withJSON := false, false
		for _, l := range lines {
			if rest, ok := runs(l, path); ok {
				run, withJSON = true, withJSON || slices.Contains(rest, "-json")
			}
		}
		if !run {
			t.Errorf("no script and no test runs drover %s", name)
		}
		if hasJSON := slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), "json") }); hasJSON && !withJSON {
			t.Errorf("no script and no test runs drover %s -json", name)
		}
	})
	for name := range excused {
		t.Errorf("there is no command drover %s to excuse", name)
	}
}

func TestRunsKnowsCommands(t *testing.T) {
	for _, c := range []struct {
		line, path string
		want       bool
	}{
		{"job list -all -json", "job list", true},
		{"-address unix://none job list", "job list", true},
		{"job run -name list x.hcl", "job list", false},
		{"tenant list", "job list", false},
		{"operator server list", "operator server list", true},
	} {
		if _, got := runs(c.line, strings.Fields(c.path)); got != c.want {
			t.Errorf("%q runs %q: %v, want %v", c.line, c.path, got, c.want)
		}
	}
}
