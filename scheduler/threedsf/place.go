package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// group is the picks of one shape that take part in matching.
type group struct {
	demand scheduler.Resources
	disk   int64
}

// wait is why a stage waits for data.
type wait struct {
	node  scheduler.NodeID
	since scheduler.Time
	until scheduler.Time
}

// placeBatch places what was picked: first what reads much, by matching, shape
// by shape in the order of the picks; then in the order of the picks all that
// is left. What finds no room, or waits, gets its share back.
func (p *Policy) placeBatch() {
	p.groups = p.groups[:0]
	for i := range p.picks {
		if k := &p.picks[i]; p.matches(k.stage) {
			k.group = p.groupOf(k.stage)
		}
	}
	for i := range p.groups {
		p.placeByData(int32(i))
	}
	for i := range p.picks {
		k := &p.picks[i]
		if k.group >= 0 {
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

func (p *Policy) groupOf(g *scheduler.Stage) int32 {
	for i := range p.groups {
		if o := &p.groups[i]; o.demand == g.Spec.Demand && o.disk == g.Spec.Disk {
			return int32(i)
		}
	}
	p.groups = append(p.groups, group{g.Spec.Demand, g.Spec.Disk})
	return int32(len(p.groups) - 1)
}

// placeByData matches the picks of one shape with nodes that hold their data.
// Picks of one stage are one request.
func (p *Policy) placeByData(of int32) {
	p.request, p.of = p.request[:0], p.of[:0]
	for i := range p.picks {
		k := &p.picks[i]
		if k.group != of {
			continue
		}
		at := -1
		for r := range p.request {
			if p.request[r].Stage == k.stage {
				at = r
			}
		}
		if at >= 0 {
			p.request[at].Count += k.count
			p.picks[p.of[at]].count += k.count
			k.count = 0
			continue
		}
		p.request = append(p.request, locality.Request{Stage: k.stage, Count: k.count})
		p.of = append(p.of, int32(i))
	}
	for {
		placed := p.match.Match(p.s, p.request)
		if len(placed) == 0 {
			return
		}
		for _, a := range placed {
			k := &p.picks[p.of[a.Request]]
			p.place(k.stage, a.Task, a.Node)
			p.placedNear(k.stage)
			p.request[a.Request].Count--
			k.count--
		}
		if !slices.ContainsFunc(p.request, func(r locality.Request) bool { return r.Count > 0 }) {
			return
		}
	}
}

// placedNear notes that a stage with a wait on record got a task placed at its
// data: its clock starts anew.
func (p *Policy) placedNear(g *scheduler.Stage) {
	if p.isLocal(g) {
		return
	}
	if _, ok := p.s.Note(waitKey(g)); ok {
		p.local = append(p.local, g)
	}
}

// waitOrMove judges the tasks of a pick that found no room at their data.
func (p *Policy) waitOrMove(k *pick) {
	g := k.stage
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

// waitFor tells whether a task waits for the node of its data, at most MaxWait
// after its stage began to wait or last had a task placed at its data.
func (p *Policy) waitFor(k *pick, task int32) bool {
	g, since := k.stage, p.now
	if n, ok := p.s.Note(waitKey(g)); ok && !p.isLocal(g) {
		since = n.At
	}
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
		if n, ok := p.s.Note(waitKey(g)); (!ok || n.At != since) && !p.note(scheduler.Note{NoteKey: waitKey(g), At: since}) {
			return false // without a clock it might wait for ever
		}
		p.waits[g] = wait{node: v.Node, since: since, until: until}
		p.wakeAt(until)
	}
	p.judge.Wait(g, v.Node)
	return true
}

func (p *Policy) isLocal(g *scheduler.Stage) bool {
	for _, l := range p.local {
		if l == g {
			return true
		}
	}
	return false
}

func waitKey(g *scheduler.Stage) scheduler.NoteKey {
	return scheduler.NoteKey{Kind: scheduler.NoteWaitSince, Job: g.Job.Spec.ID, Stage: g.Index}
}

// settleWaits forgets the clocks of stages that wait no more and had a task
// placed at its data.
func (p *Policy) settleWaits() {
	for _, g := range p.local {
		if _, waits := p.waits[g]; !waits {
			key := waitKey(g)
			kind := key.Kind
			key.Kind = scheduler.NoteForget
			p.note(scheduler.Note{NoteKey: key, Value: int64(kind)})
		}
	}
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
