package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A task that is lost when the next stage should have begun is started again at once: what is reserved for the next stage,
// on all nodes, would keep it waiting, and that stage waits for it.
func TestLostTaskComesBeforeTheNextStage(t *testing.T) {
	for _, name := range []string{"two_tier", "conservative"} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 100)).AddTenants("a")
			whole := schedtest.R(4, 1, 1) // each task takes a node
			w.SubmitStages("a", []scheduler.StageSpec{
				{Name: "map", Kind: scheduler.KindGroup, Tasks: 2, Demand: whole},
				{Name: "reduce", Kind: scheduler.KindGroup, Tasks: 4, Demand: whole, After: []int32{0}},
			})
			newPolicy := func() scheduler.Policy { return mustNew(t, name, map[string]string{"default_bound": "10s"}) }
			p := newPolicy()
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			w.Start().Advance(12 * time.Second)
			maps := w.Attempts()
			if len(maps) != 2 {
				t.Fatalf("%d maps run, want 2", len(maps))
			}
			w.End(maps[1], scheduler.OutcomeSucceeded)
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			due := 0
			for _, r := range w.State.Reservations().All() {
				if r.Stage == 1 && r.Start <= w.Now {
					due++
				}
			}
			if due == 0 {
				t.Fatal("no reservation for the next stage is due: this test proves nothing")
			}
			if err := w.State.Events().NodeLost(maps[0].Node, w.Now); err != nil {
				t.Fatal(err)
			}
			d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			for _, a := range d.Actions {
				if a.Kind == scheduler.ActPlace && a.Task == maps[0].ID.TaskID {
					return
				}
			}
			t.Errorf("the lost task is not placed: %s", d.String())
		})
	}
}
