package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnginesAreComparedWithCriuAlone(t *testing.T) {
	b := &criuBaseline{DumpUS: []int64{1_000_000}, RestoreUS: []int64{500_000}}
	if got := b.text(b); got != "" {
		t.Errorf("without engines: %q", got)
	}
	b.engineBaseline = engineBaseline{RuncDumpUS: []int64{3_000_000}, RuncRestoreUS: []int64{2_000_000}, CtrDumpUS: []int64{4_500_000}}
	const said, engines = "the same process in a container, and how many times as long as criu alone: ", "runc checkpoint 3s, 3.00 times; ctr task checkpoint 4.5s, 4.50 times; runc restore 2s, 4.00 times"
	if got := b.text(b); got != said+engines {
		t.Errorf("of an earlier version: got  %q\nwant %q", got, said+engines)
	}
	b.ContainerDumpUS = []int64{1_500_000}
	if got, want := b.text(b), said+"criu dump 1.5s, 1.50 times; "+engines; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestEngineErrorsSayWhatTheProgramsWrote(t *testing.T) {
	log := filepath.Join(t.TempDir(), "dump.log")
	if err := os.WriteFile(log, []byte("first\n2\n3\n4\n5\nError: no such page\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(t.TempDir(), "gone.log")
	for _, c := range []struct {
		name    string
		program engineProgram
		want    string
	}{
		{"a log", engineProgram{name: "sh", logs: []string{gone, log}}, "sh -c echo heard; echo loud >&2; exit 3: exit status 3\ndump.log:\n  2\n  3\n  4\n  5\n  Error: no such page"},
		{"its output", engineProgram{name: "sh", logs: []string{gone}, heard: true}, "sh -c echo heard; echo loud >&2; exit 3: exit status 3\nit printed:\n  heard\n  loud"},
	} {
		_, err := c.program.timed(context.Background(), "-c", "echo heard; echo loud >&2; exit 3")
		if err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}
