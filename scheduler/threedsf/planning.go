package threedsf

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/deadline"
)

// planning plans guarantees: it reads the plan from the State, changes it, and commits it.
type planning struct {
	c        *cycle
	jobs     *jobCache
	survey   *guaranteeSurvey
	obsolete *obsoleteReservations

	planner       *backfill.Planner // nil before the first plan; only its memory outlives a decision
	slack         deadline.Slack
	compressBatch int // defaultCompressBatch unless a test sets it
	planWork      int // defaultPlanWork unless a test sets it
	restoreSteps  int // defaultRestoreSteps unless a test sets it
	planned, read int // in this decision: units of backfill.Planner.CompleteSome, and waiting tasks passed to the planner

	// Buffers that each plan reuses.
	requests []backfill.Request
	existing []backfill.Existing // of the tasks in requests
	tasks    []int32
	needs    backfill.NeedBuffer
	byTask   []*scheduler.Reservation
}

// Counted work, never time, bounds a plan, so that a decision depends on the State alone.
const (
	// maxPlannedTasks is how many waiting tasks may have a guarantee, over all owners: each plan reads them all.
	maxPlannedTasks = 1 << 15
	// requestBatch is how many waiting tasks of requests one cycle reads; a larger first request is read whole.
	requestBatch = 1 << 12
	// replanBatch is how many late or lost tasks a cycle plans again; fewer in large clusters, so
	// that they examine at most replanNodes nodes together, but at least minReplanBatch.
	replanBatch    = 1 << 10
	replanNodes    = 1 << 20
	minReplanBatch = 64
	// defaultPlanWork is the budget of one cycle for requests, in units of backfill.Planner.CompleteSome;
	// defaultRestoreSteps is that for late or lost tasks, in units of backfill.Planner.SetBudget.
	defaultPlanWork     = 1 << 20
	defaultRestoreSteps = 100_000
	// defaultCompressBatch is how many pieces of work one cycle of a compression visits.
	defaultCompressBatch = 2048
)

// planGuarantees repairs and compresses the plan, decides on requests and commits the result to the State. O(jobs +
// nodes + reservations) if something must be planned, plus at worst O(nodes) for the place of each new task.
func (p *planning) planGuarantees() {
	q := p.survey
	q.begin()
	q.recordLate()
	accepts := q.requests > 0 && p.c.s.Reservations().Left() > 0
	q.deferred = q.requests > 0
	if !accepts && !q.needsReplan && !q.compress {
		return
	}
	q.planned, q.deferred = true, q.requests > 0 && !accepts
	p.obsolete.dropMany()
	b := p.readPlan()
	// 1. Plan again what was lost or could not start in time.
	b.repair()
	b.occupyForRequests()
	// 2. Compress the schedule, a batch a cycle.
	if q.compress {
		q.nextCursor, q.finished = b.planner.Compress(p.c.now, q.cursor, p.compressBatch)
	}
	// 3. Accept or refuse requests.
	if accepts {
		b.planRequests()
	}
	b.planner.Close()
	// 4. Make the State's reservations those of the plan.
	b.commit()
}

// guaranteeShares returns guarantee_share for each tenant: the configured one, or the weighted fair share among the
// tenants that have work.
func (p *planning) guaranteeShares() []float64 {
	tenants := p.c.s.Tenants()
	if share := p.c.cfg.Guarantees.Share; share > 0 {
		return slices.Repeat([]float64{share}, len(tenants))
	}
	active := make([]bool, len(tenants))
	sums := make([]float64, len(tenants)+1) // of the weights of a tenant's active children, by tenant + 1; the first is the root's
	for _, t := range tenants {
		for above := t; t.Jobs > 0 && above != nil && !active[above.Spec.ID]; above = p.c.s.Tenant(above.Spec.Parent) {
			active[above.Spec.ID] = true
		}
	}
	for i, t := range tenants {
		if active[i] {
			sums[t.Spec.Parent+1] += t.Spec.Weight
		}
	}
	out := make([]float64, len(tenants))
	for i, t := range tenants {
		out[i] = 1
		for ; t != nil; t = p.c.s.Tenant(t.Spec.Parent) {
			if sum := sums[t.Spec.Parent+1]; sum > 0 {
				out[i] *= min(1, t.Spec.Weight/sum)
			}
		}
	}
	return out
}

// taskDuration returns how long capacity is reserved for a task of a stage: its bound, else its
// predicted run time, plus the margin; 0 if neither is known.
func (p *planning) taskDuration(g *scheduler.Stage) time.Duration {
	d := g.Bound()
	if d <= 0 {
		p.slack.Compute(g.Job)
		d = p.slack.TaskRunTime(g.Index)
	}
	if d <= 0 {
		return 0
	}
	return d + p.c.cfg.Guarantees.Margin
}
