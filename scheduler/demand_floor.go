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
	gone       int    // stages that stopped being ready since the last recount began
	recount    floorRecount
}

// floorRecount computes the floor from the ready stages, a few of them in each call.
type floorRecount struct {
	active bool
	at     int32       // position in the queue to continue from
	need   capacityVec // of the stages before it, and of those that became ready since
}

// recountStep is about how many stages one call recounts.
const recountStep = 256

// unsatisfiable is the floor when no stage is ready. It fits on no node.
var unsatisfiable = capacityVec{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}

// add includes a stage that became ready.
func (f *demandFloor) add(g *Stage) {
	was := f.eqClass.need
	if f.ready++; f.ready == 1 {
		f.eqClass.need, f.gone, f.recount.active = unsatisfiable, 0, false
	}
	need := needOf(g.Spec.Demand, g.Spec.Disk)
	f.eqClass.need.lower(&need)
	f.recount.need.lower(&need)
	f.sank = f.sank || !was.fits(&f.eqClass.need)
}

// drop excludes a stage that is no longer ready. The floor stays until it was recounted.
func (f *demandFloor) drop() {
	f.ready--
	f.gone++
}

// lower lowers n to another need.
func (n *capacityVec) lower(to *capacityVec) {
	for r, v := range to {
		n[r] = min(n[r], v)
	}
}

// CapacityForAny reports whether some node may fit a task of some ready stage. False is
// certain, true is not. Amortised O(1).
func (q Queue) CapacityForAny() bool {
	f := &q.s.floor
	if f.ready == 0 {
		return false
	}
	if f.recount.active || f.gone > f.ready/8 {
		q.recountFloor()
	}
	if n := int32(len(q.s.cluster.fit.free)); f.sank || f.generation != q.s.cluster.fit.generation {
		if f.eqClass.candidates.n != n {
			f.eqClass.candidates = newBitset(n)
		}
		f.eqClass.candidates.setAll(n)
		f.eqClass.pos, f.sank, f.generation = q.s.cluster.fit.gainedCount, false, q.s.cluster.fit.generation
	}
	return q.s.cluster.nextFit(&f.eqClass, 0) != NoNode
}

// recountFloor begins to compute the floor from the ready stages, or continues; it can only rise. It takes several
// calls where many are ready: one call for all would make a cycle long. O(recountStep).
func (q Queue) recountFloor() {
	f := &q.s.floor
	if !f.recount.active {
		f.recount, f.gone = floorRecount{active: true, need: unsatisfiable}, 0
	}
	j, at := q.Next(f.recount.at)
	for left := recountStep; j != nil && left > 0; j, at = q.Next(at) {
		for _, g := range j.Stages {
			if g.ready {
				need := needOf(g.Spec.Demand, g.Spec.Disk)
				f.recount.need.lower(&need)
			}
		}
		left -= len(j.Stages)
	}
	if j != nil {
		f.recount.at = j.rank
		return
	}
	f.eqClass.need, f.recount.active = f.recount.need, false
}
