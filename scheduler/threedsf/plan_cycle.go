package threedsf

import (
	"github.com/drover-run/drover/scheduler"
)

// planGuarantees repairs and compresses the plan, decides on requests and commits
// the result to the State. O(jobs + nodes + reservations) where something has to be
// planned, plus the search for a place of each new task, O(nodes) at worst.
func (p *planning) planGuarantees() {
	p.survey.begin()
	q := p.survey
	for _, n := range q.violations {
		p.c.recordState(n)
	}
	requests := q.requests > 0 && p.c.s.Reservations().Left() > 0
	if q.deferred = q.requests > 0; !requests && !q.needsReplan && !q.compress {
		return
	}
	p.obsolete.dropMany()
	b := p.readPlan()
	// 1. Plan again what was lost or could not start in time.
	b.repair()
	b.occupyForRequests()
	// 2. Compress the schedule, a batch a cycle.
	// 3. Accept or refuse requests.
	var refused []scheduler.PolicyState
	if q.compress {
		next, finished := b.planner.Compress(p.c.now, q.cursor, p.compressBatch)
		q.recordCompression(next, finished)
	}
	if requests {
		refused = b.planRequests()
	} else {
		b.deferred = b.deferred || q.requests > 0
	}
	b.planner.Close()
	// 4. Make the State's reservations those of the plan.
	b.commit(refused)
	q.recordPlan(b.deferred, b.replanLeft)
}
