package backfill

import (
	"errors"
	"fmt"

	"github.com/drover-run/drover/scheduler"
)

// ErrUnfinished is the class of error for a project that is planned in part because the budget of
// steps is spent.
var ErrUnfinished = errors.New("the budget of steps is spent")

// The costs of planning in steps. A step takes about a tenth of a microsecond.
const (
	placeSteps  = 100 // to place a task, or to move it
	searchSteps = 10  // to search a bin
	trySteps    = 2   // to try a backfill time
	shiftSteps  = 10  // to put a task where others are in the way, and to remove one of those
	binsPerStep = 16  // bins to pass over on which nothing fits
)

// SetBudget limits the work of the following calls. When the steps are spent, CompletePlan,
// CompleteWhatFits and Compress stop at the next task, and a task takes its earliest start without further
// backfill times; Replan stops at its next key, LoseBins at the next bin. Other calls that restore
// guarantees do not stop. Steps are counted, not timed, so that the same State gives the same plan.
func (p *Planner) SetBudget(steps int) { p.stepsLeft = steps }

// StepsLeft returns the rest of the budget; it may be negative. O(1).
func (p *Planner) StepsLeft() int { return p.stepsLeft }

// CompletePlan places the tasks of a project that have no place and guarantees its departure if it
// has no guarantee (Alg. 1-3). If one of them fits on no bin, not even an empty one, nothing
// changes; nor with ErrTooLate, where Guarantee.Departure is when the project could depart. With
// ErrUnfinished some tasks are placed and nothing is guaranteed. O(tasks of the project x bins),
// plus the displacements tried.
func (p *Planner) CompletePlan(now scheduler.Time, id scheduler.ProjectID) (Guarantee, error) {
	pr := p.registry.projects[id]
	p.journal.begin(p, now)
	defer p.journal.end()
	p.repairs.takeOutSuccessors(p, pr, now)
	defer p.repairs.putBack(p, now)
	budget := p.stepsLeft
	flexible := p.cfg.isFlexible(pr)
	for it, open := range pr.waiting(now) {
		if p.stepsLeft <= 0 {
			return pr.guarantee, fmt.Errorf("project %d: %w", pr.ID, ErrUnfinished)
		}
		if !p.placement.placeItem(p, it, open, now, flexible) {
			p.journal.rollback(p, 0)
			p.stepsLeft = budget // so that CompleteWhatFits gets equally far
			return pr.guarantee, it.neverFits()
		}
	}
	err := pr.guaranteeDeparture(p)
	return pr.guarantee, err
}

func (it *item) neverFits() error {
	return fmt.Errorf("project %d, job %d stage %d task %d: %w", it.group.project.ID, it.key.Job, it.key.Stage, it.key.Task, errNeverFits)
}

// guaranteeDeparture guarantees the departure of a project without a guarantee whose items all have a place.
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

// CompleteWhatFits is CompletePlan for a project of which some tasks may fit nowhere: it places the
// others and guarantees nothing. It returns false if the budget is spent before all were tried.
func (p *Planner) CompleteWhatFits(now scheduler.Time, id scheduler.ProjectID) (done bool) {
	pr := p.registry.projects[id]
	p.journal.begin(p, now)
	defer p.journal.end()
	p.repairs.takeOutSuccessors(p, pr, now)
	defer p.repairs.putBack(p, now)
	var full *group // a group with an item that found no place: its other items need the same, and may start no earlier
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

// Work of CompleteSome, counted and not timed, so that equal plans give equal decisions on any
// machine. One unit is about the cost of examining one bin: 15 ns. This budget is separate from
// SetBudget's, which counts other units.
const (
	workPerTask = 400 // to find a place by the finder, and reserve it
	workPerTry  = 60  // a backfill time
)

// CompleteSome is CompletePlan with a budget of work. It places at most most tasks, until the
// budget is used up, and returns the rest of it. done is false, and nothing is guaranteed, while
// tasks are without a place: the caller reserves the placed ones and continues in its next cycle.
// It returns ErrTooLate as soon as one task ends after the deadline. now may be later than the time
// of the cycle: no task is placed before it.
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
