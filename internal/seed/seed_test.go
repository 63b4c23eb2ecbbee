package seed

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

// recorder keeps what New logs and whether it failed.
type recorder struct {
	testing.TB
	logged, failed string
}

func (r *recorder) Helper()                         {}
func (r *recorder) Logf(format string, args ...any) { r.logged = fmt.Sprintf(format, args...) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(r)
}

// draw returns New's result, and what it logged or failed with.
func draw(t *testing.T) (s uint64, r *recorder) {
	r = &recorder{TB: t}
	defer func() {
		if p := recover(); p != nil && p != any(r) {
			panic(p)
		}
	}()
	return New(r), r
}

func TestNew(t *testing.T) {
	t.Setenv("RAPID_SEED", "")
	a, r := draw(t)
	b, _ := draw(t)
	if a == b || a == 0 || b == 0 {
		t.Errorf("without a given seed: %d and %d", a, b)
	}
	if want := fmt.Sprintf("RAPID_SEED=%d ", a); !strings.Contains(r.logged, want) {
		t.Errorf("logged %q without %q", r.logged, want)
	}
	t.Setenv("RAPID_SEED", r.logged[len("seed "):strings.Index(r.logged, " (")])
	if got, _ := draw(t); got != a {
		t.Errorf("RAPID_SEED=%d: %d", a, got)
	}
	for _, bad := range []string{"x", "-1", "18446744073709551616"} {
		t.Setenv("RAPID_SEED", bad)
		if _, r := draw(t); !strings.Contains(r.failed, "RAPID_SEED") {
			t.Errorf("RAPID_SEED=%s: failed with %q", bad, r.failed)
		}
	}
}

// In a package with properties, rapid's flag is the one that counts: its default is RAPID_SEED.
func TestFlagOfRapid(t *testing.T) {
	t.Setenv("RAPID_SEED", "1")
	set := flag.CommandLine
	flag.CommandLine = flag.NewFlagSet("", flag.ContinueOnError)
	defer func() { flag.CommandLine = set }()
	flag.Uint64("rapid.seed", 1, "")
	if err := flag.Set("rapid.seed", "77"); err != nil {
		t.Fatal(err)
	}
	if got, _ := draw(t); got != 77 {
		t.Errorf("-rapid.seed=77: %d", got)
	}
}
