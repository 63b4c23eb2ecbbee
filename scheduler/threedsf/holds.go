package threedsf

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// hold keeps room on a node for a task of the stage (-1: any) until end.
func (p *Policy) hold(g *scheduler.Stage, task int32, node scheduler.NodeID, d scheduler.Resources, space int64, end scheduler.Time) {
	p.do(scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: p.newID(), Kind: scheduler.HoldPreempt,
		Job: g.Job.Spec.ID, Stage: g.Index, Task: task, Node: node, Demand: d, Disk: space, Start: p.now, End: end}})
	p.holds++
}

// keepHolds goes through the holds: it places the task of a hold that has its
// room, drops those that have no reason any more, and counts the rest.
func (p *Policy) keepHolds() {
	p.holds = 0
	p.kept = p.kept[:0]
	for _, r := range p.s.Holds() {
		if r.Kind == scheduler.HoldPreempt {
			p.kept = append(p.kept, r)
		}
	}
	p.holds = len(p.kept)
	for _, r := range p.kept {
		if p.left > 0 && !p.stands(r) && p.left > 0 {
			p.drop(r)
		}
	}
}

// drop ends a hold; one that was made in this very decision was never made. The
// latest action counts: an earlier one may have made another of the same id, which
// is gone.
func (p *Policy) drop(r *scheduler.Reservation) {
	for i := len(p.actions) - 1; i >= 0; i-- {
		if a := &p.actions[i]; a.Kind == scheduler.ActReserve && a.Reservation.ID == r.ID {
			act := scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: r.ID}}
			if err := p.s.Apply(&act, p.now); err != nil {
				panic("threedsf: a hold cannot be dropped: " + err.Error())
			}
			p.actions = slices.Delete(p.actions, i, i+1)
			p.moved.gone(i)
			p.left++
			p.steps++
			p.holds--
			p.special = true
			return
		}
	}
	p.do(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: r.ID}})
	p.holds--
}

// stands tells whether a hold is needed as it is; it places its task where it
// has its room.
func (p *Policy) stands(r *scheduler.Reservation) bool {
	g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
	n := p.s.Node(r.Node)
	if g == nil || r.End <= p.now || !n.Takes() || g.Job.Phase != scheduler.JobActive {
		return false
	}
	if r.End != scheduler.Never {
		p.wakeAt(r.End)
	}
	if r.Task >= 0 { // for a suspended task to come back
		a := p.sleeperOf(r)
		return a != nil && !p.stoppedByMiss(g.Job) && !p.olderHeld(a, r)
	}
	owed := p.promises > 0 && p.owed(g, r.Node)
	if !g.Ready() || (!owed && !p.inLane(g.Job)) || g.Startable() == 0 {
		return false
	}
	if disk, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); ok && (owed || p.open(n, g, g.Spec.Demand, g.Spec.Disk, disk)) {
		if _, _, _, ok := p.s.UnderCaps(g); ok {
			task := p.taskAt(g, r.Node)
			if owed {
				task = p.owedTask(g, r.Node)
			}
			p.place(g, task, r.Node)
			return false
		}
	}
	return !n.Releasing.IsZero()
}

// sleeperOf is the suspended attempt that a hold keeps room for; nil when there
// is none any more.
func (p *Policy) sleeperOf(r *scheduler.Reservation) *scheduler.Attempt {
	g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
	if g == nil || r.Task < 0 || r.Kind != scheduler.HoldPreempt {
		return nil
	}
	for a := range p.s.AttemptsOf(g, r.Task) {
		if a.Phase == scheduler.AttemptSuspended && a.Node == r.Node {
			return a
		}
	}
	return nil
}

// olderHeld tells whether the node of a's hold also keeps room for a task that
// was suspended before a.
func (p *Policy) olderHeld(a *scheduler.Attempt, own *scheduler.Reservation) bool {
	for _, r := range p.s.ReservationsOn(a.Node) {
		if r.ID == own.ID {
			continue
		}
		if b := p.sleeperOf(r); b != nil && (b.SuspendedAt < a.SuspendedAt || (b.SuspendedAt == a.SuspendedAt && b.Seq < a.Seq)) {
			return true
		}
	}
	return false
}

// taskAt gives the waiting task of a stage for a node: one with data there if
// there is one.
func (p *Policy) taskAt(g *scheduler.Stage, node scheduler.NodeID) int32 {
	for _, i := range p.s.TasksOn(g, node) {
		if g.IsPending(i) {
			return i
		}
	}
	return g.NextPending(0)
}

// holdsOf counts the holds for new tasks of a stage.
func (p *Policy) holdsOf(g *scheduler.Stage) int32 {
	if p.holds == 0 {
		return 0
	}
	n := int32(0)
	for _, r := range g.Job.Reservations() {
		if r.Kind == scheduler.HoldPreempt && r.Task < 0 && r.Stage == g.Index {
			n++
		}
	}
	return n
}

// heldFor tells whether room is kept for a suspended attempt.
func (p *Policy) heldFor(a *scheduler.Attempt) bool {
	for _, r := range p.s.ReservationsOn(a.Node) {
		if r.Kind == scheduler.HoldPreempt && r.Job == a.ID.Job && r.Stage == a.ID.Stage && r.Task == a.ID.Index {
			return true
		}
	}
	return false
}

// keptOn is what is held on a node for other jobs than j.
func (p *Policy) keptOn(n *scheduler.Node, j *scheduler.Job) (d scheduler.Resources, space int64) {
	if p.holds == 0 {
		return d, 0
	}
	for _, r := range p.s.ReservationsOn(n.Spec.ID) {
		if r.Kind == scheduler.HoldPreempt && r.Job != j.Spec.ID && r.End > p.now && !(p.past && r.Task >= 0) {
			d = d.Add(r.Demand)
			space += r.Disk
		}
	}
	return d, space
}

// nobody is no job: its id is 0.
var nobody = &scheduler.Job{}

// keptForAll is what is held on a node for anybody.
func (p *Policy) keptForAll(n *scheduler.Node, _ *scheduler.Job) (scheduler.Resources, int64) {
	return p.keptOn(n, nobody)
}

// open tells whether a demand of a stage on a disk of a node leaves what is held
// there for others alone.
func (p *Policy) open(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16) bool {
	if !p.guarded() {
		return true
	}
	if p.keep.by[n.Spec.ID] != nil && !p.leavesRoom(n, g.Job, d, space, disk) {
		return false
	}
	if p.promises > 0 && !p.keepsPromises(n, g, d, space, disk) {
		return false
	}
	kept, more := p.keptOn(n, g.Job)
	if kept.IsZero() && more == 0 {
		return true
	}
	free := int64(0)
	for i := range n.Disks {
		free += n.Disks[i].FreeSpace
	}
	return d.Add(kept).Fits(n.Free.Max(scheduler.Resources{})) && (space == 0 || space+more <= free)
}

// guarded tells whether anything is held, promised or kept anywhere.
func (p *Policy) guarded() bool { return p.holds > 0 || p.promises > 0 || len(p.keep.nodes) > 0 }

// openFor is open for a task of a stage.
func (p *Policy) openFor(n *scheduler.Node, g *scheduler.Stage) bool {
	if !p.guarded() {
		return true
	}
	disk, _ := n.Fits(g.Spec.Demand, g.Spec.Disk)
	return p.open(n, g, g.Spec.Demand, g.Spec.Disk, disk)
}

// closedTo names tasks for which the same nodes are open: promises and holds are
// weighed by what a task takes, its bound, and whether it can be made to leave.
type closedTo struct {
	shape
	bound time.Duration
	firm  bool
	// Of a job whose predicted end some promises were made counting on:
	estimate time.Duration
	since    scheduler.Time
}

// beginShrinking tells that from here on room only shrinks and nothing that is
// reserved goes away, so that a node that is closed to a task stays closed to all
// like it. O(holds + jobs with promises).
func (p *Policy) beginShrinking() {
	p.shrinks = true
	clear(p.closed)
	clear(p.exempt)
	for _, r := range p.kept {
		p.exempt[r.Job] = true
	}
	for _, r := range p.s.Holds() {
		p.exempt[r.Job] = true
	}
	p.watchJobs()
	p.latest = scheduler.Never
	for i := range p.watch.jobs {
		x := &p.watch.jobs[i]
		if x.loose {
			p.exempt[x.id] = true
		}
		if x.foreseen {
			p.latest = min(p.latest, x.startsBy)
		}
	}
}

// nextNode is State.NextNode without nodes whose room is held for others. Over
// all calls while room shrinks each node is looked at once for tasks of a kind, and
// those on which something is reserved for its own job once more.
func (p *Policy) nextNode(g *scheduler.Stage, from scheduler.NodeID) scheduler.NodeID {
	if !p.guarded() {
		return p.s.NextNode(g, from)
	}
	if !p.shrinks {
		return p.firstOpen(g, from)
	}
	if p.s.NextNode(g, from) == scheduler.NoNode {
		return scheduler.NoNode // most stages of a full cluster
	}
	key := closedTo{shape: shape{g.Spec.Demand, g.Spec.Disk}, bound: g.Job.Spec.Bound, firm: p.s.Firm(g.Job)}
	if g.Job.Spec.Accepted && key.bound == 0 {
		key.estimate, key.since = g.Spec.Estimate, g.Job.Spec.Submitted
	}
	closed := p.closed[key]
	if p.exempt[g.Job.Spec.ID] {
		return p.firstForOwn(g, from, closed)
	}
	id := p.firstOpen(g, max(from, closed))
	if from <= closed {
		if p.closed[key] = id; id == scheduler.NoNode {
			p.closed[key] = scheduler.NodeID(len(p.s.Nodes()))
		}
	}
	return id
}

// firstForOwn is firstOpen for a task whose own job has something reserved: below
// closed only a node where that is can be open to it.
func (p *Policy) firstForOwn(g *scheduler.Stage, from, closed scheduler.NodeID) scheduler.NodeID {
	best := scheduler.NoNode
	for _, r := range g.Job.Reservations() {
		id := r.Node
		if id < from || id >= closed || (best != scheduler.NoNode && id >= best) {
			continue
		}
		if p.s.HasRoom(g, id) && p.openFor(p.s.Node(id), g) {
			best = id
		}
	}
	if best == scheduler.NoNode {
		best = p.firstOpen(g, max(from, closed))
	}
	return best
}

func (p *Policy) firstOpen(g *scheduler.Stage, from scheduler.NodeID) scheduler.NodeID {
	id := p.s.NextNode(g, from)
	for id != scheduler.NoNode && !p.openFor(p.s.Node(id), g) {
		id = p.s.NextNode(g, id+1)
	}
	return id
}

// bestNode is State.BestNode without nodes whose room is held for others.
func (p *Policy) bestNode(g *scheduler.Stage) (scheduler.NodeID, int16) {
	id, disk := p.s.BestNode(g)
	if !p.guarded() || id == scheduler.NoNode || p.openFor(p.s.Node(id), g) {
		return id, disk
	}
	best, least := scheduler.NoNode, 0.0
	for id, k := p.nextNode(g, 0), 0; id != scheduler.NoNode && k < tightest; id, k = p.nextNode(g, id+1), k+1 {
		n := p.s.Node(id)
		shares := n.Free.Shares(n.Spec.Capacity)
		if left := shares[0] + shares[1] + shares[2]; best == scheduler.NoNode || left < least {
			best, least = id, left
		}
	}
	if best == scheduler.NoNode {
		return best, -1
	}
	disk, _ = p.s.Node(best).Fits(g.Spec.Demand, g.Spec.Disk)
	return best, disk
}

// tightest is how many nodes with room bestNode compares, as State.BestNode.
const tightest = 8

// blocker gives a hold or promise of another that keeps a task of the stage off a
// node with room; nil where its own promise alone does so on one of them.
func (p *Policy) blocker(g *scheduler.Stage) *scheduler.Reservation {
	var first *scheduler.Reservation
	for id := p.s.NextNode(g, 0); id != scheduler.NoNode; id = p.s.NextNode(g, id+1) {
		i := slices.IndexFunc(p.s.ReservationsOn(id), func(r *scheduler.Reservation) bool {
			return (r.Kind == scheduler.HoldPreempt || r.Kind.Promise()) && r.Job != g.Job.Spec.ID && r.End > p.now
		})
		if i < 0 {
			return nil
		}
		if first == nil {
			first = p.s.ReservationsOn(id)[i]
		}
	}
	return first
}

// plannedFor is when the first task of a stage is planned to start after now, or
// Never. The starts of all stages are listed once a cycle.
func (p *Policy) plannedFor(g *scheduler.Stage) scheduler.Time {
	if len(p.starts) == 0 {
		for _, r := range p.s.Promises() { // in order of start
			if id := (scheduler.StageID{Job: r.Job, Stage: r.Stage}); planned(r) && r.Start > p.now {
				if _, had := p.starts[id]; !had {
					p.starts[id] = r.Start
				}
			}
		}
	}
	if at, ok := p.starts[g.ID()]; ok {
		return at
	}
	return scheduler.Never
}
