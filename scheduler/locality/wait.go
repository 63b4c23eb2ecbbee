package locality

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Network describes how fast input travels to a node that does not hold it.
type Network struct {
	// Bandwidth is the measured bandwidth of one reader, in bytes per second.
	// 3DSF computes it as window / round-trip time (eq. 2).
	Bandwidth int64
}

// transfer returns the time to move so many bytes (3DSF eq. 3), 0 if the bandwidth is
// not known.
func (n *Network) transfer(bytes int64) time.Duration {
	if n.Bandwidth <= 0 {
		return 0
	}
	seconds := float64(bytes) / float64(n.Bandwidth)
	if seconds >= math.MaxInt64/2/float64(time.Second) {
		return math.MaxInt64 / 2
	}
	return time.Duration(seconds * float64(time.Second))
}

// WaitEstimator estimates when nodes will have capacity. The tasks that wait for a node
// are those recorded in the current cycle, which begins with Reset. The predicted ends
// on a node are cached until the node changes.
type WaitEstimator struct {
	state        *scheduler.State
	cachedEnds   []nodeEnds
	waiting      []scheduler.Resources // by node, total demand of the tasks recorded as waiting for it
	waitingSpace []int64
	waitedNodes  []scheduler.NodeID
	diskFree     []scheduler.DiskUse
}

// nodeEnds is the attempts on a node by predicted end, as of a version of the node.
type nodeEnds struct {
	version uint64
	list    []attemptEnd
}

type attemptEnd struct {
	at       scheduler.Time // long past for an attempt without a prediction
	seq      uint64
	occupied scheduler.Resources
	space    int64
	disk     int16
}

// Reset begins a cycle: no task waits.
func (e *WaitEstimator) Reset(s *scheduler.State) {
	for _, id := range e.waitedNodes {
		e.waiting[id], e.waitingSpace[id] = scheduler.Resources{}, 0
	}
	e.waitedNodes = e.waitedNodes[:0]
	if e.state != s {
		e.state = s
		clear(e.cachedEnds)
	}
	if n := len(s.Nodes()); len(e.waiting) < n {
		e.waiting, e.waitingSpace = make([]scheduler.Resources, n), make([]int64, n)
		e.cachedEnds = append(e.cachedEnds, make([]nodeEnds, n-len(e.cachedEnds))...)
	}
}

// RecordWaiter records that a task of the stage waits for a node: later tasks get
// capacity there after it.
func (e *WaitEstimator) RecordWaiter(g *scheduler.Stage, node scheduler.NodeID) {
	if e.waiting[node].IsZero() && e.waitingSpace[node] == 0 {
		e.waitedNodes = append(e.waitedNodes, node)
	}
	e.waiting[node] = e.waiting[node].Add(g.Spec.Demand)
	e.waitingSpace[node] += g.Spec.Disk
}

// PredictedEnd returns the time at which an attempt is predicted to end: when it was
// placed, plus its total run time, less what it had run before (3DSF eq. 8). It returns
// false if neither the attempt nor its stage has a prediction.
func PredictedEnd(s *scheduler.State, a *scheduler.Attempt) (scheduler.Time, bool) {
	estimate := a.Estimate
	if estimate <= 0 {
		estimate = s.StageOf(a).Spec.Estimate
	}
	if estimate <= 0 {
		return 0, false
	}
	return a.Placed.Add(estimate - a.Ran), true
}

// releaseTime returns the first predicted time before limit at which a task of the
// stage fits on a node after the tasks recorded as waiting for it; Never if there is
// none or the node is not schedulable. An attempt without a prediction, or past it,
// counts as ending now; the caller limits how long it relies on that. O(attempts that
// end before the limit), plus O(a log a) for the a attempts on the node after it
// changed.
func (e *WaitEstimator) releaseTime(s *scheduler.State, g *scheduler.Stage, id scheduler.NodeID, now, limit scheduler.Time) scheduler.Time {
	n := s.Node(id)
	if n == nil || !n.Schedulable() {
		return scheduler.Never
	}
	list := e.endsOn(s, id)
	free := n.Free.Sub(e.waiting[id])
	all, last := free, 0
	for ; last < len(list) && max(list[last].at, now) < limit; last++ {
		all = all.Add(list[last].occupied)
	}
	if !g.Spec.Demand.Fits(all) {
		return scheduler.Never
	}
	e.diskFree = append(e.diskFree[:0], n.Disks...)
	at := now
	for i := 0; ; i++ {
		if e.fitsAfterWaiters(g, id, free) {
			return at
		}
		if i == last {
			return scheduler.Never
		}
		end := &list[i]
		at = max(end.at, now)
		free = free.Add(end.occupied)
		if end.disk >= 0 {
			e.diskFree[end.disk].FreeIO += end.occupied[scheduler.IO]
			e.diskFree[end.disk].FreeSpace += end.space
		}
	}
}

// endsOn returns the attempts on a node by predicted end, ties in order of placement.
func (e *WaitEstimator) endsOn(s *scheduler.State, id scheduler.NodeID) []attemptEnd {
	k := &e.cachedEnds[id]
	if v := s.Cluster().NodeVersion(id); k.version != v {
		k.version = v
		k.list = k.list[:0]
		for a := range s.Attempts().On(id) {
			at, ok := PredictedEnd(s, a)
			if !ok {
				at = math.MinInt64
			}
			k.list = append(k.list, attemptEnd{at, a.Seq, a.Occupied.Resources, a.Occupied.Disk, a.Disk})
		}
		slices.SortFunc(k.list, func(a, b attemptEnd) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	}
	return k.list
}

// fitsAfterWaiters reports whether a task of the stage fits beside the recorded
// waiters: CPU and memory on the node; I/O and space on one disk, and the space of all
// of them in sum.
func (e *WaitEstimator) fitsAfterWaiters(g *scheduler.Stage, id scheduler.NodeID, free scheduler.Resources) bool {
	d, space := g.Spec.Demand, g.Spec.Disk
	if !d.Fits(free) {
		return false
	}
	if d[scheduler.IO] == 0 && space == 0 {
		return true
	}
	sum, one := -e.waitingSpace[id], false
	for i := range e.diskFree {
		sum += e.diskFree[i].FreeSpace
		one = one || (d[scheduler.IO] <= e.diskFree[i].FreeIO && space <= e.diskFree[i].FreeSpace)
	}
	return one && space <= sum
}

// WaitDecision is the result of Alg. 4 for one task.
type WaitDecision struct {
	Wait bool
	Node scheduler.NodeID // the node it waits for
	// Release and Transfer are the times that were compared. Release is Never if no
	// node is released sooner; Transfer is for all of the input that Node has.
	Release  scheduler.Time
	Transfer time.Duration
}

// WaitOrMove is 3DSF Alg. 4 for a task without capacity at its data: of the nodes with
// most of its data, it waits for the one released first (ties to the first listed) if
// that is sooner than the data could be transferred; on a tie it moves. It does not wait
// for a node on which it failed. Alg. 4 applies
// when the demand does not fit: its line 1 is printed the other way round. O(replicas x
// attempts on a node).
func (e *WaitEstimator) WaitOrMove(s *scheduler.State, g *scheduler.Stage, task int32, net *Network, now scheduler.Time) WaitDecision {
	bytes, nodes, local := g.Input(task)
	most := bytes
	if local != nil {
		most = 0
		for _, b := range local {
			most = max(most, b)
		}
	}
	v := WaitDecision{Node: scheduler.NoNode, Release: scheduler.Never, Transfer: net.transfer(most)}
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
