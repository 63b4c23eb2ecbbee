package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// cursor is a position in a tenant's regular order: nothing before it can be placed now. Free capacity only shrinks in
// a pass, so it never moves back.
type cursor struct {
	class    uint8
	stage    int32
	position int32 // of the next job among the tenant's ready jobs
	job      *scheduler.Job
	inTree   *scheduler.Stage // the stage whose demand the tree of tenants has
}

// headClass is the demand of some tenant's next task in this pass and a node that fits it, NoNode if none does now.
type headClass struct {
	scheduler.DemandClass
	fitsOn  scheduler.NodeID
	tenants int32 // whose next task has it now
	stale   bool  // fitsOn is out of date, since it is no tenant's
}

// tenantCursor is a tenant's position and the search for nodes at the input of the stage there.
type tenantCursor struct {
	cursor    cursor
	search    localSearch
	headClass int32 // of the stage there, which counts the tenant, in tenantOrder.headClasses plus 1; 0 for none
	idle      idleTenant
}

// idleTenant is why a tenant had nothing to serve from its first job to its last: as far as the jobs alone tell, and as
// long as none of them changes.
type idleTenant struct {
	state   *scheduler.State // nil for unknown
	changes uint64           // Tenant.ReadyChanges then
	until   scheduler.Time
	classes [8]scheduler.MisfitClass // all of its jobs' classes; they fitted nowhere
	passed  bool                     // while the jobs are looked at: nothing else was passed over
}

// tenantOrder serves regular jobs, by fair share of their tenants.
type tenantOrder struct {
	c      *cycle
	open   *openNodes
	nodes  *reservedNodes
	placer *placer
	waits  *inputWaits
	queues *queues
	lane   *deadlineLane

	cursors        []tenantCursor
	active         []scheduler.TenantID // tenants with a next task in the tree
	serving        scheduler.TenantID   // being served now, or NoTenant
	firstMisfit    *scheduler.Stage     // with StopAtFirstMisfit: the stage that did not fit
	headClasses    []headClass          // of the tenants' next tasks in this pass
	headClassIndex map[scheduler.DemandClass]int32
	restarted      map[scheduler.TenantID]bool // scratch of serveDelayed
	restarts       int                         // calls of restartTenant in this decision
}

// beginPass starts a pass.
func (o *tenantOrder) beginPass() {
	o.firstMisfit, o.serving, o.headClasses = nil, scheduler.NoTenant, o.headClasses[:0]
}

// wakeForOrder requests a cycle for when the queues are next in another order, if nodes are reserved: the order says
// for whom.
func (o *tenantOrder) wakeForOrder() {
	if o.c.cfg.LASMQ != nil && len(o.nodes.nodes) > 0 {
		o.c.wakeAt(o.queues.index.NextOrder())
	}
}

// initHeads moves each tenant with ready work to its first stage that can be placed and takes the others out of the
// tree. O(ready stages) at worst.
func (o *tenantOrder) initHeads() {
	o.open.beginShrinkOnly()
	if o.c.cfg.LASMQ != nil {
		o.queues.sync()
		o.c.wakeAt(o.queues.index.Demotion())
	}
	for len(o.cursors) < len(o.c.s.Tenants()) {
		o.cursors = append(o.cursors, tenantCursor{})
	}
	for _, t := range o.active {
		if int(t) < len(o.c.s.Tenants()) && o.c.s.Queue().NextTenant(t) != t {
			o.c.shares.setNext(t, nil)
		}
	}
	for i := range o.cursors {
		o.cursors[i].headClass = 0
	}
	o.active, o.headClasses = o.active[:0], o.headClasses[:0]
	clear(o.headClassIndex)
	for t := o.c.s.Queue().NextTenant(0); t != scheduler.NoTenant; t = o.c.s.Queue().NextTenant(t + 1) {
		o.active = append(o.active, t)
		o.restartTenant(t)
	}
}

// updateHead sets the tenant's next task in the tree.
func (o *tenantOrder) updateHead(t scheduler.TenantID) {
	g := o.advanceHead(t)
	c := &o.cursors[t].cursor
	if g != nil && g == c.inTree {
		return
	}
	c.inTree = g
	o.c.shares.setNext(t, g)
	o.leaveHeadClass(t)
	if g == nil {
		return
	}
	key := o.c.s.Cluster().DemandClassOf(g)
	at, ok := o.headClassIndex[key]
	if !ok {
		at = int32(len(o.headClasses))
		o.headClassIndex[key] = at
		o.headClasses = append(o.headClasses, headClass{DemandClass: key, stale: true})
	}
	class := &o.headClasses[at]
	if class.stale {
		class.fitsOn, class.stale = o.c.s.Cluster().NextNode(g, 0), false
	}
	class.tenants++
	o.cursors[t].headClass = at + 1
}

// updateHeads sets the next task of each tenant in the tree, and reports whether any is another one: a placement for one
// tenant may have used up a cap that it has in common with others. O(tenants with ready work).
func (o *tenantOrder) updateHeads() (changed bool) {
	for _, t := range o.active {
		before := o.cursors[t].cursor.inTree
		o.updateHead(t)
		changed = changed || o.cursors[t].cursor.inTree != before
	}
	return changed
}

// leaveHeadClass removes a tenant from the class of its next task.
func (o *tenantOrder) leaveHeadClass(t scheduler.TenantID) {
	if at := &o.cursors[t].headClass; *at > 0 {
		o.headClasses[*at-1].tenants--
		*at = 0
	}
}

// refreshHeadsAfter follows a placement on a node: tenants whose next task fitted only there move on to one that can be
// placed, so that shares are compared by placeable tasks only. O(distinct demands of next tasks).
func (o *tenantOrder) refreshHeadsAfter(node scheduler.NodeID) {
	if o.c.cfg.StopAtFirstMisfit {
		return
	}
	for i := range o.headClasses {
		class := &o.headClasses[i]
		if class.fitsOn != node {
			continue
		}
		if class.tenants == 0 {
			class.stale = true
			continue
		}
		if class.fitsOn = o.nodes.nextUnreservedNode(class.DemandClass); class.fitsOn == scheduler.NoNode {
			for _, t := range o.active {
				if t != o.serving && o.cursors[t].headClass == int32(i)+1 { // that being served is updated afterwards
					o.updateHead(t)
				}
			}
		}
	}
}

// restartTenant moves a tenant back to its first stage.
func (o *tenantOrder) restartTenant(t scheduler.TenantID) {
	o.restarts++
	o.leaveHeadClass(t)
	idle := o.cursors[t].idle
	if o.isIdle(t, &idle) {
		o.cursors[t] = tenantCursor{cursor: cursor{class: classEnd, stage: -1}, idle: idle}
		o.c.shares.setNext(t, nil)
		o.beginQueues(t)
		return
	}
	o.cursors[t] = tenantCursor{cursor: cursor{class: classHigh, stage: -1}, idle: idleTenant{until: scheduler.Never, passed: true}}
	o.beginQueues(t)
	o.updateHead(t)
	if x := &o.cursors[t]; x.cursor.class == classEnd {
		if x.idle.passed {
			x.idle.state, x.idle.changes = o.c.s, o.c.s.Tenant(t).ReadyChanges
		}
		o.beginQueues(t) // their order does not matter, passed or not: which jobs can be passed over depends on caches
	}
}

// beginQueues starts a pass through the queues of a tenant.
func (o *tenantOrder) beginQueues(t scheduler.TenantID) {
	for class := classHigh; class <= classLow; class++ {
		if o.queues.areUsed(t, class) {
			o.queues.of(t, class).Begin(o.c.now)
		}
	}
}

// isIdle reports whether what was found out of a tenant still holds: it has nothing to serve.
func (o *tenantOrder) isIdle(t scheduler.TenantID, x *idleTenant) bool {
	return x.state == o.c.s && x.changes == o.c.s.Tenant(t).ReadyChanges && o.c.now < x.until &&
		!slices.ContainsFunc(x.classes[:], func(class scheduler.MisfitClass) bool {
			return !class.IsZero() && !o.c.s.Queue().ClassFitsNowhere(class)
		})
}

// pass notes that a job was passed over because it fits nowhere.
func (x *idleTenant) pass(class scheduler.MisfitClass, until scheduler.Time) {
	x.until = min(x.until, until)
	for i := range x.classes {
		if x.classes[i].IsZero() {
			x.classes[i] = class
		}
		if x.classes[i] == class {
			return
		}
	}
	x.passed = false // of too many classes
}

// nextTenant returns the next tenant by fair share and its stage that can be placed, nil for none.
func (o *tenantOrder) nextTenant() (scheduler.TenantID, *scheduler.Stage) {
	for {
		t, ok := o.c.shares.nextTenant()
		if !ok {
			return scheduler.NoTenant, nil
		}
		before := o.cursors[t].cursor.currentStage()
		g := o.advanceHead(t)
		if g == nil || g != before {
			o.updateHead(t)
			continue
		}
		if o.c.cfg.StopAtFirstMisfit && o.c.s.Cluster().NextNode(g, 0) == scheduler.NoNode {
			if o.updateHeads() {
				continue
			}
			o.firstMisfit = g
			return scheduler.NoTenant, nil
		}
		if o.shouldReserveNode(g) {
			o.nodes.reserve(g)
			o.updateHead(t)
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

// advanceHead returns the tenant's next stage that can be placed now, or nil. It passes over the others.
func (o *tenantOrder) advanceHead(t scheduler.TenantID) *scheduler.Stage {
	c := &o.cursors[t].cursor
	// While nodes may be reserved, a stage that fits nowhere is served too, and the decision must not depend on how
	// tight the State's bound is.
	if !o.c.cfg.StopAtFirstMisfit && (!o.c.cfg.ReserveNodes || o.nodes.isLimitReached()) && !o.c.s.Queue().CapacityForAny() {
		return nil
	}
	for c.class < classEnd {
		if o.queues.areUsed(t, c.class) {
			if g := o.nextInQueues(t, c); g != nil {
				return g
			}
			*c = cursor{class: c.class + 1, stage: -1}
			continue
		}
		if c.class == classInfeasible && !o.lane.someInfeasible {
			*c = cursor{class: classEnd, stage: -1}
			break
		}
		if c.class == classHigh && c.job == nil && (!o.c.cfg.PriorityOrder || o.c.s.Tenant(t).ReadyHigh == 0) {
			*c = cursor{class: classLow, stage: -1} // the tenant has no ready jobs of high priority
			continue
		}
		if g := c.currentStage(); g != nil && (o.placer.isPlaceable(g) || (c.class != classInfeasible && o.shouldReserveNode(g))) {
			return g
		}
		o.advance(t, c)
	}
	return nil
}

// advance moves a cursor to the next stage of its class, or to the next class.
func (o *tenantOrder) advance(t scheduler.TenantID, c *cursor) {
	for !c.nextStage() {
		for passed := true; passed || o.c.classOf(c.job) != c.class; {
			if c.job, c.position = o.c.s.Queue().NextOf(t, c.position); c.job == nil {
				*c = cursor{class: c.class + 1, stage: -1}
				return
			}
			_, _, passed = o.passOver(t, c.job)
		}
		c.stage = -1
	}
}

// nextStage moves a cursor to the next ready stage of its job, and reports whether there is one.
func (c *cursor) nextStage() bool {
	if c.job == nil {
		return false
	}
	for c.stage++; int(c.stage) < len(c.job.Stages); c.stage++ {
		if c.job.Stages[c.stage].Ready() {
			return true
		}
	}
	return false
}

// passOver passes over a tenant's job of which no stage can be placed or is to have a node reserved, as far as the job
// alone tells, and notes that in what is known of the tenant. passed is false for any other job, of which that says
// nothing. While the job is the same it holds before until, and, while no node may be reserved, as no node fits class.
func (o *tenantOrder) passOver(t scheduler.TenantID, j *scheduler.Job) (class scheduler.MisfitClass, until scheduler.Time, passed bool) {
	x := &o.cursors[t].idle
	class, until = o.c.s.Queue().MisfitClassOf(j), scheduler.Never
	if o.c.cfg.StopAtFirstMisfit || !o.c.s.Queue().ClassFitsNowhere(class) {
		x.passed = false
		return class, until, false
	}
	if o.c.cfg.ReserveNodes {
		if until = j.PlannedUntil(); o.c.now >= until {
			x.passed = false
			return class, until, o.nodes.isLimitReached()
		}
	}
	x.pass(class, until)
	return class, until, true
}

// nextInQueues returns the next stage of a tenant's class that can be placed, by the deficits of its queues, or nil.
func (o *tenantOrder) nextInQueues(t scheduler.TenantID, c *cursor) *scheduler.Stage {
	q := o.queues.of(t, c.class)
	for next, ok := q.Next(o.nodes.isLimitReached()); ok; next, ok = q.Next(o.nodes.isLimitReached()) {
		if class, until, passed := o.passOver(t, next.Job); passed {
			q.Rest(class, until)
			continue
		}
		for ; int(*next.Stage) < len(next.Job.Stages); *next.Stage++ {
			if g := next.Job.Stages[*next.Stage]; g.Ready() && (o.placer.isPlaceable(g) || o.shouldReserveNode(g)) {
				c.job, c.stage = next.Job, *next.Stage
				return g
			}
		}
		q.Drop()
	}
	classes, until := q.Rested()
	for _, class := range classes {
		o.cursors[t].idle.pass(class, until)
	}
	return nil
}

// shouldReserveNode reports whether a stage is to be served although it fits nowhere: once a pass, while nodes may be
// reserved.
func (o *tenantOrder) shouldReserveNode(g *scheduler.Stage) bool {
	if !o.c.cfg.ReserveNodes || o.nodes.isLimitReached() || g.Startable() == 0 || o.nodes.attempted[g] || o.c.s.Cluster().NextNode(g, 0) != scheduler.NoNode {
		return false
	}
	return !o.waits.waitsWhole(g) && (o.open.guaranteeCount == 0 || !o.isFullyPlanned(g)) && o.c.allows(g)
}

// isFullyPlanned reports whether each waiting task of a stage has a guarantee reservation, so that it needs no node.
func (o *tenantOrder) isFullyPlanned(g *scheduler.Stage) bool {
	if g.Job.Guarantees < g.Pending {
		return false
	}
	n := int32(0)
	for _, r := range g.Job.Reservations() {
		if r.Stage == g.Index && isPlanned(r) && r.End > o.c.now && g.IsPending(r.Task) {
			n++
		}
	}
	return n >= g.Pending
}
