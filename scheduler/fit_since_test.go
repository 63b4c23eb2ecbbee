package scheduler_test

import (
	"slices"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// After random events the nodes listed are exactly those with a new version.
func TestNodesChangedSinceListsNodesWithANewVersion(t *testing.T) {
	seed := seed.New(t)
	listedRounds, wrappedRounds := 0, 0
	for round := range 40 {
		c := schedtest.NewChaos(t, seed+uint64(round))
		for range 60 {
			at, was := c.State.LatestNodeVersion(), versions(c.State)
			randomChange(c)
			var listed []scheduler.NodeID
			if !c.State.NodesChangedSince(at, func(id scheduler.NodeID) { listed = append(listed, id) }) {
				wrappedRounds++ // a node was added, or all have a new version
				continue
			}
			listedRounds++
			for id, v := range versions(c.State) {
				if n := scheduler.NodeID(id); id >= len(was) || (was[id] != v) != slices.Contains(listed, n) {
					t.Fatalf("node %d of %d: version %d, now %d, listed %v", id, len(was), was[min(id, len(was)-1)], v, listed)
				}
			}
		}
	}
	if listedRounds < 10*wrappedRounds {
		t.Errorf("listed %d times, wrapped %d times", listedRounds, wrappedRounds)
	}
}

func versions(s *scheduler.State) []uint64 {
	var out []uint64
	for _, n := range s.Nodes() {
		out = append(out, s.NodeVersion(n.Spec.ID))
	}
	return out
}

// NodesChangedSince returns false to a reader that is too far behind.
func TestNodesChangedLongAgoAreNotListed(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1))
	s := w.State
	at := s.LatestNodeVersion()
	try := func() {
		mark := s.Mark()
		a := s.PlaceAction(s.Stage(scheduler.StageID{Job: id}), 0, 1, 0)
		if err := s.Apply(&a, w.Now); err != nil {
			t.Fatal(err)
		}
		s.Rollback(mark)
	}
	try()
	n := 0
	if !s.NodesChangedSince(at, func(id scheduler.NodeID) {
		if n++; id != 1 {
			t.Errorf("node %d is listed", id)
		}
	}) || n != 2 {
		t.Errorf("a try on node 1 is listed %d times, want 2", n)
	}
	for range 1000 {
		try()
	}
	if s.NodesChangedSince(at, func(scheduler.NodeID) {}) {
		t.Error("2,002 versions are listed from a log of 1,024")
	}
	if s.NodesChangedSince(s.LatestNodeVersion()+1, func(scheduler.NodeID) {}) {
		t.Error("future versions are listed")
	}
}
