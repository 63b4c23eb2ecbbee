package backfill

import (
	"fmt"

	"github.com/drover-run/drover/scheduler"
)

// Submit plans a project and guarantees its departure time (Alg. 1-3). Tasks that can
// start at once are planned for now; the caller must call Start for them. An error
// (a task that fits on no bin, or ErrTooLate) leaves the plan as it was; with ErrTooLate, Guarantee.Departure is when the project could depart. O(tasks of the
// project x bins), plus the displacements tried.
func (p *Planner) Submit(now scheduler.Time, in Project) (Guarantee, error) {
	p.Restore(in, Guarantee{}, false, func(Key, *Need) Existing { return Existing{} })
	q, err := p.CompletePlan(now, in.ID)
	if err != nil {
		p.registry.unregister(p, p.registry.projects[in.ID])
	}
	return q, err
}

// CompletePlan places the tasks of a project that have no place and guarantees its departure
// if it has no guarantee. If one of them fits on no bin, not even an empty one, nothing
// changes; with ErrUnfinished some of them are placed, and nothing is guaranteed.
func (p *Planner) CompletePlan(now scheduler.Time, id scheduler.ProjectID) (Guarantee, error) {
	pr := p.registry.projects[id]
	p.journal.begin(p, now)
	defer p.journal.end()
	budget := p.stepsLeft
	flexible := p.cfg.isFlexible(pr)
	for it, open := range pr.waiting(now) {
		if p.stepsLeft <= 0 {
			return pr.guarantee, fmt.Errorf("project %d: %w", pr.ID, ErrUnfinished)
		}
		if !p.placement.placeItem(p, it, open, now, flexible) {
			p.journal.rollback(p, 0)
			p.stepsLeft = budget // so that CompleteWhatFits gets as far
			return pr.guarantee, it.neverFits()
		}
	}
	err := pr.guaranteeDeparture(p)
	return pr.guarantee, err
}

func (it *item) neverFits() error {
	return fmt.Errorf("project %d, job %d stage %d task %d: %w", it.group.project.ID, it.key.Job, it.key.Stage, it.key.Task, errNeverFits)
}

// guaranteeDeparture guarantees the departure of a project whose items all have a place, if it has no guarantee.
func (pr *project) guaranteeDeparture(p *Planner) error {
	if pr.guaranteed {
		return nil
	}
	p.rounds.alter(pr)
	pr.guarantee = p.cfg.computeGuarantee(pr)
	if pr.Deadline > 0 && pr.guarantee.Departure > pr.Deadline {
		p.journal.rollback(p, 0)
		return fmt.Errorf("project %d: %w", pr.ID, ErrTooLate)
	}
	pr.guaranteed = true
	return nil
}

// CompleteWhatFits is CompletePlan for a project of which some tasks may fit nowhere:
// it places the others and guarantees nothing. It returns false if the budget is spent before
// all have been tried.
func (p *Planner) CompleteWhatFits(now scheduler.Time, id scheduler.ProjectID) (done bool) {
	pr := p.registry.projects[id]
	p.journal.begin(p, now)
	defer p.journal.end()
	var full *group // of which an item found no place: the others need the same, and may start no earlier
	for it, open := range pr.waiting(now) {
		if it.group == full {
			continue
		}
		if p.stepsLeft <= 0 {
			return false
		}
		if !p.placement.placeItem(p, it, open, now, false) && !it.pinned {
			full = it.group
		}
	}
	return true
}
