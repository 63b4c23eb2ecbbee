package threedsf

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// reserveForPreemption reserves capacity on a node until end, for one task of the
// stage or, with task -1, for any.
func (p *Policy) reserveForPreemption(g *scheduler.Stage, task int32, node scheduler.NodeID, d scheduler.Resources, space int64, end scheduler.Time) {
	p.apply(scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: p.nextReservationID(), Kind: scheduler.ReservePreempt,
		Job: g.Job.Spec.ID, Stage: g.Index, Task: task, Node: node, Demand: d, Disk: space, Start: p.now, End: end}})
	p.preemptReservationCount++
}

// refreshPreemptReservations places the tasks whose preemption reservation has its
// capacity, drops reservations without a purpose, and counts the rest.
func (p *Policy) refreshPreemptReservations() {
	p.preemptReservationCount = 0
	p.preemptReservations = p.preemptReservations[:0]
	for _, r := range p.s.Reservations().Unguaranteed() {
		if r.Kind == scheduler.ReservePreempt {
			p.preemptReservations = append(p.preemptReservations, r)
		}
	}
	p.preemptReservationCount = len(p.preemptReservations)
	for _, r := range p.preemptReservations {
		if p.actionsLeft > 0 && !p.placeOrKeepReservation(r) && p.actionsLeft > 0 {
			p.dropReservation(r)
		}
	}
}

// dropReservation ends a preemption reservation. One made by this decision is
// withdrawn from it: the latest matching action, since an earlier one may have made
// and dropped a reservation of the same id.
func (p *Policy) dropReservation(r *scheduler.Reservation) {
	for i := len(p.actions) - 1; i >= 0; i-- {
		if a := &p.actions[i]; a.Kind == scheduler.ActReserve && a.Reservation.ID == r.ID {
			act := scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: r.ID}}
			if err := p.s.Apply(&act, p.now); err != nil {
				panic("threedsf: State refused to drop a preemption reservation: " + err.Error())
			}
			p.actions = slices.Delete(p.actions, i, i+1)
			p.exchanges.removeAction(i)
			p.actionsLeft++
			p.changeCount++
			p.preemptReservationCount--
			p.nonPlacement = true
			return
		}
	}
	p.apply(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: r.ID}})
	p.preemptReservationCount--
}

// placeOrKeepReservation places the task of a reservation if its capacity is free
// now. It reports whether the reservation must stay: false if it is pointless or its
// task was just placed.
func (p *Policy) placeOrKeepReservation(r *scheduler.Reservation) bool {
	g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
	n := p.s.Node(r.Node)
	if g == nil || r.End <= p.now || !n.Schedulable() || g.Job.Phase != scheduler.JobActive {
		return false
	}
	if r.End != scheduler.Never {
		p.wakeAt(r.End)
	}
	if r.Task >= 0 { // reserved for a suspended task to resume
		a := p.suspendedAttemptOf(r)
		return a != nil && !p.isStoppedByMiss(g.Job) && !p.hasOlderReservation(a, r)
	}
	due := p.guaranteeCount > 0 && p.hasDueTask(g, r.Node)
	if !g.Ready() || (!due && (!p.inLane(g.Job) || p.s.Cluster().Avoids(g, r.Node))) || g.Startable() == 0 {
		return false
	}
	if disk, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); ok && (due || p.respectsReservations(n, g, g.Spec.Demand, g.Spec.Disk, disk)) {
		if _, _, _, ok := p.s.TenantTree().UnderCaps(g); ok {
			task := p.pickTaskFor(g, r.Node)
			if due {
				task = p.dueTask(g, r.Node)
			}
			p.place(g, task, r.Node)
			return false
		}
	}
	return !n.Releasing.IsZero()
}

// suspendedAttemptOf returns the suspended attempt that a reservation is for, or nil
// if there is none any more.
func (p *Policy) suspendedAttemptOf(r *scheduler.Reservation) *scheduler.Attempt {
	g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
	if g == nil || r.Task < 0 || r.Kind != scheduler.ReservePreempt {
		return nil
	}
	for a := range p.s.Attempts().Of(g, r.Task) {
		if a.Phase == scheduler.AttemptSuspended && a.Node == r.Node {
			return a
		}
	}
	return nil
}

// hasOlderReservation reports whether the node of a has another reservation, for a
// task that was suspended before a.
func (p *Policy) hasOlderReservation(a *scheduler.Attempt, own *scheduler.Reservation) bool {
	for _, r := range p.s.Reservations().On(a.Node) {
		if r.ID == own.ID {
			continue
		}
		if b := p.suspendedAttemptOf(r); b != nil && (b.SuspendedAt < a.SuspendedAt || (b.SuspendedAt == a.SuspendedAt && b.Seq < a.Seq)) {
			return true
		}
	}
	return false
}

// pickTaskFor returns the waiting task of a stage to place on a node: one with input
// there, if any.
func (p *Policy) pickTaskFor(g *scheduler.Stage, node scheduler.NodeID) int32 {
	for _, i := range g.TasksOn(node) {
		if g.IsPending(i) {
			return i
		}
	}
	return g.NextPending(0)
}

// countPreemptReservations returns the number of preemption reservations for new
// tasks of a stage.
func (p *Policy) countPreemptReservations(g *scheduler.Stage) int32 {
	if p.preemptReservationCount == 0 {
		return 0
	}
	n := int32(0)
	for _, r := range g.Job.Reservations() {
		if r.Kind == scheduler.ReservePreempt && r.Task < 0 && r.Stage == g.Index {
			n++
		}
	}
	return n
}

// hasReservationFor reports whether capacity is reserved for a suspended attempt.
func (p *Policy) hasReservationFor(a *scheduler.Attempt) bool {
	for _, r := range p.s.Reservations().On(a.Node) {
		if r.Kind == scheduler.ReservePreempt && r.Job == a.ID.Job && r.Stage == a.ID.Stage && r.Task == a.ID.Index {
			return true
		}
	}
	return false
}

// reservedForOthers returns what preemption reservations on a node take for jobs
// other than j.
func (p *Policy) reservedForOthers(n *scheduler.Node, j *scheduler.Job) (d scheduler.Resources, space int64) {
	if p.preemptReservationCount == 0 {
		return d, 0
	}
	for _, r := range p.s.Reservations().On(n.Spec.ID) {
		if r.Kind == scheduler.ReservePreempt && r.Job != j.Spec.ID && r.End > p.now && !(p.ignoreResumeReservations && r.Task >= 0) {
			d = d.Add(r.Demand)
			space += r.Disk
		}
	}
	return d, space
}

// noJob stands for no job: its id is 0.
var noJob = &scheduler.Job{}

// reservedForAll returns what preemption reservations on a node take for any job.
func (p *Policy) reservedForAll(n *scheduler.Node, _ *scheduler.Job) (scheduler.Resources, int64) {
	return p.reservedForOthers(n, noJob)
}

// respectsReservations reports whether starting d of a stage (with space on disk)
// leaves alone what is reserved on the node for others: nodes reserved in this pass,
// guarantees and preemption reservations.
func (p *Policy) respectsReservations(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16) bool {
	if !p.hasReservations() {
		return true
	}
	if p.reserved.stageOn[n.Spec.ID] != nil && !p.leavesCapacity(n, g, d, space, disk) {
		return false
	}
	if p.guaranteeCount > 0 && !p.honoursGuarantees(n, g, d, space, disk) {
		return false
	}
	reserved, reservedSpace := p.reservedForOthers(n, g.Job)
	if reserved.IsZero() && reservedSpace == 0 {
		return true
	}
	free := int64(0)
	for i := range n.Disks {
		free += n.Disks[i].FreeSpace
	}
	return d.Add(reserved).Fits(n.Free.Max(scheduler.Resources{})) && (space == 0 || space+reservedSpace <= free)
}

// hasReservations reports whether any capacity is reserved anywhere.
func (p *Policy) hasReservations() bool {
	return p.preemptReservationCount > 0 || p.guaranteeCount > 0 || len(p.reserved.nodes) > 0
}

// isOpenTo reports whether respectsReservations holds for a task of a stage.
func (p *Policy) isOpenTo(n *scheduler.Node, g *scheduler.Stage) bool {
	if !p.hasReservations() {
		return true
	}
	disk, _ := n.Fits(g.Spec.Demand, g.Spec.Disk)
	return p.respectsReservations(n, g, g.Spec.Demand, g.Spec.Disk, disk)
}

// closedKey identifies tasks to which the same nodes are open. Reservations exclude
// a task by its demand, its bound and whether it can be preempted.
type closedKey struct {
	equivalenceClass
	bound          time.Duration
	nonPreemptible bool
}

// beginShrinkOnly declares that from here on free capacity only shrinks and no
// reservation is dropped, so that a node closed to a task stays closed to all tasks
// of its closedKey. O(reservations + jobs with guarantees).
func (p *Policy) beginShrinkOnly() {
	p.shrinkOnly = true
	clear(p.closedBelow)
	clear(p.exemptJobs)
	for _, r := range p.preemptReservations {
		p.exemptJobs[r.Job] = true
	}
	for _, r := range p.s.Reservations().Unguaranteed() {
		p.exemptJobs[r.Job] = true
	}
	p.syncJobCache()
	for i := range p.jobCache.jobs {
		if x := &p.jobCache.jobs[i]; x.admitsOwnTasks {
			p.exemptJobs[x.id] = true
		}
	}
}

// nextOpenNode is State.NextNode without the nodes reserved for others. While
// capacity only shrinks, all calls together inspect each node once per closedKey,
// and nodes with a reservation of the task's own job once more.
func (p *Policy) nextOpenNode(g *scheduler.Stage, from scheduler.NodeID) scheduler.NodeID {
	if !p.hasReservations() {
		return p.s.Cluster().NextNode(g, from)
	}
	if !p.shrinkOnly {
		return p.firstOpenNode(g, from)
	}
	if p.s.Cluster().NextNode(g, from) == scheduler.NoNode {
		return scheduler.NoNode // the usual case on a full cluster
	}
	key := closedKey{equivalenceClass: p.demandClass(g), bound: g.Bound(), nonPreemptible: g.Job.IsNonPreemptible()}
	closed := p.closedBelow[key]
	if p.exemptJobs[g.Job.Spec.ID] {
		return p.firstOpenOwn(g, from, closed)
	}
	id := p.firstOpenNode(g, max(from, closed))
	if from <= closed {
		if p.closedBelow[key] = id; id == scheduler.NoNode {
			p.closedBelow[key] = scheduler.NodeID(len(p.s.Nodes()))
		}
	}
	return id
}

// firstOpenOwn is firstOpenNode for a task whose own job has reservations: below
// closed, only nodes with one of these can be open to it.
func (p *Policy) firstOpenOwn(g *scheduler.Stage, from, closed scheduler.NodeID) scheduler.NodeID {
	best := scheduler.NoNode
	for _, r := range g.Job.Reservations() {
		id := r.Node
		if id < from || id >= closed || (best != scheduler.NoNode && id >= best) {
			continue
		}
		if p.s.Cluster().HasCapacity(g, id) && p.isOpenTo(p.s.Node(id), g) {
			best = id
		}
	}
	if best == scheduler.NoNode {
		best = p.firstOpenNode(g, max(from, closed))
	}
	return best
}

func (p *Policy) firstOpenNode(g *scheduler.Stage, from scheduler.NodeID) scheduler.NodeID {
	id := p.s.Cluster().NextNode(g, from)
	for id != scheduler.NoNode && !p.isOpenTo(p.s.Node(id), g) {
		id = p.s.Cluster().NextNode(g, id+1)
	}
	return id
}

// bestOpenNode is State.BestNode without the nodes reserved for others. Those on which
// the stage's next task failed are taken if no other is open.
func (p *Policy) bestOpenNode(g *scheduler.Stage) (scheduler.NodeID, int16) {
	if failed := g.NextFailedOn(); len(failed) > 0 {
		if id, disk := p.bestOpenExcept(g, failed); id != scheduler.NoNode {
			return id, disk
		}
	}
	return p.bestOpenExcept(g, nil)
}

func (p *Policy) bestOpenExcept(g *scheduler.Stage, excluded []scheduler.NodeID) (scheduler.NodeID, int16) {
	id, disk := p.s.Cluster().BestNodeExcept(g, excluded)
	if !p.hasReservations() || id == scheduler.NoNode || p.isOpenTo(p.s.Node(id), g) {
		return id, disk
	}
	best, least := scheduler.NoNode, 0.0
	for id, k := p.nextOpenNode(g, 0), 0; id != scheduler.NoNode && k < bestNodeCandidates; id = p.nextOpenNode(g, id+1) {
		if slices.Contains(excluded, id) {
			continue
		}
		k++
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

// bestNodeCandidates is how many nodes bestOpenNode compares, as State.BestNode
// does.
const bestNodeCandidates = 8

// blockingReservation returns a reservation of another job that keeps a task of the
// stage off a node with free capacity. It returns nil if only the job's own
// reservations do so on some node.
func (p *Policy) blockingReservation(g *scheduler.Stage) *scheduler.Reservation {
	var first *scheduler.Reservation
	for id := p.s.Cluster().NextNode(g, 0); id != scheduler.NoNode; id = p.s.Cluster().NextNode(g, id+1) {
		i := slices.IndexFunc(p.s.Reservations().On(id), func(r *scheduler.Reservation) bool {
			return (r.Kind == scheduler.ReservePreempt || r.Kind.IsGuarantee()) && r.Job != g.Job.Spec.ID && r.End > p.now
		})
		if i < 0 {
			return nil
		}
		if first == nil {
			first = p.s.Reservations().On(id)[i]
		}
	}
	return first
}

// nextPlannedStart returns when the first task of a stage is planned to start after
// now, or Never. The starts of all stages are listed once a cycle.
func (p *Policy) nextPlannedStart(g *scheduler.Stage) scheduler.Time {
	if len(p.plannedStarts) == 0 {
		for _, r := range p.s.Reservations().Guarantees() { // sorted by start
			if id := (scheduler.StageID{Job: r.Job, Stage: r.Stage}); isPlanned(r) && r.Start > p.now {
				if _, known := p.plannedStarts[id]; !known {
					p.plannedStarts[id] = r.Start
				}
			}
		}
	}
	if at, ok := p.plannedStarts[g.ID()]; ok {
		return at
	}
	return scheduler.Never
}
