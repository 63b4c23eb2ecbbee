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
// no run of millions of inputs.
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
		runs += strings.Count(text, "fuzztest.Run(") + strings.Count(text, "fuzztest.RunWithin(")
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

// TestPartsAddUp: a run that is started again knows what was done.
func TestPartsAddUp(t *testing.T) {
	out := t.TempDir()
	newTarget := func() *target {
		x := &target{dir: "a/b", name: "FuzzX"}
		if err := x.load(out); err != nil {
			t.Fatal(err)
		}
		return x
	}
	x := newTarget()
	if n := x.nextInputs(1e6); n != firstInputs {
		t.Errorf("first %d inputs", n)
	}
	for _, p := range []part{{Inputs: 500, Guided: true, Seconds: 1}, {Inputs: 1000, Seconds: 0.5, Largest: 3 << 20}, {Inputs: 1000, Seconds: 0.5, Largest: 1}} {
		if err := x.add(p); err != nil {
			t.Fatal(err)
		}
	}
	if x = newTarget(); x.done.Inputs != 2500 || x.guided != 500 || x.rate() != 1250 || x.nextInputs(1e6) != 12500 || x.nextInputs(2600) != 100 {
		t.Errorf("%+v, next %d", x, x.nextInputs(1e6))
	}
	var b bytes.Buffer
	if err := printTable(&b, []*target{x}, 2500); err != nil || !strings.Contains(b.String(), "a/b FuzzX  2500    500             1250      0         3.0 MiB") {
		t.Errorf("%v\n%s", err, &b)
	}
	if err := printTable(&b, []*target{x}, 2501); err == nil {
		t.Error("too few inputs are enough")
	}
	if err := x.add(part{Inputs: 7, Failed: true}); err != nil {
		t.Fatal(err)
	}
	if err := printTable(&b, []*target{newTarget()}, 2500); err == nil {
		t.Error("a failure is none")
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
