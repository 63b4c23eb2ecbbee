package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A cycle tests only a few demands that fit on no node. Stages behind very many of those are still
// placed, in a later cycle, and the decision equals that of a new policy.
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

// A cycle visits a bounded number of stages. A stage that fits behind very many that do not is
// still placed, in a later cycle, and the decision equals that of a new policy.
func TestVeryManyStagesPassNothingOverForEver(t *testing.T) {
	const most, misfits = 64, 500
	for _, name := range []string{"fifo", "fair", "las_mq", "edf", "easy"} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(4, 4, 100)).AddTenants("a")
		for range misfits {
			w.Submit("a", 1, schedtest.R(5, 1, 10))
		}
		fits := w.Submit("a", 3, schedtest.R(2, 1, 10))
		p := newPolicy(t, name)
		misfitsOf(p).maxVisits = most
		w.Advance(time.Duration(misfitTurn)) // the first ones have their turn
		for turns := 0; len(w.Attempts()) == 0; turns++ {
			if turns > misfits/(most/4)+2 {
				t.Fatalf("%s: not placed after %d turns", name, turns)
			}
			d := w.Cycle(p)
			if n := misfitsOf(p).visits; n > most {
				t.Fatalf("%s: %d stages were visited", name, n)
			}
			if d.Empty() {
				again := newPolicy(t, name)
				misfitsOf(again).maxVisits = most
				if e := again.Decide(w.State, w.Now, 100); d.Wake != w.Now.Add(time.Duration(misfitTurn)) || e.String() != d.String() {
					t.Fatalf("%s: decided otherwise anew, or the next turn is at %v, now is %v", name, d.Wake, w.Now)
				}
			}
			w.Advance(time.Duration(misfitTurn))
		}
		if a := w.Attempts(); len(a) != 3 || a[0].ID.Job != fits {
			t.Errorf("%s: placed %v", name, a)
		}
	}
}

func misfitsOf(p scheduler.Policy) *misfits {
	switch p := p.(type) {
	case *fifo:
		return &p.placer.misfits
	case *fairShare:
		return &p.placer.misfits
	case *lasMQ:
		return &p.placer.misfits
	case *easy:
		return &p.placer.misfits
	case *ordered:
		return &p.placer.misfits
	default:
		panic("no misfits in policy " + p.Name())
	}
}
