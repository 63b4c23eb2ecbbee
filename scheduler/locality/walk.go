package locality

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Walk lists waiting tasks of a stage in order and leaves out, where that is
// cheap, those that have no input on any node with room for them. Where a few
// nodes have room it goes by what lies on these (State.TasksOn): a full cluster
// on which one task ended has thousands that wait and hardly one to consider.
// The State must stay as it is during a walk. The zero value can be begun.
type Walk struct {
	g    *scheduler.Stage
	next int32 // where all are listed, the next one to look at
	stop int32 // the first one that is not listed
	few  bool
	of   [fewNodes][]int32 // what lies on each of the few nodes, from the next task on
	n    int
}

// Where up to fewNodes nodes have room and a stage has more than fewTasks that
// wait, a walk goes by the nodes.
const (
	fewNodes = 8
	fewTasks = 64
)

// Begin starts a walk of the first most of the stage's waiting tasks from one
// on. O(log tasks) for each of the few nodes, and tasks passed / 64.
func (w *Walk) Begin(s *scheduler.State, g *scheduler.Stage, from, most int32) {
	w.g, w.next, w.n, w.few = g, from, 0, false
	if w.stop = g.SkipPending(from, most); w.stop < 0 {
		w.stop = math.MaxInt32
	}
	if g.Spec.Inputs == nil || min(g.Pending, most) <= fewTasks {
		return
	}
	var nodes [fewNodes]scheduler.NodeID
	for id := s.NextNode(g, 0); id != scheduler.NoNode; id = s.NextNode(g, id+1) {
		if w.n == fewNodes {
			return
		}
		nodes[w.n] = id
		w.n++
	}
	w.few = true
	for i, id := range nodes[:w.n] {
		tasks := s.TasksOn(g, id)
		at, _ := slices.BinarySearch(tasks, from)
		w.of[i] = tasks[at:]
	}
}

// Next gives the next task, or -1.
func (w *Walk) Next() int32 {
	if !w.few {
		i := w.g.NextPending(w.next)
		if w.next = i + 1; i >= w.stop {
			return -1
		}
		return i
	}
	for {
		least := w.stop
		for i := range w.n {
			if of := w.of[i]; len(of) > 0 && of[0] < least {
				least = of[0]
			}
		}
		if least == w.stop {
			return -1
		}
		for i := range w.n {
			for len(w.of[i]) > 0 && w.of[i][0] == least { // twice if a node is named twice
				w.of[i] = w.of[i][1:]
			}
		}
		if w.g.IsPending(least) {
			return least
		}
	}
}
