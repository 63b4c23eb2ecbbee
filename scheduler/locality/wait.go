package locality

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Network describes the speed of reading remote input.
type Network struct {
	// Bandwidth is the measured bandwidth of one reader, in bytes per second.
	// 3DSF computes it as window / round-trip time (eq. 2).
	Bandwidth int64
}

// WaitEstimator estimates when nodes will have capacity. It counts the tasks recorded as waiting
// for a node in the current cycle, which begins with Reset.
type WaitEstimator struct {
	ends        Ends
	waiting     []scheduler.Occupancy // by node: sum of the needs of its recorded waiters
	waitedNodes []scheduler.NodeID
	capacity    scheduler.FreeCapacity // scratch
}

// Reset begins a cycle: no task waits.
func (e *WaitEstimator) Reset(s *scheduler.State) {
	for _, id := range e.waitedNodes {
		e.waiting[id] = scheduler.Occupancy{}
	}
	e.waitedNodes = e.waitedNodes[:0]
	if n := len(s.Nodes()); len(e.waiting) < n {
		e.waiting = make([]scheduler.Occupancy, n)
	}
}

// RecordWaiter records that a task of the stage waits for a node: later tasks get capacity there
// after it.
func (e *WaitEstimator) RecordWaiter(g *scheduler.Stage, node scheduler.NodeID) {
	all := &e.waiting[node]
	if *all == (scheduler.Occupancy{}) {
		e.waitedNodes = append(e.waitedNodes, node)
	}
	all.Resources, all.Disk = all.Resources.Add(g.Spec.Demand), all.Disk+g.Spec.Disk
}

// releaseTime returns the first predicted time before limit at which a task of the stage fits on a node after its
// recorded waiters; Never if there is none or the node is not schedulable. An attempt without a prediction, or past
// it, counts as ending now; the caller limits how long it relies on that. O(attempts that end before the limit).
func (e *WaitEstimator) releaseTime(s *scheduler.State, g *scheduler.Stage, id scheduler.NodeID, now, limit scheduler.Time) scheduler.Time {
	n := s.Node(id)
	if n == nil || !n.Schedulable() || now >= limit {
		return scheduler.Never
	}
	list := e.ends.On(s, id)
	free := &e.capacity
	free.Load(n)
	free.Free = n.Free.Sub(e.waiting[id].Resources)
	all, last := free.Free, 0
	for ; last < len(list) && max(list[last].At, now) < limit; last++ {
		all = all.Add(list[last].Attempt.Occupied.Resources)
	}
	if !g.Spec.Demand.Fits(all) {
		return scheduler.Never
	}
	at := now
	for i := 0; ; i++ {
		if e.fitsAfterWaiters(g, id) {
			return at
		}
		if i == last {
			return scheduler.Never
		}
		a := list[i].Attempt
		at = max(list[i].At, now)
		free.Release(a.Occupied.Resources, a.Occupied.Disk, a.Disk)
	}
}

// fitsAfterWaiters reports whether a task of the stage fits beside the recorded waiters: CPU and
// memory on the node; I/O and space on one disk, and the sum of all their disk space.
func (e *WaitEstimator) fitsAfterWaiters(g *scheduler.Stage, id scheduler.NodeID) bool {
	d, space := g.Spec.Demand, g.Spec.Disk
	if !d.Fits(e.capacity.Free) {
		return false
	}
	if d[scheduler.IO] == 0 && space == 0 {
		return true
	}
	sum := -e.waiting[id].Disk
	for i := range e.capacity.Disks {
		sum += e.capacity.Disks[i].FreeSpace
	}
	return space <= sum && e.capacity.HasRoom(d, space)
}

// WaitDecision is the result of Alg. 4 for one task.
type WaitDecision struct {
	Wait bool
	Node scheduler.NodeID // the node to wait for
	// Release and Transfer are the compared times. Release is Never if no node is released sooner;
	// Transfer is for all of Node's part of the input.
	Release  scheduler.Time
	Transfer time.Duration
}

// WaitOrMove is 3DSF Alg. 4 for a task without capacity at its data. Of the nodes with most of its data, it
// waits for the one released first (ties to the first listed) if that is sooner than the data could be
// transferred; on a tie it moves. It does not wait for a node on which it failed. Alg. 4 applies when the
// demand does not fit: its line 1 is printed the other way round. O(replicas x attempts on a node).
func (e *WaitEstimator) WaitOrMove(s *scheduler.State, g *scheduler.Stage, task int32, net *Network, now scheduler.Time) WaitDecision {
	bytes, nodes, local := g.Input(task)
	most := bytes
	if local != nil {
		most = 0
		for _, b := range local {
			most = max(most, b)
		}
	}
	v := WaitDecision{Node: scheduler.NoNode, Release: scheduler.Never}
	v.Transfer = scheduler.TimeAtRate(most, net.Bandwidth) // eq. 3
	limit, failed := now.Add(v.Transfer), g.FailedOn(task)
	for k, id := range nodes {
		if (local != nil && local[k] < most) || slices.Contains(failed, id) {
			continue
		}
		if at := e.releaseTime(s, g, id, now, min(limit, v.Release)); at < v.Release {
			v.Node, v.Release = id, at
		}
	}
	v.Wait = v.Node != scheduler.NoNode
	return v
}
