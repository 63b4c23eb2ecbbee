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
	for _, name := range []string{"fifo", "3dsf", "drf", "pdsonqueue"} {
		for reserve, starts := range map[string]bool{"false": false, "true": true} {
			w := schedtest.New(t).AddNodes(2, schedtest.R(2, 8, 10)).AddTenants("a", "b")
			p := mustNew(t, name, map[string]string{"reserve": reserve})
			w.Submit("a", 4, schedtest.R(1, 1, 0))
			w.Cycle(p)
			large := w.Submit("a", 1, schedtest.R(2, 1, 0))
			w.Submit("b", 100, schedtest.R(1, 1, 0))
			for range 20 {
				w.Start().Pass(time.Second)
				w.End(oldest(w), scheduler.OutcomeSucceeded)
				w.Cycle(p)
			}
			g := w.State.Job(large).Stages[0]
			if got := g.Running > 0 || g.Done > 0; got != starts {
				t.Errorf("%s, reserve %s: the large task starts: %v", name, reserve, got)
			}
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
