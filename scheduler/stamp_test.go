package scheduler_test

import (
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A policy that is asked inside a try must not take the State for the one it knew.
func TestAStampOfATryIsLikeNoOther(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 2, schedtest.R(1, 1, 1))
	s := w.State
	seen := map[scheduler.Stamp]bool{s.Stamp(): true}
	place := func(task int32) {
		a := s.Place(s.Stage(scheduler.StageID{Job: id}), task, 0, 0)
		if err := s.Apply(&a, w.Now); err != nil {
			t.Fatal(err)
		}
		if seen[s.Stamp()] {
			t.Errorf("placing task %d: the stamp was there before", task)
		}
		seen[s.Stamp()] = true
	}
	before := s.Stamp()
	for task := range int32(2) { // as many steps, another State
		mark := s.Mark()
		if s.Stamp() != before {
			t.Error("a try in which nothing was done has another stamp")
		}
		place(task)
		s.Rollback(mark)
		if s.Stamp() != before {
			t.Error("rolled back, the stamp is another")
		}
	}
	place(1)
}
