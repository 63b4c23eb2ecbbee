package scheduler_test

import (
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A policy that decides inside a try must not mistake the State for one it has seen.
func TestAStampInsideATryIsUnique(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 2, schedtest.R(1, 1, 1))
	s := w.State
	seen := map[scheduler.Stamp]bool{s.Stamp(): true}
	place := func(task int32) {
		a := s.Attempts().PlaceAction(s.Stage(scheduler.StageID{Job: id}), task, 0, 0)
		if err := s.Apply(&a, w.Now); err != nil {
			t.Fatal(err)
		}
		if seen[s.Stamp()] {
			t.Errorf("placing task %d: the stamp was used before", task)
		}
		seen[s.Stamp()] = true
	}
	before := s.Stamp()
	for task := range int32(2) { // equally many steps, another State
		mark := s.Journal().Mark()
		if s.Stamp() != before {
			t.Error("an empty try changes the stamp")
		}
		place(task)
		s.Journal().Rollback(mark)
		if s.Stamp() != before {
			t.Error("Rollback does not restore the stamp")
		}
	}
	place(1)
}
