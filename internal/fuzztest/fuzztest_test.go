package fuzztest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/seed"
)

// envFault makes FuzzSelf fail in this way, once an input is long.
const envFault = "DROVER_FUZZ_FAULT"

var hold []byte // keeps the memory that FuzzSelf allocates

// FuzzSelf is the target that the tests of this package run.
func FuzzSelf(f *testing.F) {
	fault := os.Getenv(envFault)
	f.Add([]byte("seed"), "s", 1, uint8(2), true)
	Run(f, func(t *testing.T, b []byte, _ string, _ int, _ uint8, _ bool) {
		if len(b) <= len("a long input") {
			return
		}
		switch fault {
		case "error":
			t.Errorf("error")
		case "fatal":
			t.Fatal("fatal")
		case "panic":
			panic("panic")
		case "memory":
			hold = make([]byte, maxAlloc+1)
		}
	})
}

// runSelf runs FuzzSelf with mutated inputs in a folder of its own.
func runSelf(t *testing.T, fault string, env ...string) (out string, kept []string, err error) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^FuzzSelf$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), append(env, envFault+"="+fault)...)
	b, err := cmd.CombinedOutput()
	kept, _ = filepath.Glob(filepath.Join(dir, "testdata", "fuzz", "FuzzSelf", "*"))
	return string(b), kept, err
}

func TestMutatedInputs(t *testing.T) {
	out, kept, err := runSelf(t, "", EnvInputs+"=5000")
	if err != nil || len(kept) > 0 || !strings.Contains(out, "fuzz: FuzzSelf inputs=5000 ") {
		t.Fatalf("%v, kept %q\n%s", err, kept, out)
	}
	if out, _, err := runSelf(t, "", EnvInputs+"=none"); err == nil {
		t.Errorf("no number was taken:\n%s", out)
	}
}

// TestFaultsAreFound: each way to fail is detected, and the input is kept where Go's engine finds
// it.
func TestFaultsAreFound(t *testing.T) {
	for _, fault := range []string{"error", "fatal", "panic", "memory"} {
		out, kept, err := runSelf(t, fault, EnvInputs+"=100000")
		if err == nil || len(kept) != 1 || !strings.Contains(out, "fuzz: FuzzSelf failed: ") {
			t.Fatalf("%s: %v, kept %q\n%s", fault, err, kept, out)
		}
		text, err := os.ReadFile(kept[0])
		if err != nil {
			t.Fatal(err)
		}
		fn := reflect.TypeOf(func(*testing.T, []byte, string, int, uint8, bool) {})
		in, ok := parseInput(string(text), fn)
		if !ok || len(in[0].([]byte)) <= len("a long input") {
			t.Errorf("%s: kept %q", fault, text)
		}
	}
}

// TestCorporaAreUsed: an input that can only be derived from a corpus is reached.
func TestCorporaAreUsed(t *testing.T) {
	dir := t.TempDir()
	if _, err := writeInput(dir, []any{[]byte("an input of the corpus that is long"), "", 0, uint8(0), false}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte(header+"\nint(1)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err := runSelf(t, "error", EnvInputs+"=50", EnvCorpus+"="+dir); err == nil {
		t.Errorf("not used:\n%s", out)
	}
}

func TestMutator(t *testing.T) {
	s := seed.New(t)
	corpus := [][]any{{[]byte("some bytes"), "text", int64(1), uint16(7), false}, {make([]byte, maxInput+1000), "", int64(-1), uint16(0), true}}
	zero := []any{[]byte{}, "", int64(0), uint16(0), false}
	before := fmt.Sprint(corpus)
	draw := func(n int) (all []string) {
		m := newMutator(s, corpus, zero)
		for range n {
			in := m.next()
			if n := len(in[0].([]byte)); n > maxInput+1000 || len(in[1].(string)) > maxInput {
				t.Fatalf("an input of %d bytes", n)
			}
			all = append(all, fmt.Sprintf("%q", in))
		}
		return all
	}
	a, b := draw(400), draw(400)
	if !slices.Equal(a, b) {
		t.Error("the same seed gives other inputs")
	}
	slices.Sort(a)
	if n := len(slices.Compact(a)); n < 200 {
		t.Errorf("%d different inputs of 400", n)
	}
	if fmt.Sprint(corpus) != before {
		t.Error("the corpus was changed")
	}
}
