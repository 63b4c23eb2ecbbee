package threedsf

import (
	"errors"
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
	planScratch   planScratch
	slack         deadline.Slack
	compressBatch int // defaultCompressBatch unless a test sets it
	planWork      int // defaultPlanWork unless a test sets it
	restoreSteps  int // defaultRestoreSteps unless a test sets it
	steps         steps
}

// steps counts the work of a decision where it is bounded.
type steps struct {
	planned int // units of backfill.Planner.CompleteSome
	read    int // waiting tasks that the planner was given
}

// planScratch is memory that each plan uses again.
type planScratch struct {
	requests []backfill.Request
	existing []backfill.Existing // of the tasks in requests
	tasks    []int32
	needs    backfill.NeedBuffer
	byTask   []*scheduler.Reservation
}

// owner is a project, or a single job, that has or requests a guarantee.
type owner struct {
	id        scheduler.ProjectID
	jobs      []*scheduler.Job // at least one, ordered by id
	requested bool
	joins     bool // requested, by a job that joins a project with a guarantee
	guarantee backfill.Guarantee
	deadline  scheduler.Time // 0 for a project; the project's latest departure for a job that joins
	accepted  scheduler.Time // see cachedJob
	submitted scheduler.Time
	waiting   int                   // tasks
	partial   bool                  // requested, and not all of its tasks have a place yet
	occupied  []backfill.Occupation // requested: by its running tasks, see occupyForRequests
}

// A plan is bounded by counted work, never by time, so that a decision depends on the
// State alone. maxPlannedTasks is how many waiting tasks may have a guarantee, all owners
// together: each plan reads them all. requestBatch is how many waiting tasks of requests
// one cycle reads, if those of the first request are fewer, and replanBatch how many late
// or lost tasks it plans again: fewer where each may look at more nodes, replanNodes all together, but
// minReplanBatch at least. defaultPlanWork is the budget of one cycle for requests,
// in the units of backfill.Planner.CompleteSome, defaultRestoreSteps that for what was late or lost, in those of
// backfill.Planner.SetBudget.
const (
	maxPlannedTasks     = 1 << 15
	requestBatch        = 1 << 12
	replanBatch         = 1 << 10
	replanNodes         = 1 << 20
	minReplanBatch      = 64
	defaultPlanWork     = 1 << 20
	defaultRestoreSteps = 100_000
)

// defaultCompressBatch is how many pieces of work one cycle of a compression visits.
const defaultCompressBatch = 2048

// guaranteeShares returns guarantee_share for each tenant: the configured one, or
// the weighted fair share among the tenants that have work.
func (p *planning) guaranteeShares() []float64 {
	tenants := p.c.s.Tenants()
	out := make([]float64, len(tenants))
	if p.c.cfg.Guarantees.Share > 0 {
		for i := range out {
			out[i] = p.c.cfg.Guarantees.Share
		}
		return out
	}
	active := make([]bool, len(tenants))
	for id, x := range tenants {
		if x.Jobs == 0 {
			continue
		}
		t := scheduler.TenantID(id)
		for n := 0; t != scheduler.NoTenant && !active[t] && n <= scheduler.MaxTenantDepth; n++ {
			active[t] = true
			t = tenants[t].Spec.Parent
		}
	}
	sums := make([]float64, len(tenants)+1) // sum of the weights of each tenant's active children; the last is the root's
	at := func(parent scheduler.TenantID) *float64 {
		if parent == scheduler.NoTenant {
			return &sums[len(tenants)]
		}
		return &sums[parent]
	}
	for i, t := range tenants {
		if active[i] {
			*at(t.Spec.Parent) += t.Spec.Weight
		}
	}
	for i, t := range tenants {
		out[i] = 1
		for n := 0; n <= scheduler.MaxTenantDepth; n++ {
			if sum := *at(t.Spec.Parent); sum > 0 {
				out[i] *= min(1, t.Spec.Weight/sum)
			}
			if t.Spec.Parent == scheduler.NoTenant {
				break
			}
			t = tenants[t.Spec.Parent]
		}
	}
	return out
}

// errUnknownEnd refuses a request without a computable end.
var errUnknownEnd = errors.New("completion time unknown")

// errTooManyTasks refuses a request that would make the plan too large.
var errTooManyTasks = errors.New("too many tasks for a guarantee")

// taskDuration returns for how long a task of a stage is given capacity: its
// bound, else its predicted run time, plus the margin; 0 if neither is known.
func (p *planning) taskDuration(g *scheduler.Stage) time.Duration {
	if b := g.Bound(); b > 0 {
		return b + p.c.cfg.Guarantees.Margin
	}
	p.slack.Compute(g.Job)
	if d := p.slack.TaskRunTime(g.Index); d > 0 {
		return d + p.c.cfg.Guarantees.Margin
	}
	return 0
}
