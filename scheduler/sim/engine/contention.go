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

// actualDemand returns what a task of the stage really uses.
func (g *Stage) actualDemand() scheduler.Resources {
	if g.ActualDemand.IsZero() {
		return g.Demand
	}
	return g.ActualDemand
}

// slowdown returns the current factor on the compute time of an attempt.
func (w *world) slowdown(t *attempt) float64 {
	if !w.Models.Contention {
		return 1
	}
	return w.nodeLoads[t.node].slowdown
}

// startComputing adds an attempt to the load of its node.
func (w *world) startComputing(slot int32) {
	t := &w.attempts[slot]
	w.changeLoad(t, +1, func(c *nodeLoad) { c.slots = append(c.slots, slot) })
}

// stopComputing removes an attempt from the load of its node. The caller has updated the attempt's
// workLeft.
func (w *world) stopComputing(slot int32) {
	t := &w.attempts[slot]
	w.changeLoad(t, -1, func(c *nodeLoad) {
		if i := slices.Index(c.slots, slot); i >= 0 {
			c.slots = slices.Delete(c.slots, i, i+1)
		}
	})
}

// changeLoad changes the load of a node and, if that changes its slowdown, reschedules the ends of
// all its attempts. O(tasks on the node).
func (w *world) changeLoad(t *attempt, sign int64, f func(*nodeLoad)) {
	c := &w.nodeLoads[t.node]
	capacity := w.Nodes[t.node].Capacity
	before := clipped(c.demand, capacity)
	c.demand = c.demand.Add(w.jobs[t.job].spec.Stages[t.stage].actualDemand().Times(sign))
	f(c)
	w.changeMeasured(&w.jobs[t.job], clipped(c.demand, capacity).Sub(before))
	newSlowdown := 1.0
	for _, k := range []scheduler.Resource{scheduler.CPU, scheduler.IO} {
		if capacity[k] > 0 {
			newSlowdown = max(newSlowdown, float64(c.demand[k])/float64(capacity[k]))
		}
	}
	oldSlowdown := c.slowdown
	c.slowdown = newSlowdown
	for _, slot := range c.slots {
		o := &w.attempts[slot]
		if o == t && sign > 0 {
			o.phaseStart = w.now
		} else if newSlowdown == oldSlowdown {
			continue
		} else {
			w.advanceWork(o, oldSlowdown)
		}
		w.scheduleEvent(slot, w.now.Add(scale(o.workLeft, newSlowdown)), evPhase)
	}
}

// advanceWork subtracts the work done since the last change from workLeft.
func (w *world) advanceWork(o *attempt, slow float64) {
	passed := w.now.Sub(o.phaseStart)
	o.elapsed += passed
	o.workLeft = max(0, o.workLeft-time.Duration(float64(passed)/slow))
	o.phaseStart = w.now
}

func clipped(needs, capacity scheduler.Resources) scheduler.Resources { return needs.Min(capacity) }
