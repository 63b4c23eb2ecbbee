package policies

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Work that waits and of which nothing is planned yet is read into the planner in parts, for with
// very much of it reading alone would make a decision long. The window is what a decision reads of
// it: in half the first owners in order of submission, in half those beyond, which take turns by the
// time. So none is left out for ever behind others for which there is no place, and the same State at
// the same time gives the same window.
const (
	windowTasks = 1 << 13
	// windowTurn is how long one part of those beyond has its turn.
	windowTurn = misfitTurn
)

// countMovable adds the waiting tasks of a job, and reports whether the plan has
// something of the job: a reservation, or a suspended task, which has its place.
func (o *restoredOwner) countMovable(j *scheduler.Job) (inPlan bool) {
	if inPlan = hasReservations(j); inPlan || j.Phase != scheduler.JobActive {
		return inPlan
	}
	if j.Live > 0 && slices.ContainsFunc(j.Begun(), func(g *scheduler.Stage) bool { return g.Suspended > 0 }) {
		return true
	}
	o.movable = int32(min(int64(o.movable)+j.Pending, maxPlannedTasks))
	return false
}

func (p *roundPlan) isGuaranteed(o *restoredOwner) bool {
	if pr := p.s.Project(o.id); pr != nil {
		return pr.HasState(scheduler.GuaranteeState)
	}
	return o.first.HasState(scheduler.GuaranteeState)
}

// chooseWindow decides which owners are in the planner in this round: all that have something
// planned, and of the others those in the window. It takes out those that are not, and lists those
// that come in. O(1) if all are in the window, else O(owners). An owner belongs to the window by its
// first task; it has maxPlannedTasks at most.
func (p *roundPlan) chooseWindow() {
	w := &p.restored
	w.entered = w.entered[:0]
	p.nextTurn = 0
	size := cmp.Or(p.window, windowTasks)
	if w.movable <= size && w.leftOut == 0 {
		return
	}
	half, turn := max(1, w.movable), 0 // all are first
	if w.movable > size {
		half = size / 2
		parts := max(1, (w.movable-1)/half)
		at := p.now / windowTurn
		turn = int(at % scheduler.Time(parts))
		p.nextTurn = (at + 1) * windowTurn
	}
	before := 0
	w.leftOut = 0
	for _, o := range w.ordered {
		// Part -1 is the first half of the window, and the others take turns.
		part := before/half - 1
		out := o.movable > 0 && part >= 0 && part != turn
		before += int(o.movable)
		switch {
		case out && o.planned:
			p.planner.Forget(o.id)
			o.planned, o.incomplete, o.unplaced = false, false, false
		case !out && o.leftOut:
			w.entered = append(w.entered, o)
		}
		if o.leftOut = out; out {
			w.leftOut++
		}
	}
}

func (p *roundPlan) isLeftOut(j *scheduler.Job) bool {
	if p.restored.leftOut == 0 {
		return false
	}
	o := p.restored.byID[ownerOf(j, p.projects)]
	return o != nil && o.leftOut
}
