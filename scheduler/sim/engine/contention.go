package engine

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Contention: where nothing enforces what tasks declared, or the scheduler was
// told less than they use (Stage.Needs), a node may be asked for more CPU or
// disk I/O than it has. Then everything that computes there slows down alike:
// by what is needed over what there is, of the scarcer of the two. Memory is
// not shared that way: who schedules it, has it.

// crowd is what computes on a node.
type crowd struct {
	needs scheduler.Resources
	slots []int32
	slow  float64 // factor on time, at least 1
}

// needsOf is what a task of the stage really uses.
func (g *Stage) needsOf() scheduler.Resources {
	if g.Needs.IsZero() {
		return g.Demand
	}
	return g.Needs
}

// slowness is the factor by which the work of an attempt takes longer now.
func (w *world) slowness(t *attempt) float64 {
	if !w.Models.Contention {
		return 1
	}
	return w.crowds[t.node].slow
}

// joinCrowd makes an attempt one of those that compute on its node.
func (w *world) joinCrowd(slot int32) {
	t := &w.attempts[slot]
	w.change(t, +1, func(c *crowd) { c.slots = append(c.slots, slot) })
}

// leaveCrowd takes it off; its own work must have been brought up to now.
func (w *world) leaveCrowd(slot int32) {
	t := &w.attempts[slot]
	w.change(t, -1, func(c *crowd) {
		if i := slices.Index(c.slots, slot); i >= 0 {
			c.slots = slices.Delete(c.slots, i, i+1)
		}
	})
}

// change changes a crowd and, if that changes its slowness, plans the ends of
// all in it anew. O(tasks on the node).
func (w *world) change(t *attempt, sign int64, f func(*crowd)) {
	c := &w.crowds[t.node]
	room := w.Nodes[t.node].Capacity
	before := clipped(c.needs, room)
	c.needs = c.needs.Add(w.jobs[t.job].spec.Stages[t.stage].needsOf().Times(sign))
	f(c)
	w.use.direct(clipped(c.needs, room).Sub(before))
	slow := 1.0
	for _, k := range []scheduler.Resource{scheduler.CPU, scheduler.IO} {
		if room[k] > 0 {
			slow = max(slow, float64(c.needs[k])/float64(room[k]))
		}
	}
	was := c.slow
	c.slow = slow
	for _, slot := range c.slots {
		o := &w.attempts[slot]
		if o == t && sign > 0 {
			o.since = w.now
		} else if slow == was {
			continue
		} else {
			w.bringUp(o, was)
		}
		w.due(slot, w.now.Add(scale(o.work, slow)), evPhase)
	}
}

// bringUp takes what was worked since the last change off an attempt's work.
func (w *world) bringUp(o *attempt, slow float64) {
	passed := w.now.Sub(o.since)
	o.ran += passed
	o.work = max(0, o.work-time.Duration(float64(passed)/slow))
	o.since = w.now
}

func clipped(needs, room scheduler.Resources) scheduler.Resources { return needs.Min(room) }
