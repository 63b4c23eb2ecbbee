package scheduler

import (
	"fmt"
	"slices"
)

// A job may avoid nodes: those on which its tasks alone fail, as the owner of the State found (Events.SetAvoided). Its
// tasks are not placed there while another schedulable node is large enough for them: policies see such a node as one
// that is not schedulable, for this job only. Avoided nodes are no rule of Check: a plan made before may still use one.

// SetAvoided replaces the nodes that a job avoids. O(nodes given), and classes of demands are built again.
func (e Events) SetAvoided(id JobID, nodes []NodeID) error {
	j, err := e.eventJob(id)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(nodes, func(n NodeID) bool { return e.s.Node(n) == nil }); i >= 0 {
		return refuse(ErrUnknown, fmt.Sprintf("job %d", id), "the node %d that it avoids is unknown", nodes[i])
	}
	avoided := slices.Compact(slices.Sorted(slices.Values(nodes)))
	if slices.Equal(avoided, j.avoided) {
		return nil
	}
	e.s.cluster.countAvoiding(j, -1)
	j.avoided = avoided
	e.s.cluster.countAvoiding(j, +1)
	e.s.cluster.fit.dropClasses()
	e.changed(j)
	return nil
}

// Avoided returns the nodes that the job avoids, in order. The slice belongs to State.
func (j *Job) Avoided() []NodeID { return j.avoided }

// Avoider returns the stage's job if it avoids nodes, else 0.
func (g *Stage) Avoider() JobID {
	if len(g.Job.avoided) == 0 {
		return 0
	}
	return g.Job.Spec.ID
}

// Avoidance identifies the nodes that tasks avoid: those of equal demands fit on the same nodes if it is equal too.
type Avoidance struct {
	job    JobID // 0: it avoids none
	begins int32 // how many of the cluster's windows.begins come too early
}

// AvoidanceOf returns which nodes the tasks of a stage avoid now. O(1) while no window is ordered.
func (c *Cluster) AvoidanceOf(g *Stage) Avoidance { return Avoidance{g.Avoider(), c.begunBy(g)} }

// Job returns the job that avoids nodes, 0 if it is none that does.
func (a Avoidance) Job() JobID { return a.job }

// IsZero reports whether no node is avoided.
func (a Avoidance) IsZero() bool { return a == Avoidance{} }

// DemandClass is what a task needs of a node: tasks of one class fit on the same nodes.
type DemandClass struct {
	need      capacityVec
	Avoidance Avoidance
}

// DemandClassOf returns the class of a stage's tasks now. O(1) while no window is ordered.
func (c *Cluster) DemandClassOf(g *Stage) DemandClass { return DemandClass{g.need(), c.AvoidanceOf(g)} }

// Avoids reports whether no task of the stage may be placed on a node because its job avoids it, or
// because it would not end before the node leaves (Window). O(1) if it avoids none.
func (c *Cluster) Avoids(g *Stage, id NodeID) bool {
	if c.AvoidanceOf(g).IsZero() {
		return false
	}
	_, found := slices.BinarySearch(c.classOfStage(g).avoided, id)
	return found
}

// countAvoiding counts a job among those that avoid nodes (sign 1), or no longer (sign -1).
func (c *Cluster) countAvoiding(j *Job, sign int) {
	if len(j.avoided) > 0 {
		c.avoiding += sign
	}
}

// nodeChanged drops the classes of the jobs that avoid nodes: whether another node is large enough,
// or when one leaves, may have changed. O(1) while no node has windows ahead.
func (c *Cluster) nodeChanged(n *Node) {
	c.changeCount++
	if len(n.Spec.Windows) > 0 || len(c.windows.begins) > 0 {
		c.orderWindows()
	}
	if c.avoiding > 0 {
		c.fit.dropClasses()
	}
}

// dropClasses drops all classes, which costs time but changes no answer.
func (f *fitIndex) dropClasses() {
	f.classes, f.byNeed, f.misfits = nil, nil, misfits{}
	f.generation++
}

// avoided returns the nodes that tasks of a class avoid, in order: those that their job avoids, none if no other
// schedulable node is large enough, and those that leave before they would end.
func (c *Cluster) avoided(j *Job, k DemandClass) (list []NodeID) {
	if j != nil && len(j.avoided) > 0 && c.couldRunOn(&k.need, func(n NodeID) bool { return !slices.Contains(j.avoided, n) }) {
		list = j.avoided
	}
	if k.Avoidance.begins == 0 {
		return list
	}
	list, last := slices.Clone(list), c.windows.begins[k.Avoidance.begins-1]
	for _, n := range c.nodes {
		if slices.ContainsFunc(n.Spec.Windows, func(w Window) bool { return w.From <= last && c.windows.isAhead(w) }) {
			list = append(list, n.Spec.ID)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// couldRunOn reports whether some schedulable node for which may is true is large enough for a need. O(nodes x disks).
func (c *Cluster) couldRunOn(need *capacityVec, may func(NodeID) bool) bool {
	return slices.ContainsFunc(c.nodes, func(n *Node) bool { return n.Schedulable() && may(n.Spec.ID) && n.isLargeEnough(need) })
}

// IsLargeEnough reports whether the node could run a task of this demand and disk space if nothing else ran there. O(disks).
func (n *Node) IsLargeEnough(d Resources, space int64) bool {
	need := needOf(d, space)
	return n.isLargeEnough(&need)
}

func (n *Node) isLargeEnough(need *capacityVec) bool {
	if need[0] > n.Spec.Capacity[CPU] || need[1] > n.Spec.Capacity[Memory] {
		return false
	}
	return slices.ContainsFunc(n.Spec.Disks, func(d Disk) bool { return need[2] <= d.IO && need[3] <= d.Space }) ||
		(len(n.Spec.Disks) == 0 && need[2] == 0 && need[3] == 0)
}
