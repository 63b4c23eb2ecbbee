package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// awk counts the words of any text as Drover's program does: its counts are compared.
func TestCountsOfAwkAreCompared(t *testing.T) {
	for _, program := range []string{"awk", "sort", "cmp"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("not proved here: that awk's counts are compared with Drover's; this machine has no %s", program)
		}
	}
	b := &bench{ctx: t.Context(), dir: t.TempDir(), divide: 1, ownText: true}
	for name, text := range map[string]string{"text": " b a\vb\f\r\n\n\tä b\n", "out/part-00000": "a\t1\nä\t1\n", "out/part-00001": "b\t3\n"} {
		if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := b.awk("text")
	if _, err := c.use(); err != nil {
		t.Fatal(err)
	}
	if err := b.compareCounts(c); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(b.path("out/part-00001"), []byte("b\t2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.compareCounts(c); err == nil {
		t.Error("other counts are not found")
	}
}

// Words that are separated by spaces alone are counted by the simple program, too.
func TestSimpleAwkProgram(t *testing.T) {
	if _, err := exec.LookPath("awk"); err != nil {
		t.Skip("not proved here: the counts of the simple awk program; this machine has no awk")
	}
	out, err := exec.Command("sh", "-c", "printf 'b a\\nb\\n' | awk '"+simpleAwkProgram+"' | LC_ALL=C sort").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := "a\t1\nb\t2\n"; string(out) != want {
		t.Errorf("counts %q, want %q", out, want)
	}
}

// Where a peer is absent its figures say why, and no figure is measured beside it.
func TestAbsentPeers(t *testing.T) {
	t.Setenv("PATH", "")
	b := &bench{ctx: t.Context(), dir: t.TempDir(), divide: 1}
	for _, c := range []counter{b.awk("text"), b.hadoop("text")} {
		if c.use != nil || c.note == "" {
			t.Errorf("%s: %+v", c.name, c)
		}
	}
	if limits := b.diskLimits(mib); limits != nil {
		t.Errorf("without dd there are limits of the disk: %+v", limits)
	}
}

// The version of Hadoop is that of its jars; an error fits in a table, in one line.
func TestNotesOfHadoop(t *testing.T) {
	for path, want := range map[string]string{"/a/lib/avro-1.jar:/b/lib/hadoop-common-3.5.0.jar": "Hadoop 3.5.0", "": "Hadoop of unknown version"} {
		if got := hadoopVersion(path); got != want {
			t.Errorf("%q has version %q, want %q", path, got, want)
		}
	}
	if got := shorten("this host lacks:\n  maven   fetches jars\n"); got != "this host lacks: maven fetches jars" {
		t.Errorf("%q", got)
	}
	if got := shorten(strings.Repeat("ä", 500)); len([]rune(got)) != 124 {
		t.Errorf("%q", got)
	}
}
