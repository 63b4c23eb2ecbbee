package threedsf

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// openNodes finds the nodes that are open to a task: their free capacity is not reserved for
// others. It caches closed nodes while free capacity only shrinks.
type openNodes struct {
	v            *view
	jobs         *jobCache
	nodes        *reservedNodes
	reservations *preemptReservations
	guarantees   *guaranteeCheck

	guaranteeCount           int                              // guarantee reservations that have not ended
	shrinkOnly               bool                             // free capacity only shrinks: see beginShrinkOnly
	closedBelow              map[closedClass]scheduler.NodeID // no node below it is open to the class
	exemptJobs               map[scheduler.JobID]bool         // jobs that their own reservations do not exclude
	ignoreResumeReservations bool                             // reservations for suspended tasks exclude no task
	ignored                  *scheduler.Reservation           // a reservation that excludes no task; nil for none
}

// canPlaceOn reports whether a task of the stage fits on a node and respects its reservations.
func (o *openNodes) canPlaceOn(g *scheduler.Stage, id scheduler.NodeID) bool {
	return o.v.s.Cluster().HasCapacity(g, id) && o.isOpenTo(o.v.s.Node(id), g)
}

// reservedForOthers returns what preemption reservations on a node take for jobs other than job; 0: for all jobs.
func (o *openNodes) reservedForOthers(n *scheduler.Node, job scheduler.JobID) (d scheduler.Resources, space int64) {
	if o.reservations.total == 0 || n.Unguaranteed() == 0 {
		return d, 0
	}
	for _, r := range o.v.s.Reservations().On(n.Spec.ID) {
		if r.Kind == scheduler.ReservePreempt && r.Job != job && r.End > o.v.now && r != o.ignored && !(o.ignoreResumeReservations && r.Task >= 0) {
			d = d.Add(r.Demand)
			space += r.Disk
		}
	}
	return d, space
}

// leavesGuarantees reports whether a task of a stage may start on a node beside the guarantees there.
func (o *openNodes) leavesGuarantees(n *scheduler.Node, g *scheduler.Stage) bool {
	return o.guaranteeCount == 0 || o.guarantees.honoursGuarantees(n, g, g.Spec.Demand, g.Spec.Disk, -1, nil)
}

// respectsReservations reports whether starting d of a stage (with space on disk), or resuming its attempt a, leaves
// others their reservations on the node: nodes reserved in this pass, guarantees and preemption reservations.
func (o *openNodes) respectsReservations(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16, a *scheduler.Attempt) bool {
	return !o.hasReservations() || (o.fitsBesideReserved(n, g, d, space, disk, a) &&
		(o.guaranteeCount == 0 || o.guarantees.honoursGuarantees(n, g, d, space, disk, a)))
}

// mayResume is respectsReservations for what a suspended attempt needs in addition on its node, which may
// be draining. A preemptible attempt takes nothing of guarantees: they were planned around its memory.
func (o *openNodes) mayResume(n *scheduler.Node, g *scheduler.Stage, a *scheduler.Attempt) bool {
	more, space := a.Demand.Sub(a.Occupied.Resources).Max(scheduler.Resources{}), max(a.DiskSpace-a.Occupied.Disk, 0)
	if n.CanPreempt(g.Job) {
		return !o.hasReservations() || o.fitsBesideReserved(n, g, more, space, a.Disk, a)
	}
	return o.respectsReservations(n, g, more, space, a.Disk, a)
}

// mayReserveToResume is view.mayReserveToResume, but false for an attempt that guarantees below a
// cap keep from resuming, whatever becomes free on its node.
func (o *openNodes) mayReserveToResume(a *scheduler.Attempt, g *scheduler.Stage) bool {
	return o.v.mayReserveToResume(a, g) && (o.guaranteeCount == 0 || o.v.s.Node(a.Node).CanPreempt(g.Job) ||
		o.guarantees.leavesCaps(g, a))
}

// fitsBesideReserved reports whether d of a stage fits beside the reservations for others that are not guarantees.
func (o *openNodes) fitsBesideReserved(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16, a *scheduler.Attempt) bool {
	if o.nodes.stageOn[n.Spec.ID] != nil && !o.nodes.leavesCapacity(n, g, d, space, disk, a) {
		return false
	}
	reserved, reservedSpace := o.reservedForOthers(n, g.Job.Spec.ID)
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
func (o *openNodes) hasReservations() bool {
	return o.reservations.total > 0 || o.guaranteeCount > 0 || len(o.nodes.nodes) > 0
}

// isOpenTo reports whether respectsReservations holds for a task of a stage.
func (o *openNodes) isOpenTo(n *scheduler.Node, g *scheduler.Stage) bool {
	if !o.hasReservations() || o.isUnreserved(n, g.Job) {
		return true
	}
	disk, _ := n.Fits(g.Spec.Demand, g.Spec.Disk)
	return o.respectsReservations(n, g, g.Spec.Demand, g.Spec.Disk, disk, nil)
}

// isUnreserved reports whether nothing reserved on a node could be taken by a task of a job.
func (o *openNodes) isUnreserved(n *scheduler.Node, j *scheduler.Job) bool {
	return o.nodes.stageOn[n.Spec.ID] == nil && (o.guaranteeCount == 0 || (n.CanPreempt(j) && freesMemory(n, n.Free[scheduler.Memory]))) && (o.reservations.total == 0 || n.Unguaranteed() == 0)
}

// closedClass identifies tasks to which the same nodes are open. Reservations exclude a task by its demand, its
// bound, whether it is preemptible, and its tenant's caps; below a cap, guarantees of its own job may exempt it.
type closedClass struct {
	scheduler.DemandClass
	capped         scheduler.TenantID // NoTenant if below no cap
	own            scheduler.StageID  // zero if below no cap, or if its job has no guarantee
	bound          time.Duration
	nonPreemptible bool
}

// beginShrinkOnly declares that from here on free capacity only shrinks and no reservation is dropped, so that
// a node closed to a task stays closed to all tasks of its closedClass. O(reservations + jobs with guarantees).
func (o *openNodes) beginShrinkOnly() {
	o.shrinkOnly = true
	clear(o.closedBelow)
	clear(o.exemptJobs)
	for _, r := range o.reservations.list {
		o.exemptJobs[r.Job] = true
	}
	for _, r := range o.v.s.Reservations().Unguaranteed() {
		o.exemptJobs[r.Job] = true
	}
	o.jobs.sync()
	for i := range o.jobs.jobs {
		if x := &o.jobs.jobs[i]; x.admitsOwnTasks {
			o.exemptJobs[x.job.Spec.ID] = true
		}
	}
}

// nextOpenNode is Cluster.NextNode without the nodes reserved for others. While capacity only shrinks, all calls
// together inspect each node once per closedClass, and nodes with a reservation of the task's own job once more.
func (o *openNodes) nextOpenNode(g *scheduler.Stage, from scheduler.NodeID) scheduler.NodeID {
	if !o.hasReservations() {
		return o.v.s.Cluster().NextNode(g, from)
	}
	if !o.shrinkOnly {
		return o.firstOpenNode(g, from)
	}
	if o.v.s.Cluster().NextNode(g, from) == scheduler.NoNode {
		return scheduler.NoNode // the usual case on a full cluster
	}
	class := closedClass{DemandClass: o.v.s.Cluster().DemandClassOf(g), bound: g.Bound(), nonPreemptible: g.Job.IsNonPreemptible(), capped: scheduler.NoTenant}
	if o.guaranteeCount > 0 && o.v.isBelowCap(g.Job.Spec.Tenant) {
		if class.capped = g.Job.Spec.Tenant; g.Job.Guarantees > 0 {
			class.own = g.ID()
		}
	}
	closed := o.closedBelow[class]
	if o.exemptJobs[g.Job.Spec.ID] {
		return o.firstOpenOwn(g, from, closed)
	}
	id := o.firstOpenNode(g, max(from, closed))
	if from <= closed {
		if o.closedBelow[class] = id; id == scheduler.NoNode {
			o.closedBelow[class] = scheduler.NodeID(len(o.v.s.Nodes()))
		}
	}
	return id
}

// firstOpenOwn is firstOpenNode for a task whose own job has reservations: below closed, only nodes
// with one of those can be open.
func (o *openNodes) firstOpenOwn(g *scheduler.Stage, from, closed scheduler.NodeID) scheduler.NodeID {
	best := scheduler.NoNode
	for _, r := range g.Job.Reservations() {
		id := r.Node
		if id < from || id >= closed || (best != scheduler.NoNode && id >= best) {
			continue
		}
		if o.canPlaceOn(g, id) {
			best = id
		}
	}
	if best == scheduler.NoNode {
		best = o.firstOpenNode(g, max(from, closed))
	}
	return best
}

func (o *openNodes) firstOpenNode(g *scheduler.Stage, from scheduler.NodeID) scheduler.NodeID {
	id := o.v.s.Cluster().NextNode(g, from)
	for id != scheduler.NoNode && !o.isOpenTo(o.v.s.Node(id), g) {
		id = o.v.s.Cluster().NextNode(g, id+1)
	}
	return id
}

// bestOpenNode is Cluster.BestNode without the nodes reserved for others. Nodes on which the
// stage's next task failed are used only if no other is open.
func (o *openNodes) bestOpenNode(g *scheduler.Stage) (scheduler.NodeID, int16) {
	if failed := g.NextFailedOn(); len(failed) > 0 {
		if id, disk := o.bestOpenExcept(g, failed); id != scheduler.NoNode {
			return id, disk
		}
	}
	return o.bestOpenExcept(g, nil)
}

func (o *openNodes) bestOpenExcept(g *scheduler.Stage, excluded []scheduler.NodeID) (scheduler.NodeID, int16) {
	id, disk := o.v.s.Cluster().BestNode(g, excluded)
	if !o.hasReservations() || id == scheduler.NoNode || o.isOpenTo(o.v.s.Node(id), g) {
		return id, disk
	}
	best, least := scheduler.NoNode, 0.0
	for id, k := o.nextOpenNode(g, 0), 0; id != scheduler.NoNode && k < bestNodeCandidates; id = o.nextOpenNode(g, id+1) {
		if slices.Contains(excluded, id) {
			continue
		}
		k++
		n := o.v.s.Node(id)
		shares := n.Free.Shares(n.Spec.Capacity)
		if left := shares[0] + shares[1] + shares[2]; best == scheduler.NoNode || left < least {
			best, least = id, left
		}
	}
	if best == scheduler.NoNode {
		return best, -1
	}
	disk, _ = o.v.s.Node(best).Fits(g.Spec.Demand, g.Spec.Disk)
	return best, disk
}

// bestNodeCandidates is how many nodes bestOpenNode compares, as Cluster.BestNode does.
const bestNodeCandidates = 8
