package threedsf

// SetCompressBatch sets how many pieces of work one cycle of a compression visits.
func (p *Policy) SetCompressBatch(n int) { p.planning.compressBatch = n }

// SetPlanWork sets the budget of one cycle for requests of guarantees.
func (p *Policy) SetPlanWork(n int) { p.planning.planWork = n }

// SetRestoreSteps sets the budget of one cycle for late or lost tasks.
func (p *Policy) SetRestoreSteps(n int) { p.planning.restoreSteps = n }

// PlanSteps returns the work of the last decision for requests, the number of waiting
// tasks that its plan read, and the different demands that it explained.
func (p *Policy) PlanSteps() (planned, read, examined int) {
	return p.planning.planned, p.planning.read, len(p.explainer.examined)
}

// Restarts returns how often the last decision went through a tenant's jobs from the
// first one.
func (p *Policy) Restarts() int { return p.tenants.restarts }

// The limits of PlanSteps; MaxExamined is divided by the number of nodes.
const (
	MaxPlannedTasks = maxPlannedTasks
	RequestBatch    = requestBatch
	DefaultPlanWork = defaultPlanWork
	MaxExamined     = maxExamined
	MinExamined     = minExamined
)
