package engine

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Contention: if limits are not enforced, or the scheduler knows less than the tasks use
// (Stage.ActualDemand), the tasks of a node may need more CPU or disk I/O than it has. All tasks
// that compute there then slow down by the same factor: need over capacity of the scarcer resource.
// Memory does not slow tasks down.

// nodeLoad is the set of attempts that compute on a node.
type nodeLoad struct {
	demand   scheduler.Resources
	slots    []int32
	slowdown float64 // factor on compute time, at least 1
}

// contention keeps the load of each node; it is empty unless Models.Contention is set.
type contention struct {
	nodeLoads []nodeLoad
}

// build makes the loads of idle nodes.
func (c *contention) build(nodes int) {
	c.nodeLoads = make([]nodeLoad, nodes)
	for i := range c.nodeLoads {
		c.nodeLoads[i].slowdown = 1
	}
}

// actualDemand returns what a task of the stage really uses.
func (g *Stage) actualDemand() scheduler.Resources {
	if g.ActualDemand.IsZero() {
		return g.Demand
	}
	return g.ActualDemand
}

// slowdown returns the current factor on the compute time of an attempt.
func (c *contention) slowdown(w *world, t *attempt) float64 {
	if !w.Models.Contention {
		return 1
	}
	return c.nodeLoads[t.node].slowdown
}

// startComputing adds an attempt to the load of its node.
func (c *contention) startComputing(w *world, slot int32) {
	t := &w.attempts[slot]
	c.changeLoad(w, t, +1, func(l *nodeLoad) { l.slots = append(l.slots, slot) })
}

// stopComputing removes an attempt from the load of its node. The caller has updated the attempt's
// workLeft.
func (c *contention) stopComputing(w *world, slot int32) {
	t := &w.attempts[slot]
	c.changeLoad(w, t, -1, func(l *nodeLoad) {
		if i := slices.Index(l.slots, slot); i >= 0 {
			l.slots = slices.Delete(l.slots, i, i+1)
		}
	})
}

// changeLoad changes the load of a node and, if that changes its slowdown, reschedules the ends of
// all its attempts. O(tasks on the node).
func (c *contention) changeLoad(w *world, t *attempt, sign int64, f func(*nodeLoad)) {
	l := &c.nodeLoads[t.node]
	capacity := w.Nodes[t.node].Capacity
	before := clipped(l.demand, capacity)
	l.demand = l.demand.Add(w.jobs[t.job].spec.Stages[t.stage].actualDemand().Times(sign))
	f(l)
	w.use.changeMeasured(&w.jobs[t.job], clipped(l.demand, capacity).Sub(before))
	newSlowdown := 1.0
	for _, k := range []scheduler.Resource{scheduler.CPU, scheduler.IO} {
		if capacity[k] > 0 {
			newSlowdown = max(newSlowdown, float64(l.demand[k])/float64(capacity[k]))
		}
	}
	oldSlowdown := l.slowdown
	l.slowdown = newSlowdown
	for _, slot := range l.slots {
		o := &w.attempts[slot]
		if o == t && sign > 0 {
			o.phaseStart = w.now
		} else if newSlowdown == oldSlowdown {
			continue
		} else {
			o.advanceWork(w.now, oldSlowdown)
		}
		w.scheduleEvent(slot, w.now.Add(scale(o.workLeft, newSlowdown)), evPhase)
	}
}

// advanceWork subtracts the work done since the last change from workLeft.
func (t *attempt) advanceWork(now scheduler.Time, slowdown float64) {
	passed := now.Sub(t.phaseStart)
	t.elapsed += passed
	t.workLeft = max(0, t.workLeft-time.Duration(float64(passed)/slowdown))
	t.phaseStart = now
}

func clipped(needs, capacity scheduler.Resources) scheduler.Resources { return needs.Min(capacity) }
