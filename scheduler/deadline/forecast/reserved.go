package forecast

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// maxOverlaps bounds the reservations of a node, or below a cap, whose overlaps are computed for
// one placement. If there are more, all count as simultaneous.
const maxOverlaps = 32

// reservedTime is capacity of a node, or of a cap, reserved for a task that has not started.
type reservedTime struct {
	start, end scheduler.Time
	demand     scheduler.Resources
}

// copyReservations makes tasks with guarantee reservations start in their reservations only.
// O(reservations).
func (p *Forecaster) copyReservations() {
	p.capped = p.capped[:0]
	guarantees := p.state.Reservations().Guarantees()
	if len(guarantees) == 0 {
		return
	}
	jobs := make(map[scheduler.JobID]*jobState, len(p.jobs))
	for _, w := range p.jobs {
		jobs[w.spec.ID] = w
	}
	var due []*taskState
	for _, r := range guarantees {
		w, g := jobs[r.Job], p.state.Stage(r.StageID())
		if !r.IsOfTask() || w == nil || g == nil || !g.IsPending(r.Task) || r.End <= p.now || w.stages[r.Stage].waiting == 0 || !p.nodes[r.Node].schedulable {
			continue
		}
		w.stages[r.Stage].waiting--
		x := &taskState{node: int32(r.Node), job: w, stage: r.Stage, demand: r.Demand, remaining: r.End.Sub(max(r.Start, p.now))}
		if r.Start <= p.now {
			due = append(due, x)
			continue
		}
		p.schedule(&taskState{starts: x}, r.Start.Sub(p.now))
		n, t := &p.nodes[r.Node], reservedTime{r.Start, r.End, r.Demand}
		n.reserved = append(n.reserved, t)
		p.reserveCaps(w, t)
	}
	for i := range p.nodes {
		slices.SortStableFunc(p.nodes[i].reserved, func(a, b reservedTime) int { return cmp.Compare(a.start, b.start) })
	}
	for _, x := range due {
		p.startReserved(x)
	}
}

// reserveCaps reserves a task's need of the caps above its job. The task must start after those reserved before.
func (p *Forecaster) reserveCaps(w *jobState, r reservedTime) {
	if len(p.subtrees) == 0 {
		return
	}
	for len(p.capped) < len(p.tenants) {
		p.capped = append(p.capped, nil)
	}
	for t := w.tenant; t != nil; t = p.state.Tenant(t.Spec.Parent) {
		if id := t.Spec.ID; t.Spec.Caps.Total != (scheduler.Limit{}) {
			p.capped[id] = append(p.capped[id], r)
		}
	}
}

// startReserved starts a task in its reservation; the task ends at the latest with the reservation.
// Regular tasks in its way, on its node or below its caps, are suspended. Tasks that cannot be
// suspended continue: the node's free capacity is then negative.
func (p *Forecaster) startReserved(x *taskState) {
	n := &p.nodes[x.node]
	n.reserved = notBegun(n.reserved, p.now)
	if !x.demand.Fits(n.free) && n.canSuspend {
		var of []*taskState
		for _, y := range p.queue {
			if y.node == x.node && p.isVictim(y) {
				of = append(of, y)
			}
		}
		p.suspend(chooseVictims(of, n, n.free, x.demand))
	}
	for t := range p.capped {
		p.capped[t] = notBegun(p.capped[t], p.now)
	}
	p.suspendForCaps(x.job, x.demand)
	p.start(x, x.remaining)
}

// freeFor returns what is free on a node for a task of a stage that starts now, without what is
// reserved before the task's expected end. Regular tasks on a node that can suspend leave it in time.
func (p *Forecaster) freeFor(n *nodeState, w *jobState, g *stageState) scheduler.Resources {
	if len(n.reserved) == 0 || w.givesWayOn(n) {
		return n.free
	}
	return n.free.Sub(mostReserved(p.overlapping(n.reserved, w, g)))
}

// notBegun returns the reservations of a list, by start, that have not begun.
func notBegun(list []reservedTime, now scheduler.Time) []reservedTime {
	for len(list) > 0 && list[0].start <= now {
		list = list[1:]
	}
	return list
}

// overlapping returns the reservations of a list, by start, that begin before the end of a task that starts now.
func (p *Forecaster) overlapping(list []reservedTime, w *jobState, g *stageState) []reservedTime {
	end := p.now.Add(max(1, cmp.Or(w.spec.Bound, g.runTime)))
	n, _ := slices.BinarySearchFunc(list, end, func(r reservedTime, at scheduler.Time) int { return cmp.Compare(r.start, at) })
	return list[:n]
}

// leavesCaps reports whether a non-preemptible task of a stage that starts now leaves the caps above it what is
// reserved below them before the task's expected end. Tasks that give way, or that end before all that, count
// as gone. O(depth of the tenant) if nothing is reserved, O(running tasks x depth) if it depends on those.
func (p *Forecaster) leavesCaps(w *jobState, g *stageState) bool {
	if len(p.capped) == 0 {
		return true
	}
	for t := w.tenant; t != nil; t = p.state.Tenant(t.Spec.Parent) {
		reserved := p.overlapping(p.capped[t.Spec.ID], w, g)
		if len(reserved) == 0 {
			continue
		}
		need := p.subtrees[t.Spec.ID].Add(g.spec.Demand).Add(mostReserved(reserved))
		if _, ok := t.Spec.Caps.Total.Allows(need); ok {
			continue
		}
		for _, x := range p.queue {
			if x.job != nil && !x.cancelled && (x.endsAt <= reserved[0].start || p.isVictim(x)) && p.state.TenantTree().IsBelow(x.job.spec.Tenant, t.Spec.ID) {
				need = need.Sub(x.demand)
			}
		}
		if _, ok := t.Spec.Caps.Total.Allows(need); !ok {
			return false
		}
	}
	return true
}

// mostReserved returns an upper bound on what is reserved at any one time, of each resource.
func mostReserved(list []reservedTime) (most scheduler.Resources) {
	for i := range list {
		at, sum := list[i].start, scheduler.Resources{}
		for k := range list[:i+1] {
			if list[k].end > at || len(list) > maxOverlaps {
				sum = sum.Add(list[k].demand)
			}
		}
		most = most.Max(sum)
	}
	return most
}

// charge adds to the use of a job, its tenant and all tenants above.
func (p *Forecaster) charge(w *jobState, d scheduler.Resources) {
	p.tenants[w.spec.Tenant] = p.tenants[w.spec.Tenant].Add(d)
	if len(p.subtrees) == 0 {
		return
	}
	w.used = w.used.Add(d)
	for t := w.tenant; t != nil; t = p.state.Tenant(t.Spec.Parent) {
		p.subtrees[t.Spec.ID] = p.subtrees[t.Spec.ID].Add(d)
	}
}

// withinCaps is TenantTree.WithinCaps in the sample. O(depth of the tenant); O(1) if no tenant has a cap.
func (p *Forecaster) withinCaps(w *jobState, task, more scheduler.Resources) bool {
	if len(p.subtrees) == 0 {
		return true
	}
	_, ok := w.tenant.Spec.Caps.Task.Allows(task)
	for t := w.tenant; ok && t != nil; t = p.state.Tenant(t.Spec.Parent) {
		_, ofJob := t.Spec.Caps.Job.Allows(w.used.Add(more))
		_, total := t.Spec.Caps.Total.Allows(p.subtrees[t.Spec.ID].Add(more))
		ok = ofJob && total
	}
	return ok
}
