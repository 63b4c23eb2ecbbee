package threedsf

import (
	"github.com/drover-run/drover/scheduler"
)

// The classes of a tenant's stages, in the order in which they are taken.
const (
	classHigh uint8 = iota + 1
	classLow
	classHopeless
	classEnd
)

// cursor is how far a tenant's regular order has been walked: all before it
// cannot be placed now. Room only shrinks in a pass, so it never goes back.
type cursor struct {
	class uint8
	stage int32
	at    int32 // position among the tenant's ready jobs after job
	job   *scheduler.Job
	shape int32            // of its stage, in Policy.shapes; -1 without one
	told  *scheduler.Stage // whose demand the tree of tenants has
}

// nextShape is a demand that was the next one of some tenant in this pass,
// and a node that has room for it, NoNode when none has any more.
type nextShape struct {
	shape
	room scheduler.NodeID
}

// cursors is where a tenant is, and how far the stage there was searched for
// room at its data.
type cursors struct {
	at   cursor
	near search
}

// turns gives places to regular jobs, each time to the tenant whose turn it is,
// until nothing fits or the cycle is full. A task gets its node at its turn, so
// the next turn is judged by what is there and nobody whose task fits is passed
// over. Tasks of one stage whose turns come one after the other are placed
// together: of a stage that reads much, by matching.
func (p *Policy) turns() {
	for p.left > 0 {
		t, g := p.turn()
		if g == nil {
			if p.stopped != nil || !p.judgeLater() {
				return
			}
			continue
		}
		p.serve(t, g)
	}
}

// serve places the tasks of a stage whose turn it is, or puts it off.
func (p *Policy) serve(t scheduler.TenantID, g *scheduler.Stage) {
	c := &p.tenants[t]
	p.serving = t
	before := p.left
	switch {
	case !p.matches(g):
		p.placeAnywhere(g)
	case !p.placeNear(g, p.nearOf(c, g), func() int32 { return p.run(t, g) }):
		p.putOffOrMove(g)
	}
	p.serving = scheduler.NoTenant
	if p.queued(c.at.class) && p.left < before {
		p.regular.of[t][c.at.class-classHigh].queues.Placed(p.cfg.LASMQ.Containers(g.Spec.Demand))
	}
	p.setHead(t)
}

// nearOf gives how far the stage at a cursor was searched.
func (p *Policy) nearOf(c *cursors, g *scheduler.Stage) *search {
	if c.near.stage != g {
		c.near = search{stage: g, over: p.dry[g]}
	}
	return &c.near
}

// run counts the turns that the stage at a tenant's head has one after the other
// if each of its tasks finds a place; with queues in the tenant, where each task
// may change whose turn it is there, one. O(turns x depth of the tree); O(depth)
// where nobody else has a task and no tenant a cap.
func (p *Policy) run(t scheduler.TenantID, g *scheduler.Stage) int32 {
	if p.queued(p.tenants[t].at.class) {
		return 1
	}
	limit := min(int32(min(p.left, maxRun)), g.Startable())
	if !p.s.Capped() && p.shares.alone(t) {
		return max(limit, 1)
	}
	d := g.Spec.Demand
	n, most := int32(1), p.shares.streak(t, d, limit)
	for n < most && p.s.MayHold(g.Job, d, d.Times(int64(n+1))) {
		n++
	}
	return n
}

// maxRun bounds the tasks that are matched at once.
const maxRun = 4096

// firstHeads sets every tenant with ready work to its first stage that fits, and
// takes the others out of the tree. O(ready stages) at worst.
func (p *Policy) firstHeads() {
	p.beginShrinking()
	if p.cfg.LASMQ != nil {
		p.rank()
	}
	for len(p.tenants) < len(p.s.Tenants()) {
		p.tenants = append(p.tenants, cursors{})
	}
	for _, t := range p.active {
		if int(t) < len(p.s.Tenants()) && p.s.NextReadyTenant(t) != t {
			p.shares.setNext(t, nil)
		}
	}
	p.active, p.shapes = p.active[:0], p.shapes[:0]
	clear(p.shapeOf)
	for t := p.s.NextReadyTenant(0); t != scheduler.NoTenant; t = p.s.NextReadyTenant(t + 1) {
		p.active = append(p.active, t)
		p.restart(t)
	}
}

// setHead tells the tree which task of a tenant is next.
func (p *Policy) setHead(t scheduler.TenantID) {
	g := p.head(t)
	c := &p.tenants[t].at
	if g != nil && g == c.told {
		return
	}
	c.told = g
	p.shares.setNext(t, g)
	if c.shape = -1; g == nil {
		return
	}
	key := shape{g.Spec.Demand, g.Spec.Disk}
	at, ok := p.shapeOf[key]
	if !ok {
		at = int32(len(p.shapes))
		p.shapeOf[key] = at
		p.shapes = append(p.shapes, nextShape{key, p.s.NextNode(g, 0)})
	}
	c.shape = at
}

// driesUp follows a placement on a node: tenants whose next task found its last
// room there go on to their next one that can be placed, before anybody is
// compared by a task that cannot. O(next tasks of different demand).
func (p *Policy) driesUp(node scheduler.NodeID) {
	if p.cfg.StopAtFirstMisfit {
		return
	}
	for i := range p.shapes {
		sh := &p.shapes[i]
		if sh.room != node {
			continue
		}
		if sh.room = p.nextOpen(sh.shape); sh.room == scheduler.NoNode {
			p.passOver(int32(i))
		}
	}
}

// passOver sets the heads anew of tenants whose next task has a shape; the one
// that is being served is set when it was.
func (p *Policy) passOver(of int32) {
	for _, t := range p.active {
		if t != p.serving && p.tenants[t].at.shape == of {
			p.setHead(t)
		}
	}
}

// restart has a tenant looked at from its first stage again.
func (p *Policy) restart(t scheduler.TenantID) {
	p.tenants[t] = cursors{at: cursor{class: classHigh, stage: -1}}
	if p.cfg.LASMQ != nil {
		p.fillQueues(t, classHigh)
		p.fillQueues(t, classLow)
	}
	p.setHead(t)
}

// turn gives the tenant whose turn it is and its next stage that fits.
func (p *Policy) turn() (scheduler.TenantID, *scheduler.Stage) {
	for {
		t, ok := p.shares.next()
		if !ok {
			return scheduler.NoTenant, nil
		}
		was := p.tenants[t].at.current()
		g := p.head(t)
		if g == nil || g != was {
			p.setHead(t)
			continue
		}
		if p.cfg.StopAtFirstMisfit && p.s.NextNode(g, 0) == scheduler.NoNode {
			p.stopped = g
			return scheduler.NoTenant, nil
		}
		if p.wants(g) {
			p.keepFor(g)
			p.setHead(t)
			continue
		}
		return t, g
	}
}

func (c *cursor) current() *scheduler.Stage {
	if c.job == nil || int(c.stage) >= len(c.job.Stages) || c.stage < 0 {
		return nil
	}
	return c.job.Stages[c.stage]
}

// head gives the tenant's next stage that can be placed now, or nil. It moves
// the cursor past those that cannot.
func (p *Policy) head(t scheduler.TenantID) *scheduler.Stage {
	c := &p.tenants[t].at
	// With Reserve a stage that fits nowhere has its turn too, and what is decided
	// must not depend on how sharp the State's bound is.
	if !p.cfg.StopAtFirstMisfit && !p.cfg.Reserve && !p.s.RoomForAny() {
		return nil
	}
	for c.class < classEnd {
		if p.queued(c.class) {
			if g := p.dueInQueues(t, c); g != nil {
				return g
			}
			*c = cursor{class: c.class + 1, stage: -1}
			continue
		}
		if c.class == classHigh && c.job == nil && (!p.cfg.PriorityOrder || p.s.Tenant(t).ReadyHigh == 0) {
			*c = cursor{class: classLow, stage: -1} // the walk would find none
			continue
		}
		if g := c.current(); g != nil && (p.placeable(g) || (c.class != classHopeless && p.wants(g))) {
			return g
		}
		p.advance(t, c)
	}
	return nil
}

// advance moves a cursor to the next stage of its class, or the next class.
func (p *Policy) advance(t scheduler.TenantID, c *cursor) {
	if c.job != nil {
		for c.stage++; int(c.stage) < len(c.job.Stages); c.stage++ {
			if c.job.Stages[c.stage].Ready() {
				return
			}
		}
	}
	for {
		c.job, c.at = p.s.NextReadyOf(t, c.at)
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

// classOf sorts a job into its class; 0 for jobs of another lane.
func (p *Policy) classOf(j *scheduler.Job) uint8 {
	switch {
	case j.Spec.Deadline > 0 && p.inLane(j):
		return 0
	case j.Spec.Deadline > 0 && p.cfg.Deadlines && p.isHopeless(j):
		if j.Spec.OnMiss == scheduler.OnMissStop {
			return 0
		}
		return classHopeless
	case j.Spec.Priority == scheduler.PriorityHigh && p.cfg.PriorityOrder:
		return classHigh
	default:
		return classLow
	}
}

// placeable tells whether a task of the stage can be placed now.
func (p *Policy) placeable(g *scheduler.Stage) bool {
	if g.Startable() == 0 {
		return false
	}
	if len(p.waits) > 0 {
		if w, ok := p.waits[g]; ok && w.out {
			return false
		}
	}
	if _, _, _, ok := p.s.UnderCaps(g); !ok || p.startsTooSoon(g.Job) {
		return false
	}
	return p.cfg.StopAtFirstMisfit || p.nextNode(g, 0) != scheduler.NoNode
}
