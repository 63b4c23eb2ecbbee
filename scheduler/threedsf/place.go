package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// shape is what a task takes.
type shape struct {
	demand scheduler.Resources
	disk   int64
}

// wait is why a stage waits for data.
type wait struct {
	node  scheduler.NodeID
	since scheduler.Time
	until scheduler.Time
	out   bool // all that was asked of it in this pass waits
}

// putOff is a stage that found no room at its data and lets others go first.
type putOff struct {
	stage *scheduler.Stage
	wait  wait
}

// search is how far a stage was searched for tasks with room at their data:
// tasks before the task have none, and where there are too many, no task has
// any on nodes before the node. It stays true while room shrinks.
type search struct {
	stage  *scheduler.Stage
	task   int32
	seen   int32
	node   scheduler.NodeID
	over   bool  // no task has any
	judged int32 // tasks before it were asked whether they wait
	slots  int32 // how many more are asked
}

// Of the waiting tasks of a stage the first searchTasks are looked at one by
// one, the others by the nodes with room.
const searchTasks = 512

// matches tells whether a stage takes part in matching: its next task reads a
// block or more.
func (p *Policy) matches(g *scheduler.Stage) bool {
	if !p.cfg.Locality || g.Spec.Inputs == nil {
		return false
	}
	bytes, nodes, _ := g.Input(g.NextPending(0))
	return len(nodes) > 0 && bytes >= p.cfg.SmallTask
}

// placeNear places tasks of a stage on nodes that hold their data, as many as
// have their turn: one where the most is idle, several by matching. It tells
// whether it placed any.
func (p *Policy) placeNear(g *scheduler.Stage, near *search, turns func() int32) bool {
	if near.over {
		return false
	}
	task, node := p.findNear(g, near)
	if node == scheduler.NoNode {
		return false
	}
	n := turns()
	if n == 1 {
		p.placeAt(g, task, node)
		return true
	}
	before := p.left
	p.request = append(p.request[:0], locality.Request{Stage: g, Count: n})
	for _, a := range p.match.Match(p.s, p.request) {
		if p.fits(g, a.Node) { // several may have been given to room that is kept for others
			p.placeAt(g, a.Task, a.Node)
		}
	}
	near.over = int32(before-p.left) < n
	return p.left < before
}

// placeAt places a task at its data: the clock of its stage starts anew.
func (p *Policy) placeAt(g *scheduler.Stage, task int32, node scheduler.NodeID) {
	p.place(g, task, node)
	p.moved.add(g, task, node, len(p.actions)-1, false)
	if !p.isLocal(g) {
		p.isNear[g] = true
		p.local = append(p.local, g)
	}
}

// findNear gives the next waiting task of a stage with room at its data, and of
// the nodes that hold most of it the idlest with room; ties to the first listed.
// Over all calls in a pass O(waiting tasks x replicas), at most that of
// searchTasks and of the tasks on the nodes with room.
func (p *Policy) findNear(g *scheduler.Stage, near *search) (int32, scheduler.NodeID) {
	if most := searchTasks - near.seen; most > 0 {
		p.nearby.Begin(p.s, g, near.task, most)
		for i := p.nearby.Next(); i >= 0; i = p.nearby.Next() {
			if node := p.idlestNear(g, i); node != scheduler.NoNode {
				near.seen += g.PendingIn(near.task, i)
				near.task = i
				return i, node
			}
		}
		last := g.SkipPending(near.task, most-1)
		if last < 0 {
			near.over = true
			return 0, scheduler.NoNode
		}
		near.task, near.seen = last+1, searchTasks
	}
	if g.NextPending(near.task) < 0 {
		near.over = true
		return 0, scheduler.NoNode
	}
	for id := p.s.NextNode(g, near.node); id != scheduler.NoNode; id = p.s.NextNode(g, id+1) {
		near.node = id
		tasks := p.s.TasksOn(g, id)
		from, _ := slices.BinarySearch(tasks, near.task)
		for _, i := range tasks[from:] {
			if !g.IsPending(i) {
				continue
			}
			if node := p.idlestNear(g, i); node != scheduler.NoNode {
				return i, node
			}
		}
	}
	near.over = true
	return 0, scheduler.NoNode
}

// idlestNear gives the idlest node with room among those with most of a task's
// input, or NoNode.
func (p *Policy) idlestNear(g *scheduler.Stage, task int32) scheduler.NodeID {
	return p.idlestNearBut(g, task, scheduler.NoNode)
}

// idlestNearBut is idlestNear without one node.
func (p *Policy) idlestNearBut(g *scheduler.Stage, task int32, but scheduler.NodeID) scheduler.NodeID {
	p.near = locality.Near(p.s, g, task, p.near[:0])
	best, most := scheduler.NoNode, 0.0
	for _, id := range p.near {
		n := p.s.Node(id)
		if id == but || !p.openFor(n, g) {
			continue
		}
		if idle := idleness(n); best == scheduler.NoNode || idle > most {
			best, most = id, idle
		}
	}
	return best
}

// fits tells whether a task of the stage may be placed on a node now.
func (p *Policy) fits(g *scheduler.Stage, id scheduler.NodeID) bool {
	n := p.s.Node(id)
	_, ok := n.Fits(g.Spec.Demand, g.Spec.Disk)
	return ok && p.openFor(n, g)
}

// putOffOrMove decides on a stage whose turn it is and which has no room at its
// data. As long as others have not had their turn it is put off: a slot that
// somebody else has data at is better used so, and the clock bounds how long.
// After that its next task that does not wait moves.
func (p *Policy) putOffOrMove(g *scheduler.Stage) {
	if !p.judging && p.putItOff(g) {
		return
	}
	p.waitOrMove(g, &p.tenants[g.Job.Spec.Tenant].near, false)
}

// waitOrMove judges the waiting tasks of a stage one after the other until one
// moves, and tells whether one did. No more are asked than could move now: when
// those wait, all do.
func (p *Policy) waitOrMove(g *scheduler.Stage, near *search, lane bool) bool {
	if near.judged == 0 {
		near.slots = p.slots(g)
	}
	for i := g.NextPending(near.judged); i >= 0 && near.slots > 0; i = g.NextPending(i + 1) {
		near.judged = i + 1
		near.slots--
		if p.waitFor(g, i, lane) {
			continue
		}
		if p.exchange(g) {
			near.judged = i // it may wait yet
			near.slots++
			return true
		}
		node := p.moveTo(g, i, scheduler.NoNode)
		if node == scheduler.NoNode {
			panic("threedsf: stage " + g.ID().String() + " has room and no node")
		}
		p.place(g, i, node)
		p.moved.add(g, i, node, len(p.actions)-1, true)
		return true
	}
	if w, waits := p.waits[g]; waits {
		w.out = true
		p.waits[g] = w
		return false
	}
	near.judged = 0 // all moved: there is room again
	return p.waitOrMove(g, near, lane)
}

// judgeTasks is how many tasks of a stage are asked at most before the others do
// as they do.
const judgeTasks = 8

// slots counts the tasks of a stage that have room anywhere, up to judgeTasks.
func (p *Policy) slots(g *scheduler.Stage) int32 {
	n := int32(0)
	for id := p.nextNode(g, 0); id != scheduler.NoNode && n < judgeTasks; id = p.nextNode(g, id+1) {
		n += locality.Slots(p.s.Node(id), g.Spec.Demand, g.Spec.Disk, judgeTasks-n)
	}
	return n
}

// putItOff puts a stage behind all others of the cycle, unless its clock has run
// out.
func (p *Policy) putItOff(g *scheduler.Stage) bool {
	since := p.since(g)
	until := since.Add(p.cfg.MaxYield)
	if until <= p.now {
		return false
	}
	_, nodes, _ := g.Input(g.NextPending(0))
	for _, id := range nodes {
		if n := p.s.Node(id); n != nil && n.Takes() {
			w := wait{node: id, since: since, until: until, out: true}
			p.later = append(p.later, putOff{g, w})
			p.dry[g] = true // and room only shrinks
			p.waits[g] = w
			return true
		}
	}
	return false
}

// judgeLater lets those that were put off have their turn.
func (p *Policy) judgeLater() bool {
	if p.judging || len(p.later) == 0 || p.left == 0 {
		return false
	}
	p.judging = true
	for _, l := range p.later {
		delete(p.waits, l.stage)
		p.restart(l.stage.Job.Spec.Tenant)
	}
	return true
}

// since is when a stage began to wait, or last had a task placed at its data.
func (p *Policy) since(g *scheduler.Stage) scheduler.Time {
	if n, ok := p.s.Note(waitKey(g)); ok && !p.isLocal(g) {
		return n.At
	}
	return p.now
}

// waitFor tells whether a task waits for the node of its data, at most MaxWait
// after its stage began to wait or last had a task placed at its data.
func (p *Policy) waitFor(g *scheduler.Stage, task int32, lane bool) bool {
	since := p.since(g)
	until := since.Add(p.cfg.MaxWait)
	if lane { // within its slack
		p.outlook.Of(g.Job)
		until = min(until, p.outlook.LatestFor(g.Index, g.Pending))
	}
	if until <= p.now {
		return false
	}
	v := p.judge.Judge(p.s, g, task, &p.cfg.Network, p.now)
	if !v.Wait || (lane && v.Release > until) {
		return false
	}
	if _, had := p.waits[g]; !had {
		if !p.startClock(g, since) {
			return false
		}
		p.waits[g] = wait{node: v.Node, since: since, until: until}
		p.wakeAt(until)
	}
	p.judge.Wait(g, v.Node)
	return true
}

// startClock writes down since when a stage waits; without a clock it might
// wait for ever.
func (p *Policy) startClock(g *scheduler.Stage, since scheduler.Time) bool {
	n, ok := p.s.Note(waitKey(g))
	return (ok && n.At == since) || p.note(scheduler.Note{NoteKey: waitKey(g), At: since})
}

func (p *Policy) isLocal(g *scheduler.Stage) bool { return p.isNear[g] }

func waitKey(g *scheduler.Stage) scheduler.NoteKey {
	return scheduler.NoteKey{Kind: scheduler.NoteWaitSince, Job: g.Job.Spec.ID, Stage: g.Index}
}

// settleWaits starts the clocks of stages that were put off and had no task
// placed at its data, and forgets those of stages that had one and wait no more.
func (p *Policy) settleWaits() {
	for _, l := range p.later {
		if p.left > 0 {
			break // all were judged
		}
		if _, waits := p.waits[l.stage]; !waits {
			p.waits[l.stage] = l.wait
		}
		if !p.isLocal(l.stage) {
			p.startClock(l.stage, l.wait.since)
		}
	}
	for _, g := range p.local {
		if _, waits := p.waits[g]; waits {
			continue
		}
		if key := waitKey(g); p.hasClock(key) {
			key.Kind = scheduler.NoteForget
			p.note(scheduler.Note{NoteKey: key, Value: int64(scheduler.NoteWaitSince)})
		}
	}
}

func (p *Policy) hasClock(key scheduler.NoteKey) bool {
	_, ok := p.s.Note(key)
	return ok
}

// placeAnywhere places the next task of a stage: at its data where there is room
// (it is small), else where the least is left. The caller saw that it fits.
func (p *Policy) placeAnywhere(g *scheduler.Stage) {
	task := g.NextPending(0)
	node := scheduler.NoNode
	if p.cfg.Locality && g.Spec.Inputs != nil {
		node = p.idlestNear(g, task)
	}
	if node == scheduler.NoNode {
		node, _ = p.bestNode(g)
	}
	p.place(g, task, node)
}
