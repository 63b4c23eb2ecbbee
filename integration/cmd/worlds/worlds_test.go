package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/integration/internal/record"
)

func TestResultOfWorldsIsRead(t *testing.T) {
	got, err := parseResult([]byte("=== RUN\n    guarantee_test.go:153: 500 worlds from seed 18446744073709551615, each under 5 policies: 13521 guarantees\n--- PASS\n"))
	if want := (entry{Seed: 1<<64 - 1, Worlds: 500, Policies: 5, Guarantees: 13521}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := parseResult([]byte("testing: warning: no tests to run\nPASS\n")); err == nil {
		t.Error("a run without worlds was taken for one")
	}
}

func TestLedgerKeepsWhatWasRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "worlds.jsonl")
	want := []entry{{Seed: 7, Worlds: 500, Policies: 5, Guarantees: 900, Seconds: 50, Commit: "c1"}, {Seed: 1 << 63, Worlds: 100, Policies: 5, Guarantees: 200, Seconds: 9, Commit: "c2"}}
	for _, e := range want {
		if err := record.AppendLedger(file, e); err != nil {
			t.Fatal(err)
		}
	}
	got, err := record.ReadLedger[entry](file)
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v, %s", err, d)
	}
	var out bytes.Buffer
	if err := run(context.Background(), file, 600, 1, &out); err != nil || !strings.HasPrefix(out.String(), "600 worlds, each under 5 policies: 1100 guarantees, none violated; 59 s") {
		t.Errorf("%v: %s", err, &out)
	}
	if got, err := record.ReadLedger[entry](filepath.Join(t.TempDir(), "none")); got != nil || err != nil {
		t.Errorf("without a file: %v, %v", got, err)
	}
}
