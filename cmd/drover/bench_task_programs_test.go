package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
)

// The kernel's records are summed by the program that a process executed last.
func TestPrograms(t *testing.T) {
	var b bytes.Buffer
	add := func(name string, version uint8, user, system uint16) {
		t.Helper()
		r := acctRecord{Version: version, User: user, System: system}
		copy(r.Name[:], name)
		if err := binary.Write(&b, binary.NativeEndian, r); err != nil {
			t.Fatal(err)
		}
	}
	if n := binary.Size(acctRecord{}); n != 64 {
		t.Fatalf("a record has %d bytes, the kernel's have 64", n)
	}
	add("runc", 3, 1, 2)
	add("containerd-shim", 3, 100, 0)
	add("runc", 3, 4, 0)
	add("true", 3, 0, 7)
	b.WriteString("half a record")
	got, err := parsePrograms(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	want := []programCost{{"containerd-shim", 1, 1_000_000}, {"runc", 2, 70_000}, {"true", 1, 70_000}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	b.Reset()
	add("old", 2, 0, 0)
	if _, err := parsePrograms(b.Bytes()); !errors.Is(err, fault.Unsupported) {
		t.Errorf("records of version 2: %v, want fault.Unsupported", err)
	}
}

// A time has 13 bits, and 3 bits that say how often it was divided by 8.
func TestAcctTime(t *testing.T) {
	for v, want := range map[uint16]time.Duration{0: 0, 8191: 81910 * time.Millisecond, 1<<13 | 1024: 8192 * userTick, 2<<13 | 1: 64 * userTick} {
		if got := acctTime(v); got != want {
			t.Errorf("%#x: %s, want %s", v, got, want)
		}
	}
}

// The rows are per task, and leave out what ran by chance.
func TestProgramRows(t *testing.T) {
	round := taskRound{Tasks: 10,
		Ctr:    taskCost{Programs: []programCost{{"runc", 50, 5_000_000}, {"cron", 1, 60_000_000}}},
		Drover: taskCost{Programs: []programCost{{"runc", 40, 3_000_000}, {"logger", 10, 500_000}}}}
	zero := medianText([]int64{0})
	want := [][]string{
		{"runc", "5.0", medianText([]int64{500_000}), "4.0", medianText([]int64{300_000})},
		{"logger", "0.0", zero, "1.0", medianText([]int64{50_000})},
	}
	if d := cmp.Diff(want, programRows([]taskRound{round, round})[0:2]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if rows := programRows([]taskRound{{Tasks: 10}}); len(rows) > 0 {
		t.Errorf("without accounting: %v", rows)
	}
}

// The command that the benchmark starts reaches the same coordinator with the same
// identity.
func TestSameCoordinator(t *testing.T) {
	var out strings.Builder
	app := newApp(strings.NewReader(""), &out, &out)
	var got []string
	app.Commands = append(app.Commands, &cli.Command{Name: "show", Action: func(c *cli.Context) error { got = sameCoordinator(c); return nil }})
	want := []string{"-address", "https://host:1", "-tls-ca", "ca.pem", "-tls-cert", "me.pem", "-tls-key", "me.key"}
	for _, name := range []string{"DROVER_ADDRESS", "DROVER_TLS_CA", "DROVER_TLS_CERT", "DROVER_TLS_KEY", "DROVER_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	if err := app.RunContext(t.Context(), append(append([]string{"drover"}, want...), "show")); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
