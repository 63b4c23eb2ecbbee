// Package seed draws the seeds of random tests. Every random test takes its seed from New or from
// rapid, so that RAPID_SEED=N, or -rapid.seed=N if the package uses rapid, repeats any of them.
// Only tests import it.
package seed

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// New returns the seed given on the command line, else a random one, and logs it with the command
// that repeats it. Without a given seed, each call returns another seed. It never returns 0,
// because rapid takes 0 for "not given".
func New(t testing.TB) uint64 {
	t.Helper()
	s := given(t)
	for s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d (RAPID_SEED=%d repeats it)", s, s)
	return s
}

// given returns the seed of -rapid.seed, whose default is RAPID_SEED, or of RAPID_SEED in packages
// that do not import rapid. It returns 0 if neither is given.
func given(t testing.TB) uint64 {
	v := os.Getenv("RAPID_SEED")
	if f := flag.Lookup("rapid.seed"); f != nil {
		v = f.Value.String()
	}
	if v == "" {
		return 0
	}
	s, err := strconv.ParseUint(v, 0, 64) // as rapid parses it
	if err != nil {
		t.Fatalf("RAPID_SEED: %v; give a number between 1 and 2^64-1", err)
	}
	return s
}
