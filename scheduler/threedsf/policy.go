package threedsf

import (
	"github.com/drover-run/drover/scheduler"
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
	wake  scheduler.Time

	shares  shares
	tenants []cursor
	active  []scheduler.TenantID // tenants with a next task in the tree
	stopped *scheduler.Stage     // with StopAtFirstMisfit, the task that did not fit

	picks   []pick
	groups  []group
	match   locality.Matcher
	judge   locality.Judge
	request []locality.Request
	of      []int32            // of each request its pick
	near    []scheduler.NodeID // scratch
	racks   racks

	waits map[*scheduler.Stage]wait // stages that wait for data in this cycle
	local []*scheduler.Stage        // stages with a wait on record that got a task placed at its data

	actions  []scheduler.Action
	notes    []scheduler.Note
	waiting  []scheduler.Waiting
	lacks    []lack
	lane     []laneJob
	sleepers []*scheduler.Attempt
}

// New makes the policy of a configuration.
func New(cfg Config) *Policy {
	return &Policy{cfg: cfg, waits: map[*scheduler.Stage]wait{}}
}

// Name is the name in the configuration.
func (p *Policy) Name() string { return p.cfg.Name }

// Decide costs O(1) and allocates nothing when nothing changed; else O(tenants +
// ready stages + placements x (log tenants + replicas)).
func (p *Policy) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	if p.known && p.seen == s.Stamp() && (p.wake == 0 || now < p.wake) && max > 0 {
		return p.decision(now)
	}
	p.begin(s, now, max)
	if p.cfg.Deadlines {
		p.deadlineLane()
	}
	p.suspendedLane()
	for p.left > 0 && p.batch() {
		p.placeBatch()
	}
	p.settleWaits()
	p.explain()
	s.Rollback(p.mark)
	p.known = len(p.actions) == 0 && len(p.notes) == 0 && p.left > 0
	return p.decision(now)
}

func (p *Policy) begin(s *scheduler.State, now scheduler.Time, max int) {
	p.s, p.now, p.left, p.wake, p.stopped = s, now, max, 0, nil
	p.seen = s.Stamp()
	p.actions, p.notes, p.waiting, p.lacks = p.actions[:0], p.notes[:0], p.waiting[:0], p.lacks[:0]
	p.local = p.local[:0]
	clear(p.waits)
	p.racks.known = false
	p.judge.Begin(s)
	p.shares.sync(s, p.cfg.Level, p.cfg.Resources)
	p.mark = s.Mark()
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
	p.left--
}

// place places one task where it fits and charges its tenant's share.
func (p *Policy) place(g *scheduler.Stage, task int32, node scheduler.NodeID) {
	disk, ok := p.s.Node(node).Fits(g.Spec.Demand, g.Spec.Disk)
	if !ok {
		panic("threedsf: a placement does not fit")
	}
	p.do(p.s.Place(g, task, node, disk))
}

// wakeAt asks for a cycle at an instant.
func (p *Policy) wakeAt(at scheduler.Time) {
	if p.wake == 0 || at < p.wake {
		p.wake = at
	}
}
