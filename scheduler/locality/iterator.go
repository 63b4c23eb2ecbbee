package locality

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// TaskIterator yields waiting tasks of a stage in order and skips tasks without input on
// any node with capacity for them. If only a few nodes have capacity, it goes by the tasks
// whose data these hold (Stage.TasksOn): in a full cluster on which one task ended,
// thousands of tasks wait and hardly any is a candidate. The State must not change during an
// iteration. Reset must be called first.
type TaskIterator struct {
	queue     scheduler.Queue
	stage     *scheduler.Stage
	next      int32 // if not byNode, the next task to consider
	stop      int32 // the first task after the range
	byNode    bool
	tasksOn   [maxIteratedNodes][]int32 // by node, the remaining tasks with data there
	nodeCount int
}

// An iteration goes by node if at most maxIteratedNodes nodes have capacity and more
// than minIteratedTasks tasks wait.
const (
	maxIteratedNodes = 8
	minIteratedTasks = 64
)

// Reset begins an iteration over the first most waiting tasks of the stage at or after
// from. O(log tasks) for each of the few nodes, plus tasks skipped / 64.
func (it *TaskIterator) Reset(s *scheduler.State, g *scheduler.Stage, from, most int32) {
	it.queue, it.stage, it.next, it.nodeCount, it.byNode = s.Queue(), g, from, 0, false
	if it.stop = g.SkipPending(from, most); it.stop < 0 {
		it.stop = math.MaxInt32
	}
	if g.Spec.Inputs == nil || min(g.Pending, most) <= minIteratedTasks {
		return
	}
	var nodes [maxIteratedNodes]scheduler.NodeID
	for id := s.Cluster().NextNode(g, 0); id != scheduler.NoNode; id = s.Cluster().NextNode(g, id+1) {
		if it.nodeCount == maxIteratedNodes {
			return
		}
		nodes[it.nodeCount] = id
		it.nodeCount++
	}
	it.byNode = true
	if first := g.NextPending(from); first > from { // skip the tasks placed earlier once, not on each node
		from = first
	}
	for i, id := range nodes[:it.nodeCount] {
		tasks := g.TasksOn(id)
		at, _ := slices.BinarySearch(tasks, from)
		it.tasksOn[i] = tasks[at:]
	}
}

// Next returns the next task, or -1 after the last.
func (it *TaskIterator) Next() int32 {
	if !it.byNode {
		i := it.queue.NextPendingNear(it.stage, it.next, it.stop)
		if it.next = i + 1; i < 0 {
			it.next = it.stop
		}
		return i
	}
	for {
		least := it.stop
		for i := range it.nodeCount {
			if of := it.tasksOn[i]; len(of) > 0 && of[0] < least {
				least = of[0]
			}
		}
		if least == it.stop {
			return -1
		}
		for i := range it.nodeCount {
			for len(it.tasksOn[i]) > 0 && it.tasksOn[i][0] == least { // more than once if a task lists a node more than once
				it.tasksOn[i] = it.tasksOn[i][1:]
			}
		}
		if it.stage.IsPending(least) {
			return least
		}
	}
}
