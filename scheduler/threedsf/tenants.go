package threedsf

import (
	"github.com/drover-run/drover/scheduler"
)

// The classes of a tenant's stages, in the order in which they are served.
const (
	classHigh uint8 = iota + 1
	classLow
	classInfeasible
	classEnd
)

// cursor is a position in a tenant's regular order: nothing before it can be placed
// now. Free capacity only shrinks in a pass, so it never moves back.
type cursor struct {
	class    uint8
	stage    int32
	position int32 // of the next job among the tenant's ready jobs
	job      *scheduler.Job
	eqClass  int32            // of its stage, in Policy.eqClasses; -1 for none
	inTree   *scheduler.Stage // the stage whose demand the tree of tenants has
}

// nextEqClass is the demand of some tenant's next task in this pass and a node that
// fits it, NoNode if none does any more.
type nextEqClass struct {
	equivalenceClass
	fitsOn  scheduler.NodeID
	tenants int32 // whose next task has it now
	stale   bool  // fitsOn is out of date, since it is no tenant's
}

// tenantCursor is a tenant's position and the search for nodes at the input of the
// stage there.
type tenantCursor struct {
	cursor  cursor
	search  localSearch
	eqClass int32 // the class that counts the tenant plus 1, 0 for none
}

// serveTenants places regular jobs, one task at a time, each for the next tenant by
// fair share, until nothing fits or the cycle has no actions left. A task gets its
// node at once, so the next tenant is picked by what is really free and no tenant
// whose task fits is passed over. Consecutive tasks of one stage are placed
// together, by matching if they read much input.
func (p *Policy) serveTenants() {
	for p.actionsLeft > 0 {
		t, g := p.nextTenant()
		if g == nil {
			if p.firstMisfit != nil || !p.serveDelayed() {
				return
			}
			continue
		}
		p.serveStage(t, g)
	}
}

// serveStage places tasks of the next tenant's stage, or delays the stage.
func (p *Policy) serveStage(t scheduler.TenantID, g *scheduler.Stage) {
	c := &p.tenantCursors[t]
	p.servingTenant = t
	before := g.Pending
	switch {
	case !p.usesMatching(g):
		p.placeAnywhere(g)
	case !p.placeLocal(g, p.localSearchOf(c, g), func() int32 { return p.consecutiveTurns(t, g) }):
		p.delayOrMove(g)
	}
	p.servingTenant = scheduler.NoTenant
	if p.usesQueues(t, c.cursor.class) && g.Pending < before {
		p.queueIndex.Queues(queueGroup(t, c.cursor.class)).RecordPlaced(g.Spec.Demand, before-g.Pending)
	}
	p.updateHead(t)
}

// localSearchOf returns the search for nodes at the input of the cursor's stage.
func (p *Policy) localSearchOf(c *tenantCursor, g *scheduler.Stage) *localSearch {
	if c.search.stage != g {
		c.search = localSearch{stage: g, exhausted: p.withoutLocalNode[g]}
	}
	return &c.search
}

// consecutiveTurns returns how many tasks in a row the tenant's head stage would
// place before another tenant, or another of the tenant's queues, is next, if all of
// them fit. O(turns x depth of the tree + queues); O(depth + queues) if no other
// tenant has a task and none has a cap.
func (p *Policy) consecutiveTurns(t scheduler.TenantID, g *scheduler.Stage) int32 {
	limit := min(int32(min(p.actionsLeft, maxBatch)), g.Startable())
	if class := p.tenantCursors[t].cursor.class; p.usesQueues(t, class) {
		limit = p.queueIndex.Queues(queueGroup(t, class)).Streak(g.Spec.Demand, limit)
	}
	if !p.s.TenantTree().HasCaps() && p.shares.isAlone(t) {
		return max(limit, 1)
	}
	d := g.Spec.Demand
	n, streak := int32(1), p.shares.streak(t, d, limit)
	for n < streak && p.s.TenantTree().WithinCaps(g.Job, d, d.Times(int64(n+1))) {
		n++
	}
	return n
}

// maxBatch bounds the tasks that are matched at once.
const maxBatch = 4096

// initHeads moves each tenant with ready work to its first stage that can be placed
// and takes the others out of the tree. O(ready stages) at worst.
func (p *Policy) initHeads() {
	p.beginShrinkOnly()
	if p.cfg.LASMQ != nil {
		p.syncQueues()
		if at := p.queueIndex.Demotion(); at < scheduler.Never {
			p.wakeAt(at)
		}
	}
	for len(p.tenantCursors) < len(p.s.Tenants()) {
		p.tenantCursors = append(p.tenantCursors, tenantCursor{})
	}
	for _, t := range p.activeTenants {
		if int(t) < len(p.s.Tenants()) && p.s.Queue().NextTenant(t) != t {
			p.shares.setNext(t, nil)
		}
	}
	for i := range p.tenantCursors {
		p.tenantCursors[i].eqClass = 0
	}
	p.activeTenants, p.eqClasses = p.activeTenants[:0], p.eqClasses[:0]
	clear(p.eqClassIndex)
	for t := p.s.Queue().NextTenant(0); t != scheduler.NoTenant; t = p.s.Queue().NextTenant(t + 1) {
		p.activeTenants = append(p.activeTenants, t)
		p.restartTenant(t)
	}
}

// updateHead sets the tenant's next task in the tree.
func (p *Policy) updateHead(t scheduler.TenantID) {
	g := p.advanceHead(t)
	c := &p.tenantCursors[t].cursor
	if g != nil && g == c.inTree {
		return
	}
	c.inTree = g
	p.shares.setNext(t, g)
	p.leaveEqClass(t)
	if c.eqClass = -1; g == nil {
		return
	}
	key := p.demandClass(g)
	at, ok := p.eqClassIndex[key]
	if !ok {
		at = int32(len(p.eqClasses))
		p.eqClassIndex[key] = at
		p.eqClasses = append(p.eqClasses, nextEqClass{equivalenceClass: key, stale: true})
	}
	class := &p.eqClasses[at]
	if class.stale {
		class.fitsOn, class.stale = p.s.Cluster().NextNode(g, 0), false
	}
	class.tenants++
	c.eqClass, p.tenantCursors[t].eqClass = at, at+1
}

// leaveEqClass removes a tenant from the class of its next task.
func (p *Policy) leaveEqClass(t scheduler.TenantID) {
	if at := &p.tenantCursors[t].eqClass; *at > 0 {
		p.eqClasses[*at-1].tenants--
		*at = 0
	}
}

// refreshHeadsAfter follows a placement on a node: tenants whose next task fitted
// only there move on to one that can be placed, so that shares are compared by
// placeable tasks only. O(distinct demands of next tasks).
func (p *Policy) refreshHeadsAfter(node scheduler.NodeID) {
	if p.cfg.StopAtFirstMisfit {
		return
	}
	for i := range p.eqClasses {
		sh := &p.eqClasses[i]
		if sh.fitsOn != node {
			continue
		}
		if sh.tenants == 0 {
			sh.stale = true
			continue
		}
		if sh.fitsOn = p.nextUnreservedNode(sh.equivalenceClass); sh.fitsOn == scheduler.NoNode {
			p.refreshHeadsOf(int32(i))
		}
	}
}

// refreshHeadsOf updates the heads of tenants whose next task is of an equivalence
// class, but for the tenant being served, whose head is updated afterwards.
func (p *Policy) refreshHeadsOf(eqClass int32) {
	for _, t := range p.activeTenants {
		if t != p.servingTenant && p.tenantCursors[t].cursor.eqClass == eqClass {
			p.updateHead(t)
		}
	}
}

// restartTenant moves a tenant back to its first stage.
func (p *Policy) restartTenant(t scheduler.TenantID) {
	p.steps.restarts++
	p.leaveEqClass(t)
	p.tenantCursors[t] = tenantCursor{cursor: cursor{class: classHigh, stage: -1}}
	for class := classHigh; class <= classLow; class++ {
		if p.usesQueues(t, class) {
			p.beginQueues(queueGroup(t, class))
		}
	}
	p.updateHead(t)
}

// nextTenant returns the next tenant by fair share and its stage that can be placed,
// nil for none.
func (p *Policy) nextTenant() (scheduler.TenantID, *scheduler.Stage) {
	for {
		t, ok := p.shares.nextTenant()
		if !ok {
			return scheduler.NoTenant, nil
		}
		before := p.tenantCursors[t].cursor.currentStage()
		g := p.advanceHead(t)
		if g == nil || g != before {
			p.updateHead(t)
			continue
		}
		if p.cfg.StopAtFirstMisfit && p.s.Cluster().NextNode(g, 0) == scheduler.NoNode {
			p.firstMisfit = g
			return scheduler.NoTenant, nil
		}
		if p.shouldReserveNode(g) {
			p.reserveNodes(g)
			p.updateHead(t)
			continue
		}
		return t, g
	}
}

func (c *cursor) currentStage() *scheduler.Stage {
	if c.job == nil || int(c.stage) >= len(c.job.Stages) || c.stage < 0 {
		return nil
	}
	return c.job.Stages[c.stage]
}

// advanceHead returns the tenant's next stage that can be placed now, or nil. It
// moves the cursor past those that cannot.
func (p *Policy) advanceHead(t scheduler.TenantID) *scheduler.Stage {
	c := &p.tenantCursors[t].cursor
	// While nodes may be reserved, a stage that fits nowhere is served too, and the decision
	// must not depend on how tight the State's bound is.
	if !p.cfg.StopAtFirstMisfit && (!p.cfg.ReserveNodes || p.isNodeLimitReached()) && !p.s.Queue().CapacityForAny() {
		return nil
	}
	for c.class < classEnd {
		if p.usesQueues(t, c.class) {
			if g := p.nextInQueues(t, c); g != nil {
				return g
			}
			*c = cursor{class: c.class + 1, stage: -1}
			continue
		}
		if c.class == classHigh && c.job == nil && (!p.cfg.PriorityOrder || p.s.Tenant(t).ReadyHigh == 0) {
			*c = cursor{class: classLow, stage: -1} // the tenant has no ready jobs of high priority
			continue
		}
		if g := c.currentStage(); g != nil && (p.isPlaceable(g) || (c.class != classInfeasible && p.shouldReserveNode(g))) {
			return g
		}
		p.advance(t, c)
	}
	return nil
}

// advance moves a cursor to the next stage of its class, or to the next class.
func (p *Policy) advance(t scheduler.TenantID, c *cursor) {
	if c.job != nil {
		for c.stage++; int(c.stage) < len(c.job.Stages); c.stage++ {
			if c.job.Stages[c.stage].Ready() {
				return
			}
		}
	}
	for {
		c.job, c.position = p.s.Queue().NextOf(t, c.position)
		if c.job == nil {
			*c = cursor{class: c.class + 1, stage: -1}
			return
		}
		if p.classOf(c.job) == c.class {
			c.stage = -1
			for c.stage++; int(c.stage) < len(c.job.Stages); c.stage++ {
				if c.job.Stages[c.stage].Ready() {
					return
				}
			}
		}
	}
}

// classOf returns the class of a job, 0 for jobs of another lane.
func (p *Policy) classOf(j *scheduler.Job) uint8 {
	switch {
	case j.Spec.Deadline > 0 && p.inLane(j):
		return 0
	case j.Spec.Deadline > 0 && p.cfg.Deadlines && p.isInfeasible(j):
		if j.Spec.OnMiss == scheduler.OnMissStop {
			return 0
		}
		return classInfeasible
	case j.Spec.Priority == scheduler.PriorityHigh && p.cfg.PriorityOrder:
		return classHigh
	default:
		return classLow
	}
}

// isPlaceable reports whether a task of the stage can be placed now.
func (p *Policy) isPlaceable(g *scheduler.Stage) bool {
	if g.Startable() == 0 {
		return false
	}
	if len(p.dataWaits) > 0 {
		if w, ok := p.dataWaits[g]; ok && w.allWaiting {
			return false
		}
	}
	if _, _, _, ok := p.s.TenantTree().UnderCaps(g); !ok {
		return false
	}
	return p.cfg.StopAtFirstMisfit || p.nextOpenNode(g, 0) != scheduler.NoNode
}
