package scheduler

import (
	"fmt"
	"slices"
)

// A job may avoid nodes on which only its own tasks fail; the owner of the State finds them
// (Events.SetAvoided). While another schedulable node is large enough, policies treat an avoided node as
// not schedulable for this job. Check does not enforce this: a plan made earlier may still use such a node.

// SetAvoided replaces the nodes that a job avoids. O(nodes given); drops the demand classes.
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

// Avoidance identifies the nodes that tasks avoid: tasks of equal demand and equal Avoidance fit on the same nodes.
type Avoidance struct {
	job    JobID // 0: no job's avoided nodes
	begins int32 // how many of the cluster's windows.begins come before a task would end
}

// AvoidanceOf returns which nodes the tasks of a stage avoid now. O(1) while no node has windows.
func (c *Cluster) AvoidanceOf(g *Stage) Avoidance { return Avoidance{g.Avoider(), c.begunBy(g)} }

// Job returns the job whose avoided nodes count, 0 if there is none.
func (a Avoidance) Job() JobID { return a.job }

// IsZero reports whether no node is avoided.
func (a Avoidance) IsZero() bool { return a == Avoidance{} }

// DemandClass is a task's needs: tasks of one class fit on the same nodes.
type DemandClass struct {
	need      capacityVec
	Avoidance Avoidance
}

// DemandClassOf returns the class of a stage's tasks now. O(1) while no node has windows.
func (c *Cluster) DemandClassOf(g *Stage) DemandClass { return DemandClass{g.need(), c.AvoidanceOf(g)} }

// Avoids reports whether no task of the stage may be placed on a node: its job avoids the node, or
// the task would not end before the node leaves (Window). O(1) if the stage avoids no node.
func (c *Cluster) Avoids(g *Stage, id NodeID) bool {
	if c.AvoidanceOf(g).IsZero() {
		return false
	}
	_, found := slices.BinarySearch(c.classOfStage(g).avoided, id)
	return found
}

// countAvoiding adds a job to the number of jobs that avoid nodes (sign 1), or removes it (sign -1).
func (c *Cluster) countAvoiding(j *Job, sign int) {
	if len(j.avoided) > 0 {
		c.avoiding += sign
	}
}

// nodeChanged drops the classes if some job avoids nodes: whether another node is large enough, or
// when a node leaves, may have changed. O(1) while no node has windows.
func (c *Cluster) nodeChanged(n *Node) {
	c.changeCount++
	if len(n.Spec.Windows) > 0 || len(c.windows.begins) > 0 {
		c.orderWindows()
	}
	if c.avoiding > 0 {
		c.fit.dropClasses()
	}
}

// dropClasses drops all classes. They are rebuilt when needed; no answer changes.
func (f *fitIndex) dropClasses() {
	f.classes, f.byNeed, f.misfits = nil, nil, misfits{}
	f.generation++
}

// avoided returns the nodes that tasks of a class avoid, in order: the nodes that their job avoids,
// if another schedulable node is large enough, and the nodes that leave before the tasks would end.
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

// couldRunOn reports whether a schedulable node for which may returns true is large enough for a need. O(nodes x disks).
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
