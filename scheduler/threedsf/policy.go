package threedsf

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
)

// Policy is 3DSF, or a single scheduler made of some of its modules. It is not safe for concurrent use. It owns
// its parts and calls them in order; each part owns what it changes, and knows only the parts that it uses.
type Policy struct {
	cfg         Config
	seenStamp   scheduler.Stamp
	idleAtStamp bool // the decision at seenStamp was empty
	omitReasons bool // the caller does not want Decision.Waiting

	cycle  cycle
	shares shares

	// Facts about jobs and guarantees.
	jobs     jobCache
	survey   guaranteeSurvey
	obsolete obsoleteReservations
	planning planning

	// Which nodes are free for which task.
	placed       exchangeIndex
	reservations preemptReservations
	nodes        reservedNodes
	guarantees   guaranteeCheck
	open         openNodes
	finder       nodeFinder

	// Placing and preempting.
	waits      inputWaits
	exchanger  exchanger
	placer     placer
	preemption preemption

	// The lanes, in their order.
	reserved  reservedLane
	suspended suspendedLane
	deadlines deadlineLane
	overdue   overdueLane
	queues    queues
	tenants   tenantOrder

	explainer explainer
	others    others
}

// New returns a policy. Config is not checked.
func New(cfg Config) *Policy {
	p := &Policy{cfg: cfg}
	c := &p.cycle
	c.view = view{cfg: &p.cfg, assumptions: assumptions{cfg.Deadlines, cfg.AllDeadlines}}
	c.shares, c.nodeUsed = &p.shares, p.tenants.refreshHeadsAfter

	p.jobs = jobCache{v: &c.view}
	p.survey = guaranteeSurvey{c: c, jobs: &p.jobs}
	p.obsolete = obsoleteReservations{c: c, jobs: &p.jobs}
	p.planning = planning{c: c, jobs: &p.jobs, survey: &p.survey, obsolete: &p.obsolete, compressBatch: defaultCompressBatch, planWork: defaultPlanWork,
		restoreSteps: defaultRestoreSteps}

	p.reservations = preemptReservations{c: c, placed: &p.placed}
	p.nodes = reservedNodes{c: c}
	p.guarantees = guaranteeCheck{v: &c.view}
	p.open = openNodes{v: &c.view, jobs: &p.jobs, nodes: &p.nodes, reservations: &p.reservations, guarantees: &p.guarantees,
		closedBelow: map[closedClass]scheduler.NodeID{}, exemptJobs: map[scheduler.JobID]bool{}}
	p.finder = nodeFinder{v: &c.view, open: &p.open}

	p.waits = inputWaits{c: c}
	p.exchanger = exchanger{c: c, open: &p.open, finder: &p.finder, waits: &p.waits, placed: &p.placed}
	p.placer = placer{c: c, open: &p.open, finder: &p.finder, waits: &p.waits, exchanger: &p.exchanger}
	p.placer.matcher.MayUse = p.open.isOpenTo
	p.preemption = preemption{c: c, reservations: &p.reservations}
	p.preemption.init(&p.open)

	p.reserved = reservedLane{c: c, open: &p.open, preemption: &p.preemption, reservations: &p.reservations}
	p.suspended = suspendedLane{c: c, open: &p.open, reservations: &p.reservations, resumeReserved: map[scheduler.NodeID]bool{}}
	p.deadlines = deadlineLane{c: c, cached: &p.jobs, open: &p.open, placer: &p.placer, waits: &p.waits, preemption: &p.preemption, reservations: &p.reservations}
	p.overdue = overdueLane{c: c, nodes: &p.nodes, placer: &p.placer, tenants: &p.tenants}
	p.queues = queues{c: c}
	p.queues.init()
	p.tenants = tenantOrder{c: c, open: &p.open, nodes: &p.nodes, placer: &p.placer, waits: &p.waits, queues: &p.queues, lane: &p.deadlines,
		headClassIndex: map[scheduler.DemandClass]int32{}, restarted: map[scheduler.TenantID]bool{}}
	p.others.view = view{cfg: &p.cfg, assumptions: c.assumptions}
	p.others.guarantees = guaranteeCheck{v: &p.others.view}
	p.explainer = explainer{c: c, open: &p.open, nodes: &p.nodes, waits: &p.waits, tenants: &p.tenants, survey: &p.survey, jobs: &p.jobs, reservations: &p.reservations,
		examined: map[scheduler.DemandClass]struct{}{}, plannedStarts: map[scheduler.StageID]scheduler.Time{}}
	return p
}

// Name returns the configured name.
func (p *Policy) Name() string { return p.cfg.Name }

// DeadlineService returns what the deadline lane does, if there is one.
func (p *Policy) DeadlineService() scheduler.DeadlineService {
	if !p.cfg.Deadlines {
		return scheduler.DeadlineService{}
	}
	return scheduler.DeadlineService{First: true, Preempts: p.cfg.Preempt == deadline.Suspend || p.cfg.Preempt == deadline.Cheapest,
		Guarantees: p.cfg.Guarantees.Enabled}
}

// SetReasonsWanted sets whether decisions list why stages wait.
func (p *Policy) SetReasonsWanted(wanted bool) {
	p.omitReasons, p.idleAtStamp, p.explainer.round = !wanted, false, scheduler.WaitingRound{}
}

// Decide returns at most limit actions for this cycle. It costs O(1) and does not allocate if
// nothing changed, else O(tenants + ready stages + placements x (log tenants + replicas)).
func (p *Policy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	if p.idleAtStamp && p.seenStamp == s.Stamp() &&
		(now == p.cycle.now || (now > p.cycle.now && len(p.deadlines.jobs) == 0 && (p.cycle.wake == 0 || now < p.cycle.wake))) && limit > 0 {
		return p.cycle.decision(now)
	}
	p.begin(s, now, limit)
	p.planning.planGuarantees()
	p.cycle.planWake = p.cycle.wake
	for n := 0; p.runPass() && n < maxPasses; n++ {
	}
	if p.survey.deferred && (len(p.cycle.actions) > 0 || len(p.cycle.states) > 0) {
		p.cycle.wakeAt(now + 1) // the rest of the plan may wait for changes of this decision
	}
	p.survey.recordCompressState()
	p.queues.recordStates()
	if !p.omitReasons {
		p.explainer.explain(p.seenStamp)
	}
	s.Journal().Rollback(p.cycle.mark)
	p.idleAtStamp = len(p.cycle.actions) == 0 && len(p.cycle.states) == 0 && p.cycle.actionsLeft > 0
	return p.cycle.decision(now)
}

// maxPasses bounds the passes of one decision; two or three are usual.
const maxPasses = 64

// runPass goes through all lanes once, on the State as this decision has changed it so far, and reports
// whether another pass may find more. So a new cycle would add nothing to a finished decision.
func (p *Policy) runPass() bool {
	p.beginPass()
	before := p.cycle.changeCount
	p.reserved.collectDue()
	p.reserved.servePreempted()
	p.reserved.serveDue()
	p.reserved.serveFreed()
	p.suspended.resumeLongSuspended()
	if p.cfg.Deadlines {
		p.deadlines.serve()
	}
	p.suspended.serve()
	p.overdue.serve()
	if p.cycle.actionsLeft > 0 || p.cfg.LASMQ != nil { // LAS_MQ needs its queue heads in every cycle
		p.tenants.initHeads()
		p.tenants.serveTenants()
		p.tenants.wakeForOrder()
	}
	p.waits.record()
	p.obsolete.drop(p.cycle.actionsLeft)
	p.cycle.wakeAt(p.guarantees.caps.retryAt) // before the explainer's checks change it
	return p.cycle.changeCount != before && p.cycle.actionsLeft > 0 &&
		(p.cycle.nonPlacement || p.open.hasReservations() || len(p.nodes.nodes) > 0 || p.waits.waiting > 0 || p.suspended.anySuspended || p.deadlines.hasWaitingJob())
}

// begin starts a decision.
func (p *Policy) begin(s *scheduler.State, now scheduler.Time, limit int) {
	p.seenStamp = s.Stamp()
	p.cycle.begin(s, now, limit)
	p.planning.planned, p.planning.read, p.tenants.restarts = 0, 0, 0
	p.open.shrinkOnly = false
	p.others.seen = scheduler.Stamp{} // the decision's tries change the use of caps
	p.placed.begin(len(s.Nodes()))
	p.overdue.begin()
}

// beginPass starts a pass through all lanes.
func (p *Policy) beginPass() {
	p.cycle.beginPass()
	p.open.shrinkOnly = false
	p.nodes.begin(len(p.cycle.s.Nodes()))
	p.guarantees.beginPass()
	p.waits.begin()
	p.tenants.beginPass()
}
