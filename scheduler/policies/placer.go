package policies

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

var reserveParam = Param{Name: "reserve", Kind: Bool, Default: "false",
	Help: "keep a node for each task that is next and fits nowhere, as YARN does, instead of passing it over"}

// placer is what the simple policies share: a try on the State, actions and
// reasons gathered in slices that are used again, and the answer for a cycle
// in which nothing changed. It is a cache throughout.
type placer struct {
	s     *scheduler.State
	now   scheduler.Time
	left  int
	mark  scheduler.Mark
	seen  scheduler.Stamp
	known bool // the decision at seen placed nothing
	head  *scheduler.Stage

	// reserve keeps a node for each task that is next in the policy's order and
	// fits nowhere, as YARN's schedulers do: without that a large task is passed
	// over for ever while small ones keep coming.
	reserve bool
	kept    []scheduler.NodeID // the nodes kept in this cycle
	keptFor []scheduler.StageID
	silent  bool // reasons are not wanted
	passes  int
	before  int // actions at the start of the pass

	actions []scheduler.Action
	resumes []scheduler.Action
	waiting []scheduler.Waiting
	lacks   []lack
	wake    scheduler.Time
}

// lack is why no node has room for one demand, at the end of the cycle.
type lack struct {
	demand scheduler.Resources
	disk   int64
	reason scheduler.Reason
	nodes  int32
	behind scheduler.StageID // for which what would have room is kept
}

// begin starts a cycle; true means that nothing changed since one that placed
// nothing, so idle is the answer.
func (p *placer) begin(s *scheduler.State, now scheduler.Time, max int) bool {
	if p.open(s, now, max) {
		return true
	}
	p.resume()
	return false
}

// open is begin for a policy that resumes by itself.
func (p *placer) open(s *scheduler.State, now scheduler.Time, max int) bool {
	if p.known && p.seen == s.Stamp() && (p.wake == 0 || now < p.wake) && max > 0 {
		return true
	}
	p.s, p.now, p.left, p.head, p.wake = s, now, max, nil, 0
	p.seen = s.Stamp()
	p.actions, p.waiting, p.lacks = p.actions[:0], p.waiting[:0], p.lacks[:0]
	p.passes = 0
	p.mark = s.Mark()
	return false
}

// resume brings back what is suspended, in order of suspension, before
// anything new starts: no policy here suspends, so that was another's doing.
func (p *placer) resume() {
	p.resumes = p.resumes[:0]
	for a := range p.s.Suspended() {
		p.resumes = append(p.resumes, scheduler.Action{Kind: scheduler.ActResume, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run})
	}
	for i := range p.resumes {
		if a := &p.resumes[i]; p.left > 0 && p.s.CanResume(p.s.Attempt(a.AttemptID())) {
			p.act(*a)
		}
	}
}

// pass tells whether to go through the jobs: once, and where nodes were kept
// again after each pass that placed something, for then the order in which they
// were kept may be another. So what is decided last is what the next cycle would
// decide first.
func (p *placer) pass() bool {
	if p.passes > 0 && (len(p.kept) == 0 || len(p.actions) == p.before) {
		return false
	}
	p.passes, p.before, p.head = p.passes+1, len(p.actions), nil
	p.kept, p.keptFor, p.waiting = p.kept[:0], p.keptFor[:0], p.waiting[:0]
	return true
}

func (p *placer) idle(now scheduler.Time) scheduler.Decision {
	return scheduler.Decision{Base: p.s.Index(), At: now, Waiting: p.waiting, Wake: p.wake}
}

// end undoes the try and gives the decision.
func (p *placer) end() scheduler.Decision {
	for i := range p.waiting {
		if w := &p.waiting[i]; w.Reason == 0 {
			w.Reason, w.Nodes, w.Behind = p.noRoom(p.s.Stage(w.Stage))
		}
	}
	// The order of asking may depend on the time, the order of telling must not:
	// a cycle in which nothing changed tells the same.
	if !slices.IsSortedFunc(p.waiting, byStage) {
		slices.SortFunc(p.waiting, byStage)
	}
	p.s.Rollback(p.mark)
	p.known = len(p.actions) == 0 && p.left > 0
	return scheduler.Decision{Base: p.s.Index(), At: p.now, Actions: p.actions, Waiting: p.waiting, Wake: p.wake}
}

func byStage(a, b scheduler.Waiting) int { return a.Stage.Compare(b.Stage) }

// placeAll places as many tasks of the stage as it can and notes why the rest
// waits.
func (p *placer) placeAll(g *scheduler.Stage) {
	for g.Ready() {
		if !p.placeOne(g) {
			return
		}
	}
}

// placeOne places the next task of the stage, or notes why it waits.
func (p *placer) placeOne(g *scheduler.Stage) bool {
	w := scheduler.Waiting{Stage: g.ID(), Tasks: g.Pending}
	switch {
	case g.Startable() == 0:
		w.Reason = scheduler.ReasonMaxParallel
	case p.left <= 0:
		w.Reason = scheduler.ReasonTurn
	default:
		var ok bool
		if w.Tenant, w.Cap, w.Resource, ok = p.s.UnderCaps(g); !ok {
			w.Reason = scheduler.ReasonCap
			break
		}
		node, disk := p.s.BestNodeBut(g, p.kept)
		if node == scheduler.NoNode {
			p.keep(g)
			if p.head == nil { // the reason is counted at the end
				p.head = g
			}
			break
		}
		p.place(g, node, disk)
		return true
	}
	p.wait(w)
	return false
}

// maxKept bounds the nodes kept in one cycle.
const maxKept = 64

// keep keeps a node for each waiting task of a stage that fits nowhere.
func (p *placer) keep(g *scheduler.Stage) {
	if !p.reserve {
		return
	}
	for range g.Startable() {
		n := scheduler.NoNode
		if len(p.kept) < maxKept {
			n = p.s.NearestNode(g, p.kept)
		}
		if n == scheduler.NoNode {
			return
		}
		p.kept, p.keptFor = append(p.kept, n), append(p.keptFor, g.ID())
	}
}

func (p *placer) place(g *scheduler.Stage, n scheduler.NodeID, disk int16) {
	p.act(p.s.Place(g, g.NextPending(0), n, disk))
}

// act tries an action on the State and takes it into the decision.
func (p *placer) act(a scheduler.Action) {
	p.actions = append(p.actions, a)
	if err := p.s.Apply(&p.actions[len(p.actions)-1], p.now); err != nil {
		panic("policies: an action that fits is refused: " + err.Error())
	}
	p.left--
}

func (p *placer) wait(w scheduler.Waiting) {
	if !p.silent {
		p.waiting = append(p.waiting, w)
	}
}

// reasons says whether reasons are wanted.
func (p *placer) reasons(wanted bool) { p.silent, p.known = !wanted, false }

// full tells that nothing more can be placed in this cycle and that nobody asks
// why.
func (p *placer) full() bool { return p.silent && (p.left <= 0 || !p.s.RoomForAny()) }

// noRoom counts why no node has room, once for each demand. Where one has, it
// is kept for another stage, which is given.
func (p *placer) noRoom(g *scheduler.Stage) (scheduler.Reason, int32, scheduler.StageID) {
	for i := range p.lacks {
		if l := &p.lacks[i]; l.demand == g.Spec.Demand && l.disk == g.Spec.Disk {
			return l.reason, l.nodes, l.behind
		}
	}
	l := p.s.Lacking(g)
	reason, nodes, behind := scheduler.ReasonNoNode, int32(0), scheduler.StageID{}
	if l.Nodes > 0 {
		var r scheduler.Resource
		r, nodes = l.Most()
		reason = scheduler.NoRoom(r)
	}
	for i, n := range p.kept {
		if _, fits := p.s.Node(n).Fits(g.Spec.Demand, g.Spec.Disk); fits {
			reason, nodes, behind = scheduler.ReasonShare, 0, p.keptFor[i]
			break
		}
	}
	p.lacks = append(p.lacks, lack{g.Spec.Demand, g.Spec.Disk, reason, nodes, behind})
	return reason, nodes, behind
}
