package scheduler

import "math"

// demandFloor is a lower bound on the demand of a task of any ready stage: if no node has that
// much free capacity, none fits any of them, and a policy need not try them one by one. It is
// a cache. It never exceeds the demand of a ready stage; how far it is below depends on
// earlier calls.
type demandFloor struct {
	eqClass    equivalenceClass
	generation uint32 // of the fit index when eqClass.candidates was built
	sank       bool   // the floor sank since eqClass.candidates was built
	ready      int    // ready stages
	gone       int    // stages that stopped being ready since the last recount
}

// unsatisfiable is the floor when no stage is ready. It fits on no node.
var unsatisfiable = capacityVec{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}

// add includes a stage that became ready.
func (f *demandFloor) add(g *Stage) {
	was := f.eqClass.need
	if f.ready++; f.ready == 1 {
		f.eqClass.need, f.gone = unsatisfiable, 0
	}
	f.include(g)
	f.sank = f.sank || !was.fits(&f.eqClass.need)
}

// drop excludes a stage that is no longer ready. The floor stays until recountFloor.
func (f *demandFloor) drop() {
	f.ready--
	f.gone++
}

// include lowers the floor to the demand of the stage.
func (f *demandFloor) include(g *Stage) {
	for r, n := range needOf(g.Spec.Demand, g.Spec.Disk) {
		f.eqClass.need[r] = min(f.eqClass.need[r], n)
	}
}

// CapacityForAny reports whether some node may fit a task of some ready stage. False is
// certain, true is not. Amortised O(1).
func (s *State) CapacityForAny() bool {
	f := &s.floor
	if f.ready == 0 {
		return false
	}
	if f.gone > f.ready {
		s.recountFloor()
	}
	if n := int32(len(s.fit.free)); f.sank || f.generation != s.fit.generation {
		if f.eqClass.candidates.n != n {
			f.eqClass.candidates = newBitset(n)
		}
		f.eqClass.candidates.setAll(n)
		f.eqClass.pos, f.sank, f.generation = s.fit.gainedCount, false, s.fit.generation
	}
	return s.nextFit(&f.eqClass, 0) != NoNode
}

// recountFloor computes the floor from the ready stages; it can only rise. O(stages of jobs
// with ready work).
func (s *State) recountFloor() {
	f := &s.floor
	f.eqClass.need, f.gone = unsatisfiable, 0
	for j, at := s.NextReady(0); j != nil; j, at = s.NextReady(at) {
		for _, g := range j.Stages {
			if g.ready {
				f.include(g)
			}
		}
	}
}
