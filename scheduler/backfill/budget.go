package backfill

import "errors"

// ErrUnfinished is the class of error for a project that is planned in part because the budget
// of steps is spent.
var ErrUnfinished = errors.New("the budget of steps is spent")

// What planning costs in steps. A step is about a tenth of a microsecond.
const (
	placeSteps  = 100 // to place a task, or to move it
	searchSteps = 10  // to search a bin
	trySteps    = 2   // to try a backfill time
	shiftSteps  = 10  // to put a task where others are in the way, and to take one of those away
	binsPerStep = 16  // bins to pass over on which nothing fits
)

// SetBudget limits the work of the calls that follow. When the steps are spent,
// CompletePlan, CompleteWhatFits and Compress stop at the next task, and a task takes its
// earliest start without trying further backfill times; Replan stops at the next of its keys, LoseBins at the next bin. Other calls that
// restore guarantees do not stop. Counted, not timed, so that the same State gives the same plan.
func (p *Planner) SetBudget(steps int) { p.stepsLeft = steps }

// StepsLeft returns what is left of the budget; it may be negative. O(1).
func (p *Planner) StepsLeft() int { return p.stepsLeft }
