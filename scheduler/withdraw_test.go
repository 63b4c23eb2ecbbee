package scheduler_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A placement withdrawn in its try leaves no trace: kept, the State is as without it; rolled
// back, it is as before the try.
func TestAPlacementCanBeWithdrawnInItsTry(t *testing.T) {
	seed := seed.New(t)
	withdrawn := 0
	for round := range 200 {
		c := schedtest.NewChaos(t, seed+uint64(round))
		for range 30 {
			c.Step()
			for _, a := range c.Actions(c.R.IntN(2)) {
				_ = c.State.Apply(&a, c.Now)
			}
		}
		before := schedtest.Bytes(c.State)
		clone := c.State.Clone()
		try := func(keep bool) []scheduler.Action {
			mark := c.State.Journal().Mark()
			var stay []scheduler.Action
			for range 12 { // each is chosen where the ones before have been applied
				drawn := c.Actions(1)
				if len(drawn) == 0 || c.State.Apply(&drawn[0], c.Now) != nil {
					continue
				}
				a := drawn[0]
				if a.Kind == scheduler.ActPlace && !a.Speculative && c.R.IntN(2) == 0 {
					must(t, c.State.Journal().Withdraw(&a))
					withdrawn++
					continue
				}
				stay = append(stay, a)
			}
			if keep {
				c.State.Journal().Keep(mark)
			} else {
				c.State.Journal().Rollback(mark)
			}
			must(t, schedtest.Invariants(c.State))
			return stay
		}
		try(false)
		if !bytes.Equal(schedtest.Bytes(c.State), before) {
			t.Fatalf("round %d: a rolled back try leaves\n%s", round, schedtest.Diff(c.State, clone))
		}
		stay := try(true)
		for i := range stay {
			must(t, clone.Apply(&stay[i], c.Now))
		}
		for _, a := range c.Attempts() {
			if b := clone.Attempt(a.ID); b == nil || b.Node != a.Node || b.Phase != a.Phase {
				t.Fatalf("round %d: attempt %s should not exist", round, a.ID)
			}
		}
		if c.State.Attempts().Live() != clone.Attempts().Live() {
			t.Fatalf("round %d: %d attempts, want %d", round, c.State.Attempts().Live(), clone.Attempts().Live())
		}
		for i, n := range c.State.Nodes() {
			if m := clone.Nodes()[i]; n.Free != m.Free {
				t.Fatalf("round %d: node %d has %v free, want %v", round, i, n.Free, m.Free)
			}
		}
	}
	if withdrawn < 100 {
		t.Errorf("only %d placements were withdrawn", withdrawn)
	}
}

func TestOnlyAPlacementOfTheTryCanBeWithdrawn(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	id := w.Submit("a", 2, schedtest.R(1, 1, 1))
	g := w.State.Stage(scheduler.StageID{Job: id})
	act := w.State.Attempts().PlaceAction(g, 0, 0, 0)
	if err := w.State.Journal().Withdraw(&act); !errors.Is(err, scheduler.ErrStale) {
		t.Errorf("a placement that was never applied: %v", err)
	}
	must(t, w.State.Apply(&act, w.Now))
	mark := w.State.Journal().Mark()
	if err := w.State.Journal().Withdraw(&act); !errors.Is(err, scheduler.ErrStale) {
		t.Errorf("a placement from before the try: %v", err)
	}
	w.State.Journal().Rollback(mark)
}
