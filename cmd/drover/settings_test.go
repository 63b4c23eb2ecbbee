package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The parser of flags cuts values at commas; a name service with two NameNodes is
// whole again, from the command line and from a file.
func TestNameServicesWithTwoNameNodes(t *testing.T) {
	c, err := parseSettings([]string{"node", "-service", "books=nn3:8020,nn4:8020", "-service", "maps=nn5:8020"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := nodeFilesConfig(c)
	want := map[string][]string{"books": {"nn3:8020", "nn4:8020"}, "maps": {"nn5:8020"}}
	if d := cmp.Diff(want, f.Services); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	for _, bad := range []string{"books", "books=", "=nn3:8020", "books=nn3"} {
		c, err := parseSettings([]string{"node", "-service", bad})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nodeFilesConfig(c); exitCode(err) != exitUsage {
			t.Errorf("-service %s: %v", bad, err)
		}
	}
}

// The command line goes before the file.
func TestFlagsOverrideTheFile(t *testing.T) {
	file := t.TempDir() + "/node.hcl"
	writeFile(t, file, "rack = \"/file\"\nreserve = 20\nservice = { books = \"nn3:8020,nn4:8020\" }\nprobe = false\n")
	c, err := parseSettings([]string{"node", "-config", file, "-rack", "/line"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := nodeFilesConfig(c)
	if err != nil || f.Rack != "/line" || c.Int("reserve") != 20 || c.Bool("probe") || len(f.Services["books"]) != 2 {
		t.Errorf("%v: rack %s, reserve %d, probe %v, services %v", err, f.Rack, c.Int("reserve"), c.Bool("probe"), f.Services)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
