package policies

import (
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func TestReservingPoliciesConform(t *testing.T) {
	for _, info := range table {
		if !slices.ContainsFunc(info.Params, func(p Param) bool { return p.Name == reserveParam.Name }) {
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			policytest.Run(t, func() scheduler.Policy {
				p, err := New(info.Name, map[string]string{"reserve": "true"})
				if err != nil {
					t.Fatal(err)
				}
				return p
			})
		})
	}
}

// Two nodes with two places each are full of small tasks, one of which ends
// every second while more wait. A task that needs both places of a node is
// first in line: it is passed over for ever, or a node is kept for it.
func TestALargeTaskIsNotPassedOverForEver(t *testing.T) {
	for _, c := range []struct {
		reserve string
		starts  bool
	}{{"false", false}, {"true", true}} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(2, 8, 10)).AddTenants("a", "b")
		p, err := New("fifo", map[string]string{"reserve": c.reserve})
		if err != nil {
			t.Fatal(err)
		}
		w.Submit("a", 4, schedtest.R(1, 1, 0))
		w.Cycle(p)
		large := w.Submit("a", 1, schedtest.R(2, 1, 0))
		w.Submit("b", 100, schedtest.R(1, 1, 0))
		for range 20 {
			w.Start().Pass(time.Second)
			w.End(oldest(w), scheduler.OutcomeSucceeded)
			w.Cycle(p)
		}
		j := w.State.Job(large)
		if got := j.Stages[0].Running > 0 || j.Stages[0].Done > 0; got != c.starts {
			t.Errorf("reserve %s: the large task starts: %v", c.reserve, got)
		}
	}
}

// oldest is the small task that started first.
func oldest(w *schedtest.World) *scheduler.Attempt {
	var first *scheduler.Attempt
	for _, a := range w.Attempts() {
		if first == nil || a.ID.Compare(first.ID) < 0 {
			first = a
		}
	}
	return first
}
