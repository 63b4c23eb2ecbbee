package backfill

import (
	"fmt"

	"github.com/drover-run/drover/scheduler"
)

// Work of CompleteSome, counted and not timed, so that equal plans take equal decisions on any
// machine. One unit is about what it takes to look at one bin: 15 ns. It is a budget beside
// SetBudget's, which other units count.
const (
	workPerTask = 400 // finding a place by the finder, and reserving it
	workPerTry  = 60  // a backfill time
)

// CompleteSome is CompletePlan with a budget of work. It places most tasks at most, until the
// budget is used up, and returns what is left of it. done is false, and nothing is guaranteed,
// while tasks are without a place: the caller reserves what was placed and goes on in its next
// cycle. It returns ErrTooLate as soon as one task ends after the deadline. now may be later
// than the time of the cycle: no task is placed before it.
func (p *Planner) CompleteSome(now scheduler.Time, id scheduler.ProjectID, most, work int) (g Guarantee, left int, done bool, err error) {
	pr := p.registry.projects[id]
	p.journal.begin(p, now)
	defer p.journal.end()
	flexible := p.cfg.isFlexible(pr)
	left = work
	for it, open := range pr.waiting(now) {
		if left <= 0 || most <= 0 {
			return Guarantee{}, left, false, nil
		}
		p.placement.numTimes = 0
		if !p.placement.placeItem(p, it, open, now, flexible) {
			p.journal.rollback(p, 0)
			return Guarantee{}, left, false, it.neverFits()
		}
		left -= p.placement.workOf(p, it, open > now)
		most--
		if pr.Deadline > 0 && it.end > pr.Deadline && !pr.guaranteed {
			if p.NumUnplacedOf(id) == 0 {
				g.Departure = pr.departure()
			}
			p.journal.rollback(p, 0)
			return g, left, false, fmt.Errorf("project %d: %w", pr.ID, ErrTooLate)
		}
	}
	err = pr.guaranteeDeparture(p)
	return pr.guarantee, left, err == nil, err
}
