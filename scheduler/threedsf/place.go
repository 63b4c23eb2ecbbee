package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// equivalenceClass is what a task demands: tasks of one class fit on the same nodes.
type equivalenceClass struct {
	demand    scheduler.Resources
	disk      int64
	avoider   scheduler.JobID // its job if that avoids nodes, else 0
	avoidance scheduler.Avoidance
}

func (p *Policy) demandClass(g *scheduler.Stage) equivalenceClass {
	return equivalenceClass{g.Spec.Demand, g.Spec.Disk, g.Avoider(), p.s.Cluster().AvoidanceOf(g)}
}

// nextFit is State.NextNode for a class.
func (p *Policy) nextFit(c *equivalenceClass, from scheduler.NodeID) scheduler.NodeID {
	return p.s.Cluster().NextNodeAvoiding(p.s.Job(c.avoider), c.avoidance, c.demand, c.disk, from)
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

// localSearch is the progress of searching a stage for tasks with a free node at
// their input: tasks before task have none and, after maxScannedTasks, no task has
// one on nodes before node. It stays valid while capacity only shrinks.
type localSearch struct {
	stage     *scheduler.Stage
	task      int32
	scanned   int32
	node      scheduler.NodeID
	exhausted bool  // no task has a free node at its input
	evaluated int32 // tasks before it were evaluated by tryWaitForData
	slotsLeft int32 // tasks still to be evaluated
}

// maxScannedTasks is how many waiting tasks of a stage are scanned one by one;
// beyond them, the tasks on nodes with free capacity are scanned.
const maxScannedTasks = 512

// usesMatching reports whether a stage takes part in matching: its next task reads
// at least SmallTaskBytes.
func (p *Policy) usesMatching(g *scheduler.Stage) bool {
	if !p.cfg.Locality || g.Spec.Inputs == nil {
		return false
	}
	bytes, nodes, _ := g.Input(g.NextPending(0))
	return len(nodes) > 0 && bytes >= p.cfg.SmallTaskBytes
}

// placeLocal places as many tasks of a stage as turns returns on nodes with their
// input: one on the idlest node, several by matching. It reports whether it placed
// any.
func (p *Policy) placeLocal(g *scheduler.Stage, near *localSearch, turns func() int32) bool {
	if near.exhausted {
		return false
	}
	task, node := p.findLocalTask(g, near)
	if node == scheduler.NoNode {
		return false
	}
	n := turns()
	if n > 1 {
		n = min(n, max(1, p.freeSlots(g, n)))
	}
	if n == 1 {
		p.placeLocalTask(g, task, node)
		return true
	}
	before := p.actionsLeft
	p.matchRequests = append(p.matchRequests[:0], locality.Request{Stage: g, Count: n})
	for _, a := range p.matcher.Match(p.s, p.matchRequests) {
		if p.canPlaceOn(g, a.Node) { // matched tasks may compete for capacity that is reserved for others
			p.placeLocalTask(g, a.Task, a.Node)
		}
	}
	near.exhausted = int32(before-p.actionsLeft) < n
	return p.actionsLeft < before
}

// freeSlots returns how many tasks of a stage fit on all nodes together, at most
// limit. It bounds the request to the matcher, which would otherwise collect
// thousands of waiting tasks for one free slot.
func (p *Policy) freeSlots(g *scheduler.Stage, limit int32) int32 {
	n := int32(0)
	for id := p.s.Cluster().NextNode(g, 0); id != scheduler.NoNode && n < limit; id = p.s.Cluster().NextNode(g, id+1) {
		n += locality.CountSlots(p.s.Node(id), g.Spec.Demand, g.Spec.Disk, limit-n)
	}
	return n
}

// placeLocalTask places a task at its input, which restarts the wait clock of its
// stage.
func (p *Policy) placeLocalTask(g *scheduler.Stage, task int32, node scheduler.NodeID) {
	p.place(g, task, node)
	p.exchanges.addTask(g, task, node, len(p.actions)-1, false)
	if !p.wasPlacedLocally(g) {
		p.placedLocally[g] = true
		p.localStages = append(p.localStages, g)
	}
}

// findLocalTask returns the next waiting task of a stage with a free node at its
// input, and the idlest such node among those that store most of it; ties go to the
// first listed. All calls in a pass cost O(waiting tasks x replicas), bounded by
// maxScannedTasks plus the tasks on nodes with free capacity.
func (p *Policy) findLocalTask(g *scheduler.Stage, near *localSearch) (int32, scheduler.NodeID) {
	if most := maxScannedTasks - near.scanned; most > 0 {
		p.nearWalk.Reset(p.s, g, near.task, most)
		for i := p.nearWalk.Next(); i >= 0; i = p.nearWalk.Next() {
			if node := p.idlestLocalNode(g, i); node != scheduler.NoNode {
				near.scanned += g.PendingIn(near.task, i)
				near.task = i
				return i, node
			}
		}
		last := g.SkipPending(near.task, most-1)
		if last < 0 {
			near.exhausted = true
			return 0, scheduler.NoNode
		}
		near.task, near.scanned = last+1, maxScannedTasks
	}
	if g.NextPending(near.task) < 0 {
		near.exhausted = true
		return 0, scheduler.NoNode
	}
	for id := p.s.Cluster().NextNode(g, near.node); id != scheduler.NoNode; id = p.s.Cluster().NextNode(g, id+1) {
		near.node = id
		tasks := g.TasksOn(id)
		from, _ := slices.BinarySearch(tasks, near.task)
		for _, i := range tasks[from:] {
			if !g.IsPending(i) {
				continue
			}
			if node := p.idlestLocalNode(g, i); node != scheduler.NoNode {
				return i, node
			}
		}
	}
	near.exhausted = true
	return 0, scheduler.NoNode
}

// idlestLocalNode returns the idlest open node with free capacity among those that
// store most of a task's input, or NoNode.
func (p *Policy) idlestLocalNode(g *scheduler.Stage, task int32) scheduler.NodeID {
	return p.idlestLocalNodeExcept(g, task, scheduler.NoNode)
}

// idlestLocalNodeExcept is idlestLocalNode without one node.
func (p *Policy) idlestLocalNodeExcept(g *scheduler.Stage, task int32, except scheduler.NodeID) scheduler.NodeID {
	p.nearNodes = locality.LocalNodes(p.s, g, task, p.nearNodes[:0])
	best, mostIdle := scheduler.NoNode, 0.0
	for _, id := range p.nearNodes {
		n := p.s.Node(id)
		if id == except || !p.isOpenTo(n, g) {
			continue
		}
		if idle := idleness(n); best == scheduler.NoNode || idle > mostIdle {
			best, mostIdle = id, idle
		}
	}
	return best
}

// canPlaceOn reports whether a task of the stage fits on a node and respects its
// reservations.
func (p *Policy) canPlaceOn(g *scheduler.Stage, id scheduler.NodeID) bool {
	return p.s.Cluster().HasCapacity(g, id) && p.isOpenTo(p.s.Node(id), g)
}

// delayOrMove handles a stage that is next and has no free node at its input. It is
// delayed while others remain to be served, since a slot is better used by a task
// with input there; MaxLocalityYield bounds the delay. Afterwards its next task that
// does not wait goes to a remote node.
func (p *Policy) delayOrMove(g *scheduler.Stage) {
	if !p.servingDelayed && p.delayStage(g) {
		return
	}
	p.waitOrMove(g, &p.tenantCursors[g.Job.Spec.Tenant].search, false)
}

// waitOrMove evaluates the waiting tasks of a stage until one is placed by exchange
// or on a remote node, and reports whether one was. It evaluates no more tasks than
// could be placed: if those wait, all do.
func (p *Policy) waitOrMove(g *scheduler.Stage, near *localSearch, lane bool) bool {
	if near.evaluated == 0 {
		near.slotsLeft = p.countMovable(g)
	}
	for i := g.NextPending(near.evaluated); i >= 0 && near.slotsLeft > 0; i = g.NextPending(i + 1) {
		near.evaluated = i + 1
		near.slotsLeft--
		if p.tryWaitForData(g, i, lane) {
			continue
		}
		if p.tryExchange(g) {
			near.evaluated = i // it stays waiting, to be evaluated again
			near.slotsLeft++
			return true
		}
		node := p.remoteNodeFor(g, i, scheduler.NoNode)
		if node == scheduler.NoNode {
			panic("threedsf: stage " + g.ID().String() + " fits somewhere, but no node was found")
		}
		p.place(g, i, node)
		p.exchanges.addTask(g, i, node, len(p.actions)-1, true)
		return true
	}
	if w, waits := p.dataWaits[g]; waits {
		w.allWaiting = true
		p.dataWaits[g] = w
		return false
	}
	near.evaluated = 0 // all were placed: capacity is left
	return p.waitOrMove(g, near, lane)
}

// maxEvaluatedTasks bounds the tasks of a stage that are evaluated; the rest follow
// their result.
const maxEvaluatedTasks = 8

// countMovable returns the number of tasks of a stage that fit on open nodes, at
// most maxEvaluatedTasks.
func (p *Policy) countMovable(g *scheduler.Stage) int32 {
	n := int32(0)
	for id := p.nextOpenNode(g, 0); id != scheduler.NoNode && n < maxEvaluatedTasks; id = p.nextOpenNode(g, id+1) {
		n += locality.CountSlots(p.s.Node(id), g.Spec.Demand, g.Spec.Disk, maxEvaluatedTasks-n)
	}
	return n
}

// delayStage delays a stage until all others of the pass were served. It returns
// false if the stage has waited for MaxLocalityYield or its input has no schedulable
// node.
func (p *Policy) delayStage(g *scheduler.Stage) bool {
	since := p.waitingSince(g)
	until := since.Add(p.cfg.MaxLocalityYield)
	if until <= p.now {
		return false
	}
	_, nodes, _ := g.Input(g.NextPending(0))
	for _, id := range nodes {
		if n := p.s.Node(id); n != nil && n.Schedulable() {
			w := dataWait{node: id, since: since, until: until, allWaiting: true}
			p.delayed = append(p.delayed, delayedStage{g, w})
			p.withoutLocalNode[g] = true // stays true while capacity only shrinks
			p.dataWaits[g] = w
			return true
		}
	}
	return false
}

// serveDelayed lets the delayed stages be served, once a pass. It reports whether
// there are any.
func (p *Policy) serveDelayed() bool {
	if p.servingDelayed || len(p.delayed) == 0 || p.actionsLeft == 0 {
		return false
	}
	p.servingDelayed = true
	if p.cfg.LASMQ != nil {
		p.syncQueues()
	}
	clear(p.restarted)
	for _, l := range p.delayed {
		delete(p.dataWaits, l.stage)
	}
	for _, l := range p.delayed { // each tenant once: it may have thousands of delayed stages
		if t := l.stage.Job.Spec.Tenant; !p.restarted[t] {
			p.restarted[t] = true
			p.restartTenant(t)
		}
	}
	return true
}

// waitingSince returns when a stage began to wait or last had a task placed at its
// input.
func (p *Policy) waitingSince(g *scheduler.Stage) scheduler.Time {
	if n, ok := p.s.PolicyState(waitStateKey(g)); ok && !p.wasPlacedLocally(g) {
		return n.At
	}
	return p.now
}

// tryWaitForData makes a task wait for a node at its input if that is worthwhile,
// and reports whether it waits. It does not wait longer than MaxLocalityWait after
// waitingSince.
func (p *Policy) tryWaitForData(g *scheduler.Stage, task int32, lane bool) bool {
	since := p.waitingSince(g)
	until := since.Add(p.cfg.MaxLocalityWait)
	if lane { // at most its slack
		p.slack.Compute(g.Job)
		until = min(until, p.slack.LatestStageStart(g.Index, g.Pending))
	}
	if until <= p.now {
		return false
	}
	estimate := p.waitEvaluator.WaitOrMove(p.s, g, task, &p.cfg.Network, p.now)
	if !estimate.Wait || (lane && estimate.Release > until) {
		return false
	}
	if _, had := p.dataWaits[g]; !had {
		if !p.startWaitClock(g, since) {
			return false
		}
		p.dataWaits[g] = dataWait{node: estimate.Node, since: since, until: until}
		p.wakeAt(until)
	}
	p.waitEvaluator.RecordWaiter(g, estimate.Node)
	return true
}

// startWaitClock records since when a stage waits, and reports whether that is
// recorded: without a clock it might wait for ever.
func (p *Policy) startWaitClock(g *scheduler.Stage, since scheduler.Time) bool {
	n, ok := p.s.PolicyState(waitStateKey(g))
	return (ok && n.At == since) || p.recordState(scheduler.PolicyState{PolicyStateKey: waitStateKey(g), At: since})
}

func (p *Policy) wasPlacedLocally(g *scheduler.Stage) bool { return p.placedLocally[g] }

func waitStateKey(g *scheduler.Stage) scheduler.PolicyStateKey {
	return scheduler.PolicyStateKey{Kind: scheduler.WaitSinceState, Job: g.Job.Spec.ID, Stage: g.Index}
}

// recordDataWaits starts the clocks of delayed stages that had no task placed at its
// input, and removes those of stages that had one and no longer wait.
func (p *Policy) recordDataWaits() {
	for _, l := range p.delayed {
		if p.actionsLeft > 0 {
			break // all delayed stages were served
		}
		if _, waits := p.dataWaits[l.stage]; !waits {
			p.dataWaits[l.stage] = l.wait
		}
		if !p.wasPlacedLocally(l.stage) {
			p.startWaitClock(l.stage, l.wait.since)
		}
	}
	for _, g := range p.localStages {
		if _, waits := p.dataWaits[g]; waits {
			continue
		}
		if key := waitStateKey(g); p.hasState(key) {
			key.Kind = scheduler.TombstoneState
			p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(scheduler.WaitSinceState)})
		}
	}
}

func (p *Policy) hasState(key scheduler.PolicyStateKey) bool {
	_, ok := p.s.PolicyState(key)
	return ok
}

// placeAnywhere places the next task of a stage: at its input if a node there is
// free, else on the fullest node that fits. The caller made sure that one does.
func (p *Policy) placeAnywhere(g *scheduler.Stage) {
	task := g.NextPending(0)
	node := scheduler.NoNode
	if p.cfg.Locality && g.Spec.Inputs != nil {
		node = p.idlestLocalNode(g, task)
	}
	if node == scheduler.NoNode {
		node, _ = p.bestOpenNode(g)
	}
	p.place(g, task, node)
}
