package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A cycle finds out of few demands that no node fits them. What waits behind very many of those is
// placed nevertheless, in a later cycle, and the decision is that of a policy that starts anew.
func TestManyMisfitsPassNothingOverForEver(t *testing.T) {
	const misfits = 1500
	for _, name := range []string{"fifo", "fair", "las_mq", "edf"} {
		w := schedtest.New(t).AddNodes(9000, schedtest.R(1, 1, 100)).AddTenants("a")
		for i := range misfits {
			w.Submit("a", 1, schedtest.R(2+float64(i), 1, 10))
		}
		fits := w.Submit("a", 1, schedtest.R(1, 1, 10))
		p := newPolicy(t, name)
		w.Advance(200 * time.Millisecond) // those that were submitted first have their turn
		turns := 0
		for ; len(w.Attempts()) == 0; turns++ {
			if turns > 2*misfits/minMisfits+3 {
				t.Fatalf("%s: not placed after %d turns", name, turns)
			}
			d := w.Cycle(p)
			examined := 0
			for _, x := range d.Waiting {
				if x.Reason != scheduler.ReasonNotExamined {
					examined++
				}
			}
			if examined > minMisfits {
				t.Errorf("%s: %d demands were examined", name, examined)
			}
			if len(d.Actions) == 0 && (d.Wake == 0 || d.Wake > w.Now+misfitTurn) {
				t.Fatalf("%s: the next turn is at %v, now is %v", name, d.Wake, w.Now)
			}
			again := newPolicy(t, name).Decide(w.State, w.Now, 100)
			if len(d.Actions) == 0 && again.String() != d.String() {
				t.Fatalf("%s: decided otherwise anew", name)
			}
			w.Advance(time.Duration(misfitTurn))
		}
		if a := w.Attempts(); len(a) != 1 || a[0].ID.Job != fits {
			t.Errorf("%s: placed %v", name, a)
		}
		t.Logf("%s: placed in turn %d", name, turns)
	}
}

func newPolicy(t *testing.T, name string) scheduler.Policy {
	t.Helper()
	p, err := New(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
