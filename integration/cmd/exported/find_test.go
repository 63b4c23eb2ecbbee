package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	found, err := find(filepath.Join("testdata", "m"), "./...")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, f.at.Filename+" "+f.kind+" "+f.name)
	}
	want := []string{
		"a/a.go field Inside", "a/a.go field N", "a/a.go type Unused", "a/a.go type Hidden", "a/a.go const Limit", "a/a.go var Global", "a/a.go func Alone",
		"a/a.go method Lonely", "a/a.go type Asks", "a/a.go method Put", "b/b.go func F",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFindNeedsCodeThatCompiles(t *testing.T) {
	if _, err := find(t.TempDir(), "./..."); err == nil {
		t.Error("no error without a module")
	}
}
