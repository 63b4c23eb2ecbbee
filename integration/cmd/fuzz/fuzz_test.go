package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../.."

// TestEveryTargetHasTheBound: a target that called F.Fuzz itself would have no bound on memory, and
// could not be run with millions of inputs.
func TestEveryTargetHasTheBound(t *testing.T) {
	targets, err := findTargets(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	direct := regexp.MustCompile(`\bf\.Fuzz\(`)
	bodies, runs := map[string]string{}, 0
	for _, x := range targets {
		files, err := filepath.Glob(filepath.Join(x.dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if f != "fuzz_test.go" {
				bodies[f] = string(text)
			}
		}
	}
	for f, text := range bodies {
		if direct.MatchString(text) {
			t.Errorf("%s calls F.Fuzz: call fuzztest.Run", f)
		}
		runs += strings.Count(text, "fuzztest.Run(")
	}
	if len(targets) < 59 || runs == 0 {
		t.Errorf("%d targets, %d calls of fuzztest.Run", len(targets), runs)
	}
}

func TestFindTargets(t *testing.T) {
	one, err := findTargets(root, []string{"FuzzUnits"})
	if err != nil || len(one) != 1 || one[0].name != "FuzzUnits" || filepath.Base(one[0].dir) != "jobspec" {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := findTargets(root, []string{"FuzzNothing"}); err == nil {
		t.Error("an unknown name finds something")
	}
}

// TestPartsAddUp: a run that is started again, on another machine and with other code, knows the
// work done before.
func TestPartsAddUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "of", "fuzz.jsonl")
	open := func(commit string) (*ledger, *target) {
		l, err := openLedger(file, commit)
		if err != nil {
			t.Fatal(err)
		}
		x := &target{dir: "a/b", name: "FuzzX"}
		l.load(x)
		return l, x
	}
	l, x := open("c1")
	if n := x.nextInputs(1e6); n != firstInputs {
		t.Errorf("first %d inputs", n)
	}
	y := &target{dir: "a", name: "FuzzY"}
	l.load(y)
	if err := l.add(y, part{Inputs: 1}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []part{{Inputs: 500, Guided: true, Seconds: 1}, {Inputs: 1000, Seconds: 0.5, Largest: 3 << 20}, {Inputs: 1000, Seconds: 0.5, Largest: 1}} {
		if err := l.add(x, p); err != nil {
			t.Fatal(err)
		}
	}
	l, x = open("c2")
	if want := (entry{Target: "a/b FuzzX", Inputs: 2500, Guided: 500, Seconds: 2, Largest: 3 << 20, Since: "c1", Until: "c1"}); x.entry != want {
		t.Errorf("%+v, want %+v", x.entry, want)
	}
	if x.rate() != 1250 || x.nextInputs(1e6) != 12500 || x.nextInputs(2600) != 100 {
		t.Errorf("%v inputs a second, next %d", x.rate(), x.nextInputs(1e6))
	}
	var b bytes.Buffer
	if err := printTable(&b, []*target{x}, 2500); err != nil || !strings.Contains(b.String(), "a/b FuzzX  2500    500             1250      0         3.0 MiB                 c1") {
		t.Errorf("%v\n%s", err, &b)
	}
	if err := printTable(&b, []*target{x}, 2501); err == nil {
		t.Error("too few inputs are enough")
	}
	if err := l.add(x, part{Inputs: 7, Failed: true}); err != nil {
		t.Fatal(err)
	}
	if _, x = open("c3"); x.Since != "c1" || x.Until != "c2" || len(l.lines) != 2 {
		t.Errorf("%+v of %d lines", x.entry, len(l.lines))
	}
	if err := printTable(&b, []*target{x}, 2500); err == nil {
		t.Error("a failure is none")
	}
	l, _ = open("c4")
	l.forget([]*target{x})
	if err := l.add(x, part{}); err != nil {
		t.Fatal(err)
	}
	if l, _ = open("c5"); len(l.lines) != 1 {
		t.Errorf("%d lines, one target is gone", len(l.lines))
	}
}

// Processors share the last target, and together give it no more inputs than it lacks. If a
// target's speed is unknown, one part runs alone.
func TestSeveralProcessorsShareTheLastTarget(t *testing.T) {
	l, err := openLedger(filepath.Join(t.TempDir(), "fuzz.jsonl"), "c")
	if err != nil {
		t.Fatal(err)
	}
	x, y := &target{dir: "a", name: "FuzzX"}, &target{dir: "b", name: "FuzzY"}
	s := &session{options: &options{inputs: 35_000}, ledger: l, targets: []*target{x, y}}
	for _, k := range s.targets {
		l.load(k)
	}
	expect := func(want *target, inputs int64) {
		t.Helper()
		if got, n := s.take(); got != want || n != inputs {
			t.Fatalf("%v has %d inputs, want %v with %d", got, n, want, inputs)
		}
	}
	give := func(k *target, n int64, seconds float64) {
		t.Helper()
		if err := s.give(k, n, part{Inputs: n, Seconds: seconds}); err != nil {
			t.Fatal(err)
		}
	}
	expect(x, firstInputs)
	expect(y, firstInputs)
	if got, _ := s.take(); got != nil {
		t.Fatalf("%v is taken twice though nobody knows how long it takes", got)
	}
	give(x, firstInputs, 2) // 1,000 inputs a second: 33 s are left
	give(y, firstInputs, 4)
	expect(x, 10_000)
	expect(y, 5_000)
	give(y, 5_000, 10)
	y.Inputs = 35_000
	expect(x, 10_000)
	expect(x, 10_000)
	expect(x, 3_000)
	if got, n := s.take(); got != nil {
		t.Fatalf("%v has %d inputs more than it lacks", got, n)
	}
	give(x, 10_000, 10)
	give(x, 10_000, 10)
	give(x, 10_000, 10)
	give(x, 3_000, 3)
	if got, _ := s.take(); got != nil || x.Inputs != 35_000 || x.begun != 0 || x.running != 0 {
		t.Errorf("%v is taken; %+v", got, x)
	}
}

func TestResults(t *testing.T) {
	p, ok := parseResult([]byte("x\nfuzz: FuzzX inputs=20 seconds=0.5 largest=77\nok\n"))
	if want := (part{Inputs: 20, Seconds: 0.5, Largest: 77}); !ok || p != want {
		t.Errorf("%+v, %v", p, ok)
	}
	if _, ok := parseResult([]byte("fuzz: FuzzX inputs=20 seconds=0.5 largest=77 failed\n")); ok {
		t.Error("a failure is none")
	}
	if n := lastExecs([]byte("fuzz: elapsed: 3s, execs: 100 (33/sec)\nfuzz: elapsed: 6s, execs: 250 (50/sec)\n")); n != 250 {
		t.Errorf("%d inputs", n)
	}
}
