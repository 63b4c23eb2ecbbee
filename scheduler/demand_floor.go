package scheduler

import (
	"math"
	"slices"
)

// demandFloor is a lower bound on the demand of a task of any startable stage (ready and below its
// max_parallel). If no node has that much free capacity, no startable stage fits, and a policy need
// not try them one by one. It is a cache: it never exceeds the demand of a startable stage; how far
// below it is depends on earlier calls. A few stages with a max_parallel are kept apart: one that
// starts a task whenever another ends would keep the floor low for all others.
type demandFloor struct {
	eqClass    equivalenceClass
	generation uint32 // of the fit index when eqClass.candidates was built
	sank       bool   // the floor sank since eqClass.candidates was built
	startable  int    // startable stages in the floor
	gone       int    // stages that stopped being startable since the last recount began
	recount    floorRecount
	limited    []*Stage // startable stages with a max_parallel that are not in the floor, at most maxLimited
}

const maxLimited = 64 // bounds the stages that are examined one by one

// floorRecount computes the floor from the startable stages, a few of them in each call.
type floorRecount struct {
	active bool
	at     int32       // position in the queue to continue from
	need   capacityVec // of the stages before it, and of those that became startable since
}

const recountStep = 256 // about how many stages one call recounts

// unsatisfiable is the floor when no stage is startable. It fits on no node.
var unsatisfiable = capacityVec{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}

// update adds a stage that became startable. A stage that ceases to be leaves the floor at the next recount. O(1).
func (f *demandFloor) update(g *Stage) {
	startable := g.ready && (g.Spec.MaxParallel == 0 || g.Running+g.Suspended < g.Spec.MaxParallel)
	if startable == g.startable {
		return
	}
	g.startable = startable
	switch {
	case startable && g.Spec.MaxParallel > 0 && len(f.limited) < maxLimited:
		f.limited = append(f.limited, g)
	case startable:
		f.add(g)
	case g.inFloor:
		g.inFloor = false
		f.startable--
		f.gone++
	default:
		i := slices.Index(f.limited, g)
		f.limited = slices.Delete(f.limited, i, i+1)
	}
}

func (f *demandFloor) add(g *Stage) {
	was := f.eqClass.need
	g.inFloor = true
	if f.startable++; f.startable == 1 {
		f.eqClass.need, f.gone, f.recount.active = unsatisfiable, 0, false
	}
	need := g.need()
	f.eqClass.need.lower(&need)
	f.recount.need.lower(&need)
	f.sank = f.sank || !was.fits(&f.eqClass.need)
}

// lower reduces each component of n to that of another need, if that is less.
func (n *capacityVec) lower(to *capacityVec) {
	for r, v := range to {
		n[r] = min(n[r], v)
	}
}

// CapacityForAny reports whether some node may fit a task of some startable stage. False is
// certain, true is not. Amortised O(1).
func (q Queue) CapacityForAny() bool {
	f := &q.s.floor
	for _, g := range f.limited {
		if q.s.cluster.NextNode(g, 0) != NoNode {
			return true
		}
	}
	if f.startable == 0 {
		return false
	}
	if f.recount.active || f.gone > f.startable/8 {
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

// recountFloor begins or continues a recount of the floor from the startable stages; the floor can only rise.
// It is spread over several calls, since a recount of many stages would make one cycle long. O(recountStep).
func (q Queue) recountFloor() {
	f := &q.s.floor
	if !f.recount.active {
		f.recount, f.gone = floorRecount{active: true, need: unsatisfiable}, 0
	}
	j, at := q.Next(f.recount.at)
	for left := recountStep; j != nil && left > 0; j, at = q.Next(at) {
		for _, g := range j.Stages {
			if g.inFloor {
				need := g.need()
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
