package threedsf

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/lasmq"
	"github.com/drover-run/drover/scheduler/locality"
)

// Policy is 3DSF, or a single scheduler made of some of its modules. It is not safe
// for concurrent use.
type Policy struct {
	cfg         Config
	assumptions assumptions

	s           *scheduler.State
	now         scheduler.Time
	actionsLeft int
	mark        scheduler.Mark
	seenStamp   scheduler.Stamp
	idleAtStamp bool // the decision at seenStamp was empty
	omitReasons bool // the caller does not want Decision.Waiting
	wake        scheduler.Time

	shares        shares
	tenantCursors []tenantCursor
	queueIndex    *lasmq.Index         // nil without Config.LASMQ
	servingTenant scheduler.TenantID   // being served now, or NoTenant
	activeTenants []scheduler.TenantID // tenants with a next task in the tree
	firstMisfit   *scheduler.Stage     // with StopAtFirstMisfit: the stage that did not fit

	eqClasses    []nextEqClass // of the tenants' next tasks in this pass
	eqClassIndex map[equivalenceClass]int32

	matcher       locality.Matcher
	waitEvaluator locality.WaitEstimator
	matchRequests []locality.Request // scratch
	nearNodes     []scheduler.NodeID // scratch
	nearWalk      locality.TaskIterator
	racks         racks

	dataWaits        map[*scheduler.Stage]dataWait // stages waiting for their input's nodes in this pass
	delayed          []delayedStage                // stages delayed until all others were served
	exchanges        exchangeIndex
	withoutLocalNode map[*scheduler.Stage]bool   // delayed or scanned: no free node at their input in this pass
	servingDelayed   bool                        // the delayed stages are being served
	restarted        map[scheduler.TenantID]bool // scratch of serveDelayed
	localStages      []*scheduler.Stage          // stages that had a task placed at its input in this pass
	placedLocally    map[*scheduler.Stage]bool   // localStages as a set

	actions                  []scheduler.Action
	states                   []scheduler.PolicyState
	waitingReasons           []scheduler.Waiting
	laneJobs                 []laneJob
	nonPlacement             bool // this pass did something other than a placement
	changeCount              int  // actions and policy states added or withdrawn in this decision
	slack                    deadline.Slack
	preemptor                deadline.Preemptor
	withoutVictims           []equivalenceClass       // classes without victims left in this pass
	preemptReservationCount  int                      // ReservePreempt reservations in force
	guaranteeCount           int                      // guarantee reservations that have not ended
	dueReservations          []*scheduler.Reservation // guarantee reservations that are due, with a task left to place
	survey                   guaranteeSurvey
	planner                  *backfill.Planner // nil before the first plan; only its memory outlives a decision
	planScratch              planScratch
	jobCache                 jobCache
	shrinkOnly               bool                                 // free capacity only shrinks: see beginShrinkOnly
	closedBelow              map[closedKey]scheduler.NodeID       // no node below it is open to the class
	exemptJobs               map[scheduler.JobID]bool             // jobs that their own reservations do not exclude
	plannedStarts            map[scheduler.StageID]scheduler.Time // cache of nextPlannedStart, empty until it is first called
	diskScratch              []scheduler.DiskUse                  // scratch
	compressBatch            int                                  // defaultCompressBatch unless a test sets it
	planWork                 int                                  // defaultPlanWork unless a test sets it
	steps                    steps
	examined                 map[equivalenceClass]struct{} // demands that explain compared with the nodes
	maxExamined              int                           // of them
	obsolete                 []scheduler.ReservationID     // scratch
	ancestors                []bool                        // scratch of dependsOn
	preemptReservations      []*scheduler.Reservation
	reserved                 reservedNodes
	suspended                []*scheduler.Attempt
	ignoreResumeReservations bool                      // see tryResumeDespiteReservations
	resumeReserved           map[scheduler.NodeID]bool // nodes reserved for a suspended task
}

// steps counts the work of a decision where it is bounded.
type steps struct {
	planned  int // units of backfill.Planner.CompleteSome
	read     int // waiting tasks that the planner was given
	restarts int // calls of restartTenant
}

// New returns a policy. Config is not checked.
func New(cfg Config) *Policy {
	p := &Policy{
		cfg:              cfg,
		assumptions:      assumptions{cfg.Deadlines, cfg.AllDeadlines},
		compressBatch:    defaultCompressBatch,
		planWork:         defaultPlanWork,
		eqClassIndex:     map[equivalenceClass]int32{},
		dataWaits:        map[*scheduler.Stage]dataWait{},
		placedLocally:    map[*scheduler.Stage]bool{},
		withoutLocalNode: map[*scheduler.Stage]bool{},
		restarted:        map[scheduler.TenantID]bool{},
		resumeReserved:   map[scheduler.NodeID]bool{},
		closedBelow:      map[closedKey]scheduler.NodeID{},
		exemptJobs:       map[scheduler.JobID]bool{},
		examined:         map[equivalenceClass]struct{}{},
		plannedStarts:    map[scheduler.StageID]scheduler.Time{},
	}
	p.preemptor = deadline.Preemptor{
		Mode:              cfg.Preempt,
		MaxSuspended:      cfg.MaxSuspended,
		ReservedForOthers: p.reservedForAll,
		IsProtected:       func(j *scheduler.Job) bool { return p.isProtected(j) },
		MayStart: func(n *scheduler.Node, g *scheduler.Stage) bool {
			return p.guaranteeCount == 0 || p.honoursGuarantees(n, g, g.Spec.Demand, g.Spec.Disk, -1)
		},
	}
	p.matcher.MayUse = p.isOpenTo
	if cfg.LASMQ != nil {
		p.queueIndex = p.newQueueIndex()
	}
	return p
}

// Name returns the configured name.
func (p *Policy) Name() string { return p.cfg.Name }

// ServesDeadlines reports whether there is a deadline lane.
func (p *Policy) ServesDeadlines() bool { return p.cfg.Deadlines }

// SuspendsForDeadlines reports whether the deadline lane suspends other tasks.
func (p *Policy) SuspendsForDeadlines() bool {
	return p.cfg.Deadlines && (p.cfg.Preempt == deadline.Suspend || p.cfg.Preempt == deadline.Cheapest)
}

// GuaranteesDeadlines reports whether deadlines are guaranteed.
func (p *Policy) GuaranteesDeadlines() bool { return p.cfg.Deadlines && p.cfg.Guarantees.Enabled }

// SetReasonsWanted sets whether decisions list why stages wait.
func (p *Policy) SetReasonsWanted(wanted bool) { p.omitReasons, p.idleAtStamp = !wanted, false }

// Decide returns the actions for this cycle, limit at most. It costs O(1) and does
// not allocate if nothing changed, else O(tenants + ready stages + placements x (log
// tenants + replicas)).
func (p *Policy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	if p.idleAtStamp && p.seenStamp == s.Stamp() &&
		(now == p.now || (now > p.now && len(p.laneJobs) == 0 && (p.wake == 0 || now < p.wake))) && limit > 0 {
		return p.decision(now)
	}
	p.begin(s, now, limit)
	p.planGuarantees()
	for n := 0; p.runPass() && n < maxPasses; n++ {
	}
	p.recordCompressState()
	p.recordQueueStates()
	if !p.omitReasons {
		p.explain()
	}
	s.Journal().Rollback(p.mark)
	p.idleAtStamp = len(p.actions) == 0 && len(p.states) == 0 && p.actionsLeft > 0
	return p.decision(now)
}

// maxPasses bounds the passes of one decision; two or three are usual.
const maxPasses = 64

// runPass goes through all lanes once, on the State as this decision has changed it
// so far, and reports whether another pass may find more. A finished decision is
// therefore one to which a new cycle would add nothing.
func (p *Policy) runPass() bool {
	p.wake, p.firstMisfit, p.nonPlacement, p.shrinkOnly = 0, nil, false, false
	p.localStages, p.suspended, p.laneJobs = p.localStages[:0], p.suspended[:0], p.laneJobs[:0]
	p.servingTenant = scheduler.NoTenant
	p.delayed, p.servingDelayed, p.eqClasses = p.delayed[:0], false, p.eqClasses[:0]
	clear(p.dataWaits)
	clear(p.placedLocally)
	clear(p.withoutLocalNode)
	clear(p.exchanges.withoutExchange)
	clear(p.exchanges.withoutAlternative)
	p.waitEvaluator.Reset(p.s)
	p.reserved.begin(len(p.s.Nodes()))
	before := p.changeCount
	if p.survey.wake > 0 {
		p.wakeAt(p.survey.wake)
	}
	p.collectDueGuarantees()
	p.refreshPreemptReservations()
	p.reservedLane()
	p.resumeOverdue()
	if p.cfg.Deadlines {
		p.deadlineLane()
	}
	p.suspendedLane()
	if p.actionsLeft > 0 || p.cfg.LASMQ != nil { // LAS_MQ needs its heads in every cycle
		p.initHeads()
		p.serveTenants()
	}
	p.recordDataWaits()
	p.dropObsolete()
	return p.changeCount != before && p.actionsLeft > 0 &&
		(p.nonPlacement || p.hasReservations() || len(p.reserved.nodes) > 0 || len(p.dataWaits) > 0 || len(p.suspended) > 0 || p.hasWaitingLaneJob())
}

// hasWaitingLaneJob reports whether a deadline job still has ready tasks.
func (p *Policy) hasWaitingLaneJob() bool {
	for _, l := range p.laneJobs {
		if l.job.Ready > 0 {
			return true
		}
	}
	return false
}

func (p *Policy) begin(s *scheduler.State, now scheduler.Time, limit int) {
	p.s, p.now, p.actionsLeft = s, now, limit
	p.seenStamp = s.Stamp()
	p.actions, p.states, p.waitingReasons = p.actions[:0], p.states[:0], p.waitingReasons[:0]
	p.racks.valid = false
	p.shares.sync(s, p.cfg.Level, p.cfg.Resources)
	p.exchanges.begin(len(s.Nodes()))
	p.mark = s.Journal().Mark()
	p.shrinkOnly, p.steps = false, steps{}
	clear(p.plannedStarts)
}

func (p *Policy) decision(now scheduler.Time) scheduler.Decision {
	return scheduler.Decision{Base: p.s.Index(), At: now, Actions: p.actions, PolicyStates: p.states, Waiting: p.waitingReasons, Wake: p.wake}
}

// apply applies an action to the State and appends it to the decision.
func (p *Policy) apply(a scheduler.Action) {
	if err := p.s.Apply(&a, p.now); err != nil {
		panic("threedsf: State refused an action that it offered: " + err.Error())
	}
	p.actions = append(p.actions, a)
	p.nonPlacement = p.nonPlacement || a.Kind != scheduler.ActPlace
	p.actionsLeft--
	p.changeCount++
}

// recordState applies a policy state and appends it to the decision. It returns
// false if the State refuses it.
func (p *Policy) recordState(n scheduler.PolicyState) bool {
	p.states = append(p.states, n)
	if p.s.PolicyStates().Apply(p.states[len(p.states)-1:]) != nil {
		p.states = p.states[:len(p.states)-1]
		return false
	}
	p.nonPlacement = true
	p.changeCount++
	return true
}

// place places a task, which must fit, and charges it to the tenant's share.
func (p *Policy) place(g *scheduler.Stage, task int32, node scheduler.NodeID) {
	disk, ok := p.s.Node(node).Fits(g.Spec.Demand, g.Spec.Disk)
	if !ok {
		panic("threedsf: placing a task on a node that it does not fit")
	}
	p.apply(p.s.Attempts().PlaceAction(g, task, node, disk))
	p.shares.charge(g.Job.Spec.Tenant, g.Spec.Demand)
	p.refreshHeadsAfter(node)
}

// wakeAt requests a cycle at a time, or earlier if one is requested already.
func (p *Policy) wakeAt(at scheduler.Time) {
	if p.wake == 0 || at < p.wake {
		p.wake = at
	}
}
