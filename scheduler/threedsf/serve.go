package threedsf

import (
	"github.com/drover-run/drover/scheduler"
)

// serveDelayed starts serving the delayed stages, once a pass. It reports whether there are any.
func (o *tenantOrder) serveDelayed() bool {
	if o.waits.servingDelayed || len(o.waits.delayed) == 0 || o.c.actionsLeft == 0 {
		return false
	}
	o.wakeForOrder()
	o.waits.beginDelayed()
	if o.c.cfg.LASMQ != nil {
		o.queues.sync()
	}
	clear(o.restarted)
	for _, g := range o.waits.delayed { // each tenant once: it may have thousands of delayed stages
		if t := g.Job.Spec.Tenant; !o.restarted[t] {
			o.restarted[t] = true
			o.restartTenant(t)
		}
	}
	return true
}

// serveTenants places regular jobs, one task at a time, each for the next tenant by fair share,
// until nothing fits or the cycle has no actions left. A task gets its node at once, so that free
// capacity is exact when the next tenant is picked, and no tenant whose task fits is passed over.
// Consecutive tasks of one stage are placed together, by matching if they read much input.
func (o *tenantOrder) serveTenants() {
	for o.c.actionsLeft > 0 {
		t, g := o.nextTenant()
		if g == nil {
			if o.firstMisfit != nil || !o.serveDelayed() {
				return
			}
			continue
		}
		o.serveStage(t, g)
	}
}

// serveStage places tasks of the next tenant's stage. If it has no free node at its input, it is
// delayed while others remain to be served, since a slot is better used by a task with input there;
// MaxLocalityYield bounds the delay. Then its next task that does not wait goes to a remote node.
func (o *tenantOrder) serveStage(t scheduler.TenantID, g *scheduler.Stage) {
	c := &o.cursors[t]
	o.serving = t
	before := g.Pending
	if c.search.stage != g {
		c.search = localSearch{stage: g, exhausted: o.waits.of(g).withoutLocalNode}
	}
	switch {
	case !o.c.usesMatching(g):
		o.placer.placeAnywhere(g)
	case o.placer.placeLocal(g, &c.search, func() int32 { return o.consecutiveTurns(t, g) }):
	case o.waits.servingDelayed || !o.waits.delayStage(g):
		o.placer.waitOrMove(g, &c.search, false)
	}
	o.serving = scheduler.NoTenant
	if o.queues.areUsed(t, c.cursor.class) && g.Pending < before {
		o.queues.of(t, c.cursor.class).RecordPlaced(g.Spec.Demand, before-g.Pending)
	}
	o.updateHead(t)
}

// consecutiveTurns returns how many tasks in a row the tenant's head stage would place, if all fit,
// before another tenant or another of the tenant's queues is next. O(turns x depth of the tree +
// queues); O(depth + queues) if no other tenant has a task and none has a cap.
func (o *tenantOrder) consecutiveTurns(t scheduler.TenantID, g *scheduler.Stage) int32 {
	limit := min(int32(min(o.c.actionsLeft, maxBatch)), g.Startable())
	if class := o.cursors[t].cursor.class; o.queues.areUsed(t, class) {
		limit = o.queues.of(t, class).Streak(g.Spec.Demand, limit)
	}
	if !o.c.s.TenantTree().HasCaps() && o.c.shares.isAlone(t) {
		return max(limit, 1)
	}
	d := g.Spec.Demand
	n, streak := int32(1), o.c.shares.streak(t, d, limit)
	for n < streak && o.c.withinCaps(g.Job, d, d.Times(int64(n+1))) {
		n++
	}
	return n
}

// maxBatch bounds the tasks that are matched at once.
const maxBatch = 4096
