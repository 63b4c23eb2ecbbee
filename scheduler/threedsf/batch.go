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
// cannot be placed now. Room only shrinks while a batch is made, so it never
// goes back.
type cursor struct {
	class uint8
	stage int32
	at    int32 // position among the tenant's ready jobs after job
	job   *scheduler.Job
	shape int32 // of its stage, in Policy.shapes; -1 without one
}

// nextShape is a demand that is the next one of some tenant while a batch is made,
// and a node that has room for it, NoNode when none has any more.
type nextShape struct {
	shape
	room scheduler.NodeID
}

// cursors is where a tenant is, and where it was when the batch began.
type cursors struct {
	at, start cursor
	moved     bool   // it is in Policy.moved
	batch     uint64 // the last one in which it was given tasks that read much,
	tasks     int32  // and how many
}

// dataBatch is how many tasks that read much one batch gives to a tenant.
const dataBatch = 8

// given counts a task given in a batch.
func (c *cursors) given(batch uint64) int32 {
	if c.batch != batch {
		c.batch, c.tasks = batch, 0
	}
	c.tasks++
	return c.tasks
}

// leastBatch is the size of the last batches of a full cycle, unless less is
// left: each takes a quarter of what is left. Matching leaves other gaps than the
// tries did, so a tenant's next task may fit again; a later batch makes that good
// and the last one is small.
const leastBatch = 16

// pick is tasks of one stage in the batch.
type pick struct {
	stage  *scheduler.Stage
	tenant scheduler.TenantID
	count  int32
	data   bool // it takes part in matching
	lane   bool // of a deadline job
}

// batch picks tasks by whose turn it is, each tried on the State where it fits
// best, and undoes the tries. It ends where the cycle is full, nothing fits, or
// a task does not fit any more beside the tries: matching leaves other room than
// they did, and whoever's turn it is must not be passed over for theirs. So
// nobody is left behind whose task fits. It ends as well where a tenant was
// given dataBatch tasks that read much: most of them would be picked in vain
// where few find room at their data. It tells whether there are any picks.
func (p *Policy) batch() bool {
	p.picks, p.stopped = p.picks[:0], nil
	p.batches++
	p.rewind()
	inner := p.s.Mark()
	for n := max(p.left/4, min(p.left, leastBatch)); n > 0; n-- {
		t, g := p.turn()
		if g == nil {
			break
		}
		node, disk := p.bestNode(g)
		act := p.s.Place(g, g.NextPending(0), node, disk)
		if err := p.s.Apply(&act, p.now); err != nil {
			panic("threedsf: a placement that fits is refused: " + err.Error())
		}
		p.shares.charge(t, g.Spec.Demand)
		p.touch(t)
		if class := p.tenants[t].at.class; p.queued(class) {
			p.regular.of[t][class-classHigh].queues.Placed(p.cfg.LASMQ.Containers(g.Spec.Demand))
		}
		p.setHead(t)
		if k := len(p.picks) - 1; k >= 0 && p.picks[k].stage == g {
			p.picks[k].count++
		} else {
			p.picks = append(p.picks, pick{stage: g, tenant: t, count: 1})
		}
		if p.driesUp(node) || (p.cfg.Locality && g.Spec.Inputs != nil && p.tenants[t].given(p.batches) >= dataBatch) {
			break
		}
	}
	p.s.Rollback(inner)
	return len(p.picks) > 0
}

// firstHeads sets every tenant with ready work to its first stage that fits, and
// takes the others out of the tree. O(ready stages) at worst.
func (p *Policy) firstHeads() {
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
	p.active, p.moved, p.shapes = p.active[:0], p.moved[:0], p.shapes[:0]
	clear(p.shapeOf)
	for t := p.s.NextReadyTenant(0); t != scheduler.NoTenant; t = p.s.NextReadyTenant(t + 1) {
		p.tenants[t] = cursors{start: cursor{class: classHigh, stage: -1}, moved: true}
		p.active = append(p.active, t)
		p.moved = append(p.moved, t)
	}
}

// rewind sets the tenants whose head moved since the last batch began back to
// where it was then: between batches room only shrinks.
func (p *Policy) rewind() {
	for i := range p.shapes {
		sh := &p.shapes[i]
		if sh.room = p.s.NextNodeFor(sh.demand, sh.disk, 0); sh.room == scheduler.NoNode {
			p.touchShape(int32(i))
		}
	}
	for _, t := range p.moved {
		c := &p.tenants[t]
		if p.cfg.LASMQ != nil { // what was placed changes whose turn it is in the tenant
			c.start = cursor{class: classHigh, stage: -1}
			p.fillQueues(t, classHigh)
			p.fillQueues(t, classLow)
		}
		c.at, c.moved = c.start, false
		p.setHead(t)
		c.start = c.at
	}
	p.moved = p.moved[:0]
}

// setHead tells the tree which task of a tenant is next.
func (p *Policy) setHead(t scheduler.TenantID) {
	g := p.head(t)
	p.shares.setNext(t, g)
	c := &p.tenants[t].at
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

// driesUp follows a try on a node and tells whether it took the last room for
// the next task of some tenant. Then the batch ends: to compare that tenant by a
// task that cannot be placed would let others get ahead of its next one that
// can. O(next tasks of different demand).
func (p *Policy) driesUp(node scheduler.NodeID) bool {
	if p.cfg.StopAtFirstMisfit {
		return false
	}
	dry := false
	for i := range p.shapes {
		if sh := &p.shapes[i]; sh.room == node {
			sh.room = p.s.NextNodeFor(sh.demand, sh.disk, 0)
			dry = (sh.room == scheduler.NoNode && p.touchShape(int32(i))) || dry
		}
	}
	return dry
}

// touchShape touches the tenants whose next task has a shape, and tells whether
// there are any.
func (p *Policy) touchShape(of int32) bool {
	any := false
	for _, t := range p.active {
		if p.tenants[t].at.shape == of {
			p.touch(t)
			any = true
		}
	}
	return any
}

// restart has a tenant looked at from its first stage again.
func (p *Policy) restart(t scheduler.TenantID) {
	p.tenants[t].start = cursor{class: classHigh, stage: -1}
	p.touch(t)
}

func (p *Policy) touch(t scheduler.TenantID) {
	if c := &p.tenants[t]; !c.moved {
		c.moved = true
		p.moved = append(p.moved, t)
	}
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
			if len(p.picks) > 0 && was != nil && was.Startable() > 0 && p.nextNode(was, 0) == scheduler.NoNode {
				p.touch(t)
				return scheduler.NoTenant, nil
			}
			p.touch(t)
			p.setHead(t)
			continue
		}
		if p.cfg.StopAtFirstMisfit && p.s.NextNode(g, 0) == scheduler.NoNode {
			p.stopped = g
			return scheduler.NoTenant, nil
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
	for c.class < classEnd {
		if p.queued(c.class) {
			if g := p.dueInQueues(t, c); g != nil {
				return g
			}
			*c = cursor{class: c.class + 1, stage: -1}
			continue
		}
		if g := c.current(); g != nil && p.placeable(g) {
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
		if _, ok := p.waits[g]; ok {
			return false
		}
	}
	if _, _, _, ok := p.s.UnderCaps(g); !ok {
		return false
	}
	return p.cfg.StopAtFirstMisfit || p.nextNode(g, 0) != scheduler.NoNode
}
