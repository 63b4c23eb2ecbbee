package backfill

import "github.com/drover-run/drover/scheduler"

// Len returns the number of tasks that have not ended.
func (p *Planner) Len() int { return p.registry.numItems }

// Find returns the reservation of a task, false for an unknown task.
func (p *Planner) Find(k Key) (PlannedTask, bool) {
	it := p.registry.item(k)
	if it == nil {
		return PlannedTask{}, false
	}
	var x PlannedTask
	it.read(&x)
	return x, true
}

// Departure returns the currently planned departure of a project and its guarantee,
// false for an unknown project.
func (p *Planner) Departure(id scheduler.ProjectID) (now scheduler.Time, guarantee Guarantee, ok bool) {
	pr := p.registry.projects[id]
	if pr == nil {
		return 0, Guarantee{}, false
	}
	return pr.departure(), pr.guarantee, true
}

// Scan yields all tasks by (submission of the project, project, request, task); x is valid until yield returns.
func (p *Planner) Scan(yield func(x *PlannedTask)) {
	var x PlannedTask
	for _, pr := range p.registry.submitOrder {
		pr.scan(&x, yield)
	}
}

// ScanOf is Scan for the tasks of one project.
func (p *Planner) ScanOf(id scheduler.ProjectID, yield func(x *PlannedTask)) {
	if pr := p.registry.projects[id]; pr != nil {
		pr.scan(&PlannedTask{}, yield)
	}
}

// NumKept returns the number of tasks that were restored with a reservation. O(1).
func (p *Planner) NumKept() int { return p.numKept }

// HasWork reports whether tasks are planned or running on a bin. O(1).
func (p *Planner) HasWork(b int32) bool { return len(p.bins.bin(b).items) > 0 }

// NumUnplaced returns the number of tasks without a spot. O(1).
func (p *Planner) NumUnplaced() int { return p.registry.numItems - p.bins.numPlaced }

// NumUnplacedOf returns the number of tasks of a project without a spot. O(its tasks).
func (p *Planner) NumUnplacedOf(id scheduler.ProjectID) int {
	n := 0
	if pr := p.registry.projects[id]; pr != nil {
		for it := range pr.items {
			if !it.placed {
				n++
			}
		}
	}
	return n
}

// scan is Planner.Scan for one project.
func (p *project) scan(x *PlannedTask, yield func(x *PlannedTask)) {
	for it := range p.items {
		it.read(x)
		yield(x)
	}
}

// read sets x to the plan of the item.
func (it *item) read(x *PlannedTask) {
	*x = PlannedTask{Key: it.key, Project: it.group.project.ID, Spot: it.spot, End: it.end, Started: it.started,
		Kept: it.home.Kept, Moved: it.moved, KeptAt: it.home.Spot, Ref: it.home.Ref}
	if !it.placed {
		x.Spot.Bin, x.Spot.At, x.End = -1, scheduler.Never, scheduler.Never
	}
}

// HasChanged reports whether the spot of a task may have changed since the last call.
func (p *Planner) HasChanged() bool {
	changed := p.changed
	p.changed = false
	return changed
}
