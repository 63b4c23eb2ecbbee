package threedsf

import (
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
}

// putOff is a stage that found no room at its data and lets others go first.
type putOff struct {
	stage *scheduler.Stage
	wait  wait
}

// placeBatch places what was picked: first what reads much, by matching; then
// in the order of the picks all that is left. What finds no room, or waits, gets
// its share back.
func (p *Policy) placeBatch() {
	p.placeByData()
	for i := range p.picks {
		k := &p.picks[i]
		if k.count == 0 {
			continue
		}
		if k.data {
			p.waitOrMove(k)
		} else {
			p.placeAnywhere(k)
		}
		if k.count > 0 {
			p.shares.charge(k.tenant, scheduler.Resources{}.Sub(k.stage.Spec.Demand.Times(int64(k.count))))
		}
	}
}

// matches tells whether a stage takes part in matching: its next task reads a
// block or more.
func (p *Policy) matches(g *scheduler.Stage) bool {
	if !p.cfg.Locality || g.Spec.Inputs == nil {
		return false
	}
	bytes, nodes, _ := g.Input(g.NextPending(0))
	return len(nodes) > 0 && bytes >= p.cfg.SmallTask
}

// placeByData matches the picks that read much with nodes that hold their data.
// Picks of one stage are one request, at the place of the first.
func (p *Policy) placeByData() {
	p.request, p.of = p.request[:0], p.of[:0]
	clear(p.requestOf)
	for i := range p.picks {
		k := &p.picks[i]
		if k.data = p.matches(k.stage); !k.data {
			continue
		}
		if at, ok := p.requestOf[k.stage]; ok {
			p.request[at].Count += k.count
			p.picks[p.of[at]].count += k.count
			k.count = 0
			continue
		}
		p.requestOf[k.stage] = int32(len(p.request))
		p.request = append(p.request, locality.Request{Stage: k.stage, Count: k.count})
		p.of = append(p.of, int32(i))
	}
	for left := len(p.request); left > 0; {
		assigned := p.match.Match(p.s, p.request)
		if len(assigned) == 0 {
			return
		}
		for _, a := range assigned {
			r := &p.request[a.Request]
			if !p.fits(r.Stage, a.Node) {
				continue
			}
			p.place(r.Stage, a.Task, a.Node)
			p.placedNear(r.Stage)
			p.picks[p.of[a.Request]].count--
			if r.Count--; r.Count == 0 {
				left--
			}
		}
	}
}

// fits tells whether a task of the stage may be placed on a node now.
func (p *Policy) fits(g *scheduler.Stage, id scheduler.NodeID) bool {
	n := p.s.Node(id)
	_, ok := n.Fits(g.Spec.Demand, g.Spec.Disk)
	return ok && p.openFor(n, g)
}

// placedNear notes that a stage got a task placed at its data: its clock starts
// anew.
func (p *Policy) placedNear(g *scheduler.Stage) {
	if !p.isLocal(g) {
		p.isNear[g] = true
		p.local = append(p.local, g)
	}
}

// waitOrMove judges the tasks of a pick that found no room at their data. As
// long as others have not had their turn they are put off: a slot that somebody
// else has data at is better used so, and the clock bounds how long.
func (p *Policy) waitOrMove(k *pick) {
	g := k.stage
	if !p.judging && !k.lane && p.putItOff(g) {
		return
	}
	for i := g.NextPending(0); i >= 0 && k.count > 0; i = g.NextPending(i + 1) {
		if g.Startable() == 0 {
			return
		}
		if p.waitFor(k, i) {
			k.count-- // its share is given back
			p.shares.charge(k.tenant, scheduler.Resources{}.Sub(g.Spec.Demand))
			continue
		}
		node := p.moveTo(g, i)
		if node == scheduler.NoNode {
			return
		}
		p.place(g, i, node)
		k.count--
	}
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
			w := wait{node: id, since: since, until: until}
			p.later = append(p.later, putOff{g, w})
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
func (p *Policy) waitFor(k *pick, task int32) bool {
	g := k.stage
	since := p.since(g)
	until := since.Add(p.cfg.MaxWait)
	if k.lane { // within its slack
		p.outlook.Of(g.Job)
		until = min(until, p.outlook.LatestFor(g.Index, g.Pending))
	}
	if until <= p.now {
		return false
	}
	v := p.judge.Judge(p.s, g, task, &p.cfg.Network, p.now)
	if !v.Wait || (k.lane && v.Release > until) {
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

// placeAnywhere places the tasks of a pick: at their data where there is room
// (they are small), else where the least is left.
func (p *Policy) placeAnywhere(k *pick) {
	g := k.stage
	for ; k.count > 0 && g.Startable() > 0; k.count-- {
		task := g.NextPending(0)
		node := scheduler.NoNode
		if p.cfg.Locality && g.Spec.Inputs != nil {
			if p.near = locality.Near(p.s, g, task, p.near[:0]); len(p.near) > 0 {
				for _, id := range p.near {
					if p.openFor(p.s.Node(id), g) {
						node = id
						break
					}
				}
			}
		}
		if node == scheduler.NoNode {
			if node, _ = p.bestNode(g); node == scheduler.NoNode {
				return
			}
		}
		p.place(g, task, node)
	}
}
