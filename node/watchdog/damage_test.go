package watchdog

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/seed"
)

// Whatever happens to the file between daemon and watchdogs, neither believes another list
// or another lease, and whatever the daemon does next mends it.
func TestDamageOfTheListIsMended(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	w := newTestHost(t, 2)
	w.must(w.FreezeLeftovers())
	w.must(w.renew(time.Hour))
	w.must(w.Add(t.Context(), w.files[0]))
	w.must(w.Add(t.Context(), w.files[1]))
	whole, err := os.ReadFile(w.Path)
	w.must(err)
	read := func() (n state) {
		w.must(withLockedState(w.Path, func(_ *os.File, now state) error { n = now; return nil }))
		return n
	}
	found, rounds := 0, bitrot.Rounds(t, 1)
	for range rounds {
		bad, what := bitrot.Damage(random, whole)
		w.must(os.WriteFile(w.Path, bad, 0o600))
		n := read()
		if n.damaged {
			found++
		} else if len(bad) > 0 && (n.UntilNS != int64(time.Hour) || !slices.Equal(n.FreezeFiles, w.files[:2])) {
			t.Fatalf("%s: %+v is believed", what, n)
		}
		if random.IntN(2) == 0 {
			w.remove(w.files[1])
			w.must(w.Add(t.Context(), w.files[1]))
		} else {
			w.must(w.renew(time.Hour))
		}
		if n := read(); n.damaged || n.UntilNS != int64(time.Hour) || !slices.Equal(n.FreezeFiles, w.files[:2]) {
			t.Fatalf("%s: %+v, not mended", what, n)
		}
	}
	t.Logf("%d of %d found", found, rounds)
	if found < rounds/2 {
		t.Errorf("%d of %d damages were found: the test shows little", found, rounds)
	}
	w.remove(w.files[0])
	w.remove(w.files[1])
}
