package scheduler

import "math"

// floor bounds from below what a task of any ready stage needs: where no node
// has room for that, none has room for any of them, and a policy need not ask
// for each. It is a cache: it is never above what some ready stage needs, and
// how far below depends on what was asked before.
type floor struct {
	shape shape
	gen   uint32 // of the index when shape.may was made
	lower bool   // the floor sank since shape.may was made
	ready int    // ready stages
	gone  int    // stages that stopped being ready since the floor was counted
}

// nothing is the floor where no stage is ready; it fits nowhere.
var nothing = room{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}

// add takes in a stage that became ready.
func (f *floor) add(g *Stage) {
	was := f.shape.need
	if f.ready++; f.ready == 1 {
		f.shape.need, f.gone = nothing, 0
	}
	f.sink(g)
	f.lower = f.lower || !was.fits(&f.shape.need)
}

// drop takes out a stage that is ready no more.
func (f *floor) drop() {
	f.ready--
	f.gone++
}

func (f *floor) sink(g *Stage) {
	for r, n := range needOf(g.Spec.Demand, g.Spec.Disk) {
		f.shape.need[r] = min(f.shape.need[r], n)
	}
}

// RoomForAny tells whether any node may have room for a task of any ready stage;
// false is sure, true is not. Amortised O(1).
func (s *State) RoomForAny() bool {
	f := &s.floor
	if f.ready == 0 {
		return false
	}
	if f.gone > f.ready {
		s.countFloor()
	}
	if n := int32(len(s.fit.room)); f.lower || f.gen != s.fit.gen {
		if f.shape.may.n != n {
			f.shape.may = newBitset(n)
		}
		f.shape.may.setAll(n)
		f.shape.pos, f.lower, f.gen = s.fit.head, false, s.fit.gen
	}
	return s.nextFit(&f.shape, 0) != NoNode
}

// countFloor works the floor out anew. It does not sink by that.
// O(stages of jobs with ready work).
func (s *State) countFloor() {
	f := &s.floor
	f.shape.need, f.gone = nothing, 0
	for j, at := s.NextReady(0); j != nil; j, at = s.NextReady(at) {
		for _, g := range j.Stages {
			if g.ready {
				f.sink(g)
			}
		}
	}
}
