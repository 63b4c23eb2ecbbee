package threedsf

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
)

// Policy is 3DSF or a part of it. It is not safe for concurrent use.
type Policy struct {
	cfg Config

	s     *scheduler.State
	now   scheduler.Time
	left  int
	mark  scheduler.Mark
	seen  scheduler.Stamp
	known bool // the decision at seen did nothing
	quiet bool // reasons are not wanted
	wake  scheduler.Time

	shares  shares
	tenants []cursors
	regular regular
	serving scheduler.TenantID   // whose turn is being carried out, or NoTenant
	active  []scheduler.TenantID // tenants with a next task in the tree
	stopped *scheduler.Stage     // with StopAtFirstMisfit, the task that did not fit

	shapes  []nextShape // next tasks of tenants in this pass
	shapeOf map[shape]int32

	match   locality.Matcher
	judge   locality.Judge
	request []locality.Request // scratch
	near    []scheduler.NodeID // scratch
	nearby  locality.Walk
	racks   racks

	waits   map[*scheduler.Stage]wait // stages that wait for data in this cycle
	later   []putOff                  // stages that let others go first
	moved   exchanges
	dry     map[*scheduler.Stage]bool // of them: none has room at its data in this pass
	judging bool                      // they have their turn now
	local   []*scheduler.Stage        // stages that got a task placed at its data in this pass
	isNear  map[*scheduler.Stage]bool // the same

	actions  []scheduler.Action
	notes    []scheduler.Note
	waiting  []scheduler.Waiting
	lane     []laneJob
	special  bool // something else than a placement was done in this pass
	steps    int  // actions and notes made, and taken back, in this decision
	outlook  deadline.Outlook
	preempt  deadline.Preemptor
	barren   []shape                  // shapes for which no victims are left in this cycle
	holds    int                      // in force
	promises int                      // reservations that are promises and not over
	due      []*scheduler.Reservation // of these, those due now
	promise  promiser
	latest   scheduler.Time // by when the first of the jobs that are foreseen has to start
	watch    watch
	plan     *plan                                // kept, nil before the first
	shrinks  bool                                 // room only shrinks: see beginShrinking
	closed   map[closedTo]scheduler.NodeID        // below it no node is open
	exempt   map[scheduler.JobID]bool             // whose own holds and promises do not stand in its way
	starts   map[scheduler.StageID]scheduler.Time // of plans, see plannedFor
	disks    []scheduler.DiskUse                  // scratch
	walk     int                                  // walkAtOnce, or what a test sets
	served   []scheduler.ReservationID            // scratch
	behind   []bool                               // scratch: see comesAfter
	kept     []*scheduler.Reservation
	keep     keeping
	sleepers []*scheduler.Attempt
	past     bool                      // what is kept for suspended tasks does not count: see resumePast
	awaited  map[scheduler.NodeID]bool // where room is kept for a suspended task
}

// New makes the policy of a configuration.
func New(cfg Config) *Policy {
	p := &Policy{cfg: cfg, walk: walkAtOnce, shapeOf: map[shape]int32{}, waits: map[*scheduler.Stage]wait{}, isNear: map[*scheduler.Stage]bool{}, dry: map[*scheduler.Stage]bool{}, awaited: map[scheduler.NodeID]bool{},
		closed: map[closedTo]scheduler.NodeID{}, exempt: map[scheduler.JobID]bool{}, starts: map[scheduler.StageID]scheduler.Time{}}
	p.preempt = deadline.Preemptor{Mode: cfg.Preempt, MaxSuspended: cfg.MaxSuspended, Held: p.keptForAll, Spared: func(j *scheduler.Job) bool {
		return p.inLane(j) || p.guaranteed(j)
	}}
	p.preempt.Open = func(n *scheduler.Node, g *scheduler.Stage) bool {
		return p.promises == 0 || p.keepsPromises(n, g, g.Spec.Demand, g.Spec.Disk, -1)
	}
	p.match.Open = p.openFor
	return p
}

// Name is the name in the configuration.
func (p *Policy) Name() string { return p.cfg.Name }

// Reasons says whether Decision.Waiting is wanted.
func (p *Policy) Reasons(wanted bool) { p.quiet, p.known = !wanted, false }

// Decide costs O(1) and allocates nothing when nothing changed; else O(tenants +
// ready stages + placements x (log tenants + replicas)).
func (p *Policy) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	if p.known && p.seen == s.Stamp() && (now == p.now || (now > p.now && len(p.lane) == 0 && (p.wake == 0 || now < p.wake))) && max > 0 {
		return p.decision(now)
	}
	p.begin(s, now, max)
	p.keepPromises()
	for n := 0; p.pass() && n < maxPasses; n++ {
	}
	p.rememberPlan()
	p.remember()
	if !p.quiet {
		p.explain()
	}
	s.Rollback(p.mark)
	p.known = len(p.actions) == 0 && len(p.notes) == 0 && p.left > 0
	return p.decision(now)
}

// maxPasses bounds the passes of one decision; two or three are usual.
const maxPasses = 64

// pass goes through the lanes once, as if the State with what was decided so
// far were all there is, and tells whether another pass may find more to do. So
// a decision is finished when a fresh look at it would add nothing.
func (p *Policy) pass() bool {
	p.wake, p.stopped, p.special, p.shrinks = 0, nil, false, false
	p.local, p.sleepers, p.lane = p.local[:0], p.sleepers[:0], p.lane[:0]
	p.serving = scheduler.NoTenant
	p.later, p.judging, p.shapes = p.later[:0], false, p.shapes[:0]
	clear(p.waits)
	clear(p.isNear)
	clear(p.dry)
	clear(p.moved.none)
	clear(p.moved.fixed)
	p.judge.Begin(p.s)
	p.keep.begin(len(p.s.Nodes()))
	before := p.steps
	if p.promise.wake > 0 {
		p.wakeAt(p.promise.wake)
	}
	p.countPromises()
	p.keepHolds()
	p.reservedLane()
	p.overdue()
	if p.cfg.Deadlines {
		p.deadlineLane()
	}
	p.suspendedLane()
	if p.left > 0 || p.cfg.LASMQ != nil { // queues are noted in every cycle
		p.firstHeads()
		p.turns()
	}
	p.settleWaits()
	p.sweep()
	return p.steps != before && p.left > 0 && (p.special || p.guarded() || len(p.keep.nodes) > 0 || len(p.waits) > 0 || len(p.sleepers) > 0 || p.laneWaits())
}

// laneWaits tells whether a deadline job is left waiting.
func (p *Policy) laneWaits() bool {
	for _, l := range p.lane {
		if l.job.Ready > 0 {
			return true
		}
	}
	return false
}

func (p *Policy) begin(s *scheduler.State, now scheduler.Time, max int) {
	p.s, p.now, p.left = s, now, max
	p.seen = s.Stamp()
	p.actions, p.notes, p.waiting = p.actions[:0], p.notes[:0], p.waiting[:0]
	p.racks.known = false
	p.shares.sync(s, p.cfg.Level, p.cfg.Resources)
	p.moved.begin(len(s.Nodes()))
	p.mark = s.Mark()
	p.shrinks = false
	clear(p.starts)
}

func (p *Policy) decision(now scheduler.Time) scheduler.Decision {
	return scheduler.Decision{Base: p.s.Index(), At: now, Actions: p.actions, Notes: p.notes, Waiting: p.waiting, Wake: p.wake}
}

// do carries an action out in the try and takes it into the decision.
func (p *Policy) do(a scheduler.Action) {
	if err := p.s.Apply(&a, p.now); err != nil {
		panic("threedsf: an action that is possible is refused: " + err.Error())
	}
	p.actions = append(p.actions, a)
	p.special = p.special || a.Kind != scheduler.ActPlace
	p.left--
	p.steps++
}

// note remembers something, in the try as well; false if the State refuses it.
func (p *Policy) note(n scheduler.Note) bool {
	p.notes = append(p.notes, n)
	if p.s.ApplyNotes(p.notes[len(p.notes)-1:]) != nil {
		p.notes = p.notes[:len(p.notes)-1]
		return false
	}
	p.special = true
	p.steps++
	return true
}

// place places one task where it fits and charges its tenant's share.
func (p *Policy) place(g *scheduler.Stage, task int32, node scheduler.NodeID) {
	disk, ok := p.s.Node(node).Fits(g.Spec.Demand, g.Spec.Disk)
	if !ok {
		panic("threedsf: a placement does not fit")
	}
	p.do(p.s.Place(g, task, node, disk))
	p.shares.charge(g.Job.Spec.Tenant, g.Spec.Demand)
	p.driesUp(node)
}

// wakeAt asks for a cycle at an instant.
func (p *Policy) wakeAt(at scheduler.Time) {
	if p.wake == 0 || at < p.wake {
		p.wake = at
	}
}
