package threedsf

import "github.com/drover-run/drover/scheduler"

// Config.Reserve: a task whose turn it is and that fits nowhere keeps the node
// that lacks least, as YARN's schedulers do; without that a task that needs
// several places of a node is passed over for ever while small ones keep
// coming. Nothing of it is remembered: in each pass nodes are kept anew in the
// order of turns.

// A pass keeps a node in sixteen, at least fewestKept and at most mostKept, and
// for one task looks at lookedAt nodes, from one on that depends on its job.
const (
	fewestKept = 4
	mostKept   = 64
	lookedAt   = 256
)

// keeping is the nodes kept in a pass.
type keeping struct {
	by    []*scheduler.Stage // by node, nil where it is open
	at    []scheduler.Time   // by kept node: when it should have room, Never where nobody knows
	nodes []scheduler.NodeID // those that are kept
	tried map[*scheduler.Stage]bool

	state   *scheduler.State // of which is known whether a job has a bound
	work    uint64           // State.Work then
	bounded bool

	candidates []candidate // scratch
	ends       []leaving   // scratch
}

// begin forgets what the pass before kept.
func (k *keeping) begin(nodes int) {
	for _, id := range k.nodes {
		k.by[id] = nil
	}
	for len(k.by) < nodes {
		k.by, k.at = append(k.by, nil), append(k.at, scheduler.Never)
	}
	k.nodes = k.nodes[:0]
	clear(k.tried)
}

// wants tells whether a stage that is next should have its turn though it has no
// room: once a pass, as long as there are nodes to keep.
func (p *Policy) wants(g *scheduler.Stage) bool {
	if !p.cfg.Reserve || p.isFull() || g.Startable() == 0 || p.keep.tried[g] || p.s.NextNode(g, 0) != scheduler.NoNode {
		return false
	}
	if w, waits := p.waits[g]; waits && w.out {
		return false
	}
	if p.promises > 0 && p.allPlanned(g) {
		return false
	}
	_, _, _, ok := p.s.UnderCaps(g)
	return ok
}

// allPlanned tells whether each waiting task of a stage has its place in the plan
// of the promises: nobody can take that, so no node need be kept for it.
func (p *Policy) allPlanned(g *scheduler.Stage) bool {
	n := int32(0)
	for _, r := range g.Job.Reservations() {
		if r.Stage == g.Index && planned(r) && r.End > p.now && g.IsPending(r.Task) {
			n++
		}
	}
	return n >= g.Pending
}

func (p *Policy) isFull() bool {
	return len(p.keep.nodes) >= min(max(len(p.s.Nodes())/16, fewestKept), mostKept)
}

// keepFor keeps a node for each task of a stage whose turn it is, as long as
// there are nodes to keep.
func (p *Policy) keepFor(g *scheduler.Stage) {
	if p.keep.tried == nil {
		p.keep.tried = map[*scheduler.Stage]bool{}
	}
	p.keep.tried[g] = true
	if p.isBounded() {
		p.keepSoonest(g)
		return
	}
	for n := g.Startable(); n > 0 && !p.isFull(); n-- {
		id := p.nearest(g)
		if id == scheduler.NoNode {
			return
		}
		p.keepNode(id, g, scheduler.Never)
	}
}

// keepNode keeps a node for a task of a stage, which should have room there at an
// instant.
func (p *Policy) keepNode(id scheduler.NodeID, g *scheduler.Stage, at scheduler.Time) {
	k := &p.keep
	k.by[id], k.at[id] = g, at
	k.nodes = append(k.nodes, id)
	if k.closed(id) {
		p.driesUp(id)
	}
}

// closed tells whether nothing can start on a node because it is kept.
func (k *keeping) closed(id scheduler.NodeID) bool {
	return k.by[id] != nil && k.at[id] == scheduler.Never
}

// nextOpen gives a node with room for a shape that is not closed, or NoNode.
func (p *Policy) nextOpen(sh shape) scheduler.NodeID {
	id := p.s.NextNodeFor(sh.demand, sh.disk, 0)
	for id != scheduler.NoNode && p.keep.closed(id) {
		id = p.s.NextNodeFor(sh.demand, sh.disk, id+1)
	}
	return id
}

// nearest gives the open node that lacks least of what a task of the stage needs
// by its scarcest resource, of those that could hold it were they empty; ties to
// the first one looked at. O(lookedAt).
func (p *Policy) nearest(g *scheduler.Stage) scheduler.NodeID {
	nodes := p.s.Nodes()
	best, most := scheduler.NoNode, -1.0
	from := int(uint64(g.Job.Spec.ID) % uint64(max(1, len(nodes))))
	for i := range min(len(nodes), lookedAt) {
		n := nodes[(from+i)%len(nodes)]
		if !n.Takes() || p.keep.by[n.Spec.ID] != nil {
			continue
		}
		if near := n.Nearness(g.Spec.Demand); near > most {
			best, most = n.Spec.ID, near
		}
	}
	return best
}

// keptFrom gives a stage for which a node is kept that has room for a task of
// another; nil if none is.
func (p *Policy) keptFrom(g *scheduler.Stage) *scheduler.Stage {
	for _, id := range p.keep.nodes {
		if p.s.HasRoom(g, id) {
			return p.keep.by[id]
		}
	}
	return nil
}
