package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A task lost when the next stage should have begun is started again at once: the reservations of
// the next stage, on all nodes, would keep it waiting, and that stage waits for it.
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

// A task of the previous stage that overran is resumed at once where the next stage is due: the
// reservation of the next stage keeps the node idle.
func TestSuspendedTaskComesBeforeTheNextStage(t *testing.T) {
	for _, name := range []string{"two_tier", "conservative"} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
			whole := schedtest.R(4, 1, 1)
			w.SubmitStages("a", []scheduler.StageSpec{
				{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: whole},
				{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 1, Demand: whole, After: []int32{0}},
			}, func(j *scheduler.JobSpec) { j.Bound = 10 * time.Second })
			newPolicy := func() scheduler.Policy { return mustNew(t, name, nil) }
			p := newPolicy()
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			w.Start().Advance(10 * time.Second)
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			if r := w.State.Reservations().All(); len(r) != 1 || r[0].Start > w.Now {
				t.Fatalf("reserved are %v; want the reduce, now: this test proves nothing", r)
			}
			w.Advance(time.Second)
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			a := w.Attempts()[0]
			if a.Phase != scheduler.AttemptSuspending {
				t.Fatalf("past its bound the map is %v", a.Phase)
			}
			if err := w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, scheduler.Footprint{Image: schedtest.GiB}, w.Now); err != nil {
				t.Fatal(err)
			}
			if d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100); !goesOn(&d, a) {
				t.Errorf("the map is not resumed: %s", d.String())
			}
		})
	}
}
