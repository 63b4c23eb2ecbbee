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
