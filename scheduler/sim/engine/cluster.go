package engine

import (
	"cmp"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// cluster is the constant facts about the nodes during a simulation.
type cluster struct {
	nodeSpeed    []float64 // compute speed of each node
	rackNodes    [][]scheduler.NodeID
	clusterSlots map[eqClass]int64 // tasks of each class that fit into the empty cluster
}

// build adds the nodes to the State and schedules their first failures.
func (c *cluster) build(w *world) error {
	c.clusterSlots = map[eqClass]int64{}
	racks := map[string]int{}
	for i := range w.Nodes {
		spec := w.Nodes[i].NodeSpec
		spec.ID = scheduler.NodeID(i)
		c.nodeSpeed = append(c.nodeSpeed, cmp.Or(max(w.Nodes[i].Speed, 0), 1))
		if err := w.s.Events().AddNode(spec); err != nil {
			return err
		}
		r, ok := racks[spec.Path]
		if !ok {
			r = len(c.rackNodes)
			racks[spec.Path] = r
			c.rackNodes = append(c.rackNodes, nil)
		}
		c.rackNodes[r] = append(c.rackNodes[r], spec.ID)
		if w.Models.MTBF > 0 {
			w.outages.scheduleFailure(w, spec.ID)
		}
	}
	return nil
}

// eqClass is the equivalence class of tasks with equal demands.
type eqClass struct {
	demand scheduler.Resources
	disk   int64
}

// slotsInCluster returns how many tasks with these demands fit into the empty cluster.
func (c *cluster) slotsInCluster(w *world, d scheduler.Resources, disk int64) int64 {
	k := eqClass{d, disk}
	if n, ok := c.clusterSlots[k]; ok {
		return n
	}
	sum := int64(0)
	for i := range w.Nodes {
		sum += slotsOnNode(&w.Nodes[i].NodeSpec, d, disk)
	}
	c.clusterSlots[k] = sum
	return sum
}

func slotsOnNode(n *scheduler.NodeSpec, d scheduler.Resources, disk int64) int64 {
	const many = int64(1) << 40
	fitCount := func(capacity, need int64) int64 {
		if need == 0 {
			return many
		}
		return capacity / need
	}
	least := min(fitCount(n.Capacity[scheduler.CPU], d[scheduler.CPU]), fitCount(n.Capacity[scheduler.Memory], d[scheduler.Memory]))
	if d[scheduler.IO] == 0 && disk == 0 {
		return least
	}
	sum := int64(0)
	for _, x := range n.Disks {
		sum += min(fitCount(x.IO, d[scheduler.IO]), fitCount(x.Space, disk))
	}
	return min(least, sum)
}

// aloneTime returns the job's duration on an empty cluster of nodes of speed 1 with local data (the
// longest chain of stages, each with its tasks in order on all slots) and its work in task-seconds.
func (c *cluster) aloneTime(w *world, j *Job) (alone time.Duration, work float64) {
	end, exact := make([]time.Duration, len(j.Stages)), time.Duration(0)
	for k := range j.Stages {
		g := &j.Stages[k]
		start := time.Duration(0)
		for _, a := range g.After {
			if a >= 0 && int(a) < k {
				start = max(start, end[a])
			}
		}
		task := w.Models.nominalTaskTime(g)
		parallel := max(1, min(int64(max(g.Tasks, 1)), c.slotsInCluster(w, g.Demand, g.Disk)))
		if g.MaxParallel > 0 {
			parallel = min(parallel, int64(g.MaxParallel))
		}
		end[k] = min(longest, start+stageTime(g, task, parallel))
		alone = max(alone, end[k])
		exact += time.Duration(g.Tasks) * task
		work += float64(g.Tasks) * task.Seconds()
	}
	if work < longest.Seconds() { // the sum of durations did not overflow
		work = exact.Seconds()
	}
	return alone, work
}
