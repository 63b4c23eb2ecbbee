package threedsf

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
)

// inputWaits are the stages that wait in a pass for the nodes of their input, and since
// when: their clocks are policy states.
type inputWaits struct {
	c         *cycle
	estimator locality.WaitEstimator
	slack     deadline.Slack

	byStage          map[*scheduler.Stage]dataWait
	delayed          []delayedStage            // stages delayed until all others were served
	servingDelayed   bool                      // the delayed stages are being served
	withoutLocalNode map[*scheduler.Stage]bool // delayed or scanned: no free node at their input
	localStages      []*scheduler.Stage        // stages that had a task placed at its input
	placedLocally    map[*scheduler.Stage]bool // localStages as a set
}

// begin starts a pass.
func (x *inputWaits) begin() {
	x.delayed, x.servingDelayed, x.localStages = x.delayed[:0], false, x.localStages[:0]
	clear(x.byStage)
	clear(x.placedLocally)
	clear(x.withoutLocalNode)
	x.estimator.Reset(x.c.s)
}

// beginDelayed lets the delayed stages be served: they no longer wait.
func (x *inputWaits) beginDelayed() {
	x.servingDelayed = true
	for _, l := range x.delayed {
		delete(x.byStage, l.stage)
	}
}

// waitsWhole reports whether all tasks of a stage that were evaluated wait.
func (x *inputWaits) waitsWhole(g *scheduler.Stage) bool {
	if len(x.byStage) == 0 {
		return false
	}
	w, waits := x.byStage[g]
	return waits && w.allWaiting
}

// setWhole notes that all tasks of a stage that were evaluated wait. It returns false if
// none does.
func (x *inputWaits) setWhole(g *scheduler.Stage) bool {
	w, waits := x.byStage[g]
	if waits {
		w.allWaiting = true
		x.byStage[g] = w
	}
	return waits
}

// recordLocal notes that a task of a stage was placed at its input.
func (x *inputWaits) recordLocal(g *scheduler.Stage) {
	if !x.placedLocally[g] {
		x.placedLocally[g] = true
		x.localStages = append(x.localStages, g)
	}
}

// dataWait is why a stage waits for the nodes of its input.
type dataWait struct {
	node       scheduler.NodeID
	since      scheduler.Time
	until      scheduler.Time
	allWaiting bool // every task evaluated in this pass waits
}

// delayedStage is a stage without a free node at its input, delayed until all others
// were served.
type delayedStage struct {
	stage *scheduler.Stage
	wait  dataWait
}

// delayStage delays a stage until all others of the pass were served. It returns
// false if the stage has waited for MaxLocalityYield or its input has no schedulable
// node.
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
	w := dataWait{node: node, since: since, until: until, allWaiting: true}
	x.delayed = append(x.delayed, delayedStage{g, w})
	x.withoutLocalNode[g] = true // stays true while capacity only shrinks
	x.byStage[g] = w
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
		if n := x.c.s.Node(id); n != nil && n.Schedulable() {
			return id, true
		}
	}
	return scheduler.NoNode, false
}

// waitingSince returns when a stage began to wait or last had a task placed at its
// input.
func (x *inputWaits) waitingSince(g *scheduler.Stage) scheduler.Time {
	if since, waits := g.WaitingSince(); waits && !x.placedLocally[g] {
		return since
	}
	return x.c.now
}

// tryWaitForData makes a task wait for a node at its input if that is worthwhile,
// and reports whether it waits. It does not wait longer than MaxLocalityWait after
// waitingSince.
func (x *inputWaits) tryWaitForData(g *scheduler.Stage, task int32, lane bool) bool {
	since := x.waitingSince(g)
	until := since.Add(x.c.cfg.MaxLocalityWait)
	if lane { // at most its slack
		x.slack.Compute(g.Job)
		until = min(until, x.slack.LatestStageStart(g.Index, g.Pending))
	}
	if until <= x.c.now {
		return false
	}
	estimate := x.estimator.WaitOrMove(x.c.s, g, task, &x.c.cfg.Network, x.c.now)
	if !estimate.Wait || (lane && estimate.Release > until) {
		return false
	}
	if _, had := x.byStage[g]; !had {
		if !x.startWaitClock(g, since) {
			return false
		}
		x.byStage[g] = dataWait{node: estimate.Node, since: since, until: until}
		x.c.wakeAt(until)
	}
	x.estimator.RecordWaiter(g, estimate.Node)
	return true
}

// startWaitClock records since when a stage waits, and reports whether that is
// recorded: without a clock it might wait for ever.
func (x *inputWaits) startWaitClock(g *scheduler.Stage, since scheduler.Time) bool {
	at, waits := g.WaitingSince()
	return (waits && at == since) || x.c.recordState(scheduler.PolicyState{PolicyStateKey: waitStateKey(g), At: since})
}

func waitStateKey(g *scheduler.Stage) scheduler.PolicyStateKey {
	return scheduler.PolicyStateKey{Kind: scheduler.WaitSinceState, Job: g.Job.Spec.ID, Stage: g.Index}
}

// record starts the clocks of delayed stages that had no task placed at their input, and
// removes those of stages that had one and no longer wait. A delayed stage for which no
// action was left may have had tasks placed: it waits for a node of its next one.
func (x *inputWaits) record() {
	for _, l := range x.delayed {
		if x.c.actionsLeft > 0 {
			break // all delayed stages were served
		}
		if _, waits := x.byStage[l.stage]; !waits {
			if node, ok := x.firstInputNode(l.stage); ok {
				w := l.wait
				w.node = node
				x.byStage[l.stage] = w
			}
		}
		if !x.placedLocally[l.stage] {
			x.startWaitClock(l.stage, l.wait.since)
		}
	}
	for _, g := range x.localStages {
		if _, waits := x.byStage[g]; waits {
			continue
		}
		if _, has := g.WaitingSince(); has {
			key := waitStateKey(g)
			key.Kind = scheduler.TombstoneState
			x.c.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(scheduler.WaitSinceState)})
		}
	}
}
