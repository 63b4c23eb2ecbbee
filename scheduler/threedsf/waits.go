package threedsf

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
)

// inputWaits are the stages that wait in a pass for nodes of their input, with their clocks, which are policy states.
type inputWaits struct {
	c         *cycle
	estimator locality.WaitEstimator
	slack     deadline.Slack

	stages         []stageWait        // by Stage.Slot
	pass           uint64             // the current pass; entries of stages with another are invalid
	waiting        int                // stages that wait
	delayed        []*scheduler.Stage // stages delayed until all others were served
	servingDelayed bool               // the delayed stages are being served
	localStages    []*scheduler.Stage // stages that had a task placed at its input
	nothing        stageWait          // returned by of for a stage without an entry
}

// stageWait is what a pass knows of a stage. It is in a slice, since every pass reads it for every stage with input.
type stageWait struct {
	pass             uint64 // the pass in which the rest is valid
	waits            bool   // for a node of its input
	allWaiting       bool   // every task evaluated in this pass waits
	withoutLocalNode bool   // delayed: it has no free node at its input
	placedLocally    bool   // it is in localStages

	withoutExchange    bool // it found no exchange
	withoutAlternative bool // none of its waiting tasks has a free node at its input

	node         scheduler.NodeID // of its input
	since, until scheduler.Time
}

// begin starts a pass.
func (x *inputWaits) begin() {
	x.delayed, x.servingDelayed, x.localStages, x.waiting = x.delayed[:0], false, x.localStages[:0], 0
	x.pass++
	x.estimator.Reset(x.c.s)
}

// of returns the wait of a stage, for reading.
func (x *inputWaits) of(g *scheduler.Stage) *stageWait {
	if i := int(g.Slot()); i < len(x.stages) && x.stages[i].pass == x.pass {
		return &x.stages[i]
	}
	return &x.nothing
}

// edit returns the wait of a stage, for changing.
func (x *inputWaits) edit(g *scheduler.Stage) *stageWait {
	i := int(g.Slot())
	for len(x.stages) <= i {
		x.stages = append(x.stages, stageWait{})
	}
	if w := &x.stages[i]; w.pass != x.pass {
		*w = stageWait{pass: x.pass}
	}
	return &x.stages[i]
}

// set records that a stage waits for a node of its input, and returns its wait.
func (x *inputWaits) set(g *scheduler.Stage, node scheduler.NodeID, since, until scheduler.Time) *stageWait {
	w := x.edit(g)
	if !w.waits {
		x.waiting++
	}
	w.waits, w.node, w.since, w.until = true, node, since, until
	return w
}

// beginDelayed starts serving the delayed stages: they no longer wait.
func (x *inputWaits) beginDelayed() {
	x.servingDelayed = true
	for _, g := range x.delayed {
		if w := x.edit(g); w.waits {
			w.waits = false
			x.waiting--
		}
	}
}

// waitsWhole reports whether all tasks of a stage that were evaluated wait.
func (x *inputWaits) waitsWhole(g *scheduler.Stage) bool {
	w := x.of(g)
	return w.waits && w.allWaiting
}

// setWhole records that all evaluated tasks of a stage wait. It returns false if none does.
func (x *inputWaits) setWhole(g *scheduler.Stage) bool {
	if !x.of(g).waits {
		return false
	}
	x.edit(g).allWaiting = true
	return true
}

// recordLocal records that a task of a stage was placed at its input.
func (x *inputWaits) recordLocal(g *scheduler.Stage) {
	if w := x.edit(g); !w.placedLocally {
		w.placedLocally = true
		x.localStages = append(x.localStages, g)
	}
}

// delayStage delays a stage until all others of the pass were served. It returns false if the stage has waited for
// MaxLocalityYield or its input has no schedulable node.
func (x *inputWaits) delayStage(g *scheduler.Stage) bool {
	since := x.waitingSince(g)
	until := since.Add(x.c.cfg.MaxLocalityYield)
	if until <= x.c.now {
		return false
	}
	node, ok := x.firstInputNode(g)
	if !ok {
		return false
	}
	if _, waits := g.WaitingSince(); waits { // when no longer delayed, it comes before stages that reserve nodes now
		x.c.wakeAt(until)
	}
	x.delayed = append(x.delayed, g)
	w := x.set(g, node, since, until)
	w.allWaiting, w.withoutLocalNode = true, true // the latter stays true while capacity only shrinks
	return true
}

// firstInputNode returns the first schedulable node with input of the next waiting task of a stage.
func (x *inputWaits) firstInputNode(g *scheduler.Stage) (scheduler.NodeID, bool) {
	next := g.NextPending(0)
	if next < 0 {
		return scheduler.NoNode, false
	}
	_, nodes, _ := g.Input(next)
	for _, id := range nodes {
		if x.c.s.Cluster().IsSchedulable(id) {
			return id, true
		}
	}
	return scheduler.NoNode, false
}

// waitingSince returns when a stage began to wait or last had a task placed at its input.
func (x *inputWaits) waitingSince(g *scheduler.Stage) scheduler.Time {
	if since, waits := g.WaitingSince(); waits && !x.of(g).placedLocally {
		return since
	}
	return x.c.now
}

// tryWaitForData makes a task wait for a node at its input if that is worthwhile, and reports
// whether it waits: at most MaxLocalityWait after waitingSince.
func (x *inputWaits) tryWaitForData(g *scheduler.Stage, task int32, lane bool) bool {
	since := x.waitingSince(g)
	until := since.Add(x.c.cfg.MaxLocalityWait)
	if lane { // at most its slack
		x.slack.Compute(g.Job)
		until = min(until, x.slack.LatestStartOfTasks(g.Index, g.Pending, g.Pending))
	}
	if until <= x.c.now {
		return false
	}
	estimate := x.estimator.WaitOrMove(x.c.s, g, task, &x.c.cfg.Network, x.c.now)
	if !estimate.Wait || (lane && estimate.Release > until) {
		return false
	}
	if !x.of(g).waits {
		if !x.startWaitClock(g, since) {
			return false
		}
		x.set(g, estimate.Node, since, until).allWaiting = false
		x.c.wakeAt(until)
	}
	x.estimator.RecordWaiter(g, estimate.Node)
	return true
}

// startWaitClock records since when a stage waits; false if it could not, since the stage might then wait for ever.
func (x *inputWaits) startWaitClock(g *scheduler.Stage, since scheduler.Time) bool {
	at, waits := g.WaitingSince()
	return (waits && at == since) || x.c.recordState(scheduler.PolicyState{PolicyStateKey: waitStateKey(g), At: since})
}

func waitStateKey(g *scheduler.Stage) scheduler.PolicyStateKey {
	return scheduler.PolicyStateKey{Kind: scheduler.WaitSinceState, Job: g.Job.Spec.ID, Stage: g.Index}
}

// record starts the clocks of delayed stages without a task placed at their input, and removes
// those of stages that had one and no longer wait. If no action was left for a delayed stage, tasks
// of it may have been placed: it then waits for a node of its next task.
func (x *inputWaits) record() {
	for _, g := range x.delayed {
		if x.c.actionsLeft > 0 {
			break // all delayed stages were served
		}
		known := x.edit(g)
		if !known.waits {
			if node, ok := x.firstInputNode(g); ok {
				x.set(g, node, known.since, known.until)
			}
		}
		if !known.placedLocally {
			x.startWaitClock(g, known.since)
		}
	}
	for _, g := range x.localStages {
		if x.of(g).waits {
			continue
		}
		if _, has := g.WaitingSince(); has {
			x.c.recordState(waitStateKey(g).Tombstone())
		}
	}
}
