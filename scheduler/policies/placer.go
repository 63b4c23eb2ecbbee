package policies

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

var reserveParam = Param{Name: "reserve", Kind: Bool, Default: "false",
	Help: "reserve a node for each task that is next and fits nowhere, as YARN does, instead of passing it over"}

// placer is shared by the simple policies. It applies actions to the State inside a transaction, collects actions
// and reasons in reused slices, and caches the answer for cycles in which nothing changed. All of it is a cache.
type placer struct {
	s           *scheduler.State
	now         scheduler.Time
	actionsLeft int
	mark        scheduler.Mark
	seenStamp   scheduler.Stamp
	idleAtStamp bool // the decision at seenStamp was empty
	firstMisfit *scheduler.Stage

	// reserveForMisfits reserves a node for each task that is next in the policy's order and fits nowhere,
	// as YARN's schedulers do. Otherwise small tasks that keep arriving would pass a large task for ever.
	reserveForMisfits bool
	reservedNodes     []scheduler.NodeID // reserved in this cycle
	reservedFor       []scheduler.StageID
	excluded          []scheduler.NodeID // scratch
	omitReasons       bool               // the caller does not want Decision.Waiting
	passes            int
	actionsBefore     int // number of actions at the start of the pass

	actions []scheduler.Action
	states  []scheduler.PolicyState
	misfits misfits
	wake    scheduler.Time

	round             scheduler.WaitingRound
	waitingReasons    []scheduler.Waiting
	noCapacityReasons map[scheduler.DemandClass]noCapacity
}

func newPlacer(v paramValues) placer { return placer{reserveForMisfits: v.bool("reserve")} }

// begin starts a cycle. It returns true if nothing changed since a cycle that decided nothing: the answer is then
// idleDecision. Suspended tasks resume before new tasks start: policies with a placer never suspend, another policy did.
func (p *placer) begin(s *scheduler.State, now scheduler.Time, limit int) bool {
	if p.beginWithoutResume(s, now, limit) {
		return true
	}
	for a := range p.s.Attempts().Suspended() {
		if p.actionsLeft > 0 && p.s.Attempts().CanResume(a) {
			p.apply(a.Act(scheduler.ActResume))
		}
	}
	return false
}

// beginWithoutResume is begin for a policy that resumes suspended tasks itself.
func (p *placer) beginWithoutResume(s *scheduler.State, now scheduler.Time, limit int) bool {
	if p.idleAtStamp && p.seenStamp == s.Stamp() && (p.wake == 0 || now < p.wake) && limit > 0 {
		return true
	}
	p.s, p.now, p.actionsLeft, p.firstMisfit, p.wake = s, now, limit, nil, 0
	p.seenStamp = s.Stamp()
	p.actions, p.states, p.waitingReasons = p.actions[:0], p.states[:0], p.waitingReasons[:0]
	p.misfits.begin(s, now)
	p.passes, p.reservedNodes = 0, p.reservedNodes[:0]
	p.mark = s.Journal().Mark()
	return false
}

// nextPass reports whether to go through the jobs: once, and again after each pass that placed something while nodes
// were reserved, since the reservations may then differ. So the last pass is what the next cycle would begin with.
func (p *placer) nextPass() bool {
	if p.passes > 0 && (len(p.reservedNodes) == 0 || len(p.actions) == p.actionsBefore) {
		return false
	}
	p.passes, p.actionsBefore, p.firstMisfit = p.passes+1, len(p.actions), nil
	p.reservedNodes, p.reservedFor = p.reservedNodes[:0], p.reservedFor[:0]
	p.misfits.nextPass() // without the reservations, demands may fit
	return true
}

func (p *placer) idleDecision(now scheduler.Time) scheduler.Decision {
	return scheduler.Decision{Base: p.s.Index(), At: now, Waiting: p.waitingReasons,
		WaitingContinues: p.round.Continues, WaitingMore: p.round.More, Wake: p.wake}
}

// wakeAt requests a cycle at a time, unless an earlier one is requested; Never requests none.
func (p *placer) wakeAt(at scheduler.Time) {
	if at < scheduler.Never && (p.wake == 0 || at < p.wake) {
		p.wake = at
	}
}

// finish records why stages wait, rolls the State back and returns the decision.
func (p *placer) finish(reason func(*scheduler.Stage) scheduler.Waiting) scheduler.Decision {
	if p.misfits.passed { // to examine the demands that this cycle passed over
		p.wakeAt(scheduler.Time(p.misfits.turn+1) * misfitTurn)
	}
	if !p.omitReasons {
		p.explain(reason)
	}
	p.s.Journal().Rollback(p.mark)
	p.idleAtStamp = len(p.actions) == 0 && len(p.states) == 0 && p.actionsLeft > 0
	d := p.idleDecision(p.now)
	d.Actions, d.PolicyStates = p.actions, p.states
	return d
}

func (p *placer) placeAll(g *scheduler.Stage) {
	for g.Ready() && p.placeOne(g) {
	}
}

// mayPlace reports whether a task of the stage may be placed if a node fits it.
func (p *placer) mayPlace(g *scheduler.Stage) bool {
	return g.Startable() > 0 && p.actionsLeft > 0 && p.s.TenantTree().Allows(g)
}

// placeOne places the next task of the stage. It returns false if nothing more of the stage can be placed.
func (p *placer) placeOne(g *scheduler.Stage) bool {
	if p.misfits.isSpent() {
		return false
	}
	p.misfits.visits++
	if !p.mayPlace(g) {
		return false
	}
	key := p.s.Cluster().DemandClassOf(g)
	examine, known := p.misfits.admit(key)
	if !examine {
		return false
	}
	if !known {
		if node, disk := p.bestNode(g); node != scheduler.NoNode {
			p.place(g, node, disk)
			return true
		}
		p.misfits.remember(key)
		p.misfits.found++
	}
	p.reserveNodes(g)
	if p.firstMisfit == nil {
		p.firstMisfit = g
	}
	return false
}

// bestNode returns the node for the next task of a stage that is not reserved for another: if
// possible, one on which the task has not failed.
func (p *placer) bestNode(g *scheduler.Stage) (scheduler.NodeID, int16) {
	if failed := g.NextFailedOn(); len(failed) > 0 {
		p.excluded = append(append(p.excluded[:0], p.reservedNodes...), failed...)
		if node, disk := p.s.Cluster().BestNode(g, p.excluded); node != scheduler.NoNode {
			return node, disk
		}
	}
	return p.s.Cluster().BestNode(g, p.reservedNodes)
}

const maxReservedNodes = 64

func (p *placer) reserveNodes(g *scheduler.Stage) {
	if !p.reserveForMisfits {
		return
	}
	for range min(int(g.Startable()), maxReservedNodes-len(p.reservedNodes)) {
		n := p.s.Cluster().NodeLackingLeast(g, p.reservedNodes)
		if n == scheduler.NoNode {
			return
		}
		p.reservedNodes, p.reservedFor = append(p.reservedNodes, n), append(p.reservedFor, g.ID())
	}
}

// withholdsCapacity reports whether a startable task fits on a reserved node, so that it matters
// for which tasks nodes are reserved. If none fits, whether a pass reserved nodes depends on the
// State's cache of the least demand. O(1) if nothing is free, else O(waiting stages) at most.
func (p *placer) withholdsCapacity() bool {
	if len(p.reservedNodes) == 0 || !p.s.Queue().CapacityForAny() {
		return false
	}
	for j, at := p.s.Queue().Next(0); j != nil; j, at = p.s.Queue().Next(at) {
		for _, g := range j.Stages {
			if g.Ready() && g.Startable() > 0 && p.s.TenantTree().Allows(g) && p.s.Cluster().NextNode(g, 0) != scheduler.NoNode {
				return true
			}
		}
	}
	return false
}

func (p *placer) place(g *scheduler.Stage, n scheduler.NodeID, disk int16) {
	p.apply(p.s.Attempts().PlaceAction(g, g.NextPending(0), n, disk))
}

// apply applies an action to the State and appends it to the decision.
func (p *placer) apply(a scheduler.Action) {
	p.actions = append(p.actions, a)
	if err := p.s.Apply(&p.actions[len(p.actions)-1], p.now); err != nil {
		panic("policies: State refused an action that fits: " + err.Error())
	}
	p.actionsLeft--
}

// record applies a policy state to the State and appends it to the decision. It returns false if the State refuses it.
func (p *placer) record(n scheduler.PolicyState) bool {
	last := len(p.states)
	p.states = append(p.states, n)
	if p.s.PolicyStates().Apply(p.states[last:]) != nil {
		p.states = p.states[:last]
		return false
	}
	return true
}

// SetReasonsWanted sets whether decisions list why stages wait.
func (p *placer) SetReasonsWanted(wanted bool) {
	p.omitReasons, p.idleAtStamp, p.round = !wanted, false, scheduler.WaitingRound{}
}

// isDone reports whether nothing more can be placed in this cycle, or in the policy's order.
func (p *placer) isDone() bool { return p.misfits.isSpent() || p.isFull() }

// isFull reports whether nothing more can be placed in this cycle.
func (p *placer) isFull() bool { return p.actionsLeft <= 0 || !p.s.Queue().CapacityForAny() }

// noCapacity is why no node fits a demand, at the end of the cycle.
type noCapacity struct {
	reason      scheduler.Reason
	nodes       int32
	reservedFor scheduler.StageID // the stage that a fitting node is reserved for
}

// explain records why stages wait on the State at the end of the cycle: all stages, or the next
// part of them. It requests the other parts at once, since no other event may trigger them.
func (p *placer) explain(reason func(*scheduler.Stage) scheduler.Waiting) {
	clear(p.noCapacityReasons)
	if p.noCapacityReasons == nil {
		p.noCapacityReasons = map[scheduler.DemandClass]noCapacity{}
	}
	// At once: to grow a long list step by step would copy it several times.
	p.waitingReasons = slices.Grow(p.waitingReasons, min(p.s.Queue().Ready(), scheduler.MaxExplained))
	p.round.Next(p.s.Queue(), p.seenStamp, scheduler.MaxExplained, func(g *scheduler.Stage) { p.waitingReasons = append(p.waitingReasons, reason(g)) })
	if p.round.Unfinished {
		p.wake = p.now + 1
	}
}

func (p *placer) reason(g *scheduler.Stage) scheduler.Waiting {
	w := p.s.TenantTree().Waiting(g)
	if w.Reason != 0 {
		return w
	}
	key := p.s.Cluster().DemandClassOf(g)
	if p.actionsLeft <= 0 && !p.misfits.isKnown(key) {
		w.Reason = scheduler.ReasonCycleFull
		return w
	}
	p.explainNoCapacity(&w, g, key)
	return w
}

// explainNoCapacity sets why no node fits and on how many nodes, counted once per demand. If a
// reserved node would fit, it sets the stage that the node is reserved for. Beyond a number of
// demands none is counted; some demands were not examined in this cycle.
func (p *placer) explainNoCapacity(w *scheduler.Waiting, g *scheduler.Stage, key scheduler.DemandClass) {
	l, known := p.noCapacityReasons[key]
	if !known {
		l.reason = scheduler.ReasonNotExamined
		if len(p.noCapacityReasons) < max(minExplained, maxExplainedNodes/max(1, len(p.s.Nodes()))) {
			l = p.lackingReason(g)
			p.noCapacityReasons[key] = l
		}
	}
	w.Reason, w.Nodes, w.Behind = l.reason, l.nodes, l.reservedFor
}

// lackingReason computes why no node is left for a stage. O(nodes) once per demand.
func (p *placer) lackingReason(g *scheduler.Stage) (l noCapacity) {
	if p.s.Cluster().NextNode(g, 0) == scheduler.NoNode {
		l.reason, l.nodes = p.s.Cluster().WhyNowhere(g)
		return l
	}
	i := slices.IndexFunc(p.reservedNodes, func(n scheduler.NodeID) bool { return p.s.Cluster().HasCapacity(g, n) })
	if i < 0 {
		return noCapacity{reason: scheduler.ReasonNotExamined}
	}
	return noCapacity{reason: scheduler.ReasonShare, reservedFor: p.reservedFor[i]}
}
