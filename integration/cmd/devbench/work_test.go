package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeDrover is ready at once. Its client burns CPU time and writes how much.
const fakeDrover = `#!/bin/sh
case "$*" in
dev*)
  sleep 600 2>&- &
  pid=$!
  trap 'kill $pid; exit 0' INT
  echo "ready: at once" >&2
  wait $pid ;;
*)
  i=0
  while [ $i -lt 30000 ]; do i=$((i + 1)); done
  times >"$5" ;;
esac
`

// The CPU time of a job's client counts for Drover, as the shell's counts for the pipeline.
func TestClientsCountAsDrover(t *testing.T) {
	dir := t.TempDir()
	b := &bench{ctx: t.Context(), drover: filepath.Join(dir, "drover"), dir: dir}
	if err := os.WriteFile(b.drover, []byte(fakeDrover), 0o700); err != nil {
		t.Fatal(err)
	}
	var clients time.Duration
	cpu, err := b.withDev(func(run func(string) error) error {
		for range 2 {
			file := b.path("client")
			if err := run(file); err != nil {
				return err
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			used, err := time.ParseDuration(strings.Fields(string(text))[0]) // such as 0m0.040000s
			if err != nil {
				return err
			}
			clients += used
		}
		return nil
	})
	if err != nil || clients == 0 || cpu < clients.Seconds() {
		t.Errorf("%g s of CPU time, of which the clients alone had %s; %v", cpu, clients, err)
	}
}

// On a file system that waits for no disk, the table says so.
func TestSyncText(t *testing.T) {
	if got := syncText("tmpfs"); got != "no disk: tmpfs" {
		t.Errorf("on tmpfs: %q", got)
	}
	if got := syncText("ext4"); got != "with fsync on ext4" {
		t.Errorf("on ext4: %q", got)
	}
}

// A ratio compares runs beside each other, so that a machine that becomes slower affects both.
func TestRatiosArePairs(t *testing.T) {
	slower := 0.0
	use := func(times float64) func() (resourceUse, error) {
		return func() (resourceUse, error) { return resourceUse{cpu: times * (1 + slower)}, nil }
	}
	b := &bench{runs: 3}
	first, second, err := b.besideOne(use(2), func() (resourceUse, error) { slower++; return use(3)() }, use(4))
	if err != nil || first.ratio(cpuOf) != 1.5 || second.ratio(cpuOf) != 2 {
		t.Errorf("ratios %g and %g, want 1.5 and 2; %v", first.ratio(cpuOf), second.ratio(cpuOf), err)
	}
	second.ours[0].cpu *= 2
	if got := second.ratioSpread(cpuOf); got != "median of 3 pairs, 2.00 to 4.00" {
		t.Error(got)
	}
}

// The cost of a program's start does not count in the ratio of the times of a large input.
func TestStartsAreNoRate(t *testing.T) {
	of := func(start, each float64) func(string) (resourceUse, error) {
		return func(input string) (resourceUse, error) {
			u := start + each*float64(len(input))
			return resourceUse{u, u}, nil
		}
	}
	b := &bench{runs: 2}
	large, small, err := b.pairsOf("0123456789", "01", of(1, 2), of(16, 1))
	if err != nil || large.ratio(cpuOf) >= 1 || large.less(small).ratio(cpuOf) != 2 || large.less(small).ratio(wallOf) != 2 {
		t.Errorf("whole %g, without the start %g and %g, want 2; %v", large.ratio(cpuOf), large.less(small).ratio(cpuOf), large.less(small).ratio(wallOf), err)
	}
}

// countWords treats letters of any encoding as letters.
func TestCountWords(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0, " \n\t": 0, "one": 1, "one two\nthree": 3, "\v\fa\rb": 2,
		"Grüße aus Köln": 3, "漢字 かな": 2, "a\u00a0b": 1, "\xff \x80": 2,
	} {
		file := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := countWords(file); err != nil || n != want {
			t.Errorf("%q has %d words, %v; want %d", text, n, err, want)
		}
	}
}
